//! `cairn delete`.

use super::ConnectOptions;
use super::bytes_text::key_bytes;
use super::exit::Exit;
use super::output::Output;
use super::put::write_json;
use cairn_client::{Condition, Version};
use clap::Args;
use std::ffi::OsString;

#[derive(Args)]
pub(crate) struct DeleteArgs {
    /// The key; deleting one that does not exist succeeds, unless a condition says otherwise
    key: OsString,

    /// KEY is escaped as `cairn list` prints it, such as \x00\xff
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
    let key = key_bytes(args.key, args.escaped)?;
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
