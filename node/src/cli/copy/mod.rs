//! `cairn copy`: keys of one cluster into another one, while both serve.
//!
//! ```text
//! plan    the keys of the source without values: what the target would refuse, what exists there
//! pass 1  the state of the source at one log index
//! pass 2  the state at a later index: only what changed since, and what is gone is deleted
//!  ...    until the source has not changed since the state that was copied, or for --passes
//! ```
//!
//! What holds here: that a copy has caught up is said only if the source, asked after the last pass, had no later
//! entry than the state that this pass copied; that it has later ones, only if it said so. Nothing is written before
//! all keys are checked, and, unless it was said what happens to keys that exist, compared. A copy that ends early may
//! be run again: what is there with the same value is not written again. Nothing is written to the source.

mod apply;
mod pass;
mod plan;
mod sides;
mod source;

use super::bar;
use super::bulk_write::{Cluster, Existing};
use super::bytes_text::{escape, key_bytes};
use super::connect::time;
use super::exit::{self, Exit, UsageError};
use super::output::Output;
use super::signals::termination;
use apply::{Counts, Target};
use cairn_client::shown;
use clap::Args;
use pass::{KNOWN_BYTES_MAX, Known, remembered_bytes, too_many};
use plan::Plan;
use serde_json::{Value, json};
use sides::{FromArgs, ToArgs};
use source::{Source, Values};
use std::ffi::OsString;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct CopyArgs {
    #[command(flatten)]
    from: FromArgs,

    #[command(flatten)]
    to: ToArgs,

    /// Only keys that begin with this
    #[arg(long, default_value = "")]
    prefix: OsString,

    /// The prefix is escaped as `cairn list` prints keys, such as \x00\xff
    #[arg(long)]
    escaped: bool,

    #[command(flatten)]
    existing: ExistingArgs,

    /// The most passes. Each one after the first copies what changed since the one before; if nothing was
    /// written to the source meanwhile, none follows
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,

    /// Check all of the keys, compare them with the target, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// How long to try each request, all retries together [default: 10s]
    #[arg(long, default_value = "10s", env = "CAIRN_TIMEOUT", value_parser = time)]
    #[arg(hide_env = true, hide_default_value = true)]
    timeout: Duration,
}

/// What happens to keys that exist at the target with another value.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
struct ExistingArgs {
    /// Leave keys that exist at the target with another value as they are. Without this and --replace
    /// nothing is written if there is one, and the exit code is 4
    #[arg(long)]
    keep: bool,

    /// Replace the value of a key that exists at the target with another one
    #[arg(long)]
    replace: bool,
}

impl ExistingArgs {
    fn existing(self) -> Existing {
        match self {
            ExistingArgs { replace: true, .. } => Existing::Replace,
            ExistingArgs { keep: true, .. } => Existing::Keep,
            _ => Existing::Refuse,
        }
    }
}

/// One pass that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pass {
    /// The log index of the source whose state it copied.
    index: u64,
    counts: Counts,
}

/// How far a copy is.
#[derive(Debug, Default)]
struct Progress {
    ended: Vec<Pass>,
    /// Of the pass that runs.
    running: Counts,
    /// Something may be written.
    writes: bool,
    /// Whether the source had no later entry once the last pass had ended. `None`: it was not asked, or did not
    /// say.
    caught_up: Option<bool>,
}

/// Which clusters, and which keys.
struct Names {
    from: String,
    to: String,
    prefix: String,
}

pub(crate) async fn run(args: CopyArgs, output: &Output) -> anyhow::Result<Exit> {
    let prefix = key_bytes(args.prefix.clone(), args.escaped)?;
    let (from, to) = (args.from.client(args.timeout)?, args.to.client(args.timeout)?);
    let (from_name, to_name) = sides::apart(&from, &to).await?;
    let names = Names { from: from_name, to: to_name, prefix: escape(&prefix) };
    let source = Source { client: from, prefix };
    let mut progress = Progress::default();
    let copying = copy(&args, &source, to, &names, &mut progress, output);
    let copied = tokio::select! {
        biased;
        signal = termination() => {
            let signal = signal?;
            Err(anyhow::anyhow!("{signal} received"))
        }
        copied = copying => copied,
    };
    copied.map_err(|error| ended_by(error, &progress))?;
    Ok(Exit::Done)
}

/// What ended the copy, with what is done by then.
///
/// The story: no member of the source was ready between two passes, and the exit code said that nothing was
/// changed.
fn ended_by(error: anyhow::Error, progress: &Progress) -> anyhow::Error {
    if !progress.writes {
        return error;
    }
    let error = match exit::of(&error) {
        // It says that nothing was changed. A node may have written part of the text.
        Exit::ConditionFailed => anyhow::anyhow!("{}", shown::one_line(&exit::in_full(&error))),
        _ => error,
    };
    error.context(broken_off(progress))
}

async fn copy(
    args: &CopyArgs,
    source: &Source,
    to: cairn_client::Client,
    names: &Names,
    progress: &mut Progress,
    output: &Output,
) -> anyhow::Result<()> {
    let existing = args.existing.existing();
    let compare = args.dry_run || existing == Existing::Refuse;
    let plan = plan::plan(source, &to, compare, output).await?;
    plan.is_taken()?;
    if existing == Existing::Refuse {
        plan.replaces_nothing()?;
    }
    if args.passes > 1 && remembered_bytes(plan.keys, plan.key_bytes) > KNOWN_BYTES_MAX {
        return Err(UsageError(too_many(plan.keys)).into());
    }
    if args.dry_run {
        output.either(|| planned_json(names, &plan), || planned_text(names, &plan))?;
        return Ok(());
    }
    let limits = to.limits().await?;
    let target = Target(Cluster::new(to, limits.into(), existing));
    let mut known = Known::new(args.passes > 1);
    let mut reading = source.read(Values::All, output).await?;
    progress.writes = true;
    for number in 1..=args.passes {
        let (term, index) = (reading.head().term, reading.head().index);
        known.begin(number);
        progress.running = Counts::default();
        let shown = bar::of_keys(plan.keys, &format!("pass {number}"));
        let each = |keys| shown.inc(keys);
        let done = target.pass(&mut reading, &mut known, &mut progress.running, &each).await;
        shown.finish_and_clear();
        done?;
        known.end((term, index));
        let counts = std::mem::take(&mut progress.running);
        progress.ended.push(Pass { index, counts });
        // A pass that found nothing may have missed a write that came after it began. The state of now says
        // whether there is one, and the next pass copies that state.
        drop(reading);
        progress.caught_up = None;
        reading = match source.read(Values::Behind((term, index)), output).await {
            Ok(next) => next,
            Err(error) if number == args.passes => {
                let why = exit::in_full(&error);
                output.note(
                    || json!({ "not_caught_up": why }),
                    || format!("whether the source has changed since is not known: {why}"),
                );
                break;
            }
            Err(error) => return Err(error),
        };
        let is_last = known.through() == Some((reading.head().term, reading.head().index));
        progress.caught_up = Some(is_last);
        if is_last {
            break;
        }
    }
    let progress = &*progress;
    output.either(|| as_json(names, progress), || as_text(names, progress))?;
    Ok(())
}

/// What is done, and how to go on.
fn broken_off(progress: &Progress) -> String {
    let mut sum = total(&progress.ended);
    sum.add(progress.running);
    let number = progress.ended.len() + 1;
    format!(
        "broken off in pass {number}: {} keys are written, {} deleted, and perhaps some more; run it again to go on, with --replace if the source \
         changed meanwhile; keys that went at the source meanwhile may stay at --to",
        sum.written + sum.replaced,
        sum.deleted
    )
}

/// What all passes did. How many keys there are, and how many stay with another value, is what the last one
/// found.
fn total(passes: &[Pass]) -> Counts {
    let mut sum = Counts::default();
    for pass in passes {
        sum.add(pass.counts);
    }
    sum.keys = passes.last().map_or(0, |last| last.counts.keys);
    sum.kept = passes.last().map_or(0, |last| last.counts.kept);
    sum
}

fn counts_json(counts: &Counts) -> Value {
    json!({ "keys": counts.keys, "written": counts.written, "replaced": counts.replaced, "same": counts.same,
            "kept": counts.kept, "deleted": counts.deleted, "left": counts.left })
}

fn as_json(names: &Names, progress: &Progress) -> Value {
    let passes = progress.ended.as_slice();
    let of_pass = |pass: &Pass| json!({ "index": pass.index, "counts": counts_json(&pass.counts) });
    json!({
        "from": names.from, "to": names.to, "prefix": names.prefix, "dry_run": false,
        "index": passes.last().map(|last| last.index),
        "caught_up": progress.caught_up,
        "total": counts_json(&total(passes)),
        "passes": passes.iter().map(of_pass).collect::<Vec<_>>(),
    })
}

fn as_text(names: &Names, progress: &Progress) -> String {
    let passes = progress.ended.as_slice();
    let line = |(number, pass): (usize, &Pass)| {
        let Counts { keys, written, replaced, same, kept, deleted, left } = pass.counts;
        let mut parts = Vec::new();
        for (count, what) in [
            (written, "new"),
            (replaced, "with another value before"),
            (same, "were there with the same value"),
            (kept, "exist with another value and stay"),
            (deleted, "deleted"),
            (left, "are gone at the source and stay, since this copy did not write them last"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        if parts.is_empty() {
            parts.push("nothing to copy".to_owned());
        }
        format!("pass {number}, state at index {}, {keys} keys: {}", pass.index, parts.join(", "))
    };
    let mut lines: Vec<String> = (1..).zip(passes).map(line).collect();
    let found_nothing = passes.last().is_some_and(|last| last.counts.changes() == 0);
    let end = match (progress.caught_up, found_nothing) {
        (Some(true), _) => ": the source has not changed since the last pass began",
        (None, _) => {
            ": whether the source has changed since the last pass began is not known. To move, stop its writers and run it once more \
             with --replace"
        }
        (Some(false), true) => {
            ": the last pass found nothing to copy, and the source has later entries, perhaps of other keys. If the writers of \
             these keys were stopped before that pass began, all is copied; if not, stop them and run it once more with --replace"
        }
        (Some(false), false) => {
            ", and the source changes on: to move, stop its writers and run it once more with --replace"
        }
    };
    lines.push(format!("copied `{}` to `{}`{end}", names.from, names.to));
    lines.extend(differences(&total(passes), &names.to));
    lines.join("\n")
}

/// What is not at the target as at the source, though it was copied.
fn differences(total: &Counts, to: &str) -> Option<String> {
    let Counts { kept, left, .. } = *total;
    if kept == 0 && left == 0 {
        return None;
    }
    Some(format!(
        "the two differ: `{to}` keeps another value of {kept} keys, and {left} keys that are gone at the source"
    ))
}

fn planned_json(names: &Names, plan: &Plan) -> Value {
    let Plan { keys, key_bytes, value_bytes, same, other, .. } = plan;
    json!({ "from": names.from, "to": names.to, "prefix": names.prefix, "dry_run": true, "keys": keys,
            "bytes": key_bytes + value_bytes, "same": same, "other": other })
}

fn planned_text(names: &Names, plan: &Plan) -> String {
    let Plan { keys, key_bytes, value_bytes, same, other, .. } = plan;
    format!(
        "would copy {keys} keys of `{}` to `{}`, {} bytes: {same} are there with the same value, {other} with another one",
        names.from,
        names.to,
        key_bytes + value_bytes
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names { from: "old".into(), to: "new".into(), prefix: String::new() }
    }

    fn pass(index: u64, counts: Counts) -> Pass {
        Pass { index, counts }
    }

    #[test]
    fn the_result_says_what_each_pass_did_and_whether_the_last_one_found_nothing() {
        let first = Counts { keys: 5, written: 3, same: 1, kept: 1, ..Counts::default() };
        let second =
            Counts { keys: 4, replaced: 1, kept: 1, deleted: 1, left: 1, ..Counts::default() };
        let third = Counts { keys: 4, kept: 1, ..Counts::default() };
        let ended = vec![pass(7, first), pass(9, second), pass(9, third)];
        let progress = Progress { ended, caught_up: Some(true), ..Progress::default() };
        let text = as_text(&names(), &progress);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "pass 1, state at index 7, 5 keys: 3 new, 1 were there with the same value, 1 exist with another value and stay"
        );
        assert!(lines[1].contains("4 keys: 1 with another value before, 1 exist"));
        assert!(lines[1].contains("and stay, 1 deleted, 1 are gone"));
        assert_eq!(
            lines[2],
            "pass 3, state at index 9, 4 keys: 1 exist with another value and stay"
        );
        assert_eq!(
            lines[3],
            "copied `old` to `new`: the source has not changed since the last pass began"
        );
        assert_eq!(
            lines[4],
            "the two differ: `new` keeps another value of 1 keys, and 1 keys that are gone at the source"
        );
        let told = as_json(&names(), &progress);
        assert_eq!(told["total"]["keys"], 4, "{told}");
        assert_eq!(told["total"]["written"], 3, "{told}");
        assert_eq!(told["total"]["kept"], 1, "a key that stays is counted once: {told}");
        assert_eq!((&told["caught_up"], &told["index"]), (&json!(true), &json!(9)), "{told}");
    }

    /// The story: a write came while a pass ran that found nothing, its writers stopped, and the copy was said to
    /// be complete without that write.
    #[test]
    fn a_pass_that_finds_nothing_says_nothing_of_what_came_while_it_ran() {
        let some = Counts { keys: 5, replaced: 1, ..Counts::default() };
        let nothing = Counts { keys: 5, ..Counts::default() };
        let (ended, caught_up) = (vec![pass(7, some)], Some(false));
        let mut progress = Progress { ended, caught_up, ..Progress::default() };
        let busy = as_text(&names(), &progress);
        assert!(busy.ends_with("stop its writers and run it once more with --replace"), "{busy}");
        progress.ended.push(pass(9, nothing));
        let moved = as_text(&names(), &progress);
        assert!(moved.contains("5 keys: nothing to copy"), "{moved}");
        assert!(moved.contains("the source has later entries"), "{moved}");
        assert!(moved.contains("were stopped before that pass began, all is copied"), "{moved}");
        assert!(!moved.contains("the two differ"), "{moved}");
        assert_eq!(as_json(&names(), &progress)["caught_up"], false);
    }

    /// The story: no member sent its state after the last pass, and the source was said to have later entries.
    #[test]
    fn a_source_that_did_not_say_whether_it_changed_is_not_said_to_have_changed() {
        let some = Counts { keys: 5, written: 5, ..Counts::default() };
        for counts in [some, Counts { keys: 5, ..Counts::default() }] {
            let progress = Progress { ended: vec![pass(7, counts)], ..Progress::default() };
            let text = as_text(&names(), &progress);
            assert!(text.contains("is not known. To move, stop its writers"), "{text}");
            assert!(!text.contains("has later entries") && !text.contains("changes on"), "{text}");
            assert_eq!(as_json(&names(), &progress)["caught_up"], Value::Null);
        }
    }

    #[test]
    fn a_copy_that_has_written_does_not_end_with_the_code_of_one_that_changed_nothing() {
        let not_ready = || anyhow::Error::new(exit::StateError("no member is ready".to_owned()));
        let mut progress = Progress::default();
        assert_eq!(exit::of(&ended_by(not_ready(), &progress)), Exit::ConditionFailed);
        progress.writes = true;
        let error = ended_by(not_ready(), &progress);
        assert_eq!(exit::of(&error), Exit::Failed);
        let text = format!("{error:#}");
        assert!(text.starts_with("broken off in pass 1: "), "{text}");
        assert!(text.ends_with("no member is ready"), "{text}");
        // Others stay.
        let usage = anyhow::Error::new(UsageError("too many keys".to_owned()));
        assert_eq!(exit::of(&ended_by(usage, &progress)), Exit::Usage);
    }

    #[test]
    fn a_copy_that_is_broken_off_says_how_far_it_came_and_how_to_go_on() {
        let first = Counts { keys: 5, written: 3, ..Counts::default() };
        let running = Counts { written: 1, replaced: 2, deleted: 4, ..Counts::default() };
        let ended = vec![pass(7, first)];
        let progress = Progress { ended, running, writes: true, ..Progress::default() };
        assert_eq!(
            broken_off(&progress),
            "broken off in pass 2: 6 keys are written, 4 deleted, and perhaps some more; run it again to go on, with --replace if \
             the source changed meanwhile; keys that went at the source meanwhile may stay at --to"
        );
    }
}
