//! A seed is one run: the same trace, line by line, disk operation by disk operation, every time.
//!
//! Exists only in the simulation's build: `cargo test --config .cargo/sim.toml --profile sim -p
//! cairn-sim`. The last lines of a trace carry digests of all disk operations and of the
//! scheduler's state, so equal traces mean equal runs.
#![cfg(madsim)]

use cairn_sim::harness::{RunOptions, run_scenario, run_seed, scenarios};
use std::collections::BTreeSet;

#[test]
fn two_runs_of_a_seed_have_one_trace() {
    for seed in 0..6 {
        let first = run_seed(seed, RunOptions::default());
        let second = run_seed(seed, RunOptions::default());
        for (one, other) in first.trace.iter().zip(&second.trace) {
            assert_eq!(one, other, "seed {seed}");
        }
        assert_eq!(first.trace.len(), second.trace.len(), "seed {seed}");
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert!(first.trace.len() > 100, "seed {seed} did something");
    }
}

#[test]
fn what_ran_before_on_other_threads_changes_nothing() {
    let alone = run_seed(7, RunOptions::default()).trace_hash;
    let beside = std::thread::spawn(|| run_seed(8, RunOptions::default()).trace_hash);
    let again = run_seed(7, RunOptions::default()).trace_hash;
    assert_eq!(alone, again);
    assert_ne!(beside.join().ok(), Some(alone), "another seed is another run");
}

#[test]
fn a_seed_of_a_scenario_has_one_trace() {
    for scenario in scenarios().filter(|scenario| scenario.name.starts_with("nats")) {
        let [first, second] =
            [0; 2].map(|seed| run_scenario(scenario, seed, RunOptions::default()));
        assert_eq!(first.trace_hash, second.trace_hash, "{}", scenario.name);
        assert!(first.trace.len() > 100, "{} did something", scenario.name);
    }
}

#[test]
fn each_scenario_has_a_name_of_its_own_and_stages_something() {
    let names: BTreeSet<&str> = scenarios().map(|scenario| scenario.name).collect();
    assert_eq!(names.len(), scenarios().count());
    assert!(scenarios().all(|scenario| !scenario.parts.is_empty() && scenario.seeds > 0));
}
