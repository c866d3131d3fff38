//! `cairn export`: keys and values as lines of JSON.
//!
//! What holds here: without `--by-pages` the lines are the state of the cluster at one log index, and each
//! value has the hash that the cluster stores of it. A file appears under its name once all of it is written
//! and synced, and none is replaced without being told to.

use super::ConnectOptions;
use super::bar;
use super::bytes_text::key_bytes;
use super::exit::{Exit, UsageError, in_full};
use super::json_lines::{End, end_line, item_line};
use super::output::{Output, tell};
use super::senders::{NODE_TIMEOUT, may_ask_another, note_not_sent, senders};
use super::signals::termination;
use super::state::{Reading, held_before};
use anyhow::Context;
use cairn_client::{Client, ListOptions, Version};
use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The file to write, readable by its owner alone; `-` for standard output
    #[arg(default_value = "-")]
    file: PathBuf,

    /// Only keys that begin with this
    #[arg(long, default_value = "")]
    prefix: OsString,

    /// The prefix is escaped as `cairn list` prints keys, such as \x00\xff
    #[arg(long)]
    escaped: bool,

    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,

    /// Read page by page, which needs the role `read` of these keys alone. Each page is of a moment of its
    /// own; without this, all of it is the state at one log index, which needs `operator` and `read` of all
    /// keys
    #[arg(long)]
    by_pages: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: ExportArgs, output: &Output) -> anyhow::Result<Exit> {
    let prefix = key_bytes(args.prefix, args.escaped)?;
    let mut sink = Sink::open(&args.file, args.force)?;
    let to_file = sink.is_file();
    let exporting = async {
        let end = match args.by_pages {
            true => by_pages(&args.connect.client()?, &prefix, &mut sink).await?,
            false => {
                let client = args.connect.client_within(NODE_TIMEOUT)?;
                by_state(&client, &prefix, &mut sink, output).await?
            }
        };
        sink.finish(end)?;
        Ok::<_, anyhow::Error>(end)
    };
    // A write to a pipe may wait for long, and then nobody would hear a signal.
    let end = match to_file {
        false => exporting.await?,
        true => tokio::select! {
            biased;
            signal = termination() => anyhow::bail!("{} received: no file was written", signal?),
            end = exporting => end?,
        },
    };
    let of = match end.index {
        Some(index) => format!("the state at index {index}"),
        None => "each page of a moment of its own".to_owned(),
    };
    if to_file {
        let file = args.file.display().to_string();
        output.either(
            || json!({ "file": file, "keys": end.keys, "index": end.index }),
            || format!("exported {} keys to {file}: {of}", end.keys),
        )?;
    } else if !output.is_json() {
        tell(&format!("exported {} keys: {of}", end.keys));
    }
    Ok(Exit::Done)
}

/// A file that is not there yet, or standard output.
enum Sink {
    Out { out: BufWriter<io::Stdout>, began: bool },
    File { path: PathBuf, force: bool, beside: BufWriter<NamedTempFile> },
}

impl Sink {
    fn open(path: &Path, force: bool) -> anyhow::Result<Sink> {
        if path == Path::new("-") {
            return Ok(Sink::Out { out: BufWriter::new(io::stdout()), began: false });
        }
        let shown = path.display();
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => {
                let why = format!("{shown} is no regular file: name another one, or use `-`");
                return Err(UsageError(why).into());
            }
            Ok(_) if !force => {
                return Err(UsageError(format!("{shown} exists; --force replaces it")).into());
            }
            _ => {}
        }
        Ok(Sink::File { path: path.to_owned(), force, beside: beside(path)? })
    }

    fn is_file(&self) -> bool {
        matches!(self, Sink::File { .. })
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        match self {
            Sink::Out { out, began } => {
                *began = true;
                Ok(out.write_all(line.as_bytes())?)
            }
            Sink::File { path, beside, .. } => {
                beside.write_all(line.as_bytes()).map_err(|error| not_written(path, error))
            }
        }
    }

    /// Begins anew. Returns whether it can.
    fn restart(&mut self) -> anyhow::Result<bool> {
        match self {
            Sink::Out { began, .. } => Ok(!*began),
            Sink::File { path, beside: old, .. } => {
                *old = beside(path)?;
                Ok(true)
            }
        }
    }

    fn finish(mut self, end: End) -> anyhow::Result<()> {
        self.line(&end_line(end))?;
        match self {
            Sink::Out { mut out, .. } => Ok(out.flush()?),
            Sink::File { path, force, beside } => {
                let failed = |error| not_written(&path, error);
                let file = beside.into_inner().map_err(|error| failed(error.into_error()))?;
                file.as_file().sync_all().map_err(failed)?;
                let kept = match force {
                    true => file.persist(&path),
                    false => file.persist_noclobber(&path),
                };
                kept.map_err(|error| failed(error.error))?;
                File::open(folder_of(&path)).and_then(|folder| folder.sync_all()).map_err(failed)
            }
        }
    }
}

fn not_written(path: &Path, error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("cannot write {}", path.display()))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file beside this one. It has every value, so it is its owner's alone.
fn beside(path: &Path) -> anyhow::Result<BufWriter<NamedTempFile>> {
    let folder = folder_of(path);
    let file = tempfile::Builder::new().prefix(".cairn-export-").tempfile_in(folder);
    let file = file.map_err(|error| {
        UsageError(format!("cannot write a file in {}: {error}", folder.display()))
    })?;
    Ok(BufWriter::new(file))
}

/// The state at one log index, of the first member that sends all of it.
async fn by_state(
    client: &Client,
    prefix: &[u8],
    sink: &mut Sink,
    output: &Output,
) -> anyhow::Result<End> {
    let mut members = senders(client).await?.into_iter();
    let mut next = members.next();
    loop {
        let (endpoint, _) = next.take().context("no node to ask")?;
        let error = match state_of(client, &endpoint, prefix, sink).await {
            Ok(end) => return Ok(end),
            Err(error) => error,
        };
        if error.downcast_ref::<cairn_client::Error>().is_some_and(|error| error.is_denied()) {
            let way_out =
                "without these roles use --by-pages, which needs `read` of the keys alone";
            return Err(error.context(way_out));
        }
        next = members.next();
        match &next {
            Some((other, _))
                if error.downcast_ref().is_some_and(may_ask_another) && sink.restart()? =>
            {
                note_not_sent(output, &endpoint, &in_full(&error), other);
            }
            _ => return Err(error),
        }
    }
}

async fn state_of(
    client: &Client,
    endpoint: &str,
    prefix: &[u8],
    sink: &mut Sink,
) -> anyhow::Result<End> {
    let state = client.operator().state(endpoint, held_before(prefix).as_slice()).await?;
    let shown = bar::of_keys(state.head().keys, "exporting");
    let mut end = End { keys: 0, index: Some(state.head().index) };
    let mut reading = Reading::new(endpoint, state, prefix);
    while let Some(items) = reading.next().await? {
        shown.set_position(reading.received());
        for item in items {
            let (key, version) = (item.key.clone(), Version(item.index));
            sink.line(&item_line(&key, &reading.value(item)?, version))?;
            end.keys += 1;
        }
    }
    shown.finish_and_clear();
    Ok(end)
}

async fn by_pages(client: &Client, prefix: &[u8], sink: &mut Sink) -> anyhow::Result<End> {
    let mut pages = client.pages(ListOptions::prefix(prefix.to_vec()));
    let mut end = End { keys: 0, index: None };
    while let Some(page) = pages.next().await? {
        for item in page.items {
            sink.line(&item_line(&item.key, &item.value, item.version))?;
            end.keys += 1;
        }
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_at_the_end_and_replaces_none_unless_it_may() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("all");
        let files = || std::fs::read_dir(folder.path()).expect("a folder").count();
        let end = End { keys: 1, index: Some(2) };
        let mut sink = Sink::open(&path, false).expect("a file");
        sink.line("broken off\n").expect("written");
        assert!(sink.restart().expect("a file") && !path.exists());
        sink.line("a line\n").expect("written");
        assert!(!path.exists());
        sink.finish(end).expect("written");
        let all = format!("a line\n{}", end_line(end));
        assert_eq!(std::fs::read_to_string(&path).expect("there"), all);
        assert_eq!(files(), 1, "nothing else is left");

        let error = Sink::open(&path, false).err().expect("it is there").to_string();
        assert!(error.contains("--force"), "{error}");
        let mut sink = Sink::open(&path, true).expect("it may");
        sink.line("another line\n").expect("written");
        drop(sink);
        assert_eq!(std::fs::read_to_string(&path).expect("there"), all, "it was broken off");
        let sink = Sink::open(&path, true).expect("it may");
        sink.finish(end).expect("written");
        assert_eq!((std::fs::read_to_string(&path).expect("there"), files()), (end_line(end), 1));
        let error = Sink::open(folder.path(), true).err().expect("a folder").to_string();
        assert!(error.contains("no regular file"), "{error}");
    }

    /// The story: two exports to one file, of which the second began before the first one ended.
    #[test]
    fn a_file_that_appeared_meanwhile_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("all");
        let sink = Sink::open(&path, false).expect("a file");
        std::fs::write(&path, "another one's").expect("a file");
        let error = sink.finish(End { keys: 0, index: None }).expect_err("it is there");
        assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "another one's");
    }
}
