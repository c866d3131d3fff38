//! Whether a game day may begin: on a cluster that is well, and that nobody else uses.

use super::processes::FaultTarget;
use crate::cli::dev::DevMember;
use crate::cli::exit::{StateError, UsageError};
use cairn_client::{NodeStatus, Role};
use cairn_node::health::{Answer, Finding, Kind, Report};

/// Entries that a cluster without clients may log between two looks, as for a member's address.
const OWN_ENTRIES: u64 = 16;

/// What a cluster that is well may have: it says so of any cluster of `cairn dev`.
const TAKEN: [Kind; 2] = [Kind::VotersFailTogether, Kind::EvenVoters];

/// What a fault may leave for a while: space comes back as the log is purged.
const LEFT: [Kind; 3] = [Kind::DataNearlyFull, Kind::KeysNearlyFull, Kind::SlowSync];

/// What is not well after a fault.
pub(super) fn faults_after(report: &Report) -> Vec<String> {
    faults(report, &LEFT)
}

fn faults(report: &Report, left: &[Kind]) -> Vec<String> {
    let is_taken = |kind: Kind| TAKEN.contains(&kind) || left.contains(&kind);
    let faults = report.faults().filter(|finding| !is_taken(finding.kind));
    faults.map(Finding::line).collect()
}

/// Nothing, if the cluster is well.
///
/// # Errors
/// A [`StateError`] with what is not well.
pub(super) fn is_well(report: &Report) -> Result<(), StateError> {
    let faults = faults(report, &[]);
    match faults.is_empty() {
        true => Ok(()),
        false => Err(StateError(format!(
            "the cluster is not well, so no game day begins: {}",
            faults.join("; ")
        ))),
    }
}

/// Nothing, if nobody used the cluster between two looks. `requests`: those of clients meanwhile, if it is
/// known.
///
/// # Errors
/// A [`StateError`] with what was done.
pub(super) fn is_unused(
    before: &[Answer],
    after: &[Answer],
    requests: Option<u64>,
) -> Result<(), StateError> {
    let requests = requests.unwrap_or(0);
    // By the leader alone: a member that catches up writes what others wrote long ago.
    let none = NodeStatus::default();
    let (endpoint, now) = leader(after).unwrap_or(("", &none));
    let committed = statuses(before).map(|(_, node)| node.committed_index).max();
    let entries = committed.map_or(0, |before| now.committed_index.saturating_sub(before));
    let written =
        |node: &NodeStatus| node.storage.as_ref().map_or(0, |storage| storage.user_bytes_written);
    let led = leader(before).filter(|(before, _)| *before == endpoint);
    let bytes = led.map_or(0, |(_, then)| written(now).saturating_sub(written(then)));
    if requests == 0 && bytes == 0 && entries <= OWN_ENTRIES {
        return Ok(());
    }
    Err(StateError(format!(
        "other clients use this cluster ({requests} requests, {entries} entries and {bytes} bytes between two looks), and a game \
         day is for one that nobody needs; stop them, or add --with-traffic"
    )))
}

/// Whether the same node led at both looks, in the same term.
pub(super) fn have_one_leader(before: &[Answer], after: &[Answer]) -> bool {
    leader(before).zip(leader(after)).is_some_and(|((endpoint, then), (now_endpoint, now))| {
        endpoint == now_endpoint && then.term == now.term
    })
}

fn statuses(answers: &[Answer]) -> impl Iterator<Item = (&str, &NodeStatus)> {
    answers.iter().filter_map(|(endpoint, answer)| Some((endpoint.as_str(), answer.as_ref().ok()?)))
}

fn leader(answers: &[Answer]) -> Option<(&str, &NodeStatus)> {
    statuses(answers)
        .filter(|(_, node)| node.role == Role::Leader)
        .max_by_key(|(_, node)| node.term)
}

/// Nothing, if these processes are the members of the cluster that answers.
///
/// # Errors
/// A [`UsageError`] that names the first difference.
pub(super) fn is_cluster_of(
    members: &[DevMember],
    targets: &[FaultTarget],
) -> Result<(), UsageError> {
    let of_dev = |target: &FaultTarget| {
        let same = |member: &DevMember| {
            member.slot == target.slot && member.client_address == target.address
        };
        members.iter().any(same)
    };
    match targets.iter().find(|target| !of_dev(target)) {
        None => Ok(()),
        Some(FaultTarget { slot, address }) => Err(UsageError(format!(
            "slot {slot} at {address} is no member of the cluster in --dir; name its folder, or give commands that stop and start \
             members, such as --stop-with and --start-with"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::{Error, StorageStatus};

    fn node(committed: u64, bytes: u64) -> Answer {
        let mut node = NodeStatus::default();
        (node.slot, node.role, node.leader) = (1, Role::Leader, Some("a:1".into()));
        (node.committed_index, node.applied_index) = (committed, committed);
        let mut storage = StorageStatus::default();
        (storage.user_bytes_written, storage.keys) = (bytes, 1);
        node.storage = Some(storage);
        ("a:1".into(), Ok(node))
    }

    fn silent() -> Answer {
        let (tried, last_error) = (vec!["b:1".into()], "nobody listens".into());
        ("b:1".into(), Err(Error::Unavailable { tried, last_error, source: None }))
    }

    #[test]
    fn a_cluster_with_a_member_that_is_silent_is_refused() {
        let error = is_well(&Report::of(vec![node(5, 0), silent()])).expect_err("one is silent");
        assert!(error.to_string().contains("b:1 does not answer"), "{error}");
    }

    #[test]
    fn a_cluster_that_others_write_to_is_refused_and_its_own_entries_are_no_traffic() {
        let before = [node(100, 7), silent()];
        assert!(is_unused(&before, &[node(100 + OWN_ENTRIES, 7), silent()], None).is_ok());
        for busy in [node(100 + OWN_ENTRIES + 1, 7), node(101, 8)] {
            let error = is_unused(&before, &[silent(), busy], None).expect_err("it is used");
            assert!(error.to_string().contains("--with-traffic"), "{error}");
        }
        assert!(is_unused(&[], &[node(100, 7)], Some(0)).is_ok(), "nothing to compare");
        let readers = is_unused(&before, &before, Some(3)).expect_err("it is read").to_string();
        assert!(readers.contains("3 requests"), "{readers}");
    }

    /// The story: a member that had been down caught up between the two looks, and that was said to be
    /// traffic.
    #[test]
    fn a_member_that_catches_up_is_no_traffic() {
        let follower = |committed, bytes| {
            let (_, answer) = node(committed, bytes);
            let mut answer = ("b:1".to_owned(), answer);
            if let Ok(status) = &mut answer.1 {
                (status.slot, status.role) = (2, Role::Follower);
            }
            answer
        };
        let before = [node(5000, 7), follower(100, 7)];
        assert!(is_unused(&before, &[node(5000, 7), follower(5000, 9000)], None).is_ok());
    }

    /// The story: the leader changed between the two looks, and what was written meanwhile was not seen.
    #[test]
    fn looks_at_two_leaders_are_not_compared() {
        let of_term = |term| {
            let (endpoint, mut answer) = node(5, 7);
            if let Ok(status) = &mut answer {
                status.term = term;
            }
            [(endpoint, answer)]
        };
        assert!(have_one_leader(&of_term(3), &of_term(3)));
        assert!(!have_one_leader(&of_term(3), &of_term(4)));
        assert!(!have_one_leader(&of_term(3), &[silent()]));
        assert!(!have_one_leader(&[], &of_term(3)));
    }

    #[test]
    fn processes_of_another_cluster_are_refused() {
        let target = FaultTarget { slot: 1, address: "a:1".into() };
        let error = is_cluster_of(&[], &[target]).expect_err("no such member").to_string();
        assert!(error.contains("slot 1 at a:1") && error.contains("--stop-with"), "{error}");
    }
}
