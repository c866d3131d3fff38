//! Which voters fail together, and what is then true of the promise: a mode promises something of
//! one machine's loss, and two voters on one kernel are one machine.
//!
//! What holds here: only voters whose machine is known count, each by its own word. Virtual machines
//! on one host look like several machines; only a configured `failure_domain` shows that.

use crate::config::NodeConfig;
use crate::promise::SyncWindow;
use cairn_engine::Mode;
use cairn_raft::{Machine, Replica, Role};
use std::collections::{BTreeMap, BTreeSet};

/// One sentence for each machine or failure domain that has several voters of this cluster; none on
/// a node that does not lead, since the other members do not tell it where they run.
pub(crate) fn exceptions(replica: &Replica, mode: Mode, window: SyncWindow) -> Vec<String> {
    let status = replica.status();
    if status.role != Role::Leader {
        return Vec::new();
    }
    let machines = replica.machines();
    let voters = status.configurations.last().map_or(0, BTreeSet::len);
    let machines: Vec<(u16, Machine)> =
        machines.into_iter().map(|(voter, machine)| (voter.slot(), machine)).collect();
    sentences(&machines, voters, mode, window)
}

/// One sentence for each host at which the configuration has several members: the best guess as
/// long as the members do not run.
pub fn at_one_address(config: &NodeConfig) -> Vec<String> {
    let mut hosts: BTreeMap<&str, BTreeSet<u16>> = BTreeMap::new();
    for (slot, member) in &config.members {
        let host = member.peer.rsplit_once(':').map_or(member.peer.as_str(), |(host, _)| host);
        hosts.entry(host).or_default().insert(*slot);
    }
    let shared = hosts.into_iter().filter(|(_, slots)| slots.len() > 1);
    shared
        .map(|(host, slots)| {
            format!(
                "slots {} are configured at one address, {host}: if that is one machine, they lose power together",
                listed(&slots)
            )
        })
        .collect()
}

fn sentences(
    machines: &[(u16, Machine)],
    voters: usize,
    mode: Mode,
    window: SyncWindow,
) -> Vec<String> {
    let (mut kernels, mut domains) = (BTreeMap::new(), BTreeMap::new());
    for (slot, machine) in machines {
        if machine.kernel != 0 {
            kernels.entry(machine.kernel).or_insert_with(BTreeSet::new).insert(*slot);
        }
        if !machine.failure_domain.is_empty() {
            let domain = machine.failure_domain.as_str();
            domains.entry(domain).or_insert_with(BTreeSet::new).insert(*slot);
        }
    }
    let shared: Vec<&BTreeSet<u16>> = kernels.values().filter(|slots| slots.len() > 1).collect();
    let on_one_machine = shared.iter().map(|slots| (*slots, "run on one machine".to_string()));
    // A domain with no voter beyond those of one machine adds nothing.
    let in_one_domain = domains
        .iter()
        .filter(|(_, slots)| slots.len() > 1 && !shared.iter().any(|known| slots.is_subset(known)))
        .map(|(domain, slots)| (slots, format!("are in failure domain `{domain}`")));
    let all: Vec<(&BTreeSet<u16>, String)> = on_one_machine.chain(in_one_domain).collect();
    all.into_iter().map(|(slots, place)| sentence(slots, &place, voters, mode, window)).collect()
}

fn sentence(
    slots: &BTreeSet<u16>,
    place: &str,
    voters: usize,
    mode: Mode,
    window: SyncWindow,
) -> String {
    let who = format!("slots {} {place}", listed(slots));
    let here = slots.len();
    if here < cairn_raft::majority(voters) {
        return format!("{who}: when it loses power, {here} of {voters} voters do at once");
    }
    match mode {
        Mode::Replicated => {
            format!("{who}: when it loses power, up to {window} of acknowledged writes may be lost")
        }
        _ => format!(
            "{who}: while it is down no majority is left, and nothing can be read or written"
        ),
    }
}

/// `1, 2 and 3`.
pub fn listed(slots: &BTreeSet<u16>) -> String {
    let mut words: Vec<String> = slots.iter().map(u16::to_string).collect();
    let last = words.pop().unwrap_or_default();
    match words.is_empty() {
        true => last,
        false => format!("{} and {last}", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(kernels: &[u64], domains: &[&str], mode: Mode) -> Vec<String> {
        let machine = |(kernel, domain): (&u64, &&str)| Machine {
            kernel: *kernel,
            failure_domain: domain.to_string(),
        };
        let machines: Vec<_> = (1..).zip(kernels.iter().zip(domains).map(machine)).collect();
        sentences(&machines, kernels.len(), mode, SyncWindow::default())
    }

    #[test]
    fn voters_apart_need_no_sentence() {
        assert!(on(&[1, 2, 3], &["a", "b", ""], Mode::Replicated).is_empty());
        assert!(on(&[0, 0, 0], &["", "", ""], Mode::Replicated).is_empty(), "not known");
        assert!(on(&[1], &["a"], Mode::Sync).is_empty());
    }

    #[test]
    fn a_majority_on_one_machine_may_lose_what_the_mode_says_that_it_keeps() {
        assert_eq!(
            on(&[7, 7, 8], &["", "", ""], Mode::Replicated),
            [
                "slots 1 and 2 run on one machine: when it loses power, up to 1 s or 64 MiB of acknowledged writes may be lost"
            ]
        );
        let sync = on(&[7, 7, 7], &["", "", ""], Mode::Sync).concat();
        assert!(sync.starts_with("slots 1, 2 and 3 run on one machine") && !sync.contains("lost"));
    }

    #[test]
    fn fewer_than_a_majority_count_as_so_many_voters() {
        let said = on(&[7, 7, 8, 9, 10], &[""; 5], Mode::Replicated).concat();
        assert!(said.ends_with("when it loses power, 2 of 5 voters do at once"), "{said}");
    }

    #[test]
    fn a_failure_domain_is_named_unless_it_is_one_machine() {
        let said = on(&[1, 2, 3], &["rack1", "rack1", "rack2"], Mode::Replicated).concat();
        assert!(said.starts_with("slots 1 and 2 are in failure domain `rack1`: "), "{said}");
        let one = on(&[1, 1, 3], &["rack1", "rack1", "rack2"], Mode::Replicated);
        assert_eq!(one.len(), 1, "{one:?}");
    }
}
