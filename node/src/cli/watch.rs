//! `cairn watch`.
//!
//! What holds here: the position that is told at the end is one up to which every change was printed. Ctrl-C ends the command also
//! while nobody reads what it prints.

use super::ConnectOptions;
use super::bytes_text::{item_json, item_text, key_bytes};
use super::exit::Exit;
use super::output::Output;
use super::signals::termination;
use anyhow::Context;
use cairn_client::{Change, Error, ErrorKind, Position, Range, Watch};
use clap::Args;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io;
use std::pin::{Pin, pin};

#[derive(Args)]
pub(crate) struct WatchArgs {
    /// Only keys that begin with this
    #[arg(default_value = "")]
    prefix: OsString,

    /// What was changed behind this position, as this command tells it at its end. Default: from now on
    #[arg(long, value_name = "POSITION")]
    from: Option<Position>,

    /// Leave the values out
    #[arg(short, long)]
    keys_only: bool,

    /// PREFIX is escaped as `cairn list` prints keys, such as \x00\xff
    #[arg(long)]
    escaped: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// Text: a line per change: the version, `put` or `delete`, the key, and the value if one was put, with tabs between them, key and
/// value escaped. JSON: a document per change.
pub(crate) async fn run(args: WatchArgs, output: &Output) -> anyhow::Result<Exit> {
    let prefix = key_bytes(args.prefix, args.escaped)?;
    let mut options = args.connect.client()?.watch(Range::prefix(prefix));
    if let Some(from) = args.from {
        options = options.from(from);
    }
    if args.keys_only {
        options = options.keys_only();
    }
    let watch = options.begin().await.map_err(with_way_out)?;
    let mut printer = Printer { position: watch.position(), output: *output };
    let mut asked = pin!(termination());
    let ended = printer.print(watch, asked.as_mut()).await;
    let is_gone = |error: &anyhow::Error| {
        error.downcast_ref().is_some_and(|error: &Error| error.kind() == ErrorKind::HistoryGone)
    };
    if !ended.as_ref().is_err_and(is_gone) {
        let position = printer.position.to_string();
        output.note(
            || json!({ "position": position }),
            || format!("everything up to {position} was told; --from {position} goes on behind it"),
        );
    }
    ended
}

/// Prints changes, and notes how far.
struct Printer {
    /// Every change up to it is printed.
    position: Position,
    output: Output,
}

impl Printer {
    /// Until a signal asks for the end, or the watch is over.
    async fn print(
        &mut self,
        mut watch: Watch,
        mut asked: Pin<&mut impl Future<Output = io::Result<&'static str>>>,
    ) -> anyhow::Result<Exit> {
        loop {
            let change = tokio::select! {
                biased;
                signal = asked.as_mut() => {
                    signal?;
                    self.position = watch.position();
                    return Ok(Exit::Done);
                }
                change = watch.next() => change,
            };
            let change = match change {
                Ok(change) => change,
                Err(error) => {
                    self.position = watch.position();
                    return Err(with_way_out(error));
                }
            };
            let output = self.output;
            // It may wait for whoever reads it, and then nobody would hear a signal.
            let printed = tokio::task::spawn_blocking(move || {
                output.either(|| json_of(&change), || text_of(&change))
            });
            tokio::select! {
                biased;
                signal = asked.as_mut() => {
                    signal?;
                    return Ok(Exit::Done);
                }
                printed = printed => printed.context("cannot print")??,
            }
            self.position = watch.position();
        }
    }
}

/// What to do about history that is gone.
fn with_way_out(error: Error) -> anyhow::Error {
    let way_out = match &error {
        Error::Compacted { now, .. } => {
            format!("begin `cairn watch --from {now}`, and list the keys with `cairn list`")
        }
        Error::HistoryDiscarded => {
            "begin `cairn watch` without --from, and list the keys with `cairn list`".to_owned()
        }
        _ => return error.into(),
    };
    anyhow::Error::new(error).context(way_out)
}

fn text_of(change: &Change) -> String {
    let what = if change.deleted { "delete" } else { "put" };
    let item = item_text(&change.key, change.value.as_deref());
    format!("{}\t{what}\t{item}", change.version)
}

fn json_of(change: &Change) -> Value {
    let mut document = item_json(&change.key, change.value.as_deref(), change.version);
    if let Value::Object(members) = &mut document {
        let previous = change.previous.map(|version| version.0);
        members.insert("term".into(), change.term.into());
        members.insert("deleted".into(), change.deleted.into());
        members.insert("previous".into(), previous.into());
        members.insert("last_of_version".into(), change.last_of_version.into());
    }
    document
}
