//! A cluster under test: the machines, the clients, and what all scenarios do with them.

use crate::check;
use crate::cluster::{Cluster, Setup, integer, text};
use crate::figures::Figures;
use crate::load::{Clock, GROUPS_AT_A_TIME, Load, profile, worker};
use anyhow::{Context, Result, bail};
use cairn_client::{Client, Options, ScrubAction, ScrubStatus};
use cairn_clients::ledger::Ledger;
use cairn_clients::workload::Worker;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Machines of a cluster.
pub const MACHINES: usize = 3;

/// Within this time a machine whose power was cut must be an active member again.
pub const ACTIVE_LIMIT: Duration = Duration::from_secs(10);

/// Within this time machines that are idle, or a degraded quorum, must have cleared their
/// unsynced-ack flags.
const SYNCED_LIMIT: Duration = Duration::from_secs(10);

/// Within this time writes must be acknowledged again.
const WRITES_LIMIT: Duration = Duration::from_secs(15);

/// Within this time a machine must have scrubbed all its data.
const SCRUB_LIMIT: Duration = Duration::from_secs(60);

/// The deadline of one request.
const DEADLINE: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(30);

/// The parameters of a scenario.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How to create a cluster.
    pub setup: Setup,
    /// The seed of everything random, except what depends on time.
    pub seed: u64,
    /// Clients that send requests at the same time.
    pub writers: u32,
    /// Print what each round did.
    pub verbose: bool,
}

/// A running cluster with its load.
pub struct LossyRun {
    /// The parameters.
    pub plan: Plan,
    /// The machines.
    pub cluster: Cluster,
    /// The counts so far.
    pub figures: Figures,
    /// Random choices of the scenario.
    pub rng: StdRng,
    client: Client,
    ledger: Ledger,
    idle: Vec<Worker>,
    began: Instant,
}

/// Whether a machine came back.
pub enum Returned {
    /// Active, after this time.
    Active(Duration),
    /// Not active, with the reason that it gave.
    Not {
        /// The error of its process, or its status.
        reason: String,
        /// Whether that explains it: the process ended with an error, or the status says that the
        /// machine is recovering.
        explained: bool,
    },
}

impl LossyRun {
    /// Formats and starts a cluster, and waits until all its machines are active.
    ///
    /// # Errors
    /// If a machine does not become active.
    pub async fn begin(plan: &Plan, scenario: &str) -> Result<LossyRun> {
        let mut rng = StdRng::seed_from_u64(plan.seed);
        let cluster = Cluster::format(&plan.setup, MACHINES, rng.random())?;
        let client = options(&cluster).build()?;
        let figures = Figures {
            scenario: scenario.to_owned(),
            mode: plan.setup.mode.clone(),
            ..Figures::default()
        };
        let mut run = LossyRun {
            plan: plan.clone(),
            cluster,
            figures,
            rng,
            client,
            ledger: Ledger::new(Clock(Instant::now()), GROUPS_AT_A_TIME),
            idle: Vec::new(),
            began: Instant::now(),
        };
        run.set_up().await?;
        Ok(run)
    }

    /// Replaces this cluster, which cannot continue, by a new one. The counts stay.
    ///
    /// # Errors
    /// As [`LossyRun::begin`].
    pub async fn replace_cluster(&mut self) -> Result<()> {
        self.cluster = Cluster::format(&self.plan.setup, MACHINES, self.rng.random())?;
        self.client = options(&self.cluster).build()?;
        self.ledger = Ledger::new(Clock(Instant::now()), GROUPS_AT_A_TIME);
        self.set_up().await
    }

    async fn set_up(&mut self) -> Result<()> {
        self.idle.clear();
        let profile = profile(self.plan.writers, DEADLINE);
        for number in 0..self.plan.writers {
            let (client, seed) = (options(&self.cluster).build()?, self.rng.random());
            self.idle.push(worker(number, client, seed, &profile, self.ledger.recorder()));
        }
        self.cluster.start_all()?;
        let all: Vec<usize> = (0..self.cluster.len()).collect();
        for (slot, returned) in (1..).zip(self.wait_active(&all).await?) {
            if let Returned::Not { reason, .. } = returned {
                bail!("machine {slot} does not start: {reason}\n{}", self.cluster.logs());
            }
        }
        let status = self.cluster.status()?;
        let backend = status.values().next().and_then(|one| text(one.get("storage")?, "backend"));
        backend.unwrap_or("unknown").clone_into(&mut self.figures.backend);
        Ok(())
    }

    /// The time, on the clock of the clients' records.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.ledger.recorder().now())
    }

    /// Starts all clients.
    pub fn load(&mut self) -> Load {
        Load::start(std::mem::take(&mut self.idle), self.ledger.recorder())
    }

    /// Ends a period of load.
    ///
    /// # Errors
    /// If a client's task failed.
    pub async fn rest(&mut self, load: Load) -> Result<()> {
        self.idle = load.stop().await?;
        self.figures.add_load(self.ledger.collect());
        Ok(())
    }

    /// Faults in the answers to clients, whatever the cluster holds.
    pub fn check(&self) -> Vec<String> {
        self.ledger.check()
    }

    /// Lets the load run until it has written something, and then for a random time.
    ///
    /// # Errors
    /// If nothing is acknowledged.
    pub async fn warm_up(&mut self, load: &Load) -> Result<()> {
        if !load.wait_for(self.writers() * 4, WRITES_LIMIT).await {
            bail!("nothing is acknowledged\n{}", self.cluster.logs());
        }
        // Often long enough for members to acknowledge before they sync, which a leader allows only
        // when the cluster is stable.
        self.pause(0..1200).await;
        Ok(())
    }

    /// Waits until writes are acknowledged again. If they are not, that counts as wrong.
    pub async fn goes_on(&mut self, load: &Load) {
        // More than there are clients: at least one belongs to a write that was sent after the
        // fault.
        if !load.wait_for(self.writers() + 1, WRITES_LIMIT).await {
            self.figures.wrong.push(format!("no writes are acknowledged for {WRITES_LIMIT:?}"));
        }
    }

    fn writers(&self) -> usize {
        self.plan.writers as usize
    }

    /// Sleeps for a random time in this range, in milliseconds.
    pub async fn pause(&mut self, millis: std::ops::Range<u64>) {
        let millis = self.rng.random_range(millis);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    /// Under load, in mode `replicated`: waits until all members acknowledge before they sync, so
    /// that a power cut can lose something. The wait is limited, since a cluster that just lost a
    /// member may need longer.
    ///
    /// # Errors
    /// If the status shows two leaders of one term.
    pub async fn wait_unsynced_acks(&mut self) -> Result<()> {
        if self.plan.setup.mode != "replicated" {
            return Ok(());
        }
        let began = Instant::now();
        while began.elapsed() < SYNCED_LIMIT {
            let status = self.cluster.status()?;
            let unsynced_acks = |number: usize| {
                let storage = status.get(&number).and_then(|own| own.get("storage"));
                storage.and_then(|storage| storage.get("unsynced_acks")?.as_bool()).unwrap_or(false)
            };
            if (0..self.cluster.len()).all(unsynced_acks) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Waits until all these machines have cleared their unsynced-ack flags, and every check within
    /// `steady` confirms it. If that takes too long, it counts as wrong.
    ///
    /// # Errors
    /// If the status shows two leaders of one term.
    pub async fn wait_all_acks_synced(
        &mut self,
        numbers: &[usize],
        steady: Duration,
    ) -> Result<()> {
        let began = Instant::now();
        let mut clear_since = None;
        loop {
            let status = self.cluster.status()?;
            let unsynced_acks = |number: &usize| {
                let storage = status.get(number).and_then(|own| own.get("storage"));
                storage.and_then(|storage| storage.get("unsynced_acks")?.as_bool()).unwrap_or(true)
            };
            let unsynced_acks: Vec<usize> = numbers.iter().copied().filter(unsynced_acks).collect();
            if unsynced_acks.is_empty() {
                if clear_since.get_or_insert_with(Instant::now).elapsed() >= steady {
                    return Ok(());
                }
            } else {
                clear_since = None;
            }
            if began.elapsed() > SYNCED_LIMIT {
                let slots: Vec<usize> = unsynced_acks.iter().map(|number| number + 1).collect();
                let sentence = format!(
                    "the unsynced-ack flags of machines {slots:?} are not clear for {steady:?} within {SYNCED_LIMIT:?}"
                );
                self.figures.wrong.push(sentence);
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until these machines, which were just started, are active members according to `cairn
    /// status`: there is a leader, and the machine leads or follows, is not recovering, and has
    /// applied what was committed when it first answered. Returns the result for each, in the order
    /// of `numbers`.
    ///
    /// # Errors
    /// If the status shows two leaders of one term.
    pub async fn wait_active(&mut self, numbers: &[usize]) -> Result<Vec<Returned>> {
        let began = Instant::now();
        let mut waiting: Vec<Waiting> =
            numbers.iter().map(|number| Waiting::new(*number)).collect();
        loop {
            let status = self.cluster.status()?;
            let over = began.elapsed() > ACTIVE_LIMIT;
            for machine in waiting.iter_mut().filter(|machine| machine.returned.is_none()) {
                let started = self.cluster.started(machine.number)?;
                if let Some(reason) = self.cluster.ended(machine.number)? {
                    let reason = format!("its process ended: {reason}");
                    machine.returned = Some(Returned::Not { reason, explained: true });
                } else if machine.is_active(&status) {
                    machine.returned = Some(Returned::Active(started.elapsed()));
                } else if over {
                    machine.returned = Some(machine.late(&status));
                }
            }
            if waiting.iter().all(|machine| machine.returned.is_some()) {
                return Ok(waiting.into_iter().filter_map(|machine| machine.returned).collect());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Compares what the cluster and its machines hold with what was written. Returns what is
    /// wrong.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub async fn compare(&mut self) -> Result<Vec<String>> {
        let wrong = check::verify(&mut self.cluster, &self.client, &mut self.ledger).await?;
        self.figures.comparisons += 1;
        self.figures.keys = self.ledger.keys();
        Ok(wrong)
    }

    /// Like [`LossyRun::compare`], after an unsafe recovery. Also returns how many keys lost
    /// something; if some did, a status must show the unsafe recovery.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub async fn compare_after_unsafe_recovery(
        &mut self,
        since: Duration,
    ) -> Result<(Vec<String>, u64)> {
        let ledger = &mut self.ledger;
        let (mut wrong, lost) =
            check::verify_after_unsafe_recovery(&mut self.cluster, &self.client, ledger, since)
                .await?;
        self.figures.comparisons += 1;
        self.figures.keys = self.ledger.keys();
        let recoveries = self
            .cluster
            .status()?
            .values()
            .filter_map(|one| integer(one, "unsafe_recoveries"))
            .max();
        if lost > 0 && recoveries.unwrap_or(0) == 0 {
            wrong.push(format!(
                "{lost} keys lost something, and no status shows an unsafe recovery"
            ));
        }
        Ok((wrong, lost))
    }

    /// The status of a machine's scrubber, after it did `action`.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn scrubber(&self, number: usize, action: ScrubAction) -> Result<ScrubStatus> {
        let addresses = self.cluster.addresses();
        let address = addresses.get(number).context("no such machine")?;
        Ok(self.client.operator().scrub(address, action).await?)
    }

    /// Has a machine scrub all its data, and waits for the end. Returns the scrubber's status then.
    ///
    /// # Errors
    /// If it does not end.
    pub async fn scrub(&mut self, number: usize) -> Result<ScrubStatus> {
        let began = Instant::now();
        let before = self.scrubber(number, ScrubAction::Show).await?.cycles;
        self.scrubber(number, ScrubAction::Start).await?;
        loop {
            let status = self.scrubber(number, ScrubAction::Show).await?;
            if status.cycles > before && !status.running {
                self.figures.scrubs += 1;
                return Ok(status);
            }
            if began.elapsed() > SCRUB_LIMIT {
                bail!(
                    "machine {} does not end its scrub: {status:?}\n{}",
                    number + 1,
                    self.cluster.logs()
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Prints what a round did, if verbose.
    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.plan.verbose {
            eprintln!("{} round {}: {}", self.figures.scenario, self.figures.rounds, what());
        }
    }

    /// Ends the cluster and returns the figures.
    pub fn finish(mut self) -> Figures {
        self.figures.seconds = self.began.elapsed().as_secs();
        if !self.figures.wrong.is_empty() {
            eprintln!("{}", self.cluster.logs());
        }
        self.figures
    }
}

/// A machine that must become active.
struct Waiting {
    number: usize,
    /// The index that it must have applied.
    target: Option<u64>,
    returned: Option<Returned>,
}

/// The output of `cairn status` for each machine that answers.
type Status = BTreeMap<usize, serde_json::Value>;

impl Waiting {
    fn new(number: usize) -> Waiting {
        Waiting { number, target: None, returned: None }
    }

    fn is_active(&mut self, status: &Status) -> bool {
        let Some(own) = status.get(&self.number) else { return false };
        if !status.values().any(|one| text(one, "role") == Some("leader")) {
            return false;
        }
        let committed = status.values().filter_map(|one| integer(one, "committed_index")).max();
        self.target = self.target.or(committed);
        let member = matches!(text(own, "role"), Some("leader" | "follower"));
        let active = text(own, "member_state").is_none_or(|member_state| member_state == "active");
        member && active && self.target.is_some() && integer(own, "applied_index") >= self.target
    }

    fn late(&self, status: &Status) -> Returned {
        let own = status.get(&self.number);
        let explained = own.and_then(|own| text(own, "member_state")) == Some("recovering");
        let own = own.map_or("no answer".to_owned(), ToString::to_string);
        Returned::Not { reason: format!("not active within {ACTIVE_LIMIT:?}: {own}"), explained }
    }
}

fn options(cluster: &Cluster) -> Options {
    Options::new(cluster.addresses()).deadline(DEADLINE)
}
