//! One who follows what changes, as a user of a watch does.
//!
//! What holds here: some only follow; some stop reading for a while; some end, and go on later from the
//! position that they kept, by another client. Whoever is told that its position is gone lists its keys and
//! watches behind the list. Each asks the real client library and notes all that it hears. What ends a watch is judged
//! here: only what may end one does.

use super::clients;
use super::clock::virtual_time;
use super::cluster::Cluster;
use super::watches::Watches;
use cairn_client::{Change, Client, Error, Position, Watch};
use cairn_clients::Violation;
use cairn_clients::check::watched::{Begins, End, Left, Scope, Told, Watched};
use cairn_clients::history::{GROUP_KEYS, Key, Version};
use cairn_clients::workload::{decode_key, decode_value, encode_key};
use parking_lot::Mutex;
use rand::{RngExt, rngs::StdRng};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The property of what ends a watch.
const ANSWERS: &str = "a watch ends as a watch may";
/// The property of what a node tells, as far as the client can see it.
const WELL_TOLD: &str = "no watch tells what no node may tell";
/// How the client's error begins that finds a change told twice, a position that goes back, or a key outside of
/// the range. It is transient, since another node may tell better.
const BREACH: &str = "the node told";
/// The property of what a watch tells.
const READABLE: &str = "values of changes are readable where nothing decays";
const UNREADABLE: &str = "watches that a value ended which cannot be read";

/// The first number of these clients.
const FIRST_CLIENT: u32 = 701;
/// So many clients of a watcher have numbers of their own; then the first ones come again.
const CLIENTS: u32 = 32;
/// How often a watcher looks whether it is to end.
const LOOK: Duration = Duration::from_millis(200);
/// The pause after a watch that did not begin.
const RETRY: Duration = Duration::from_millis(200);
/// How long watchers read until they stop for a while, or end.
const READS: Range<Duration> = Duration::from_secs(2)..Duration::from_secs(12);
/// For how long they do not read, or are away.
const RESTS: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(15);

/// What a watcher does beside reading.
#[derive(Clone, Copy, Debug)]
pub(super) enum Habit {
    /// Nothing.
    Follows,
    /// It stops reading for a while, again and again.
    StopsReading,
    /// It ends and begins elsewhere, again and again.
    Restarts,
}

/// Where the next watch of a watcher begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// Behind what is acknowledged.
    Now,
    /// Behind a position of an earlier one.
    Kept(Position),
    /// Behind a list.
    Listed,
}

/// When watchers end.
#[derive(Default)]
pub(super) struct Ending {
    /// Once they are here.
    goal: Mutex<Option<Version>>,
    /// At once.
    over: AtomicBool,
}

impl Ending {
    /// They end once they are at this index.
    pub(super) fn once_at(&self, goal: Version) {
        *self.goal.lock() = Some(goal);
    }

    /// They end where they are.
    pub(super) fn at_once(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn goal(&self) -> Option<Version> {
        *self.goal.lock()
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether a watcher has nothing more to do but to get to its end.
    fn is_near(&self) -> bool {
        self.is_over() || self.goal().is_some()
    }

    /// Whether a watcher that is at this index ends.
    fn is_reached(&self, index: Version) -> bool {
        self.is_over() || self.goal().is_some_and(|goal| index >= goal)
    }
}

/// A client of a watcher, so many after its first one. It finds the members where they are now.
pub(super) fn client(cluster: &Cluster, watcher: u32, later: u32) -> Result<Client, String> {
    clients::client(cluster, u64::from(FIRST_CLIENT + watcher * CLIENTS + later % CLIENTS))
}

/// One of them.
pub(super) struct Watcher {
    pub(super) cluster: Arc<Cluster>,
    pub(super) watches: Arc<Watches>,
    pub(super) end: Arc<Ending>,
    pub(super) number: u32,
    pub(super) client: Client,
    pub(super) rng: StdRng,
    pub(super) scope: Scope,
    pub(super) keys_only: bool,
    pub(super) habit: Habit,
    /// How often it has ended and begun elsewhere.
    pub(super) restarts: u32,
}

impl Watcher {
    /// Watches until it is to end.
    pub(super) async fn run(mut self, mut next: Next) {
        self.watches.wakes(self.number, self.cluster.trace.now());
        while !self.end.is_over() {
            match self.begin(next).await {
                Ok((watch, number)) => match self.follow(watch, number).await {
                    Some(then) => next = then,
                    None => break,
                },
                Err(then) => {
                    next = then;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        self.watches.sleeps(self.number);
    }

    /// Begins a watch. Returns its number among all watches, or where to try next.
    async fn begin(&mut self, next: Next) -> Result<(Watch, usize), Next> {
        let asked = self.cluster.trace.now();
        let (begins, from) = match next {
            Next::Now => (Begins::Now, None),
            Next::Kept(position) => (Begins::Kept(position), Some(position)),
            Next::Listed => {
                let (position, begins) = self.list().await.ok_or(next)?;
                (begins, Some(position))
            }
        };
        let client = self.client.clone();
        let mut options = client.watch(self.scope.range());
        if let Some(position) = from {
            options = options.from(position);
        }
        if self.keys_only {
            options = options.keys_only();
        }
        let begun = options.begin().await;
        let number = self.watches.asks(Watched::new(self.number, self.scope, asked, begins));
        match begun {
            Ok(watch) => {
                let at = watch.position();
                self.watches.begins(number, at);
                self.trace(&format!("follows {:?} behind {}.{}", self.scope, at.term, at.index));
                Ok((watch, number))
            }
            Err(error) => Err(self.ended(&error, number, next)),
        }
    }

    /// The versions of all its keys at one position.
    async fn list(&self) -> Option<(Position, Begins)> {
        let groups = 0..self.cluster.plan.profile.groups;
        let keys = groups.flat_map(|group| (0..GROUP_KEYS).map(move |key| (group, key)));
        let keys: Vec<(u32, Key)> = keys.filter(|key| self.scope.has(*key)).collect();
        let asked = keys.iter().map(|(group, key)| encode_key(*group, *key));
        match self.client.versions(asked).await {
            Ok(many) => {
                let position = many.position;
                let found = keys.into_iter().zip(many.items);
                let found = found.filter_map(|(key, item)| Some((key, item?.version.0)));
                Some((position, Begins::Listed(position, found.collect())))
            }
            Err(error) => {
                self.trace(&format!("lists nothing: {error}"));
                if !error.is_transient() {
                    self.cluster.violation(Violation::new(ANSWERS, error.to_string()));
                }
                None
            }
        }
    }

    /// Reads a watch. Returns where to begin the next one; `None` at the end.
    async fn follow(&mut self, mut watch: Watch, number: usize) -> Option<Next> {
        let mut reads_until = virtual_time() + self.rng.random_range(READS);
        loop {
            let position = watch.position();
            self.watches.is_at(number, position, self.cluster.trace.now());
            if self.end.is_reached(position.index) {
                return None;
            }
            if virtual_time() >= reads_until && !self.end.is_near() {
                match self.habit {
                    Habit::Follows => {}
                    Habit::StopsReading => self.rest().await,
                    Habit::Restarts => {
                        drop(watch);
                        self.rest().await;
                        self.restarts += 1;
                        match client(&self.cluster, self.number, self.restarts) {
                            Ok(client) => self.client = client,
                            Err(why) => self.cluster.violation(Violation::new(ANSWERS, why)),
                        }
                        return Some(Next::Kept(position));
                    }
                }
                reads_until = virtual_time() + self.rng.random_range(READS);
            }
            match tokio::time::timeout(LOOK, watch.next()).await {
                Err(_) => {}
                Ok(Ok(change)) => match self.told(change) {
                    Ok(told) => self.hears(number, told),
                    Err(wrong) => {
                        let detail = format!("watcher {}: {wrong}", self.number);
                        self.cluster.violation(Violation::new(ANSWERS, detail));
                        return None;
                    }
                },
                Ok(Err(error)) => {
                    let at = watch.position();
                    self.watches.is_at(number, at, self.cluster.trace.now());
                    return Some(self.ended(&error, number, Next::Kept(at)));
                }
            }
        }
    }

    fn hears(&self, number: usize, told: Told) {
        let ((group, key), Position { term, index }) = (told.key, told.at);
        // A line of a client: there are many.
        self.cluster.trace.event(format!(
            "client of watcher {} hears {:?} of key {group}/{key} at {term}.{index}",
            self.number, told.left
        ));
        self.watches.tells(number, told);
    }

    /// A change as the history of the clients has it.
    fn told(&self, change: Change) -> Result<Told, String> {
        let wrong = |what: &str| format!("key `{}`, {what}", change.key.escape_ascii());
        let key = decode_key(&change.key).ok_or_else(|| wrong("which no client uses"))?;
        let left = match (&change.value, change.deleted) {
            (None, true) => Left::Deleted,
            (None, false) if self.keys_only => Left::Put(None),
            (Some(value), false) if !self.keys_only => {
                let value = decode_value(value).ok_or_else(|| wrong("a value of no client"))?;
                Left::Put(Some(value))
            }
            (None, false) => return Err(wrong("put without its value")),
            (Some(_), _) => return Err(wrong("with a value that it should not have")),
        };
        Ok(Told {
            key,
            at: Position { term: change.term, index: change.version.0 },
            left,
            previous: change.previous.map(|version| version.0),
            last_of_entry: change.last_of_version,
            when: self.cluster.trace.now(),
        })
    }

    /// A watch ended, or did not begin. Returns where the next one begins: here, if nothing says that this is
    /// not possible.
    fn ended(&self, error: &Error, number: usize, here: Next) -> Next {
        self.trace(&format!("is told: {error}"));
        let when = self.cluster.trace.now();
        match error {
            Error::Compacted { oldest, now } => {
                let end = End::Compacted { oldest: *oldest, now: *now };
                self.watches.ends(number, end, when);
                Next::Listed
            }
            Error::HistoryDiscarded => {
                self.watches.ends(number, End::Discarded, when);
                Next::Listed
            }
            Error::ValueUnreadable { .. } => {
                self.cluster.count_event(UNREADABLE);
                if self.cluster.atlas.victims().is_empty() {
                    self.cluster.violation(Violation::new(READABLE, error.to_string()));
                }
                Next::Listed
            }
            error if is_breach(error) => {
                let detail = format!("watcher {}: {error}", self.number);
                self.cluster.violation(Violation::new(WELL_TOLD, detail));
                here
            }
            error if error.is_transient() => here,
            error => {
                self.cluster.violation(Violation::new(ANSWERS, format!("{error} ({error:?})")));
                here
            }
        }
    }

    /// Does nothing for a while, unless all watchers are to get to their end.
    async fn rest(&mut self) {
        let until = virtual_time() + self.rng.random_range(RESTS);
        self.watches.sleeps(self.number);
        self.trace("rests");
        while virtual_time() < until && !self.end.is_near() {
            tokio::time::sleep(LOOK).await;
        }
        self.watches.wakes(self.number, self.cluster.trace.now());
    }

    fn trace(&self, what: &str) {
        self.cluster.trace.event(format!("watcher {} {what}", self.number));
    }
}

/// Whether the client found that a node told what no node may tell. In a run no node lies, so that is a bug.
fn is_breach(error: &Error) -> bool {
    matches!(error, Error::Unavailable { last_error, .. } if last_error.starts_with(BREACH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: the client found each change that was told twice, and the simulation took its error for a node
    /// that cannot be reached.
    #[test]
    fn what_the_client_finds_wrong_with_a_node_is_told_apart_from_a_node_that_is_away() {
        let unavailable = |last_error: &str| Error::Unavailable {
            tried: vec!["10.0.0.1:1".to_owned()],
            last_error: last_error.to_owned(),
            source: None,
        };
        let wrong = unavailable("the node told a change of entry 3.17 behind entry 3.17");
        assert!(is_breach(&wrong) && wrong.is_transient());
        let away = unavailable("connection refused");
        assert!(!is_breach(&away) && away.is_transient());
        assert!(!is_breach(&Error::HistoryDiscarded));
    }
}
