//! What is not well at single members: silent, behind, their disks, their syncs.

use super::fill::Fill;
use super::finding::{Answer, Finding, Kind};
use crate::config::format_rounded;
use cairn_client::{
    DurabilityStatus, Error, MemberState, Mode, NodeStatus, Role, ScrubStatus, StorageStatus,
};
use cairn_engine::UNSYNCED_PER_SYNC;
use std::time::Duration;

/// A member that lacks more entries is behind: as many as `cairn health --safe-to-stop` allows.
const BEHIND_ENTRIES: u64 = 1000;
/// An area with less than one in so many parts free is nearly full.
const NEARLY_FULL: u64 = 10;
/// A write that waits longer for its sync waits for a slow disk, whatever the interval between syncs.
const SLOW_SYNC: Duration = Duration::from_secs(5);

/// The highest index that one of these nodes knows to be committed.
pub(super) fn committed(answers: &[Answer]) -> u64 {
    let nodes = answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    nodes.map(|node| node.committed_index).max().unwrap_or(0)
}

/// Each member should have applied what was committed up to this index.
pub(super) fn findings(answers: &[Answer], committed: u64) -> Vec<Finding> {
    let led = |(_, answer): &Answer| answer.as_ref().is_ok_and(|node| node.leader.is_some());
    let led = answers.iter().any(led);
    let mut found = Vec::new();
    for (endpoint, answer) in answers {
        match answer {
            Err(reason) => found.push(silent(endpoint, reason)),
            Ok(node) => {
                let state = state(endpoint, node, led);
                let behind = || behind(endpoint, node, committed);
                found.extend(state.or_else(behind));
                found.extend(drained(endpoint, node));
                found.extend(stricter(endpoint, node));
                found.extend(disk(endpoint, node));
            }
        }
    }
    found
}

fn silent(endpoint: &str, reason: &Error) -> Finding {
    if reason.is_denied() {
        return Finding::of_node(
            Kind::NotAllowed,
            endpoint,
            format!("does not allow it: {reason}"),
            "",
        );
    }
    Finding::of_node(
        Kind::Unreachable,
        endpoint,
        format!("does not answer: {reason}"),
        "start it, or see in its log why it ended; if its disk is gone, replace that",
    )
}

/// Why a member serves nobody: what `/ready` says. `led`: some node knows a leader.
fn state(endpoint: &str, node: &NodeStatus, led: bool) -> Option<Finding> {
    let of = |kind, what| Some(Finding::of_node(kind, endpoint, what, ""));
    let stopped = node.stopped_reason.as_deref();
    if node.member_state == MemberState::Removed {
        let reason = stopped.unwrap_or_default();
        return of(Kind::Removed, format!("is removed and serves nobody: {reason}"));
    }
    if let Some(reason) = stopped {
        return of(Kind::Stopped, format!("has stopped serving: {reason}"));
    }
    let kind = match node.member_state {
        MemberState::Recovering => Kind::Recovering,
        _ => Kind::NotReady,
    };
    if node.election_blocked.is_some() && !led {
        // Why is said once for all of them, and not in which state each one waits.
        let waits = node.member_state != MemberState::Active;
        return waits.then(|| of(kind, format!("is {}", node.member_state))).flatten();
    }
    let reason = node.not_ready.as_deref()?;
    of(kind, format!("is not ready: {reason}"))
}

fn behind(endpoint: &str, node: &NodeStatus, committed: u64) -> Option<Finding> {
    let entries = committed.saturating_sub(node.applied_index);
    (entries > BEHIND_ENTRIES).then(|| {
        Finding::of_node(
            Kind::FarBehind,
            endpoint,
            format!("is {entries} entries behind"),
            "if that grows, its disk or its network is slower than the others'",
        )
    })
}

fn drained(endpoint: &str, node: &NodeStatus) -> Option<Finding> {
    let left = Duration::from_secs(node.drained?.as_secs().max(1));
    Some(Finding::of_node(
        Kind::Drained,
        endpoint,
        format!("is drained: it does not campaign for {}", humantime::format_duration(left)),
        format!("`cairn leader drain {} --end` ends that", node.slot),
    ))
}

/// A member whose acknowledgements mean more than the cluster asks for. In mode `device` they do not
/// wait for that: its disk keeps what is written.
fn stricter(endpoint: &str, node: &NodeStatus) -> Option<Finding> {
    let modes = node.modes.as_ref()?;
    let cluster = modes.cluster.filter(|cluster| *cluster != modes.effective)?;
    let finding = Finding::of_node(
        Kind::StricterMode,
        endpoint,
        format!("acknowledges in mode {}, and the cluster's mode is {cluster}", modes.effective),
        "`cairn mode show` and `cairn doctor` there say why",
    );
    Some(if modes.effective == Mode::Device { finding.noted() } else { finding })
}

fn disk(endpoint: &str, node: &NodeStatus) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(damage) = &node.damage {
        found.push(Finding::of_node(
            Kind::Damaged,
            endpoint,
            format!("has a damaged data directory: {damage}"),
            "let its device be read again, or replace the disk",
        ));
    }
    if let Some(storage) = &node.storage {
        found.extend(suspect(endpoint, storage, node.scrub.as_ref()));
        found.extend(nearly_full(endpoint, storage, node.role == Role::Leader));
        found.extend(slow_sync(endpoint, storage, node.durability.as_ref()));
    }
    if node.scrub.as_ref().is_some_and(|scrub| scrub.paused) {
        let what = "does not scrub: an operator paused that";
        found.push(Finding::of_node(Kind::ScrubPaused, endpoint, what, "`cairn scrub resume`"));
    }
    found
}

fn suspect(
    endpoint: &str,
    storage: &StorageStatus,
    scrub: Option<&ScrubStatus>,
) -> Option<Finding> {
    let scrubbed = scrub.map_or(0, |scrub| scrub.damaged);
    let damaged = storage.corrupt_values.max(scrubbed);
    let unrepaired = scrub.map_or(0, |scrub| scrub.unrepairable);
    let repaired = scrub.map_or(0, |scrub| scrub.repaired);
    if damaged == 0 && unrepaired == 0 {
        return None;
    }
    let failed = match unrepaired {
        0 => String::new(),
        times => format!(", and repairs failed {times} times"),
    };
    let all_repaired = unrepaired == 0 && repaired >= damaged;
    let finding = Finding::of_node(
        Kind::SuspectDisk,
        endpoint,
        format!("read {damaged} times since its start what was not written{failed}"),
        match unrepaired {
            0 if all_repaired => "it was repaired; replace the disk if that goes on",
            0 => "it is being repaired; replace the disk if that goes on",
            _ => "start every member, then `cairn scrub start`; replace the disk if that goes on",
        },
    );
    // The counts stay until the next start, and nobody can do anything about them.
    Some(if all_repaired { finding.noted() } else { finding })
}

/// `leads`: a leader without space refuses the cluster's puts.
fn nearly_full(endpoint: &str, storage: &StorageStatus, leads: bool) -> Vec<Finding> {
    let fill = Fill::from(storage);
    let refuses = |kind, size: u64, of: &str, action: &str| {
        let what = format!(
            "refuses puts; deletes and reads go on: its {} for {of} are used up, but for what it keeps for itself",
            format_rounded(size)
        );
        Finding::of_node(kind, endpoint, what, action).critical()
    };
    let action = "delete keys, or enlarge the directory with `cairn grow`";
    let scarce = |free: u64, size: u64| size > 0 && free < size / NEARLY_FULL;
    let mut found = Vec::new();
    if leads && fill.refuses_values() {
        found.push(refuses(Kind::DataNearlyFull, storage.data_bytes, "values", action));
    } else if scarce(storage.free_bytes, storage.data_bytes) {
        let (free, size) = (format_rounded(storage.free_bytes), format_rounded(storage.data_bytes));
        let what = format!("has {free} of {size} free for values");
        found.push(Finding::of_node(Kind::DataNearlyFull, endpoint, what, action));
    }
    let limit = storage.index_limit_bytes;
    let free = limit.saturating_sub(storage.index_bytes);
    let action = "delete keys, or make more space for them with `cairn grow --value-size`";
    if leads && fill.refuses_keys() {
        found.push(refuses(Kind::KeysNearlyFull, limit, "keys", action));
    } else if scarce(free, limit) {
        let what =
            format!("has {} of {} free for keys", format_rounded(free), format_rounded(limit));
        found.push(Finding::of_node(Kind::KeysNearlyFull, endpoint, what, action));
    }
    found
}

fn slow_sync(
    endpoint: &str,
    storage: &StorageStatus,
    durability: Option<&DurabilityStatus>,
) -> Option<Finding> {
    let interval = durability.map_or(Duration::ZERO, |durability| durability.sync_interval);
    // In the other modes nothing waits for a number of bytes: what is written is kept, or what is
    // acknowledged is synced.
    let bounded = durability.filter(|durability| durability.mode == Mode::Replicated);
    let most = bounded.map_or(0, |durability| durability.sync_bytes);
    let most = most.saturating_mul(UNSYNCED_PER_SYNC);
    let late = storage.unsynced > SLOW_SYNC.max(interval.saturating_mul(2));
    let full = most > 0 && storage.unsynced_bytes >= most;
    (late || full).then(|| {
        Finding::of_node(
            Kind::SlowSync,
            endpoint,
            format!(
                "syncs slowly: {} wait, the oldest write for {} ms",
                format_rounded(storage.unsynced_bytes),
                storage.unsynced.as_millis()
            ),
            "look at its disk: nothing else should write there",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;
    use cairn_client::ModeStatus;

    const NOTHING: [Kind; 0] = [];

    fn node() -> NodeStatus {
        let mut node = NodeStatus::default();
        (node.slot, node.member_state) = (2, MemberState::Active);
        (node.applied_index, node.committed_index) = (5000, 5000);
        node.storage = Some(storage());
        node.scrub = Some(ScrubStatus::default());
        let mut durability = DurabilityStatus::default();
        (durability.sync_interval, durability.sync_bytes) = (Duration::from_secs(1), 4 << 20);
        durability.mode = Mode::Replicated;
        node.durability = Some(durability);
        node
    }

    fn storage() -> StorageStatus {
        let mut storage = StorageStatus::default();
        (storage.data_bytes, storage.free_bytes) = (100 << 20, 10 << 20);
        (storage.index_limit_bytes, storage.index_bytes) = (1000, 900);
        storage
    }

    /// What a change of a healthy node makes.
    fn all_found(change: impl FnOnce(&mut NodeStatus)) -> Vec<Finding> {
        let mut changed = node();
        change(&mut changed);
        let answers: [Answer; 2] =
            [("a:1".to_owned(), Ok(node())), ("b:1".to_owned(), Ok(changed))];
        findings(&answers, committed(&answers))
    }

    fn found(change: impl FnOnce(&mut NodeStatus)) -> Vec<Kind> {
        all_found(change).into_iter().map(|finding| finding.kind).collect()
    }

    fn severities(change: impl FnOnce(&mut NodeStatus)) -> Vec<(Kind, Severity)> {
        let found = all_found(change).into_iter();
        found.map(|finding| (finding.kind, finding.severity)).collect()
    }

    #[test]
    fn a_healthy_member_has_no_finding() {
        assert_eq!(found(|_| {}), NOTHING);
        let few = found(|node| node.applied_index -= BEHIND_ENTRIES);
        assert_eq!(few, NOTHING, "so far behind is not far");
    }

    #[test]
    fn each_fault_of_a_member_is_one_finding() {
        assert_eq!(found(|node| node.applied_index -= BEHIND_ENTRIES + 1), [Kind::FarBehind]);
        assert_eq!(found(|node| node.damage = Some("torn".into())), [Kind::Damaged]);
        assert_eq!(found(|node| node.drained = Some(Duration::from_secs(9))), [Kind::Drained]);
        let storage =
            |change: fn(&mut StorageStatus)| found(|node| node.storage.iter_mut().for_each(change));
        assert_eq!(storage(|storage| storage.corrupt_values = 1), [Kind::SuspectDisk]);
        assert_eq!(storage(|storage| storage.free_bytes -= 1), [Kind::DataNearlyFull]);
        assert_eq!(storage(|storage| storage.index_bytes += 1), [Kind::KeysNearlyFull]);
        assert_eq!(storage(|storage| storage.index_limit_bytes = 0), NOTHING, "it does not say");
        assert_eq!(storage(|storage| storage.unsynced = SLOW_SYNC), NOTHING);
        assert_eq!(storage(|storage| storage.unsynced = SLOW_SYNC * 2), [Kind::SlowSync]);
        assert_eq!(storage(|storage| storage.unsynced_bytes = 64 << 20), [Kind::SlowSync]);
        let scrub =
            |change: fn(&mut ScrubStatus)| found(|node| node.scrub.iter_mut().for_each(change));
        assert_eq!(scrub(|scrub| scrub.unrepairable = 1), [Kind::SuspectDisk]);
        assert_eq!(scrub(|scrub| scrub.paused = true), [Kind::ScrubPaused]);
    }

    /// The story: while every put was refused, `cairn health` warned that the disk was nearly full.
    #[test]
    fn a_leader_that_refuses_puts_for_lack_of_space_is_critical_and_a_full_follower_is_not() {
        type Change = fn(&mut StorageStatus);
        let with = |role, change: Change| {
            let full = |node: &mut NodeStatus| {
                node.role = role;
                let storage = node.storage.as_mut().expect("it has one");
                (storage.index_limit_bytes, storage.index_bytes) = (1 << 20, 0);
                change(storage);
            };
            (severities(full), all_found(full).first().map(Finding::line).unwrap_or_default())
        };
        let values = |storage: &mut StorageStatus| storage.free_bytes = storage.data_bytes / 32;
        let keys = |storage: &mut StorageStatus| {
            storage.index_bytes = storage.index_limit_bytes;
        };
        let cases: [(Change, Kind); 2] =
            [(values, Kind::DataNearlyFull), (keys, Kind::KeysNearlyFull)];
        for (change, kind) in cases {
            let (severity, line) = with(Role::Leader, change);
            assert_eq!(severity, [(kind, Severity::Critical)]);
            assert!(line.starts_with("b:1 refuses puts; deletes and reads go on: "), "{line}");
            let (severity, line) = with(Role::Follower, change);
            assert_eq!(severity, [(kind, Severity::Warning)], "{line}");
        }
        let nearly = |storage: &mut StorageStatus| storage.free_bytes = storage.data_bytes / 16;
        let (severity, line) = with(Role::Leader, nearly);
        assert_eq!(severity, [(Kind::DataNearlyFull, Severity::Warning)], "{line}");
    }

    #[test]
    fn a_member_that_serves_nobody_is_named_by_its_state_and_its_own_reason() {
        let state = |state, not_ready: Option<&str>, stopped: Option<&str>| {
            let mut node = node();
            node.member_state = state;
            (node.not_ready, node.stopped_reason) =
                (not_ready.map(str::to_owned), stopped.map(str::to_owned));
            let found = findings(&[("b:1".to_owned(), Ok(node))], 5000);
            found.iter().map(|finding| (finding.kind, finding.line())).collect::<Vec<_>>()
        };
        assert_eq!(
            state(MemberState::Recovering, Some("it lost power"), None),
            [(Kind::Recovering, "b:1 is not ready: it lost power".to_owned())]
        );
        assert_eq!(
            state(MemberState::Joining, Some("it copies"), None),
            [(Kind::NotReady, "b:1 is not ready: it copies".to_owned())]
        );
        assert_eq!(
            state(MemberState::Active, Some("stopped: no disk"), Some("no disk")),
            [(Kind::Stopped, "b:1 has stopped serving: no disk".to_owned())]
        );
        assert_eq!(
            state(MemberState::Removed, Some("removed: gone"), Some("gone")),
            [(Kind::Removed, "b:1 is removed and serves nobody: gone".to_owned())]
        );
    }

    #[test]
    fn why_no_leader_can_be_elected_is_not_said_of_each_member_unless_the_others_have_one() {
        let mut blocked = node();
        let why = "no leader can be elected".to_owned();
        (blocked.election_blocked, blocked.not_ready) = (Some(why.clone()), Some(why));
        let mut leader = node();
        for (leads, expected) in [(None, None), (Some("a:1".to_owned()), Some(Kind::NotReady))] {
            leader.leader = leads;
            let answers =
                [("a:1".to_owned(), Ok(leader.clone())), ("b:1".to_owned(), Ok(blocked.clone()))];
            let found = findings(&answers, 5000);
            assert_eq!(found.first().map(|finding| finding.kind), expected, "{found:?}");
        }
    }

    #[test]
    fn a_number_of_unsynced_bytes_is_a_fault_only_where_acknowledgements_wait_for_it() {
        for (mode, waits) in [(Mode::Replicated, true), (Mode::Sync, false), (Mode::Device, false)]
        {
            let written = |node: &mut NodeStatus| {
                node.durability.iter_mut().for_each(|durability| durability.mode = mode);
                node.storage.iter_mut().for_each(|storage| storage.unsynced_bytes = 64 << 20);
            };
            assert_eq!(found(written).contains(&Kind::SlowSync), waits, "{mode}");
        }
    }

    #[test]
    fn damage_is_a_fault_until_all_of_it_is_repaired() {
        let of = |corrupt, scrubbed, repaired, unrepairable| {
            severities(|node| {
                node.storage.iter_mut().for_each(|storage| storage.corrupt_values = corrupt);
                let scrub = node.scrub.get_or_insert_default();
                (scrub.damaged, scrub.repaired) = (scrubbed, repaired);
                scrub.unrepairable = unrepairable;
            })
        };
        let (fault, note) =
            ([(Kind::SuspectDisk, Severity::Warning)], [(Kind::SuspectDisk, Severity::Note)]);
        assert_eq!(of(2, 0, 1, 0), fault);
        assert_eq!(of(0, 2, 1, 0), fault);
        assert_eq!(of(2, 1, 2, 0), note);
        assert_eq!(of(0, 2, 3, 0), note);
        assert_eq!(of(2, 0, 2, 1), fault, "one could not be repaired");
        assert!(of(0, 0, 9, 0).is_empty(), "nothing is damaged");
    }

    #[test]
    fn a_member_that_waits_for_more_than_the_cluster_asks_is_named() {
        let modes = |cluster, effective| {
            let mut modes = ModeStatus::default();
            (modes.cluster, modes.effective) = (cluster, effective);
            severities(|node| node.modes = Some(modes))
        };
        let of = |severity| [(Kind::StricterMode, severity)];
        assert_eq!(modes(Some(Mode::Device), Mode::Sync), of(Severity::Warning));
        assert_eq!(modes(Some(Mode::Replicated), Mode::Sync), of(Severity::Warning));
        let by_design = modes(Some(Mode::Replicated), Mode::Device);
        assert_eq!(by_design, of(Severity::Note), "its disk keeps what is written");
        assert!(modes(Some(Mode::Sync), Mode::Sync).is_empty());
        assert!(modes(None, Mode::Sync).is_empty(), "the log says none yet");
    }
}
