//! `cairn import`: keys and values of a file into a cluster.
//!
//! What holds here: nothing is written before all of the input is read and checked, and, unless it was said
//! what happens to keys that exist, compared with the cluster. An import that ends early may be run again.
//! An input is read up to three times: one that changes in between is an error, never half an import.

mod apply;
mod check;
mod etcd;
mod input;

use super::ConnectOptions;
use super::bar;
use super::bulk_write::{Cluster, Existing};
use super::bytes_text::{escape, key_bytes};
use super::exit::{Exit, StateError};
use super::output::Output;
use apply::{Counts, Job, Step};
use check::Checked;
use clap::Args;
use input::Input;
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;

/// So many keys with a lease are named.
const LEASED_NAMED: usize = 5;

#[derive(Args)]
pub(crate) struct ImportArgs {
    /// Lines of JSON, as `cairn export` writes them; `-` for standard input, which is copied to a temporary
    /// file first
    #[arg(required_unless_present = "etcd_snapshot", conflicts_with = "etcd_snapshot")]
    file: Option<PathBuf>,

    /// Import the newest value of each key from a file that `etcdctl snapshot save` wrote
    #[arg(long, value_name = "FILE")]
    etcd_snapshot: Option<PathBuf>,

    /// Put this before each key
    #[arg(long, value_name = "PREFIX", default_value = "")]
    prefix_add: OsString,

    /// The prefix is escaped as `cairn list` prints keys, such as \x00\xff
    #[arg(long)]
    escaped: bool,

    #[command(flatten)]
    existing: ExistingArgs,

    /// Take lines that do not end as an export does: of a file that was cut, or that is no whole export
    #[arg(long, conflicts_with = "etcd_snapshot")]
    partial: bool,

    /// Check all of the input, compare it with the cluster, and write nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// What happens to keys that exist with another value.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
struct ExistingArgs {
    /// Leave keys that exist with another value as they are. Without this and --overwrite nothing is
    /// written if there is one, and the exit code is 4
    #[arg(long)]
    if_absent: bool,

    /// Replace the value of a key that exists with another one
    #[arg(long)]
    overwrite: bool,
}

impl ExistingArgs {
    fn existing(self) -> Existing {
        match self {
            ExistingArgs { overwrite: true, .. } => Existing::Replace,
            ExistingArgs { if_absent: true, .. } => Existing::Keep,
            _ => Existing::Refuse,
        }
    }
}

pub(crate) async fn run(args: ImportArgs, output: &Output) -> anyhow::Result<Exit> {
    let prefix = key_bytes(args.prefix_add, args.escaped)?;
    let mut input = match (&args.etcd_snapshot, &args.file) {
        (Some(path), _) => Input::etcd(path, prefix)?,
        (None, Some(path)) => Input::lines(path, prefix)?,
        (None, None) => anyhow::bail!("no file to import"),
    };
    let client = args.connect.client()?;
    let limits = client.limits().await?;
    let checked = check::check(&mut input, limits.into(), args.partial)?;
    let leased = warn(&mut input, checked, output)?;
    let existing = args.existing.existing();
    let job = Job(Cluster::new(client, limits.into(), existing));
    let mut counts = Counts::default();
    if args.dry_run || existing == Existing::Refuse {
        counts = compared(&job, &mut input, checked).await?;
    }
    if !args.dry_run {
        counts = written(&job, &mut input, checked).await?;
    }
    let name = &input.name;
    output.either(
        || {
            json!({ "input": name, "dry_run": args.dry_run, "keys": checked.keys, "written": counts.written,
                    "overwritten": counts.overwritten, "same": counts.same, "kept": counts.kept,
                    "without_lease": leased, "cut_line": checked.cut })
        },
        || text(name, checked, &counts, args.dry_run),
    )?;
    Ok(Exit::Done)
}

/// Says what of the input is not imported, and returns how many keys lose a lease.
fn warn(input: &mut Input, checked: Checked, output: &Output) -> anyhow::Result<u64> {
    if let Some(line) = checked.cut {
        let name = &input.name;
        output.warning(&format!("{name}: the last line, number {line}, is cut, and is left out"));
    }
    let (leased, named) = input.leased(LEASED_NAMED)?;
    if leased > 0 {
        let named = named.iter().map(|key| format!("`{}`", escape(key))).collect::<Vec<_>>();
        let more = if leased > named.len() as u64 { " and others" } else { "" };
        output.warning(&format!(
            "{leased} keys have a lease in etcd ({}{more}): they are imported without it, and never expire",
            named.join(", ")
        ));
    }
    Ok(leased)
}

/// Compares the input with the cluster.
///
/// # Errors
/// A [`StateError`] if keys exist that may not; if the input is not the one that was checked.
async fn compared(job: &Job, input: &mut Input, checked: Checked) -> anyhow::Result<Counts> {
    let shown = bar::of_keys(checked.keys, "comparing");
    let (counts, result) = job.run(Step::Compare, input, &|keys| shown.inc(keys)).await;
    shown.finish_and_clear();
    result?;
    unchanged(input, checked, &counts)?;
    if counts.refused > 0 {
        let more = if counts.refused > counts.named.len() as u64 { ", …" } else { "" };
        return Err(StateError(format!(
            "{} of {} keys exist with another value (`{}`{more}), and nothing was written; --if-absent leaves them as they are, \
             --overwrite replaces their values, --prefix-add puts all keys elsewhere",
            counts.refused,
            checked.keys,
            counts.named.join("`, `")
        ))
        .into());
    }
    Ok(counts)
}

/// Writes the input.
///
/// # Errors
/// As the servers say; if the input is not the one that was checked.
async fn written(job: &Job, input: &mut Input, checked: Checked) -> anyhow::Result<Counts> {
    let shown = bar::of_keys(checked.keys, "importing");
    let (counts, result) = job.run(Step::Write, input, &|keys| shown.inc(keys)).await;
    shown.finish_and_clear();
    result.map_err(|error| {
        let written = counts.written + counts.overwritten;
        error.context(format!(
            "{written} of {} keys are written, and perhaps some more; run it again to go on",
            checked.keys
        ))
    })?;
    unchanged(input, checked, &counts)?;
    Ok(counts)
}

/// Compares what was read of the input with what was checked.
fn unchanged(input: &Input, checked: Checked, counts: &Counts) -> anyhow::Result<()> {
    let (name, had, keys) = (&input.name, checked.keys, counts.keys());
    anyhow::ensure!(
        keys == had,
        "{name} changed meanwhile: it had {had} keys, and now {keys}; run it again once nothing writes to it"
    );
    Ok(())
}

fn text(name: &str, checked: Checked, counts: &Counts, dry_run: bool) -> String {
    let Counts { written, overwritten, same, kept, .. } = counts;
    let did = if dry_run { "would import" } else { "imported" };
    let mut parts = vec![format!("{written} new")];
    for (count, what) in [
        (overwritten, "with another value before"),
        (same, "were there with the same value"),
        (kept, "exist with another value and stay"),
    ] {
        if *count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    format!("{did} {name}: {} keys: {}", checked.keys, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bulk_write::Most;

    #[test]
    fn the_result_says_what_became_of_the_keys() {
        let checked = Checked { keys: 10, cut: None };
        let counts = Counts { written: 10, ..Counts::default() };
        assert_eq!(text("all", checked, &counts, false), "imported all: 10 keys: 10 new");
        let counts = Counts { written: 1, overwritten: 2, same: 3, kept: 4, ..Counts::default() };
        assert_eq!(
            text("all", checked, &counts, true),
            "would import all: 10 keys: 1 new, 2 with another value before, 3 were there with the same value, \
             4 exist with another value and stay"
        );
    }

    fn job(existing: Existing) -> Job {
        // Nothing listens there, and nothing asks it: what is left of the input has no key.
        let client = cairn_client::Options::new(["127.0.0.1:1"]).build().expect("an endpoint");
        Job(Cluster::new(client, Most { operations: 3, bytes: 16 }, existing))
    }

    /// The story: the file was written again between its check and the import, and was shorter for a moment.
    /// The import ended there, and said that it was done.
    #[tokio::test]
    async fn an_input_that_is_shorter_than_it_was_is_no_import() {
        let checked = Checked { keys: 3, cut: None };
        for left in ["", "{\"key\":\"a\",\"va", "{\"end\":{\"keys\":3}}\n"] {
            for existing in [Existing::Refuse, Existing::Keep, Existing::Replace] {
                let (job, mut input) = (job(existing), Input::of_text(left));
                let says = "lines changed meanwhile: it had 3 keys, and now 0; ";
                let error = compared(&job, &mut input, checked).await.expect_err("it is shorter");
                assert!(error.to_string().starts_with(says), "{left}: {error}");
                let error = written(&job, &mut input, checked).await.expect_err("it is shorter");
                assert!(error.to_string().starts_with(says), "{left}: {error}");
                let none = Checked::default();
                let counts = written(&job, &mut input, none).await.expect("as it was checked");
                assert_eq!(counts, Counts::default());
            }
        }
    }

    #[test]
    fn whatever_became_of_a_key_counts() {
        let input = Input::of_text("");
        let (named, keys) = (Vec::new(), |keys| Checked { keys, cut: Some(7) });
        let counts = Counts { written: 1, overwritten: 2, same: 4, kept: 8, refused: 16, named };
        assert!(unchanged(&input, keys(31), &counts).is_ok());
        for other in [30, 32] {
            let error = unchanged(&input, keys(other), &counts).expect_err("another number");
            let says = format!("lines changed meanwhile: it had {other} keys, and now 31; ");
            assert!(error.to_string().starts_with(&says), "{error}");
        }
    }
}
