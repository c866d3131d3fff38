//! Those who follow what changes, on the hosts of the clients and amid the faults.
//!
//! What holds here: each is a [`watcher`](super::watcher). Some share a client, until they end and begin elsewhere.
//! The history of the clients judges at the end of the run what they heard
//! ([`watched`](cairn_clients::check::watched)); no member is asked what it should have told. Once no client writes any
//! more, each has to come to the last acknowledged write.

use super::cluster::Cluster;
use super::finale;
use super::watcher::{self, Ending, Habit, Next, Watcher};
use super::watches::{TOGETHER, Watches};
use cairn_client::Client;
use cairn_clients::Violation;
use cairn_clients::check::watched::Scope;
use cairn_clients::history::{GROUP_KEYS, Version};
use cairn_clients::workload::Recorder;
use futures::future::join_all;
use madsim::runtime::NodeHandle;
use madsim::task::JoinHandle;
use rand::{RngExt, rngs::StdRng};
use std::sync::Arc;
use std::time::Duration;

/// The property of a cluster that serves.
const LIVENESS: &str = "a watcher hears of every change in the end";
/// How long a watcher may take to come to the last write of a healed cluster: a client leaves a node of which
/// it hears nothing for 25 s, and a node says every 10 s how far it is.
const CATCH_UP: Duration = Duration::from_secs(60);
/// The same beside a slow disk, whose member may take a minute for a snapshot.
const SLOW_CATCH_UP: Duration = Duration::from_secs(120);
/// Longer than a request of a watcher takes.
const ENDS: Duration = Duration::from_secs(30);

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

    /// Starts one more, with a client of its own.
    pub(super) fn add(
        &mut self,
        host: &NodeHandle,
        scope: Scope,
        habit: Habit,
        next: Next,
    ) -> Result<(), String> {
        let client = self.client()?;
        self.add_with(client, host, scope, habit, next);
        Ok(())
    }

    fn number(&self) -> u32 {
        u32::try_from(self.tasks.len()).unwrap_or(u32::MAX)
    }

    /// The first client of the next watcher.
    fn client(&self) -> Result<Client, String> {
        watcher::client(&self.cluster, self.number(), 0)
    }

    /// Starts one more, with this client.
    fn add_with(
        &mut self,
        client: Client,
        host: &NodeHandle,
        scope: Scope,
        habit: Habit,
        next: Next,
    ) {
        let number = self.number();
        let watcher = Watcher {
            cluster: self.cluster.clone(),
            watches: self.watches.clone(),
            end: self.end.clone(),
            number,
            client,
            rng: self.cluster.plan.rng(self.rng.random()),
            scope,
            keys_only: self.rng.random_bool(0.25),
            habit,
            restarts: 0,
        };
        self.tasks.push(host.spawn(watcher.run(next)));
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
        self.end.once_at(goal);
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
        self.end.at_once();
        let tasks = std::mem::take(&mut self.tasks);
        let ended = tokio::time::timeout(ENDS, join_all(tasks)).await;
        let ended = ended.map_err(|_| "watchers do not end".to_owned())?;
        ended.into_iter().try_for_each(|task| task.map_err(|error| format!("a watcher: {error}")))
    }
}

impl Drop for Watchers {
    /// None goes on behind a script that ends early, over whatever comes then.
    fn drop(&mut self) {
        self.end.at_once();
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
    let mut habits = habits.into_iter().cycle().skip(first);
    for (together, host) in cluster.plan.watchers.iter().zip(hosts.iter().cycle()) {
        let client = watchers.client()?;
        for (_, habit) in (0..*together).zip(habits.by_ref()) {
            let scope = watchers.scope();
            watchers.add_with(client.clone(), host, scope, habit, Next::Now);
        }
        if *together > 1 {
            cluster.count_event(TOGETHER);
        }
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
