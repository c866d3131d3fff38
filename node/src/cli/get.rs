//! `cairn get`.

use super::ConnectOptions;
use super::bytes_text::{escape, item_json, key_bytes};
use super::exit::Exit;
use super::output::Output;
use cairn_client::ReadOptions;
use clap::Args;
use std::ffi::OsString;

#[derive(Args)]
pub(crate) struct GetArgs {
    /// The key. Its value is printed unchanged; on a terminal a line end follows it
    key: OsString,

    /// KEY is escaped as `cairn list` prints it, such as \x00\xff
    #[arg(long)]
    escaped: bool,

    /// Ask any node for what it has, which may be out of date
    #[arg(long)]
    stale: bool,

    /// Print the version, not the value
    #[arg(long)]
    version_only: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: GetArgs, output: &Output) -> anyhow::Result<Exit> {
    let key = key_bytes(args.key, args.escaped)?;
    let mut options = if args.stale { ReadOptions::stale() } else { ReadOptions::default() };
    if args.version_only {
        options = options.version_only();
    }
    let Some(item) = args.connect.client()?.get_with(key.clone(), options).await? else {
        output.error(&format!("key `{}` does not exist", escape(&key)), Exit::NotFound as u8);
        return Ok(Exit::NotFound);
    };
    if output.is_json() {
        let value = (!args.version_only).then_some(&item.value[..]);
        output.json(&item_json(&key, value, item.version))?;
    } else if args.version_only {
        output.line(&item.version.to_string())?;
    } else {
        output.raw(&item.value)?;
    }
    Ok(Exit::Done)
}
