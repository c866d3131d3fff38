//! `cairn get`.

use super::ConnectOptions;
use super::bytes_text::{escape, item_json, item_text, key_bytes};
use super::connect::time;
use super::exit::{Exit, UsageError};
use super::output::Output;
use cairn_client::{Client, KeyValue, ReadOptions};
use clap::Args;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct GetArgs {
    /// The key. Its value is printed unchanged; on a terminal a line end follows it. Of several keys, read at
    /// one log index, each that exists is printed as `cairn list` prints it
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,

    /// KEY is escaped as `cairn list` prints it, such as \x00\xff
    #[arg(long)]
    escaped: bool,

    /// Ask any node for what it has, which may be out of date; one key
    #[arg(long, conflicts_with = "max_stale")]
    stale: bool,

    /// Ask any node for what was acknowledged longer ago than this, and perhaps for later writes too
    #[arg(long, value_name = "TIME", value_parser = time)]
    max_stale: Option<Duration>,

    /// Print the version, not the value
    #[arg(long)]
    version_only: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: GetArgs, output: &Output) -> anyhow::Result<Exit> {
    let keys = args.keys.into_iter().map(|key| key_bytes(key, args.escaped));
    let keys: Vec<Vec<u8>> = keys.collect::<Result<_, _>>()?;
    let client = args.connect.client()?.with_max_staleness(args.max_stale.unwrap_or_default());
    match keys.as_slice() {
        [key] => one(&client, key.clone(), (args.stale, args.version_only), output).await,
        _ if args.stale => {
            let why = "--stale reads one key; several may be as old as --max-stale says";
            Err(UsageError(why.into()).into())
        }
        _ => several(&client, keys, args.version_only, output).await,
    }
}

async fn one(
    client: &Client,
    key: Vec<u8>,
    (stale, version_only): (bool, bool),
    output: &Output,
) -> anyhow::Result<Exit> {
    let mut options = if stale { ReadOptions::stale() } else { ReadOptions::default() };
    if version_only {
        options = options.version_only();
    }
    let Some(item) = client.get_with(key.clone(), options).await? else {
        return Ok(missing(&[key], output));
    };
    if output.is_json() {
        let value = (!version_only).then_some(&item.value[..]);
        output.json(&item_json(&key, value, item.version))?;
    } else if version_only {
        output.line(&item.version.to_string())?;
    } else {
        output.raw(&item.value)?;
    }
    Ok(Exit::Done)
}

/// Text: a line for each key that exists. JSON: one document with an item for each key, whose version is `null`
/// if it does not exist, and the log index at which all were read.
async fn several(
    client: &Client,
    keys: Vec<Vec<u8>>,
    version_only: bool,
    output: &Output,
) -> anyhow::Result<Exit> {
    let many = match version_only {
        true => client.versions(keys.clone()).await?,
        false => client.get_many(keys.clone()).await?,
    };
    let found = || keys.iter().zip(&many.items);
    if output.is_json() {
        let item = |(key, item): (&Vec<u8>, &Option<KeyValue>)| {
            let value = item.as_ref().filter(|_| !version_only).map(|item| &item.value[..]);
            item_json(key, value, item.as_ref().map(|item| item.version))
        };
        let items: Vec<Value> = found().map(item).collect();
        let (term, index) = (many.position.term, many.position.index);
        output.json(&json!({ "items": items, "term": term, "index": index }))?;
    } else {
        for item in many.items.iter().flatten() {
            let line = match version_only {
                true => format!("{}\t{}", item_text(&item.key, None), item.version),
                false => item_text(&item.key, Some(&item.value)),
            };
            output.line(&line)?;
        }
    }
    let absent = found().filter(|(_, item)| item.is_none());
    let absent: Vec<Vec<u8>> = absent.map(|(key, _)| key.clone()).collect();
    if absent.is_empty() { Ok(Exit::Done) } else { Ok(missing(&absent, output)) }
}

fn missing(keys: &[Vec<u8>], output: &Output) -> Exit {
    let names: Vec<String> = keys.iter().map(|key| format!("`{}`", escape(key))).collect();
    let message = match names.as_slice() {
        [name] => format!("key {name} does not exist"),
        names => format!("keys {} do not exist", names.join(", ")),
    };
    output.error(&message, Exit::NotFound as u8);
    Exit::NotFound
}
