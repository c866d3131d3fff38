//! Scripted scenarios: chosen faults, in one order, each at its moment.
//!
//! A seed of `cargo sim` chooses faults at random; a scenario is scripted. Its seed varies the
//! rest: latencies, disks, requests, the role of each member, short pauses. Clients, observation,
//! healing and all checks are those of any other run.
//!
//! ```text
//!   SCENARIOS ── plan(seed) ──► run ── Stage ──► the scenario's script
//!   stage       what a script sees, and waits for
//!   acts        the actions of a script
//!   power       machines that lose power: one, all, one after another, at every disk operation
//!   decisions   a majority may lack acknowledged writes, and an operator decides
//!   automatic   the same, decided by configuration
//!   founders    all that form a cluster have blank disks: beside members that came later, and alone
//!   identity    members that lose their identity, or its superblock
//!   election    votes and leaders at the wrong moment
//!   half_connected  networks that connect only some of the members
//!   recovery    recoveries that are interrupted
//!   storage     snapshots, space, the unsynced-ack flag
//!   ranges      ranges that are deleted around checkpoints
//!   repeats     requests that arrive a second time, late
//!   disks       disks that are lost while something else happens
//!   devices     disks that lose power alone, never complete an operation, or fail in an open
//!   damage      bits that flip, on one member or on all
//!   reads       reads at a deposed leader
//!   loss        an unsafe recovery discards only the newest writes
//!   moves       members that start at other addresses
//!   changes     what a script sees of the changes that an operator asks for
//!   membership  members that are removed and added
//!   leaders     leaders that are asked to go, and members that may not lead
//!   modes       modes that change
//!   states      the state that somebody takes while a leader dies, a snapshot arrives, a member recovers
//!   watches     watches over a leader's death, behind a snapshot, from a discarded position
//! ```
//!
//! Each scenario names its parts. A part that none of its seeds reached fails the scenario, since
//! it showed nothing.

/// A scenario by its name, its plan, and what happens in it.
macro_rules! scenario {
    ($name:literal, $plan:expr, |$stage:ident| $script:expr) => {
        Scenario::new($name, $plan, |$stage| Box::pin($script))
    };
    ($name:literal, $plan:expr, $script:path) => {
        Scenario::new($name, $plan, |stage| Box::pin($script(stage)))
    };
}

mod acts;
mod automatic;
mod changes;
mod damage;
mod decisions;
mod devices;
mod disks;
mod election;
mod founders;
mod half_connected;
mod identity;
mod leaders;
mod loss;
mod membership;
mod modes;
mod moves;
mod power;
mod ranges;
mod reads;
mod recovery;
mod repeats;
mod stage;
mod states;
mod storage;
mod watches;

pub(super) use loss::{CONTRADICTED, DISCARDED_ERROR, judge as judge_loss};
pub(super) use stage::{Signals, Stage};

use super::plan::Plan;
use cairn_clients::workload::Profile;
use cairn_engine::{Geometry, Mode};
use stage::Played;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// How the trace line of a script begins that waited for something in vain.
pub const CUT_SHORT: &str = "the script ends early, it waited for";

/// A running script.
pub(super) type Play = Pin<Box<dyn Future<Output = Played>>>;
/// A script.
type Script = fn(Stage) -> Play;

/// A script, and its seed.
#[derive(Clone, Copy)]
pub(super) struct Act {
    pub(super) seed: u64,
    pub(super) script: Script,
}

/// One scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its parts: at least one seed must reach each.
    pub parts: &'static [&'static str],
    /// How many seeds are run by default.
    pub seeds: u64,
    /// Whether the cluster may stop and wait for an operator.
    pub(in crate::harness) may_stop: bool,
    plan: fn(u64) -> Plan,
    script: Script,
}

/// All scenarios.
pub fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    [
        power::SCENARIOS,
        decisions::SCENARIOS,
        election::SCENARIOS,
        half_connected::SCENARIOS,
        recovery::SCENARIOS,
        storage::SCENARIOS,
        repeats::SCENARIOS,
        disks::SCENARIOS,
        identity::SCENARIOS,
        automatic::SCENARIOS,
        damage::SCENARIOS,
        devices::SCENARIOS,
        reads::SCENARIOS,
        moves::SCENARIOS,
        membership::SCENARIOS,
        leaders::SCENARIOS,
        modes::SCENARIOS,
        founders::SCENARIOS,
        states::SCENARIOS,
        ranges::SCENARIOS,
        watches::SCENARIOS,
    ]
    .into_iter()
    .flatten()
}

/// How many seeds a scenario has that says nothing else.
const SEEDS: u64 = 4;
/// How many of a scenario's seeds a window has.
const WINDOW: u64 = 4;
/// Scenarios whose planted bugs needed more seeds than that to the first catch, and how many their
/// windows have.
const WIDER: [(&str, u64); 2] = [
    ("snapshot-left-for-a-newer-one", 8),
    ("unsafe-recovery-of-one-with-its-epoch-in-the-log", 16),
];

impl Scenario {
    /// With a few seeds, after each of which the cluster serves.
    const fn new(name: &'static str, plan: fn(u64) -> Plan, script: Script) -> Scenario {
        Scenario { name, parts: &[], seeds: SEEDS, may_stop: false, plan, script }
    }

    /// At least one seed reaches each of these parts.
    const fn reaches(self, parts: &'static [&'static str]) -> Scenario {
        Scenario { parts, ..self }
    }

    const fn seeds(self, seeds: u64) -> Scenario {
        Scenario { seeds, ..self }
    }

    /// The cluster may wait for an operator at the end.
    const fn may_stop(self) -> Scenario {
        Scenario { may_stop: true, ..self }
    }

    /// The plan of a seed, in its own mode or another one.
    pub(in crate::harness) fn plan_of(&self, seed: u64, mode: Option<Mode>) -> Plan {
        let plan = (self.plan)(seed);
        match mode {
            Some(mode) => in_mode(plan, mode),
            None => plan,
        }
    }

    /// What happens in a run of this seed.
    pub(in crate::harness) fn act(&self, seed: u64) -> Act {
        Act { seed, script: self.script }
    }

    /// A few of its seeds. Windows whose numbers follow one another have all of them in turn.
    pub fn window(&self, number: u64) -> Vec<u64> {
        let wider = WIDER.iter().find(|(name, _)| *name == self.name);
        let width = wider.map_or(WINDOW, |(_, width)| *width).min(self.seeds);
        let first = number.wrapping_mul(width) % self.seeds.max(1);
        (first..first + width).map(|seed| seed % self.seeds).collect()
    }
}

/// A plan for so many members under load in mode `replicated`, without faults of its own.
fn members(seed: u64, nodes: u16) -> Plan {
    let plan = Plan::new(seed, Some(Mode::Replicated));
    let mib = 1 << 20;
    Plan {
        nodes,
        geometry: Geometry {
            journal_bytes: 8 * mib,
            checkpoint_bytes: 4 * mib,
            data_bytes: 64 * mib,
        },
        log_retain_entries: 100_000,
        value_cache_bytes: 0,
        sync_interval: Duration::from_secs(1),
        election: None,
        max_sessions: None,
        profile: Profile {
            clients: 3,
            tasks_per_client: 2,
            groups: 4,
            think_max: Duration::from_millis(60),
            deadline: Duration::from_secs(4),
            write_percent: 70,
            ..plan.profile
        },
        beyond_tolerance: true,
        faults: Vec::new(),
        repeats_per_mille: 0,
        resets_per_mille: 0,
        leaves: false,
        half_connected: false,
        heals_bare: false,
        bulk_keys: 0,
        takes_states: false,
        watchers: Vec::new(),
        history: None,
        heals_slow: false,
        lingers: false,
        forms_in_peace: true,
        ..plan
    }
}

/// Three members.
fn three(seed: u64) -> Plan {
    members(seed, 3)
}

/// Five members.
fn five(seed: u64) -> Plan {
    members(seed, 5)
}

/// Three members or five.
fn three_or_five(seed: u64) -> Plan {
    members(seed, if seed.is_multiple_of(2) { 3 } else { 5 })
}

/// The part of a scenario in which a power cut loses unsynced blocks.
const UNSYNCED_LOST: &str = "unsynced blocks lost";

/// The number of disk operations at which a scenario ends a member, one in each seed; later seeds
/// have another workload.
const STEPS: u64 = 150;

/// Three members, and the same run for [`STEPS`] seeds up to the moment of the fault.
fn one_workload(seed: u64) -> Plan {
    three(2 + seed / STEPS)
}

/// The plan in another mode.
fn in_mode(plan: Plan, mode: Mode) -> Plan {
    Plan { mode, honours_contract: mode == Mode::Device, ..plan }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_clients::workload::SCAN_LIMIT;
    use std::collections::BTreeSet;

    #[test]
    fn windows_one_after_another_have_all_seeds_of_a_scenario() {
        for scenario in scenarios() {
            let mut seen = BTreeSet::new();
            for number in 1_000..1_000 + scenario.seeds.div_ceil(WINDOW) {
                let window = scenario.window(number);
                assert!(window.len() as u64 >= scenario.seeds.min(WINDOW), "{}", scenario.name);
                seen.extend(window);
            }
            assert_eq!(seen, (0..scenario.seeds).collect(), "{}", scenario.name);
        }
    }

    /// The story: a script stopped the clients, waited for their deadline, and went on while a scan of theirs was under
    /// way, which may take longer.
    #[test]
    fn clients_that_are_stopped_have_ended_their_scans_when_their_deadline_is_over() {
        for scenario in scenarios() {
            for seed in 0..scenario.seeds {
                let deadline = scenario.plan_of(seed, None).profile.deadline;
                assert!(deadline >= SCAN_LIMIT, "{} with seed {seed}: {deadline:?}", scenario.name);
            }
        }
    }

    #[test]
    fn wider_windows_are_those_of_scenarios() {
        for (name, width) in WIDER {
            let scenario = scenarios().find(|known| known.name == name).expect(name);
            assert_eq!(scenario.window(7).len() as u64, width, "{name}");
        }
    }
}
