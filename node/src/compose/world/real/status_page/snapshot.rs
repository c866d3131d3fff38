//! What the status page shows, as one value: `/status.json` is this value, and `page` writes it as HTML.
//!
//! What holds here: every list and every text has a bound, and so has each answer ([`ANSWER_BYTES`]).
//! The names in the JSON stay as long as [`FORMAT`] does: scripts read them.

use super::known::name;
use crate::health::{Finding, Report};
use crate::metrics::Answered;
use cairn_client::{Member, NodeStatus, OperatorCall, Role, StorageStatus, shown};
use cairn_engine::LatencyCounts;
use cairn_raft::{FollowerLag, NodeId};
use serde::Serialize;
use std::time::Duration;

/// The version of the JSON's shape. Fields may be added to a version; none changes or goes.
const FORMAT: u32 = 1;
/// Members that are shown, by slot; the rest is counted.
const MEMBERS: usize = 64;
/// Findings that are shown, the gravest first; the rest is counted.
const FINDINGS: usize = 32;
/// Operators' calls that are shown, the latest first.
const CHANGES: usize = 16;
/// Bytes of a text, of an address, and of a member's name; of more the middle is left out.
const TEXT_BYTES: usize = 300;
const ADDRESS_BYTES: usize = 128;
const NAME_BYTES: usize = 64;
/// No answer is longer: the bounds above, if each byte takes six when it is escaped.
pub(super) const ANSWER_BYTES: usize = 512 << 10;

/// What a snapshot is made of.
pub(super) struct Known {
    pub(super) own: NodeStatus,
    pub(super) report: Report,
    pub(super) followers: Vec<FollowerLag>,
    pub(super) applied_lag: Option<Duration>,
    pub(super) requests: Requests,
    pub(super) latencies: cairn_engine::Latencies,
    /// Whether the reader may see addresses and operators' calls.
    pub(super) private: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Snapshot {
    pub(super) format: u32,
    pub(super) cluster: String,
    pub(super) node: OwnNode,
    pub(super) verdict: Verdict,
    pub(super) findings: Vec<FindingRow>,
    pub(super) findings_left_out: usize,
    pub(super) members: Vec<MemberRow>,
    pub(super) members_left_out: usize,
    /// None where the reader may not see them.
    pub(super) changes: Option<Vec<Change>>,
    pub(super) log: Log,
    pub(super) space: Option<Space>,
    pub(super) requests: Requests,
    pub(super) latencies: Latencies,
}

/// The node that answers.
#[derive(Debug, Serialize)]
pub(super) struct OwnNode {
    pub(super) slot: u16,
    pub(super) node_id: String,
    pub(super) role: &'static str,
    pub(super) state: &'static str,
    pub(super) release: String,
    pub(super) mode: Option<&'static str>,
    pub(super) not_ready: Option<String>,
    pub(super) uptime_ms: u64,
}

/// The first line of the page.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) well: bool,
    /// `well`, or the severity of the gravest finding.
    pub(super) severity: &'static str,
    /// `cluster` from a leader; `member` from a node that speaks for itself alone.
    pub(super) scope: &'static str,
    pub(super) words: String,
    /// What the verdict goes by.
    pub(super) basis: String,
}

#[derive(Debug, Serialize)]
pub(super) struct FindingRow {
    pub(super) severity: &'static str,
    pub(super) code: crate::health::Kind,
    pub(super) nodes: Vec<String>,
    pub(super) what: String,
    pub(super) action: String,
}

#[derive(Debug, Serialize)]
pub(super) struct MemberRow {
    pub(super) slot: u16,
    pub(super) node_id: String,
    pub(super) name: String,
    /// `leader`, `voter` or `learner`.
    pub(super) role: &'static str,
    /// The node that answers.
    pub(super) this: bool,
    pub(super) client_address: Option<String>,
    pub(super) peer_address: Option<String>,
    /// As `cairn_follower_lag_entries` and `cairn_follower_silence_seconds`, from a leader.
    pub(super) lag_entries: Option<u64>,
    pub(super) silence_ms: Option<u64>,
}

/// An audited call of an operator.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    pub(super) ago_ms: u64,
    pub(super) principal: String,
    pub(super) call: String,
    pub(super) arguments: String,
    pub(super) result: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Log {
    pub(super) term: u64,
    pub(super) last_index: u64,
    pub(super) committed_index: u64,
    pub(super) applied_index: u64,
    pub(super) applied_lag_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Space {
    pub(super) keys: u64,
    pub(super) live_bytes: u64,
    pub(super) data_bytes: u64,
    pub(super) data_free_bytes: u64,
    pub(super) index_bytes: u64,
    pub(super) index_limit_bytes: u64,
    pub(super) journal_blocks: u64,
    pub(super) journal_used_blocks: u64,
    pub(super) unsynced_bytes: u64,
    pub(super) unsynced_age_ms: u64,
    pub(super) user_bytes_written: u64,
    pub(super) device_bytes_written: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Requests {
    pub(super) write: Answered,
    pub(super) get: Answered,
    pub(super) list: Answered,
}

#[derive(Debug, Serialize)]
pub(super) struct Latencies {
    append: Times,
    device_read: Times,
    device_write: Times,
    device_sync: Times,
}

/// How long operations took since the start.
#[derive(Debug, Serialize)]
struct Times {
    seconds: f64,
    /// The upper bound of each bucket in seconds, none for the last one, and how many are in it.
    buckets: Vec<(Option<f64>, u64)>,
}

impl Snapshot {
    pub(super) fn of(known: Known) -> Snapshot {
        let Known { own, report, followers, applied_lag, requests, latencies, private } = known;
        let (members, findings) = (own.members.len(), report.findings.len());
        Snapshot {
            format: FORMAT,
            cluster: bounded(&own.cluster),
            verdict: verdict(&own, &report),
            findings: report.findings.iter().take(FINDINGS).map(FindingRow::of).collect(),
            findings_left_out: findings.saturating_sub(FINDINGS),
            members: member_rows(&own, &followers, private),
            members_left_out: members.saturating_sub(MEMBERS),
            changes: private
                .then(|| own.operator_calls.iter().rev().take(CHANGES).map(Change::of).collect()),
            log: Log {
                term: own.term,
                last_index: own.last_log_index,
                committed_index: own.committed_index,
                applied_index: own.applied_index,
                applied_lag_ms: applied_lag.map(millis),
            },
            space: own.storage.as_ref().map(Space::of),
            requests,
            latencies: Latencies {
                append: Times::of(&latencies.appends),
                device_read: Times::of(&latencies.reads),
                device_write: Times::of(&latencies.writes),
                device_sync: Times::of(&latencies.syncs),
            },
            node: OwnNode::of(&own),
        }
    }
}

fn verdict(own: &NodeStatus, report: &Report) -> Verdict {
    let (fault, leads) = (report.faults().next(), own.role == Role::Leader);
    let leader = own.leader_id.map(|id| NodeId::from_u64(id).slot());
    let (words, basis) = match (leads, leader) {
        (_, _) if report.is_early() => (
            "Nothing that this node knows is wrong",
            "it does not know yet what it will in a moment, after an election or its start"
                .to_owned(),
        ),
        (true, _) => (
            "The cluster is well",
            "as its leader knows it: that the others answer, keep up, and run one release; \
             `cairn health` asks each of them about itself, too"
                .to_owned(),
        ),
        (false, Some(slot)) => (
            "This member is well",
            format!("it speaks for itself alone; slot {slot} leads, and its page shows the others"),
        ),
        (false, None) => {
            ("This member is well", "it speaks for itself alone, and knows no leader".to_owned())
        }
    };
    Verdict {
        well: fault.is_none(),
        severity: fault.map_or("well", |fault| fault.severity.name()),
        scope: if leads { "cluster" } else { "member" },
        words: fault.map_or_else(|| words.to_owned(), |fault| bounded(&fault.line())),
        basis,
    }
}

fn member_rows(own: &NodeStatus, followers: &[FollowerLag], private: bool) -> Vec<MemberRow> {
    let mut members: Vec<&Member> = own.members.iter().collect();
    members.sort_by_key(|member| (member.slot, !member.voter, member.node_id));
    let row = |member: &Member| {
        let lag = followers.iter().find(|lag| lag.id.as_u64() == member.node_id);
        let address = |address: &str| private.then(|| short(address, ADDRESS_BYTES));
        MemberRow {
            slot: member.slot,
            node_id: NodeId::from_u64(member.node_id).to_string(),
            name: name(member.slot, member.voter),
            role: match member.voter {
                _ if own.leader_id == Some(member.node_id) => "leader",
                true => "voter",
                false => "learner",
            },
            this: member.node_id == own.node_id,
            client_address: address(&member.client_address),
            peer_address: address(&member.peer_address),
            lag_entries: lag.map(|lag| lag.entries),
            silence_ms: lag.and_then(|lag| lag.silent).map(millis),
        }
    };
    members.into_iter().take(MEMBERS).map(row).collect()
}

impl OwnNode {
    fn of(own: &NodeStatus) -> OwnNode {
        OwnNode {
            slot: own.slot,
            node_id: NodeId::from_u64(own.node_id).to_string(),
            role: own.role.name(),
            state: own.member_state.name(),
            release: bounded(&own.server_version),
            mode: own.durability.as_ref().map(|durability| durability.mode.name()),
            not_ready: own.not_ready.as_deref().map(bounded),
            uptime_ms: millis(own.uptime),
        }
    }
}

impl FindingRow {
    fn of(finding: &Finding) -> FindingRow {
        FindingRow {
            severity: finding.severity.name(),
            code: finding.kind,
            nodes: finding.nodes.iter().take(MEMBERS).map(|node| short(node, NAME_BYTES)).collect(),
            what: bounded(&finding.what),
            action: bounded(&finding.action),
        }
    }
}

impl Change {
    fn of(call: &OperatorCall) -> Change {
        Change {
            ago_ms: millis(call.ago),
            principal: bounded(&call.principal),
            call: bounded(&call.call),
            arguments: bounded(&call.arguments),
            result: bounded(&call.result),
        }
    }
}

impl Space {
    fn of(storage: &StorageStatus) -> Space {
        Space {
            keys: storage.keys,
            live_bytes: storage.live_bytes,
            data_bytes: storage.data_bytes,
            data_free_bytes: storage.free_bytes,
            index_bytes: storage.index_bytes,
            index_limit_bytes: storage.index_limit_bytes,
            journal_blocks: storage.journal_blocks,
            journal_used_blocks: storage.journal_used_blocks,
            unsynced_bytes: storage.unsynced_bytes,
            unsynced_age_ms: millis(storage.unsynced),
            user_bytes_written: storage.user_bytes_written,
            device_bytes_written: storage.device_bytes_written,
        }
    }
}

impl Times {
    fn of(counts: &LatencyCounts) -> Times {
        let bucket = |(bound, count): &(Option<Duration>, u64)| {
            (bound.map(|bound| bound.as_secs_f64()), *count)
        };
        Times {
            seconds: counts.sum.as_secs_f64(),
            buckets: counts.buckets.iter().map(bucket).collect(),
        }
    }
}

/// A text that others may have written, safe to print.
fn bounded(text: &str) -> String {
    short(text, TEXT_BYTES)
}

fn short(text: &str, most: usize) -> String {
    shown::excerpt(&shown::one_line(text), most).into_owned()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
