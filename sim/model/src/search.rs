//! Breadth-first search over all states within the bounds, on two threads, with the same result
//! each time.
//!
//! The search expands levels in chunks. The threads share a chunk, and then each owns half of the
//! fingerprints, so neither the order of states nor their number depends on timing. The search
//! keeps 64 bits of a state: the smaller fingerprint of the state and its mirror image. Among 10⁷
//! states two share a fingerprint by chance with a probability of 3 in a million. The first
//! violation is at the least depth, so its counterexample is the shortest.

use crate::actions::{Action, Model};
use crate::state::State;
use crate::violation::Violation;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::thread;
use xxhash_rust::xxh3::xxh3_64;

const THREADS: usize = 2;
const CHUNK: usize = 1 << 16;

/// A state that a search must reach. Otherwise "no violation" could mean that it explored nothing
/// of interest.
pub(crate) type Witness = (&'static str, fn(&State) -> bool);

/// What a search found.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Distinct states, mirror images counted once.
    pub states: usize,
    /// The longest of the shortest paths.
    pub depth: usize,
    /// The violation and the shortest path to it.
    pub violation: Option<(Violation, Vec<Step>)>,
    /// Names of the witnesses that were not met.
    pub not_met: Vec<&'static str>,
    /// Whether the search reached the limit of states before its end.
    pub cut_short: bool,
}

/// An action and the state in which it was taken.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub before: State,
    pub action: Action,
    pub after: State,
}

type Seen = HashMap<u64, u64, BuildHasherDefault<AsIs>>;

struct Next {
    print: u64,
    parent: u64,
    state: State,
}

/// Searches until the end, the first violation, or the limit.
pub(crate) fn search(model: &Model, start: State, witnesses: &[Witness], limit: usize) -> Outcome {
    let mut seen: [Seen; THREADS] = Default::default();
    let mut buffer = Bytes::default();
    let first = fingerprint(model, &start, &mut buffer);
    seen[shard(first)].insert(first, first);
    let mut level = vec![start];
    let mut depth = 0;
    let mut met = vec![false; witnesses.len()];
    let count = |seen: &[Seen; THREADS]| seen.iter().map(Seen::len).sum::<usize>();
    loop {
        let mut next_level = Vec::new();
        for chunk in level.chunks(CHUNK) {
            let found = expand(model, &seen, chunk);
            let fresh = insert(&mut seen, found);
            for state in &fresh {
                for (met, (_, holds)) in met.iter_mut().zip(witnesses) {
                    *met |= holds(state);
                }
            }
            if let Some((violation, state)) = fresh.iter().find_map(|s| s.broken.map(|v| (v, *s))) {
                let steps = path(model, start, &seen, fingerprint(model, &state, &mut buffer));
                return outcome(
                    count(&seen),
                    steps.len(),
                    Some((violation, steps)),
                    &met,
                    witnesses,
                    false,
                );
            }
            next_level.extend(fresh);
        }
        let over = count(&seen) > limit;
        if next_level.is_empty() || over {
            return outcome(count(&seen), depth, None, &met, witnesses, over);
        }
        depth += 1;
        level = next_level;
    }
}

fn outcome(
    states: usize,
    depth: usize,
    violation: Option<(Violation, Vec<Step>)>,
    met: &[bool],
    witnesses: &[Witness],
    cut_short: bool,
) -> Outcome {
    let not_met =
        met.iter().zip(witnesses).filter(|(met, _)| !**met).map(|(_, (name, _))| *name).collect();
    Outcome { states, depth, violation, not_met, cut_short }
}

/// The unseen successors of a chunk, by thread and then by shard.
fn expand(model: &Model, seen: &[Seen; THREADS], chunk: &[State]) -> Vec<[Vec<Next>; THREADS]> {
    let share = chunk.len().div_ceil(THREADS).max(1);
    let work = |states: &[State]| {
        let mut out: [Vec<Next>; THREADS] = Default::default();
        let (mut actions, mut buffer) = (Vec::new(), Bytes::default());
        for state in states {
            let parent = fingerprint(model, state, &mut buffer);
            model.actions(state, &mut actions);
            for action in actions.drain(..) {
                let next = model.step(state, action);
                let print = fingerprint(model, &next, &mut buffer);
                if !seen[shard(print)].contains_key(&print) {
                    out[shard(print)].push(Next { print, parent, state: next });
                }
            }
        }
        out
    };
    thread::scope(|scope| {
        let shares = chunk.chunks(share).map(|states| scope.spawn(move || work(states)));
        let running: Vec<_> = shares.collect();
        running.into_iter().map(join).collect()
    })
}

/// Keeps the new states and returns them in an order that depends only on the input.
fn insert(seen: &mut [Seen; THREADS], found: Vec<[Vec<Next>; THREADS]>) -> Vec<State> {
    let mut by_shard: [Vec<Vec<Next>>; THREADS] = Default::default();
    for of_thread in found {
        for (shard, nexts) in by_shard.iter_mut().zip(of_thread) {
            shard.push(nexts);
        }
    }
    let fresh: Vec<Vec<State>> = thread::scope(|scope| {
        let work = |seen: &mut Seen, nexts: Vec<Vec<Next>>| {
            let mut fresh = Vec::new();
            for next in nexts.into_iter().flatten() {
                seen.entry(next.print).or_insert_with(|| {
                    fresh.push(next.state);
                    next.parent
                });
            }
            fresh
        };
        let running: Vec<_> = seen
            .iter_mut()
            .zip(by_shard)
            .map(|(seen, nexts)| scope.spawn(move || work(seen, nexts)))
            .collect();
        running.into_iter().map(join).collect()
    });
    fresh.concat()
}

fn join<T>(running: thread::ScopedJoinHandle<'_, T>) -> T {
    running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The shortest path from the start to a state. It contains no mirror images: each state follows
/// from the one before.
fn path(model: &Model, start: State, seen: &[Seen; THREADS], target: u64) -> Vec<Step> {
    let mut buffer = Bytes::default();
    let mut prints = vec![target];
    let mut at = target;
    while let Some(parent) = seen[shard(at)].get(&at).filter(|parent| **parent != at) {
        prints.push(*parent);
        at = *parent;
    }
    let mut before = start;
    let mut steps = Vec::new();
    for print in prints.into_iter().rev().skip(1) {
        let mut actions = Vec::new();
        model.actions(&before, &mut actions);
        let step = actions.into_iter().find_map(|action| {
            let after = model.step(&before, action);
            (fingerprint(model, &after, &mut buffer) == print).then_some(Step {
                before,
                action,
                after,
            })
        });
        let Some(step) = step else { break };
        before = step.after;
        steps.push(step);
    }
    steps
}

fn shard(print: u64) -> usize {
    (print >> 63) as usize
}

fn fingerprint(model: &Model, state: &State, buffer: &mut Bytes) -> u64 {
    let mut print = |state: &State| {
        buffer.0.clear();
        state.hash(buffer);
        xxh3_64(&buffer.0)
    };
    let own = print(state);
    if model.bounds.symmetric() { own.min(print(&state.mirrored())) } else { own }
}

/// Collects the bytes that a state hashes.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        xxh3_64(&self.0)
    }
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64(bytes);
    }

    fn write_u64(&mut self, print: u64) {
        self.0 = print;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
