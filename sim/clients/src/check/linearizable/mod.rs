//! Linearizability, decided by the search of Wing & Gong with Lowe's memory of visited states.
//!
//! Each group of keys is checked alone. Four rules keep the search small:
//! - a read that fits the present state is placed now: placing it later gains nothing;
//! - writes whose log index any client saw are placed in the order of their indexes, since the
//!   index is their version and versions grow;
//! - a write whose outcome and version no client saw (a *silent* write) is placed as late as
//!   possible, and of several alike only one is tried. They are alike whatever the length of their
//!   values, unless no order is found so: a page that ends early depends on the length of a value
//!   that it does not show;
//! - a visited pair (placed requests, state) is not visited again.
//!
//! What is left to guess is which requests of unknown outcome took effect, and when. The search is
//! bounded; if it reaches the bound, that is a failure.

use crate::Violation;
use crate::check::model::{Request, State, Versions};
use crate::history::{Action, Change, Condition, History, Key, Outcome, RangeSpec, Record};
use crate::workload::value_bytes;
use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};

/// The property's name.
pub const NAME: &str = "linearizable";

/// The most states that the search visits per group.
pub const DEFAULT_BUDGET: usize = 2_000_000;

/// Checks every group.
pub fn check(history: &History, budget: usize) -> Vec<Violation> {
    let groups = history.by_group().into_iter();
    groups.filter_map(|(group, records)| check_group(group, &records, budget).err()).collect()
}

/// Checks a history of one group that ends with a read of all its keys, after all other answers.
/// Returns the requests of unknown outcome that may take effect after that read: one set for each
/// way to explain the answers. A set contained in another is left out, since a request may also
/// never take effect. Later answers depend only on these sets and on what was read.
pub fn open_after(history: &History, budget: usize) -> Result<Vec<Vec<Record>>, Violation> {
    let records: Vec<&Record> = history.records().iter().collect();
    let group = records.first().map_or(0, |record| record.group);
    let sets = explain(group, &records, budget, Orders::EachOpenSet)?;
    Ok(sets.into_iter().map(|set| set.into_iter().cloned().collect()).collect())
}

fn check_group(group: u32, records: &[&Record], budget: usize) -> Result<(), Violation> {
    explain(group, records, budget, Orders::First).map(drop)
}

/// The requests of unknown outcome that are not placed, for each order that was found.
fn explain<'a>(
    group: u32,
    records: &[&'a Record],
    budget: usize,
    wanted: Orders,
) -> Result<Vec<Vec<&'a Record>>, Violation> {
    let violation = |detail| Violation::new(NAME, format!("group {group}: {detail}"));
    let checked: Vec<&Record> = records.iter().copied().filter(|record| matters(record)).collect();
    let versions = Versions::collect(&checked, records).map_err(violation)?;
    let search = |by_length| Search::new(&checked, &versions, budget, wanted, by_length).run();
    let orders = match search(false) {
        Err(detail) if checked.iter().any(|record| ends_early(record)) => {
            search(true).map_err(|_| violation(detail))?
        }
        orders => orders.map_err(violation)?,
    };
    let open = |placed: &Placed| {
        let open =
            checked.iter().enumerate().filter(|(at, record)| record.is_open() && !has(placed, *at));
        open.map(|(_, record)| *record).collect()
    };
    Ok(orders.iter().map(open).collect())
}

/// Whether a record matters here: a read that may be old promises less, a read without an answer saw
/// nothing, a failed request did nothing.
fn matters(record: &Record) -> bool {
    match (&record.action, &record.outcome) {
        (Action::StaleGet(_) | Action::BoundedGet(..) | Action::BoundedGetMany(..), _)
        | (_, Outcome::NoEffect) => false,
        (action, outcome) => action.is_write() || *outcome != Outcome::Unknown,
    }
}

/// Whether it is a page behind which more follows.
fn ends_early(record: &Record) -> bool {
    matches!(record.outcome, Outcome::Listed(_, true))
}

/// A set of keys, as bits.
type Keys = u8;

fn keys_of(record: &Record) -> Keys {
    match &record.action {
        Action::Write(operations) => {
            operations.iter().fold(0, |keys, operation| keys | 1 << operation.key)
        }
        // Its answer tells of each of them, also of those that were not there.
        Action::DeleteRange(spec) => spec.keys().fold(0, |keys, key| keys | 1 << key),
        Action::Get(key)
        | Action::StaleGet(key)
        | Action::BoundedGet(key, _)
        | Action::Version(key) => 1 << key,
        Action::GetMany(asked) | Action::BoundedGetMany(asked, _) => {
            asked.iter().fold(0, |keys, key| keys | 1 << *key)
        }
        Action::List(_) | Action::Scan => Keys::MAX,
    }
}

/// Which requests are placed, as bits.
type Placed = Vec<u64>;

fn has(placed: &Placed, request: usize) -> bool {
    placed.get(request / 64).is_some_and(|word| word >> (request % 64) & 1 == 1)
}

fn set_placed(placed: &mut Placed, request: usize) {
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
    /// The keys of each silent write that no later placed request has touched yet.
    untouched: Vec<Keys>,
}

impl Point {
    /// The point after `request`, which touched `keys` and left `state`.
    fn then(&self, request: usize, keys: Keys, state: State) -> Point {
        let mut next = Point { state, ..self.clone() };
        set_placed(&mut next.placed, request);
        next.untouched.retain(|untouched| untouched & keys == 0);
        next
    }
}

/// Which orders to look for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Orders {
    /// The first one.
    First,
    /// One for each set of requests that an order leaves open.
    EachOpenSet,
}

/// What an operation of silent writes has in common of which only one is tried.
type Kind = (Key, Discriminant<Change>, Option<Change>, Option<u64>, Condition);

/// What silent writes have in common of which only one is tried.
#[derive(PartialEq)]
enum Alike {
    Write(Vec<Kind>),
    Range(RangeSpec),
}

struct Search<'a> {
    records: &'a [&'a Record],
    versions: &'a Versions,
    /// Requests with a known version, by version.
    ordered: Vec<usize>,
    budget: usize,
    wanted: Orders,
    /// Whether silent writes of values of different lengths are different.
    by_length: bool,
    deepest: Option<(usize, Point)>,
}

impl<'a> Search<'a> {
    fn new(
        records: &'a [&'a Record],
        versions: &'a Versions,
        budget: usize,
        wanted: Orders,
        by_length: bool,
    ) -> Search<'a> {
        let mut ordered: Vec<usize> = (0..records.len())
            .filter(|request| versions.of(*request as Request).is_some())
            .collect();
        ordered.sort_by_key(|request| versions.of(*request as Request));
        Search { records, versions, ordered, budget, wanted, by_length, deepest: None }
    }

    /// Returns the placed requests of each order that was found.
    fn run(mut self) -> Result<Vec<Placed>, String> {
        let start = Point {
            placed: vec![0; self.records.len().div_ceil(64)],
            first: 0,
            state: State::default(),
            untouched: Vec::new(),
        };
        let (mut visited, mut orders) = (HashSet::new(), Vec::new());
        let mut stack = vec![start];
        while let Some(mut point) = stack.pop() {
            let candidates = self.place_reads(&mut point);
            if orders.iter().any(|order| self.leaves_at_least(order, &point.placed)) {
                continue;
            }
            if self.complete(&point) {
                orders.push(point.placed);
                if self.wanted == Orders::First {
                    break;
                }
                continue;
            }
            if !visited.insert((point.placed.clone(), point.state.clone(), point.untouched.clone()))
            {
                continue;
            }
            if visited.len() > self.budget {
                return Err(format!("undecided: gave up after {} states", self.budget));
            }
            self.remember(&point);
            // The last pushed point is tried first: answered requests before silent ones.
            self.push_silent(&point, &candidates, &mut stack);
            self.push_answered(&point, &candidates, &mut stack);
        }
        if orders.is_empty() { Err(self.explain()) } else { Ok(orders) }
    }

    /// Whether `order` leaves open at least the requests that `placed` leaves open.
    fn leaves_at_least(&self, order: &Placed, placed: &Placed) -> bool {
        let mut records = self.records.iter().enumerate();
        records.all(|(at, record)| !record.is_open() || !has(order, at) || has(placed, at))
    }

    /// Pushes requests whose version is known: only the next log index may follow, or a read whose
    /// moment is a guess.
    fn push_answered(&self, point: &Point, candidates: &[usize], stack: &mut Vec<Point>) {
        let next_ordered =
            self.ordered.iter().copied().find(|request| !has(&point.placed, *request));
        for request in candidates.iter().copied() {
            let Some(record) = self.records.get(request) else {
                continue;
            };
            if record.action.is_write() && Some(request) != next_ordered {
                continue;
            }
            let keys = keys_of(record);
            if point.untouched.iter().any(|untouched| untouched & keys == 0) {
                continue;
            }
            if let Some(state) = point.state.step(request as Request, record, self.versions) {
                stack.push(point.then(request, keys, state));
            }
        }
    }

    /// Pushes silent writes. Each is placed as late as possible: right before a request that
    /// touches one of its keys. Of several alike only the first is tried, since none of them ever
    /// expires. Their values matter only if one of them may be seen after the last record.
    fn push_silent(&self, point: &Point, candidates: &[usize], stack: &mut Vec<Point>) {
        let mut tried: Vec<Alike> = Vec::new();
        let distinct = |change| Some(change).filter(|_| self.wanted == Orders::EachOpenSet);
        let length = |change| match change {
            Change::Put(value) if self.by_length => Some(value_bytes(value)),
            _ => None,
        };
        for request in candidates.iter().copied() {
            let Some(record) = self.records.get(request) else {
                continue;
            };
            if !record.is_open() || self.versions.of(request as Request).is_some() {
                continue;
            }
            let (alike, blind) = match &record.action {
                Action::Write(operations) => {
                    let kinds = operations.iter().map(|o| {
                        let (distinct, length) = (distinct(o.change), length(o.change));
                        (o.key, discriminant(&o.change), distinct, length, o.condition)
                    });
                    let blind = operations
                        .iter()
                        .all(|o| o.condition == Condition::None && o.change != Change::Check);
                    (Alike::Write(kinds.collect()), blind)
                }
                Action::DeleteRange(spec) => (Alike::Range(*spec), spec.leaves_none()),
                _ => continue,
            };
            if tried.contains(&alike) {
                continue;
            }
            tried.push(alike);
            let Some(state) = point.state.step(request as Request, record, self.versions) else {
                continue;
            };
            let keys = keys_of(record);
            // If it hides a silent write that no request touched, that write need not have been
            // placed. A write that changes nothing need not be placed either.
            let hides = blind && point.untouched.iter().any(|untouched| untouched & !keys == 0);
            if state != point.state && !hides {
                let mut next = point.then(request, keys, state);
                next.untouched.push(keys);
                stack.push(next);
            }
        }
    }

    /// Places every read that fits. Returns the requests that may follow and whose moment must be
    /// guessed.
    fn place_reads(&self, point: &mut Point) -> Vec<usize> {
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
                if record.action.is_write() {
                    guesses.push(request);
                    continue;
                }
                match point.state.step(request as Request, record, self.versions) {
                    Some(state) if state == point.state => {
                        set_placed(&mut point.placed, request);
                        let keys = keys_of(record);
                        point.untouched.retain(|untouched| untouched & keys == 0);
                        progress = true;
                    }
                    // It fits and shows a silent write's version: whether now is the moment is a
                    // guess.
                    Some(_) => guesses.push(request),
                    None => {}
                }
            }
            if !progress {
                return guesses;
            }
        }
    }

    /// Requests not placed that began before any other unplaced request ended.
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
