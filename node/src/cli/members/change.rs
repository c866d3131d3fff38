//! Asks the leader for a change of the members until it is done, and shows what it waits for.

use super::removal::spared;
use super::view::ClusterView;
use crate::cli::connect::ClusterOptions;
use crate::cli::exit::Exit;
use crate::cli::output::Output;
use cairn_client::{Client, Error, MemberChange};
use cairn_node::failure_domains::listed;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// How long the leader may take to answer each time. It changes while a leader is removed.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How often it is asked, at first and later.
const FIRST_POLL: Duration = Duration::from_millis(100);
const LAST_POLL: Duration = Duration::from_secs(2);
/// How often a line is written where no terminal shows one.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Options of every change of the members.
#[derive(Args)]
pub(super) struct ChangeArgs {
    #[command(flatten)]
    cluster: ClusterOptions,

    /// Return at once; the same command later takes the change further, and says how far it is
    #[arg(long)]
    no_wait: bool,

    /// How long to wait until the change is done; the same command later goes on from there [default: 1h]
    #[arg(long, default_value = "1h", env = "CAIRN_TIMEOUT", value_parser = crate::cli::connect::time)]
    #[arg(hide_env = true, hide_default_value = true)]
    timeout: Duration,
}

impl ChangeArgs {
    pub(super) fn waits(&self) -> bool {
        !self.no_wait
    }

    pub(super) fn client(&self) -> anyhow::Result<Client> {
        self.cluster.client(self.timeout.min(ANSWER_LIMIT))
    }
}

pub(super) async fn run(
    change: MemberChange,
    args: &ChangeArgs,
    output: &Output,
) -> anyhow::Result<Exit> {
    let client = args.client()?;
    let waits_for = wait(&client, &change, args, output).await?;
    // Only for the sentence: the change is done, or under way, whether this answers or not.
    let found = ClusterView::ask(&client).await.ok();
    let voters = found.map(|found| found.voters()).unwrap_or_default();
    output.either(
        || {
            json!({
                "change": name(&change),
                "slot": change.slot(),
                "done": waits_for.is_none(),
                "waits_for": waits_for,
                "voters": voters,
            })
        },
        || match &waits_for {
            Some(what) => format!("not done yet: {what}"),
            None => format!(
                "{}; {} voter{}: slot{} {}; {} may fail",
                done(&change),
                voters.len(),
                if voters.len() == 1 { "" } else { "s" },
                if voters.len() == 1 { "" } else { "s" },
                listed(&voters),
                spared(voters.len())
            ),
        },
    )?;
    Ok(Exit::Done)
}

/// Asks until the change is done, or once if nobody wants to wait. Returns what it waits for.
///
/// # Errors
/// The leader's refusal; and if there is no answer, or the change is not done in time.
async fn wait(
    client: &Client,
    change: &MemberChange,
    args: &ChangeArgs,
    output: &Output,
) -> anyhow::Result<Option<String>> {
    let (began, operator) = (Instant::now(), client.operator());
    let mut shown = Shown::new(output);
    let mut poll = FIRST_POLL;
    let mut under_way: Option<String> = None;
    loop {
        match operator.change_members(change).await {
            Ok(None) => return Ok(None),
            Ok(Some(what)) if args.no_wait => return Ok(Some(what)),
            Ok(Some(what)) => {
                shown.waits_for(&what);
                under_way = Some(what);
            }
            // A change that is under way survives its leader.
            Err(error) if under_way.is_some() && error.is_transient() => {
                shown.waits_for(&format!("no leader answers: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
        if began.elapsed() + poll > args.timeout {
            let why = under_way.unwrap_or_else(|| "no leader answered".into());
            let last_error = format!("not done yet: {why}; the same command goes on from there");
            return Err(Error::DeadlineExceeded { last_error, source: None }.into());
        }
        tokio::time::sleep(poll).await;
        poll = (poll * 3 / 2).min(LAST_POLL);
    }
}

/// The line that says what a change waits for: one that changes on a terminal, else a new one now
/// and then. In JSON there is none.
struct Shown<'a> {
    output: &'a Output,
    bar: Option<ProgressBar>,
    last: Option<(String, Instant)>,
}

impl Shown<'_> {
    fn new(output: &Output) -> Shown<'_> {
        let bar = (!output.is_json() && io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}");
            let bar = ProgressBar::new_spinner();
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Shown { output, bar, last: None }
    }

    fn waits_for(&mut self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
            return;
        }
        let told = |(last, at): &(String, Instant)| last == what || at.elapsed() < LINE_INTERVAL;
        if self.output.is_json() || self.last.as_ref().is_some_and(told) {
            return;
        }
        self.output.note(|| json!({ "waits_for": what }), || format!("waiting: {what}"));
        self.last = Some((what.to_owned(), Instant::now()));
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn name(change: &MemberChange) -> &'static str {
    match change {
        MemberChange::Add(_) => "add",
        MemberChange::Remove(_) => "remove",
        MemberChange::Replace(_) => "replace",
        MemberChange::Promote(_) => "promote",
        MemberChange::Move(..) => "move",
        _ => "change",
    }
}

fn done(change: &MemberChange) -> String {
    let slot = change.slot();
    match change {
        MemberChange::Add(_) | MemberChange::Promote(_) => format!("slot {slot} votes"),
        MemberChange::Remove(_) => format!("slot {slot} is removed"),
        MemberChange::Replace(_) => format!("slot {slot} has its new node"),
        MemberChange::Move(_, address) => format!("slot {slot} is at {address}"),
        _ => format!("slot {slot} is changed"),
    }
}
