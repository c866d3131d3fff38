//! Tells what is changed below a prefix, and goes on from a position of an earlier run: `cargo run -p cairn-client --example watch --
//! orders/ 3.17`. The cluster is at `127.0.0.1:7400`.

use cairn_client::{Client, Error, Position, Range};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let prefix = arguments.next().unwrap_or_default();
    let from = arguments.next().map(|text| text.parse::<Position>()).transpose()?;

    let client = Client::connect(["127.0.0.1:7400"]).await?;
    let mut options = client.watch(Range::prefix(prefix));
    if let Some(from) = from {
        options = options.from(from);
    }
    let mut watch = match options.begin().await {
        Ok(watch) => watch,
        Err(Error::Compacted { now, .. }) => {
            // Some changes are gone. A list that is made behind `now` has what they led to.
            println!("go on from {now}, and list the keys");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    loop {
        let change = watch.next().await?;
        match change.value {
            Some(value) => println!("{:?} is {value:?} at version {}", change.key, change.version),
            None => println!("{:?} is gone at version {}", change.key, change.version),
        }
        // A consumer keeps this together with what it made of the changes.
        println!("everything up to {} was told", watch.position());
    }
}
