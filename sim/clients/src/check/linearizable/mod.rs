//! Linearizability, decided by search after Wing & Gong with Lowe's memory of visited states.
//!
//! Each group of keys is judged by itself. Three things keep the search small:
//! - a read that fits the state now can be placed now: placing it later can gain nothing;
//! - writes whose log index was told to anybody can only be placed in the order of their indexes, since the index is
//!   their version and versions grow;
//! - a write that nobody heard of is placed as late as possible, and of several alike only one is tried;
//! - a visited pair (placed requests, state) is not visited again.
//!
//! What is left to guess is which requests of unknown outcome took effect, and when. The search is bounded; one that
//! gives up is a failure.

use crate::Violation;
use crate::check::model::{Request, State, Versions};
use crate::history::{Action, Change, Condition, History, Key, Outcome, Record};
use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};

/// The property's name.
pub const NAME: &str = "linearizable";

/// States visited per group before the search gives up.
pub const DEFAULT_BUDGET: usize = 2_000_000;

/// Judges every group.
pub fn check(history: &History, budget: usize) -> Vec<Violation> {
    let groups = history.by_group().into_iter();
    groups.filter_map(|(group, records)| check_group(group, &records, budget).err()).collect()
}

/// Judges a history of one group that ends with a read of all its keys, after all other answers. Gives the requests of unknown
/// outcome that may take effect after that read: a set for each way to explain the answers. A set within another one is
/// left out, since a request may also never take effect. Later answers depend on these sets and on what was read, and on nothing else.
pub fn open_after(history: &History, budget: usize) -> Result<Vec<Vec<Record>>, Violation> {
    let records: Vec<&Record> = history.records().iter().collect();
    let group = records.first().map_or(0, |record| record.group);
    let sets = explain(group, &records, budget, Every::Way)?;
    Ok(sets.into_iter().map(|set| set.into_iter().cloned().collect()).collect())
}

fn check_group(group: u32, records: &[&Record], budget: usize) -> Result<(), Violation> {
    explain(group, records, budget, Every::First).map(drop)
}

/// The requests of unknown outcome that are not placed, in each order that was found.
fn explain<'a>(
    group: u32,
    records: &[&'a Record],
    budget: usize,
    every: Every,
) -> Result<Vec<Vec<&'a Record>>, Violation> {
    let violation = |detail| Violation::new(NAME, format!("group {group}: {detail}"));
    let judged: Vec<&Record> = records.iter().copied().filter(|record| matters(record)).collect();
    let versions = Versions::collect(&judged, records).map_err(violation)?;
    let orders = Search::new(&judged, &versions, budget, every).run().map_err(violation)?;
    let open = |placed: &Placed| {
        let open = judged.iter().enumerate().filter(|(at, record)| record.is_open() && !has(placed, *at));
        open.map(|(_, record)| *record).collect()
    };
    Ok(orders.iter().map(open).collect())
}

/// Stale reads promise nothing here, reads without an answer saw nothing, failed requests did nothing.
fn matters(record: &Record) -> bool {
    match (&record.action, &record.outcome) {
        (Action::StaleGet(_), _) | (_, Outcome::NoEffect) => false,
        (Action::Write(_), _) => true,
        (_, outcome) => *outcome != Outcome::Unknown,
    }
}

/// A set of keys, as bits.
type Keys = u8;

fn keys_of(record: &Record) -> Keys {
    match &record.action {
        Action::Write(operations) => operations.iter().fold(0, |keys, operation| keys | 1 << operation.key),
        Action::Get(key) | Action::StaleGet(key) | Action::Version(key) => 1 << key,
        Action::List(_) => Keys::MAX,
    }
}

/// Which requests are placed, as bits.
type Placed = Vec<u64>;

fn has(placed: &Placed, request: usize) -> bool {
    placed.get(request / 64).is_some_and(|word| word >> (request % 64) & 1 == 1)
}

fn place(placed: &mut Placed, request: usize) {
    if let Some(word) = placed.get_mut(request / 64) {
        *word |= 1 << (request % 64);
    }
}

#[derive(Clone)]
struct Point {
    placed: Placed,
    /// All requests before this one are placed.
    first: usize,
    state: State,
    /// The keys of each silent write that nothing placed after it has met yet.
    unmet: Vec<Keys>,
}

impl Point {
    /// The point after `request`, which met `keys` and left `state`.
    fn then(&self, request: usize, keys: Keys, state: State) -> Point {
        let mut next = Point { state, ..self.clone() };
        place(&mut next.placed, request);
        next.unmet.retain(|unmet| unmet & keys == 0);
        next
    }
}

/// How many orders to look for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Every {
    /// One is enough.
    First,
    /// One for each set of requests that it leaves open.
    Way,
}

struct Search<'a> {
    records: &'a [&'a Record],
    versions: &'a Versions,
    /// Requests with a known version, by version.
    ordered: Vec<usize>,
    budget: usize,
    every: Every,
    deepest: Option<(usize, Point)>,
}

impl<'a> Search<'a> {
    fn new(records: &'a [&'a Record], versions: &'a Versions, budget: usize, every: Every) -> Search<'a> {
        let mut ordered: Vec<usize> =
            (0..records.len()).filter(|request| versions.of(*request as Request).is_some()).collect();
        ordered.sort_by_key(|request| versions.of(*request as Request));
        Search { records, versions, ordered, budget, every, deepest: None }
    }

    /// What each order found has placed.
    fn run(mut self) -> Result<Vec<Placed>, String> {
        let start = Point {
            placed: vec![0; self.records.len().div_ceil(64)],
            first: 0,
            state: State::default(),
            unmet: Vec::new(),
        };
        let (mut visited, mut orders) = (HashSet::new(), Vec::new());
        let mut stack = vec![start];
        while let Some(mut point) = stack.pop() {
            let candidates = self.settle(&mut point);
            if orders.iter().any(|order| self.leaves_as_much(order, &point.placed)) {
                continue;
            }
            if self.complete(&point) {
                orders.push(point.placed);
                if self.every == Every::First {
                    break;
                }
                continue;
            }
            if !visited.insert((point.placed.clone(), point.state.clone(), point.unmet.clone())) {
                continue;
            }
            if visited.len() > self.budget {
                return Err(format!("undecided: gave up after {} states", self.budget));
            }
            self.remember(&point);
            // Last pushed is tried first: what was answered before what nobody heard of.
            self.push_silent(&point, &candidates, &mut stack);
            self.push_answered(&point, &candidates, &mut stack);
        }
        if orders.is_empty() { Err(self.explain()) } else { Ok(orders) }
    }

    /// Whether `order` has placed no request of unknown outcome but those that `placed` has too.
    fn leaves_as_much(&self, order: &Placed, placed: &Placed) -> bool {
        let mut records = self.records.iter().enumerate();
        records.all(|(at, record)| !record.is_open() || !has(order, at) || has(placed, at))
    }

    /// Requests that somebody heard of: only the next log index may come, or a read whose moment is a guess.
    fn push_answered(&self, point: &Point, candidates: &[usize], stack: &mut Vec<Point>) {
        let next_ordered = self.ordered.iter().copied().find(|request| !has(&point.placed, *request));
        for request in candidates.iter().copied() {
            let Some(record) = self.records.get(request) else {
                continue;
            };
            let is_read = !matches!(record.action, Action::Write(_));
            if !is_read && Some(request) != next_ordered {
                continue;
            }
            let keys = keys_of(record);
            if point.unmet.iter().any(|unmet| unmet & keys == 0) {
                continue;
            }
            if let Some(state) = point.state.step(request as Request, record, self.versions) {
                stack.push(point.then(request, keys, state));
            }
        }
    }

    /// Writes of unknown outcome whose version nobody saw. Each is placed as late as it can be: right before something
    /// that meets one of its keys. Of those alike only the first is tried, since none of them ever expires. What is put tells
    /// two apart only where one of them may be seen after the last record.
    fn push_silent(&self, point: &Point, candidates: &[usize], stack: &mut Vec<Point>) {
        type Kind = (Key, Discriminant<Change>, Option<Change>, Condition);
        let mut tried: Vec<Vec<Kind>> = Vec::new();
        let told_apart = |change| Some(change).filter(|_| self.every == Every::Way);
        for request in candidates.iter().copied() {
            let Some(record) = self.records.get(request) else {
                continue;
            };
            let Action::Write(operations) = &record.action else {
                continue;
            };
            if !record.is_open() || self.versions.of(request as Request).is_some() {
                continue;
            }
            let alike: Vec<_> = operations
                .iter()
                .map(|o| (o.key, discriminant(&o.change), told_apart(o.change), o.condition))
                .collect();
            if tried.contains(&alike) {
                continue;
            }
            tried.push(alike);
            let Some(state) = point.state.step(request as Request, record, self.versions) else {
                continue;
            };
            let keys = keys_of(record);
            let blind =
                operations.iter().all(|o| o.condition == Condition::None && o.change != Change::Check);
            // What it overwrites unseen need not have been placed; what changes nothing need not be either.
            let hides = blind && point.unmet.iter().any(|unmet| unmet & !keys == 0);
            if state != point.state && !hides {
                let mut next = point.then(request, keys, state);
                next.unmet.push(keys);
                stack.push(next);
            }
        }
    }

    /// Places every read that fits, and returns the requests that may come next and whose moment must be guessed.
    fn settle(&self, point: &mut Point) -> Vec<usize> {
        loop {
            while has(&point.placed, point.first) {
                point.first += 1;
            }
            let mut guesses = Vec::new();
            let mut progress = false;
            for request in self.candidates(point) {
                let Some(record) = self.records.get(request) else {
                    continue;
                };
                if matches!(record.action, Action::Write(_)) {
                    guesses.push(request);
                    continue;
                }
                match point.state.step(request as Request, record, self.versions) {
                    Some(state) if state == point.state => {
                        place(&mut point.placed, request);
                        let keys = keys_of(record);
                        point.unmet.retain(|unmet| unmet & keys == 0);
                        progress = true;
                    }
                    // It fits and teaches a silent writer's version: whether now is the moment is a guess.
                    Some(_) => guesses.push(request),
                    None => {}
                }
            }
            if !progress {
                return guesses;
            }
        }
    }

    /// Requests not placed that began before any other such request ended.
    fn candidates(&self, point: &Point) -> Vec<usize> {
        let mut frontier = u64::MAX;
        let mut candidates = Vec::new();
        for (request, record) in self.records.iter().enumerate().skip(point.first) {
            if record.invoked > frontier {
                break;
            }
            if !has(&point.placed, request) {
                candidates.push(request);
                if !record.is_open() {
                    frontier = frontier.min(record.returned);
                }
            }
        }
        candidates
    }

    fn complete(&self, point: &Point) -> bool {
        let rest = self.records.iter().enumerate().skip(point.first);
        rest.into_iter().all(|(request, record)| has(&point.placed, request) || record.is_open())
    }

    fn remember(&mut self, point: &Point) {
        let depth = point.placed.iter().map(|word| word.count_ones() as usize).sum();
        if self.deepest.as_ref().is_none_or(|(best, _)| depth > *best) {
            self.deepest = Some((depth, point.clone()));
        }
    }

    fn explain(&self) -> String {
        let Some((depth, point)) = &self.deepest else {
            return "nothing could be placed".into();
        };
        let mut text = format!(
            "no order explains the answers; the longest has {depth} of {} requests and ends with {:?}; next could be",
            self.records.len(),
            point.state.keys,
        );
        for request in self.candidates(point) {
            if let Some(record) = self.records.get(request) {
                text.push_str(&format!("\n      [{request}] {record}"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
