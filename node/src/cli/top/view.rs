//! What a frame of `cairn top` shows, as one value: `-o json` is this value, and `draw` draws it.
//!
//! What holds here: what is well is decided in [`cairn_node::health`]. Rates are the difference of two
//! looks; a number that nobody told is absent, not 0. Whatever others wrote is safe to print here, and has
//! a bound.

use super::super::health::as_text;
use super::super::output::millis;
use super::scrape::{Requests, Scrape};
use cairn_client::{NodeStatus, Role, shown};
use cairn_node::health::{Answer, Finding, Report};
use cairn_raft::NodeId;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The version of the JSON's shape. Fields may be added to a version; none changes or goes.
const FORMAT: u32 = 1;
/// Looks that are remembered: at the default interval those of ten minutes.
const REMEMBERED: usize = 300;
/// Bytes of a text, of which others may have written more.
const TEXT_BYTES: usize = 300;
const NAME_BYTES: usize = 64;

/// One look at the cluster.
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) report: Report,
    /// What each HTTP port told, or why it told nothing.
    pub(super) scrapes: Vec<Result<Scrape, String>>,
}

/// A frame.
#[derive(Clone, Debug, Serialize)]
pub(super) struct View {
    format: u32,
    pub(super) cluster: String,
    pub(super) well: bool,
    /// `well`, or the severity of the gravest finding.
    pub(super) severity: &'static str,
    pub(super) words: String,
    pub(super) term: u64,
    /// The slot that leads.
    pub(super) leader: Option<u16>,
    pub(super) members: Vec<Row>,
    pub(super) findings: Vec<Finding>,
    pub(super) traffic: Traffic,
    /// HTTP ports that told nothing, and why.
    pub(super) unread: Vec<String>,
    pub(super) history: History,
}

/// What the cluster did since the last look.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Traffic {
    /// Entries of the log that were committed: writes, and what members log by themselves.
    pub(super) entries_per_second: Option<u64>,
    /// By the HTTP ports that told their requests.
    pub(super) puts_per_second: Option<u64>,
    pub(super) gets_per_second: Option<u64>,
    pub(super) puts: Times,
    pub(super) gets: Times,
    /// How many members told that.
    pub(super) told_by: usize,
}

/// At most how long half of the requests took, and all but one in a hundred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Times {
    pub(super) p50_us: Option<u64>,
    pub(super) p99_us: Option<u64>,
}

/// Rates of the last looks, the oldest first.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct History {
    pub(super) entries_per_second: VecDeque<Option<u64>>,
    pub(super) puts_per_second: VecDeque<Option<u64>>,
    pub(super) gets_per_second: VecDeque<Option<u64>>,
}

/// A member.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) slot: Option<u16>,
    pub(super) node_id: Option<String>,
    pub(super) endpoint: String,
    /// What it does in the cluster; or `silent`, or `not allowed`.
    pub(super) role: String,
    /// Why it serves no client now, or does not answer.
    pub(super) why: Option<String>,
    pub(super) applied_index: Option<u64>,
    /// How many entries it has not applied that are committed, and since when.
    pub(super) lag_entries: Option<u64>,
    pub(super) lag_ms: Option<u64>,
    pub(super) puts_per_second: Option<u64>,
    pub(super) gets_per_second: Option<u64>,
    pub(super) put_times: Times,
    pub(super) get_times: Times,
    pub(super) resident_bytes: Option<u64>,
    /// Bounded memory by what holds it; the data area by what its bytes are.
    pub(super) memory: Vec<Part>,
    pub(super) space: Vec<Part>,
    pub(super) data_bytes: Option<u64>,
    pub(super) free_bytes: Option<u64>,
    pub(super) live_bytes: Option<u64>,
    pub(super) index_bytes: Option<u64>,
    pub(super) index_limit_bytes: Option<u64>,
    pub(super) unsynced_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// What of the looks so far the next frame needs.
#[derive(Default)]
pub(super) struct Trend {
    before: Option<(Instant, BTreeMap<String, Scrape>)>,
    /// Since when which index was committed, the oldest first.
    committed: VecDeque<(Instant, u64)>,
    history: History,
}

impl Trend {
    /// The frame of this look.
    pub(super) fn add(&mut self, look: Look) -> View {
        let Look { at, report, scrapes } = look;
        let (told, unread): (Vec<_>, Vec<_>) = scrapes.into_iter().partition(Result::is_ok);
        let told = told.into_iter().filter_map(Result::ok);
        let told: BTreeMap<String, Scrape> =
            told.map(|scrape| (scrape.node_id.clone(), scrape)).collect();
        let since = self.since(at, &told);
        let entries_per_second = self.commit(at, committed(&report.answers));
        let mut members: Vec<Row> =
            report.answers.iter().map(|answer| self.row(at, answer, &told)).collect();
        for row in &mut members {
            row.requests(row.node_id.as_ref().and_then(|id| since.get(id)));
        }
        let traffic = traffic(entries_per_second, &since);
        remember(&mut self.history.entries_per_second, traffic.entries_per_second);
        remember(&mut self.history.puts_per_second, traffic.puts_per_second);
        remember(&mut self.history.gets_per_second, traffic.gets_per_second);
        self.before = Some((at, told));
        let unread = unread.into_iter().filter_map(Result::err);
        let unread = unread.map(|why| safe(&why, TEXT_BYTES)).collect();
        View { members, traffic, unread, history: self.history.clone(), ..View::of(&report) }
    }

    /// What each node did since the last look, by its identity.
    fn since(&self, at: Instant, told: &BTreeMap<String, Scrape>) -> BTreeMap<String, Since> {
        let Some((before, earlier)) = &self.before else { return BTreeMap::new() };
        let took = at.saturating_duration_since(*before);
        let one = |(id, now): (&String, &Scrape)| {
            let earlier = earlier.get(id)?;
            let puts = now.puts.since(&earlier.puts)?;
            let gets = now.gets.since(&earlier.gets)?;
            Some((id.clone(), Since { puts, gets, took }))
        };
        told.iter().filter_map(one).collect()
    }

    /// Keeps what is committed now, and returns how much of it is new, in a second.
    fn commit(&mut self, at: Instant, index: Option<u64>) -> Option<u64> {
        let index = index?;
        let before = self.committed.back().copied();
        self.committed.push_back((at, index));
        if self.committed.len() > REMEMBERED {
            self.committed.pop_front();
        }
        let (began, earlier) = before?;
        per_second(index.checked_sub(earlier)?, at.saturating_duration_since(began))
    }

    /// For how long a member that applied this index lacks something; `None`, if nobody has looked for so
    /// long.
    fn late(&self, at: Instant, applied: u64) -> Option<Duration> {
        let (newest_first, newest) = (self.committed.iter().rev(), self.committed.back()?);
        if newest.1 <= applied {
            return Some(Duration::ZERO);
        }
        let mut had_all = newest_first.filter(|(_, index)| *index <= applied);
        had_all.next().map(|(then, _)| at.saturating_duration_since(*then))
    }

    fn row(&self, at: Instant, answer: &Answer, told: &BTreeMap<String, Scrape>) -> Row {
        let (endpoint, answer) = answer;
        let endpoint = safe(endpoint, NAME_BYTES);
        let node = match answer {
            Ok(node) => node,
            Err(error) => {
                let role = if error.is_denied() { "not allowed" } else { "silent" }.to_owned();
                let why = Some(safe(&error.to_string(), TEXT_BYTES));
                return Row { endpoint, role, why, ..Row::default() };
            }
        };
        let mut row = Row { endpoint, ..Row::of(node) };
        if let Some((_, index)) = self.committed.back() {
            row.lag_entries = Some(index.saturating_sub(node.applied_index));
        }
        let scrape = row.node_id.as_ref().and_then(|id| told.get(id));
        let late = scrape.and_then(|scrape| scrape.applied_lag);
        row.lag_ms = late.or_else(|| self.late(at, node.applied_index)).map(millis);
        if let Some(scrape) = scrape {
            row.resident_bytes = scrape.resident_bytes;
            row.memory = parts(&scrape.memory);
            row.space = parts(&scrape.space);
        }
        row
    }
}

/// What a node did between two looks.
struct Since {
    puts: Requests,
    gets: Requests,
    took: Duration,
}

impl View {
    fn of(report: &Report) -> View {
        let nodes = || report.answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        let leader = nodes().filter(|node| node.role == Role::Leader).max_by_key(|node| node.term);
        let known = leader.or_else(|| nodes().max_by_key(|node| node.term));
        let (fault, count) = (report.faults().next(), report.faults().count());
        let words = match count {
            0 => as_text(report),
            1 => "the cluster is not well, for one reason".to_owned(),
            _ => format!("the cluster is not well, for {count} reasons"),
        };
        View {
            format: FORMAT,
            cluster: known.map_or_else(String::new, |node| safe(&node.cluster, NAME_BYTES)),
            well: report.is_well(),
            severity: fault.map_or("well", |fault| fault.severity.name()),
            words: safe(&words, TEXT_BYTES),
            term: known.map_or(0, |node| node.term),
            leader: leader.map(|node| node.slot),
            members: Vec::new(),
            findings: report.findings.iter().map(safe_finding).collect(),
            traffic: Traffic::default(),
            unread: Vec::new(),
            history: History::default(),
        }
    }
}

impl Row {
    fn of(node: &NodeStatus) -> Row {
        let why = node.stopped_reason.as_ref().or(node.not_ready.as_ref());
        let storage = node.storage.as_ref();
        Row {
            slot: Some(node.slot),
            node_id: Some(NodeId::from_u64(node.node_id).to_string()),
            role: node.role.to_string(),
            why: why.map(|why| safe(why, TEXT_BYTES)),
            applied_index: Some(node.applied_index),
            data_bytes: storage.map(|storage| storage.data_bytes),
            free_bytes: storage.map(|storage| storage.free_bytes),
            live_bytes: storage.map(|storage| storage.live_bytes),
            index_bytes: storage.map(|storage| storage.index_bytes),
            index_limit_bytes: storage.map(|storage| storage.index_limit_bytes),
            unsynced_bytes: storage.map(|storage| storage.unsynced_bytes),
            ..Row::default()
        }
    }

    fn requests(&mut self, since: Option<&Since>) {
        let Some(Since { puts, gets, took }) = since else { return };
        self.puts_per_second = per_second(puts.done, *took);
        self.gets_per_second = per_second(gets.done, *took);
        (self.put_times, self.get_times) = (Times::of(puts), Times::of(gets));
    }
}

impl Times {
    fn of(requests: &Requests) -> Times {
        let of = |percent| requests.percentile(percent).map(micros);
        Times { p50_us: of(50), p99_us: of(99) }
    }
}

fn traffic(entries_per_second: Option<u64>, since: &BTreeMap<String, Since>) -> Traffic {
    let all = |of: fn(&Since) -> &Requests| {
        since.values().fold(Requests::default(), |all, since| all.and(of(since)))
    };
    let (puts, gets) = (all(|since| &since.puts), all(|since| &since.gets));
    // Every node was asked with the same look.
    let took = since.values().next().map(|since| since.took);
    Traffic {
        entries_per_second,
        puts_per_second: took.and_then(|took| per_second(puts.done, took)),
        gets_per_second: took.and_then(|took| per_second(gets.done, took)),
        puts: Times::of(&puts),
        gets: Times::of(&gets),
        told_by: since.len(),
    }
}

/// The highest index that is committed, as some node knows.
fn committed(answers: &[Answer]) -> Option<u64> {
    let nodes = answers.iter().filter_map(|(_, answer): &Answer| answer.as_ref().ok());
    nodes.map(|node| node.committed_index.max(node.applied_index)).max()
}

fn remember(rates: &mut VecDeque<Option<u64>>, rate: Option<u64>) {
    rates.push_back(rate);
    if rates.len() > REMEMBERED {
        rates.pop_front();
    }
}

/// Rounded; `None` after no time.
fn per_second(count: u64, took: Duration) -> Option<u64> {
    let ms = millis(took);
    count.saturating_mul(1000).saturating_add(ms / 2).checked_div(ms)
}

fn safe(text: &str, most: usize) -> String {
    shown::excerpt(&shown::one_line(text), most).into_owned()
}

fn safe_finding(finding: &Finding) -> Finding {
    Finding {
        nodes: finding.nodes.iter().map(|node| safe(node, NAME_BYTES)).collect(),
        what: safe(&finding.what, TEXT_BYTES),
        action: safe(&finding.action, TEXT_BYTES),
        ..finding.clone()
    }
}

fn parts(parts: &[(String, u64)]) -> Vec<Part> {
    let part = |(name, bytes): &(String, u64)| Part { name: safe(name, NAME_BYTES), bytes: *bytes };
    parts.iter().map(part).collect()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
