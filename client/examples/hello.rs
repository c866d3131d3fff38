//! Puts a value, reads it back, lists and deletes it: `cargo run -p cairn-client --example hello --
//! 127.0.0.1:7400`.

use cairn_client::{Client, Error, ListOptions};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut endpoints: Vec<String> = std::env::args().skip(1).collect();
    if endpoints.is_empty() {
        endpoints.push("127.0.0.1:7400".to_owned());
    }
    let client = Client::connect(endpoints).await?;

    let written = client.put("hello", "world").await?;
    println!("put hello, version {}", written.version);

    match client.get("hello").await? {
        Some(item) => println!("got {:?}, version {}", item.value, item.version),
        None => println!("another client deleted it meanwhile"),
    }

    let page = client.list(ListOptions::prefix("hel").limit(10)).await?;
    println!("{} key(s) begin with \"hel\"", page.items.len());

    match client.delete_if_version("hello", written.version).await {
        Ok(_) => println!("deleted hello"),
        Err(Error::ConditionFailed { failed, .. }) => {
            println!("another client wrote it: {failed:?}")
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
