//! `cairn delete`: one key, or all that begin with a prefix.

use super::ConnectOptions;
use super::bytes_text::{escape, key_bytes};
use super::confirm::confirm;
use super::exit::{Exit, UsageError};
use super::output::Output;
use super::put::write_json;
use cairn_client::{Client, Condition, ListOptions, Range, Version};
use clap::Args;
use futures::TryStreamExt;
use serde_json::json;
use std::ffi::OsString;

#[derive(Args)]
pub(crate) struct DeleteArgs {
    /// The key; deleting one that does not exist succeeds, unless a condition says otherwise
    #[arg(required_unless_present = "prefix")]
    key: Option<OsString>,

    /// All keys that begin with this, in steps of 4096; says how many there are, and asks first
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["key", "if_exists", "if_version"])]
    prefix: Option<OsString>,

    /// Do not ask; not with an empty PREFIX, which stands for every key
    #[arg(long, requires = "prefix", conflicts_with = "key")]
    yes: bool,

    /// KEY or PREFIX is escaped as `cairn list` prints it, such as \x00\xff
    #[arg(long)]
    escaped: bool,

    /// Only if the key exists
    #[arg(long, conflicts_with = "if_version")]
    if_exists: bool,

    /// Only if the key has exactly this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: DeleteArgs, output: &Output) -> anyhow::Result<Exit> {
    if let Some(prefix) = args.prefix {
        let prefix = key_bytes(prefix, args.escaped)?;
        // As a script writes it whose variable is not set.
        if prefix.is_empty() && args.yes {
            let why = "an empty PREFIX stands for every key of the cluster: leave out --yes, and answer in a terminal";
            return Err(UsageError(why.into()).into());
        }
        return delete_prefix(args.connect.client()?, prefix, args.yes, output).await;
    }
    let key = key_bytes(args.key.unwrap_or_default(), args.escaped)?;
    let condition = match args.if_version {
        Some(version) => Condition::Version(Version(version)),
        None if args.if_exists => Condition::Exists,
        None => Condition::None,
    };
    let info = args.connect.client()?.delete_if(key, condition).await?;
    let text = || match info.previous {
        Some(version) => format!("deleted version {version}"),
        None => "the key did not exist".to_string(),
    };
    output.either(|| write_json(&info), text)?;
    Ok(Exit::Done)
}

async fn delete_prefix(
    client: Client,
    prefix: Vec<u8>,
    yes: bool,
    output: &Output,
) -> anyhow::Result<Exit> {
    if !yes {
        let found = count(&client, &prefix).await?;
        // Nobody was asked about keys that others put since.
        if found == 0 {
            return told(0, output);
        }
        let way_out = match &prefix[..] {
            [] => "run it in a terminal, or delete prefix by prefix",
            _ => "add --yes",
        };
        if !confirm(&question(found, &prefix), way_out)? {
            anyhow::bail!("nothing was deleted");
        }
    }
    told(client.delete_range(Range::prefix(prefix)).await?, output)
}

/// Says how many keys were deleted.
fn told(deleted: u64, output: &Output) -> anyhow::Result<Exit> {
    output.either(|| json!({ "deleted": deleted }), || format!("{} deleted", keys(deleted)))?;
    Ok(Exit::Done)
}

/// How many keys begin with the prefix, page by page.
async fn count(client: &Client, prefix: &[u8]) -> Result<u64, cairn_client::Error> {
    let found = client.list_all(ListOptions::prefix(prefix.to_vec()).keys_only());
    found.try_fold(0, |count, _| std::future::ready(Ok(count + 1))).await
}

fn question(found: u64, prefix: &[u8]) -> String {
    match prefix {
        [] => format!("Delete all keys of the cluster, {} now?", keys(found)),
        prefix => {
            format!("Delete all keys that begin with `{}`, {} now?", escape(prefix), keys(found))
        }
    }
}

fn keys(count: u64) -> String {
    match count {
        1 => "1 key".into(),
        count => format!("{count} keys"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_names_the_prefix_and_how_many_keys_it_has() {
        assert_eq!(question(1, b"a\x01"), "Delete all keys that begin with `a\\x01`, 1 key now?");
        assert_eq!(question(70_000, b""), "Delete all keys of the cluster, 70000 keys now?");
    }
}
