//! `cairn put`.

use super::ConnectOptions;
use super::bytes_text::{key_bytes, value_bytes};
use super::exit::Exit;
use super::output::Output;
use cairn_client::{Condition, Version, WriteInfo};
use clap::Args;
use serde_json::{Value, json};
use std::ffi::OsString;

#[derive(Args)]
pub(crate) struct PutArgs {
    /// The key
    key: OsString,

    /// The value: itself, `-` for standard input, or `@FILE` for a file
    #[arg(allow_hyphen_values = true)]
    value: OsString,

    /// Take VALUE as it is, even if it is `-` or begins with `@`
    #[arg(long)]
    literal: bool,

    /// KEY is escaped as `cairn list` prints it, such as \x00\xff
    #[arg(long)]
    escaped: bool,

    /// Return when the value is synced on a majority, whatever the cluster's mode
    #[arg(long)]
    synced: bool,

    #[command(flatten)]
    condition: ConditionArgs,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// The condition on the key. If it does not hold, nothing changes and the exit code is 4.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
pub(crate) struct ConditionArgs {
    /// Only if the key does not exist
    #[arg(long)]
    if_absent: bool,

    /// Only if the key exists
    #[arg(long)]
    if_exists: bool,

    /// Only if the key has exactly this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

impl ConditionArgs {
    pub(crate) fn condition(self) -> Condition {
        match self.if_version {
            Some(version) => Condition::Version(Version(version)),
            None if self.if_absent => Condition::Absent,
            None if self.if_exists => Condition::Exists,
            None => Condition::None,
        }
    }
}

pub(crate) async fn run(args: PutArgs, output: &Output) -> anyhow::Result<Exit> {
    let key = key_bytes(args.key, args.escaped)?;
    let value = value_bytes(args.value, args.literal)?;
    let client = args.connect.client()?;
    let client = if args.synced { client.synced() } else { client };
    let info = client.put_if(key, value, args.condition.condition()).await?;
    output.either(|| write_json(&info), || format!("version {}", info.version))?;
    Ok(Exit::Done)
}

/// A write as JSON.
pub(crate) fn write_json(info: &WriteInfo) -> Value {
    json!({
        "version": info.version.0,
        "term": info.term,
        "previous_version": info.previous.map(|version| version.0),
    })
}
