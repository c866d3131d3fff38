//! What is not well in the cluster as a whole: its leader, its voters, its versions.

use super::finding::{Answer, Finding, Kind};
use cairn_client::{Error, NodeStatus};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn findings(answers: &[Answer]) -> Vec<Finding> {
    let nodes: Vec<&NodeStatus> =
        answers.iter().filter_map(|(_, answer)| answer.as_ref().ok()).collect();
    let mut found = leader(answers, &nodes);
    found.extend(shared_failures(&nodes));
    found.extend(even_voters(&nodes));
    found.extend(versions(&nodes));
    if nodes.iter().any(|node| node.insecure) {
        found.push(Finding::of_cluster(
            Kind::Insecure,
            "insecure: connections have no certificates; whoever reaches the ports can read, write, and act as a member",
            "",
        ));
    }
    found.extend(not_shown(answers));
    found
}

/// Why nobody leads: once, whoever says it.
fn leader(answers: &[Answer], nodes: &[&NodeStatus]) -> Vec<Finding> {
    // A node that is cut off from the others may say that no leader can be elected while they have one.
    if nodes.iter().any(|node| node.leader.is_some()) {
        return Vec::new();
    }
    let blocked: BTreeSet<&String> =
        nodes.iter().filter_map(|node| node.election_blocked.as_ref()).collect();
    if !blocked.is_empty() {
        let finding = |why: &String| Finding::of_cluster(Kind::ElectionBlocked, why, "");
        return blocked.into_iter().map(finding).collect();
    }
    // Who may not ask does not know whether there is a leader.
    let denied = |(_, answer): &Answer| answer.as_ref().is_err_and(Error::is_denied);
    if nodes.is_empty() && answers.iter().any(denied) {
        return Vec::new();
    }
    vec![Finding::of_cluster(
        Kind::NoLeader,
        "no node that answers knows a leader: nothing is read or written",
        "start the members that do not answer; with a majority of them one is elected",
    )]
}

/// Each sentence of the leader about voters that share a machine or a failure domain.
fn shared_failures(nodes: &[&NodeStatus]) -> Vec<Finding> {
    let durability = nodes.iter().filter_map(|node| node.durability.as_ref());
    let exceptions: BTreeSet<&String> =
        durability.flat_map(|durability| &durability.exceptions).collect();
    let action = "let each voter run on a machine with a power feed of its own";
    let finding = |why: &String| Finding::of_cluster(Kind::VotersFailTogether, why, action);
    exceptions.into_iter().map(finding).collect()
}

/// An even number of voters survives no more failures than one voter less, and each write needs one
/// acknowledgement more.
fn even_voters(nodes: &[&NodeStatus]) -> Option<Finding> {
    let newest = nodes.iter().filter(|node| !node.configurations.is_empty());
    let newest = newest.max_by_key(|node| node.membership)?;
    // Two configurations: a change is under way.
    let [voters] = newest.configurations.as_slice() else { return None };
    let count = voters.len();
    let fewer = count.checked_sub(1).filter(|_| count.is_multiple_of(2))?;
    Some(Finding::of_cluster(
        Kind::EvenVoters,
        format!("{count} voters: no more of them may fail than of {fewer}"),
        "`cairn members add` one more, or `cairn members remove` one",
    ))
}

/// Whether members run different builds, or one that the cluster does not use yet.
fn versions(nodes: &[&NodeStatus]) -> Option<Finding> {
    let mut releases: BTreeMap<(u32, &str), BTreeSet<u16>> = BTreeMap::new();
    for node in nodes {
        let own = node.versions.as_ref().map_or(0, |versions| versions.own);
        releases.entry((own, node.server_version.as_str())).or_default().insert(node.slot);
    }
    if releases.len() > 1 {
        let of = |((version, release), slots): (&(u32, &str), &BTreeSet<u16>)| {
            let slots: Vec<String> = slots.iter().map(u16::to_string).collect();
            format!("{release} (version {version}) in slot {}", slots.join(", "))
        };
        let all: Vec<String> = releases.iter().map(of).collect();
        return Some(Finding::of_cluster(
            Kind::MixedVersions,
            format!("members run different releases: {}", all.join("; ")),
            "finish the upgrade, or go back: `cairn upgrade check`",
        ));
    }
    let known = || nodes.iter().filter_map(|node| node.versions.as_ref());
    let own = known().map(|versions| versions.own).max()?;
    let cluster = known().map(|versions| versions.cluster).max()?;
    (own > cluster).then(|| {
        Finding::of_cluster(
            Kind::UnfinishedUpgrade,
            format!("members run version {own}, and the cluster's version is {cluster}"),
            "`cairn upgrade finish`, once nobody wants to go back",
        )
    })
}

/// What each promise relies on although the machine does not show it: once, with its nodes.
fn not_shown(answers: &[Answer]) -> Vec<Finding> {
    let mut concerned: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for (endpoint, answer) in answers {
        let durability = answer.as_ref().ok().and_then(|node| node.durability.as_ref());
        for warning in durability.into_iter().flat_map(|durability| &durability.warnings) {
            concerned.entry(warning).or_default().push(endpoint.clone());
        }
    }
    let finding = |(warning, nodes): (&String, Vec<String>)| Finding {
        nodes,
        ..Finding::of_cluster(Kind::NotShown, format!("warns: {warning}"), "")
    };
    concerned.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::{DurabilityStatus, VersionStatus};

    const NOTHING: [Finding; 0] = [];

    fn node(slot: u16) -> NodeStatus {
        let mut node = NodeStatus::default();
        (node.slot, node.leader) = (slot, Some("a:1".into()));
        (node.server_version, node.membership) = ("0.1.0".into(), (1, 1));
        node.configurations = vec![BTreeSet::from([1, 2, 3])];
        node
    }

    fn found(nodes: Vec<NodeStatus>) -> Vec<Finding> {
        let answers = nodes.into_iter().map(|node| (format!("n{}:1", node.slot), Ok(node)));
        findings(&answers.collect::<Vec<Answer>>())
    }

    #[test]
    fn a_cluster_of_three_with_a_leader_and_one_release_has_no_finding() {
        assert_eq!(found(vec![node(1), node(2), node(3)]), NOTHING);
    }

    #[test]
    fn without_a_leader_the_reason_is_said_once_and_without_a_reason_what_to_do() {
        let leaderless = |slot, blocked: Option<&str>| {
            let mut node = node(slot);
            (node.leader, node.election_blocked) = (None, blocked.map(str::to_owned));
            node
        };
        let none = found(vec![leaderless(1, None), leaderless(2, None)]);
        assert_eq!(none.len(), 1, "{none:?}");
        assert_eq!(none[0].kind, Kind::NoLeader);
        assert!(none[0].line().contains("start the members"), "{}", none[0].line());
        let blocked = found(vec![leaderless(1, Some("decide")), leaderless(2, Some("decide"))]);
        assert_eq!(blocked.len(), 1, "{blocked:?}");
        assert_eq!(
            (blocked[0].kind, blocked[0].line().as_str()),
            (Kind::ElectionBlocked, "decide")
        );
        assert_eq!(found(vec![])[0].kind, Kind::NoLeader, "nobody answers");
        let cut_off = found(vec![node(1), node(2), leaderless(3, Some("decide"))]);
        assert_eq!(cut_off, NOTHING, "the others have a leader");
    }

    #[test]
    fn who_may_not_ask_is_not_told_that_there_is_no_leader() {
        let denied = || Err(Error::PermissionDenied { message: "no role".into() });
        let silent = || {
            let (tried, last_error) = (vec!["c:1".into()], "nobody listens".into());
            Err(Error::Unavailable { tried, last_error, source: None })
        };
        let answers = [("a:1".to_owned(), denied()), ("c:1".to_owned(), silent())];
        assert_eq!(findings(&answers), NOTHING);
        let found = findings(&[("c:1".to_owned(), silent())]);
        assert_eq!(found.first().map(|finding| finding.kind), Some(Kind::NoLeader), "{found:?}");
        // Another node answers, and knows none.
        let mut leaderless = node(2);
        leaderless.leader = None;
        let found = findings(&[("a:1".to_owned(), denied()), ("b:1".to_owned(), Ok(leaderless))]);
        assert_eq!(found.first().map(|finding| finding.kind), Some(Kind::NoLeader), "{found:?}");
    }

    #[test]
    fn an_even_number_of_voters_counts_by_the_newest_membership_and_not_during_a_change() {
        let of = |sets: Vec<BTreeSet<u64>>, membership| {
            let mut node = node(1);
            (node.configurations, node.membership) = (sets, membership);
            node
        };
        let (four, three) = (BTreeSet::from([1, 2, 3, 4]), BTreeSet::from([1, 2, 3]));
        let even = found(vec![of(vec![four.clone()], (2, 9)), of(vec![three.clone()], (2, 3))]);
        assert_eq!(even.len(), 1, "{even:?}");
        assert!(even[0].line().starts_with("4 voters: no more of them may fail than of 3; "));
        assert_eq!(found(vec![of(vec![four.clone()], (2, 3)), of(vec![three], (2, 9))]), NOTHING);
        let change = vec![BTreeSet::from([1, 2]), four];
        assert_eq!(found(vec![of(change, (2, 9))]), NOTHING, "two configurations");
    }

    #[test]
    fn different_releases_are_a_fault_and_an_upgrade_that_is_not_finished_is_a_note() {
        let runs = |slot, release: &str, own, cluster| {
            let mut node = node(slot);
            node.server_version = release.into();
            let mut versions = VersionStatus::default();
            (versions.own, versions.cluster) = (own, cluster);
            node.versions = Some(versions);
            node
        };
        let mixed = found(vec![runs(1, "0.1.0", 1, 1), runs(2, "0.2.0", 2, 1)]);
        assert_eq!(mixed.len(), 1, "{mixed:?}");
        let line = mixed[0].line();
        assert!(
            line.contains("0.1.0 (version 1) in slot 1; 0.2.0 (version 2) in slot 2"),
            "{line}"
        );
        let open = found(vec![runs(1, "0.2.0", 2, 1), runs(2, "0.2.0", 2, 1)]);
        assert_eq!(open[0].kind, Kind::UnfinishedUpgrade, "{open:?}");
        assert_eq!(found(vec![runs(1, "0.2.0", 2, 2)]), NOTHING);
    }

    #[test]
    fn what_a_machine_does_not_show_is_said_once_with_all_its_nodes() {
        let warned = |slot| {
            let mut node = node(slot);
            let mut durability = DurabilityStatus::default();
            durability.warnings = vec!["its disk is virtual".into()];
            durability.exceptions = vec!["slots 1 and 2 run on one machine".into()];
            node.durability = Some(durability);
            node
        };
        let found = found(vec![warned(1), warned(2)]);
        let kinds: Vec<Kind> = found.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [Kind::VotersFailTogether, Kind::NotShown]);
        assert_eq!(found[1].line(), "n1:1, n2:1 warns: its disk is virtual");
    }
}
