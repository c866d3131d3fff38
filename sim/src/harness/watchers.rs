//! Those who follow what changes, on the hosts of the clients and amid the faults, as the users of a watch do.
//!
//! What holds here: some only follow; some stop reading for a while; some end, and go on later from the
//! position that they kept, by another client. Whoever is told that its position is gone lists its keys and
//! watches behind the list. Each asks the real client library and notes all that it hears. The history of the
//! clients judges that at the end of the run ([`watched`]); no member is asked what it should have told. Once
//! no client writes any more, each has to come to the last acknowledged write.

use super::clients;
use super::clock::virtual_time;
use super::cluster::Cluster;
use super::finale;
use super::watches::Watches;
use cairn_client::{Change, Client, Error, Position, Watch};
use cairn_clients::Violation;
use cairn_clients::check::watched::{Begins, End, Left, Scope, Told, Watched};
use cairn_clients::history::{GROUP_KEYS, Key, Version};
use cairn_clients::workload::{Recorder, decode_key, decode_value, encode_key};
use futures::future::join_all;
use madsim::runtime::NodeHandle;
use madsim::task::JoinHandle;
use parking_lot::Mutex;
use rand::{RngExt, rngs::StdRng};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The property of a cluster that serves.
const LIVENESS: &str = "a watcher hears of every change in the end";
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

/// The first number of these clients. Each watcher has a few.
const FIRST_CLIENT: u32 = 701;
/// Clients of one watcher. One that ends more often takes the last one again.
const CLIENTS: u32 = 3;
/// How often a watcher looks whether it is to end.
const LOOK: Duration = Duration::from_millis(200);
/// The pause after a watch that did not begin.
const RETRY: Duration = Duration::from_millis(200);
/// How long watchers read until they stop for a while, or end.
const READS: Range<Duration> = Duration::from_secs(2)..Duration::from_secs(12);
/// For how long they do not read, or are away.
const RESTS: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(15);
/// How long a watcher may take to come to the last write of a healed cluster: a client leaves a node of which
/// it hears nothing for 25 s, and a node says every 10 s how far it is.
const CATCH_UP: Duration = Duration::from_secs(60);
/// The same beside a slow disk, whose member may take a minute for a snapshot.
const SLOW_CATCH_UP: Duration = Duration::from_secs(120);
/// Longer than a request of a watcher takes.
const ENDS: Duration = Duration::from_secs(30);

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
struct Ending {
    /// Once they are here.
    goal: Mutex<Option<Version>>,
    /// At once.
    over: AtomicBool,
}

impl Ending {
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

/// One of them.
struct Watcher {
    cluster: Arc<Cluster>,
    watches: Arc<Watches>,
    end: Arc<Ending>,
    number: u32,
    client: Client,
    spare: Vec<Client>,
    rng: StdRng,
    scope: Scope,
    keys_only: bool,
    habit: Habit,
}

impl Watcher {
    /// Watches until it is to end.
    async fn run(mut self, mut next: Next) {
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
                        self.client = self.spare.pop().unwrap_or_else(|| self.client.clone());
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

/// Watchers at work.
pub(super) struct Watchers {
    cluster: Arc<Cluster>,
    watches: Arc<Watches>,
    end: Arc<Ending>,
    rng: StdRng,
    tasks: Vec<JoinHandle<()>>,
}

impl Watchers {
    /// None yet. They note what they hear in `watches`; `part` chooses their random numbers.
    pub(super) fn new(cluster: &Arc<Cluster>, watches: &Arc<Watches>, part: u64) -> Watchers {
        Watchers {
            cluster: cluster.clone(),
            watches: watches.clone(),
            end: Arc::default(),
            rng: cluster.plan.rng(part),
            tasks: Vec::new(),
        }
    }

    /// Starts one more.
    pub(super) fn add(
        &mut self,
        host: &NodeHandle,
        scope: Scope,
        habit: Habit,
        next: Next,
    ) -> Result<(), String> {
        let number = u32::try_from(self.tasks.len()).unwrap_or(u32::MAX);
        let client = |one: u32| {
            clients::client(&self.cluster, u64::from(FIRST_CLIENT + number * CLIENTS + one))
        };
        let spare: Result<Vec<Client>, String> = (1..CLIENTS).map(client).collect();
        let watcher = Watcher {
            cluster: self.cluster.clone(),
            watches: self.watches.clone(),
            end: self.end.clone(),
            number,
            client: client(0)?,
            spare: spare?,
            rng: self.cluster.plan.rng(self.rng.random()),
            scope,
            keys_only: self.rng.random_bool(0.25),
            habit,
        };
        self.tasks.push(host.spawn(watcher.run(next)));
        Ok(())
    }

    /// Random keys of the clients.
    fn scope(&mut self) -> Scope {
        let group = self.rng.random_range(0..self.cluster.plan.profile.groups);
        match self.rng.random_range(0..4) {
            0 => Scope::All,
            1 => {
                let from = self.rng.random_range(0..GROUP_KEYS);
                let until = self.rng.random_range(from + 1..=GROUP_KEYS);
                Scope::Keys { group, from, until }
            }
            _ => Scope::group(group),
        }
    }

    /// Each watcher goes on to this index, and ends there. No client writes any more.
    pub(super) async fn finish(mut self, goal: Version) -> Result<(), String> {
        *self.end.goal.lock() = Some(goal);
        let limit = match self.cluster.plan.heals_slow {
            true => SLOW_CATCH_UP,
            false => CATCH_UP,
        };
        let tasks = std::mem::take(&mut self.tasks);
        let Ok(ended) = tokio::time::timeout(limit, join_all(tasks)).await else {
            let behind = self.watches.behind(goal, u64::MAX);
            // A member whose data area is full may never catch up.
            if finale::full(&self.cluster).is_empty() {
                let detail = format!("{behind:?} did not come to {goal} within {limit:?}");
                self.cluster.violation(Violation::new(LIVENESS, detail));
            }
            return Ok(());
        };
        self.cluster.trace.event(format!("all watchers came to {goal}"));
        ended.into_iter().try_for_each(|task| task.map_err(|error| format!("a watcher: {error}")))
    }

    /// All of them end where they are: nobody may serve them any more.
    pub(super) async fn abandon(mut self) -> Result<(), String> {
        self.end.over.store(true, Ordering::Relaxed);
        let tasks = std::mem::take(&mut self.tasks);
        let ended = tokio::time::timeout(ENDS, join_all(tasks)).await;
        let ended = ended.map_err(|_| "watchers do not end".to_owned())?;
        ended.into_iter().try_for_each(|task| task.map_err(|error| format!("a watcher: {error}")))
    }
}

impl Drop for Watchers {
    /// None goes on behind a script that ends early, over whatever comes then.
    fn drop(&mut self) {
        self.end.over.store(true, Ordering::Relaxed);
    }
}

/// Starts the watchers of the plan.
pub(super) fn start(
    cluster: &Arc<Cluster>,
    hosts: &[NodeHandle],
    watches: &Arc<Watches>,
    part: u64,
) -> Result<Watchers, String> {
    let mut watchers = Watchers::new(cluster, watches, part);
    let habits = [Habit::Follows, Habit::StopsReading, Habit::Restarts];
    let first = watchers.rng.random_range(0..habits.len());
    let habits = habits.into_iter().cycle().skip(first);
    let places = habits.zip(hosts.iter().cycle());
    for (_, (habit, host)) in (0..cluster.plan.watchers).zip(places) {
        let scope = watchers.scope();
        watchers.add(host, scope, habit, Next::Now)?;
    }
    Ok(watchers)
}

/// Ends watchers once no client writes any more. Where nobody leads they cannot be served.
pub(super) async fn end(
    watchers: Option<Watchers>,
    recorder: &Recorder,
    stuck: bool,
) -> Result<(), String> {
    let Some(watchers) = watchers else { return Ok(()) };
    match recorder.acknowledged_through(u64::MAX).filter(|_| !stuck) {
        Some(goal) => watchers.finish(goal).await,
        None => watchers.abandon().await,
    }
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
