//! A cluster under test: the machines, the clients, and what all scenarios do with them.

use crate::check;
use crate::cluster::{Cluster, Setup, integer, text};
use crate::figures::Figures;
use crate::load::{Clock, Load, PLACES, profile, worker};
use anyhow::{Context, Result, bail};
use cairn_client::{Client, Options, ScrubAction, ScrubStatus};
use cairn_clients::ledger::Ledger;
use cairn_clients::workload::Worker;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Machines of a cluster.
pub const MACHINES: usize = 3;

/// Within this a machine whose power was cut must be an active member again.
pub const ACTIVE_LIMIT: Duration = Duration::from_secs(10);

/// Within this machines that are idle, or can spare no other, must have cleared their `lazy` marks.
const STRICT_LIMIT: Duration = Duration::from_secs(10);

/// Within this writes must go on once they can.
const GO_ON_LIMIT: Duration = Duration::from_secs(15);

/// Within this a machine must have scrubbed all that it holds.
const SCRUB_LIMIT: Duration = Duration::from_secs(60);

/// The deadline of one request.
const DEADLINE: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(30);

/// What a scenario is given.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How to make a cluster.
    pub setup: Setup,
    /// Everything random comes from it, except what time decides.
    pub seed: u64,
    /// Clients that ask at the same time.
    pub writers: u32,
    /// Say each round.
    pub verbose: bool,
}

/// A running cluster with its load.
pub struct Run {
    /// What was asked for.
    pub plan: Plan,
    /// The machines.
    pub cluster: Cluster,
    /// What has been counted.
    pub figures: Figures,
    /// Choices of the scenario.
    pub rng: StdRng,
    client: Client,
    ledger: Ledger,
    idle: Vec<Worker>,
    began: Instant,
}

/// Whether a machine came back.
pub enum Returned {
    /// Active, after so long.
    Active(Duration),
    /// Not, with what it said.
    Not {
        /// The end of its process, or its status.
        reason: String,
        /// Whether that tells why: the process ended with a word, or the status says that the machine is recovering.
        explained: bool,
    },
}

impl Run {
    /// Formats and starts a cluster, and waits until all its machines are active.
    ///
    /// # Errors
    /// If they do not become so.
    pub async fn begin(plan: &Plan, scenario: &str) -> Result<Run> {
        let mut rng = StdRng::seed_from_u64(plan.seed);
        let cluster = Cluster::format(&plan.setup, MACHINES, rng.random())?;
        let client = options(&cluster).build()?;
        let figures =
            Figures { scenario: scenario.to_owned(), mode: plan.setup.mode.clone(), ..Figures::default() };
        let mut run = Run {
            plan: plan.clone(),
            cluster,
            figures,
            rng,
            client,
            ledger: Ledger::new(Clock(Instant::now()), PLACES),
            idle: Vec::new(),
            began: Instant::now(),
        };
        run.set_up().await?;
        Ok(run)
    }

    /// Puts a new cluster in the place of this one, which cannot go on. What was counted stays.
    ///
    /// # Errors
    /// As [`Run::begin`].
    pub async fn begin_anew(&mut self) -> Result<()> {
        self.cluster = Cluster::format(&self.plan.setup, MACHINES, self.rng.random())?;
        self.client = options(&self.cluster).build()?;
        self.ledger = Ledger::new(Clock(Instant::now()), PLACES);
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

    /// The time, on the clock of what clients record.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.ledger.recorder().now())
    }

    /// All clients at work.
    pub fn load(&mut self) -> Load {
        Load::start(std::mem::take(&mut self.idle), self.ledger.recorder())
    }

    /// Ends a period of load.
    ///
    /// # Errors
    /// Where a client's task ended by itself.
    pub async fn rest(&mut self, load: Load) -> Result<()> {
        self.idle = load.stop().await?;
        self.figures.add_load(self.ledger.collect());
        Ok(())
    }

    /// What is wrong with what clients were told, whatever the cluster holds.
    pub fn judge(&self) -> Vec<String> {
        self.ledger.judge()
    }

    /// Lets the load run until it has written something, and a random while longer.
    ///
    /// # Errors
    /// If nothing is acknowledged.
    pub async fn warm_up(&mut self, load: &Load) -> Result<()> {
        if !load.wait_for(self.writers() * 4, GO_ON_LIMIT).await {
            bail!("nothing is acknowledged\n{}", self.cluster.logs());
        }
        // Long enough, often, for acknowledgements to run ahead of syncs, which a group begins only when it is steady.
        self.pause(0..1200).await;
        Ok(())
    }

    /// Waits until writes go on. If they do not, that is wrong.
    pub async fn goes_on(&mut self, load: &Load) {
        // More than there are clients: at least one belongs to a write that was begun after the disaster.
        if !load.wait_for(self.writers() + 1, GO_ON_LIMIT).await {
            self.figures.wrong.push(format!("writes stand still for {GO_ON_LIMIT:?}"));
        }
    }

    fn writers(&self) -> usize {
        self.plan.writers as usize
    }

    /// A random while, in milliseconds.
    pub async fn pause(&mut self, millis: std::ops::Range<u64>) {
        let millis = self.rng.random_range(millis);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    /// Under load, in mode `replicated`: waits until acknowledgements run ahead of syncs everywhere, so that a power cut has
    /// something to take. A cluster that just lost a member may take longer than this waits.
    ///
    /// # Errors
    /// A split that the status shows.
    pub async fn wait_lazy(&mut self) -> Result<()> {
        if self.plan.setup.mode != "replicated" {
            return Ok(());
        }
        let began = Instant::now();
        while began.elapsed() < STRICT_LIMIT {
            let status = self.cluster.status()?;
            let lazy = |number: usize| {
                let storage = status.get(&number).and_then(|own| own.get("storage"));
                storage.and_then(|storage| storage.get("lazy")?.as_bool()).unwrap_or(false)
            };
            if (0..self.cluster.len()).all(lazy) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Waits until none of these machines may have acknowledged what is not synced, and each look within `steady` finds it
    /// so. If they do not come to that, that is wrong.
    ///
    /// # Errors
    /// A split that the status shows.
    pub async fn wait_not_lazy(&mut self, numbers: &[usize], steady: Duration) -> Result<()> {
        let began = Instant::now();
        let mut clear_since = None;
        loop {
            let status = self.cluster.status()?;
            let lazy = |number: &usize| {
                let storage = status.get(number).and_then(|own| own.get("storage"));
                storage.and_then(|storage| storage.get("lazy")?.as_bool()).unwrap_or(true)
            };
            let lazy: Vec<usize> = numbers.iter().copied().filter(lazy).collect();
            if lazy.is_empty() {
                if clear_since.get_or_insert_with(Instant::now).elapsed() >= steady {
                    return Ok(());
                }
            } else {
                clear_since = None;
            }
            if began.elapsed() > STRICT_LIMIT {
                let slots: Vec<usize> = lazy.iter().map(|number| number + 1).collect();
                let sentence = format!(
                    "the `lazy` marks of machines {slots:?} are not clear for {steady:?} within {STRICT_LIMIT:?}"
                );
                self.figures.wrong.push(sentence);
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until these machines, which were just started, are active members, as `cairn status` tells: there is a leader,
    /// and the machine leads or follows, is not recovering, and has applied what was committed when it first answered.
    /// Gives what came of each, in the order of `numbers`.
    ///
    /// # Errors
    /// A split that the status shows.
    pub async fn wait_active(&mut self, numbers: &[usize]) -> Result<Vec<Returned>> {
        let began = Instant::now();
        let mut waiting: Vec<Waiting> = numbers.iter().map(|number| Waiting::new(*number)).collect();
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

    /// Compares what the cluster and its machines hold with what was written. True if all is right.
    ///
    /// # Errors
    /// Where the cluster cannot be asked.
    pub async fn compare(&mut self) -> Result<Vec<String>> {
        let wrong = check::verify(&mut self.cluster, &self.client, &mut self.ledger).await?;
        self.figures.comparisons += 1;
        self.figures.keys = self.ledger.keys();
        Ok(wrong)
    }

    /// As [`Run::compare`], after an operator gave up what no machine held any more. Gives also how many keys lost something;
    /// it is wrong if they did and the status tells of no loss.
    ///
    /// # Errors
    /// Where the cluster cannot be asked.
    pub async fn compare_after_loss(&mut self, since: Duration) -> Result<(Vec<String>, u64)> {
        let ledger = &mut self.ledger;
        let (mut wrong, lost) =
            check::verify_after_loss(&mut self.cluster, &self.client, ledger, since).await?;
        self.figures.comparisons += 1;
        self.figures.keys = self.ledger.keys();
        let told = self.cluster.status()?.values().filter_map(|one| integer(one, "losses")).max();
        if lost > 0 && told.unwrap_or(0) == 0 {
            wrong.push(format!("{lost} keys lost something, and no status tells of a loss"));
        }
        Ok((wrong, lost))
    }

    /// What a machine's scrubber says, after it did `action`.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn scrubber(&self, number: usize, action: ScrubAction) -> Result<ScrubStatus> {
        let addresses = self.cluster.addresses();
        let address = addresses.get(number).context("no such machine")?;
        Ok(self.client.scrub(address, action).await?)
    }

    /// Has a machine scrub all that it holds, and waits for the end of that: what its scrubber says then.
    ///
    /// # Errors
    /// If it does not come to an end.
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
                bail!("machine {} does not end its scrub: {status:?}\n{}", number + 1, self.cluster.logs());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Says what a round did, if asked to.
    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.plan.verbose {
            eprintln!("{} round {}: {}", self.figures.scenario, self.figures.rounds, what());
        }
    }

    /// Ends the cluster and gives the figures.
    pub fn finish(mut self) -> Figures {
        self.figures.seconds = self.began.elapsed().as_secs();
        if !self.figures.wrong.is_empty() {
            eprintln!("{}", self.cluster.logs());
        }
        self.figures
    }
}

/// A machine whose return is awaited.
struct Waiting {
    number: usize,
    /// What it must have applied.
    target: Option<u64>,
    returned: Option<Returned>,
}

/// What `cairn status` tells of each machine that answers.
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
        let active = text(own, "standing").is_none_or(|standing| standing == "active");
        member && active && self.target.is_some() && integer(own, "applied_index") >= self.target
    }

    fn late(&self, status: &Status) -> Returned {
        let own = status.get(&self.number);
        let explained = own.and_then(|own| text(own, "standing")) == Some("recovering");
        let own = own.map_or("no answer".to_owned(), ToString::to_string);
        Returned::Not { reason: format!("not active within {ACTIVE_LIMIT:?}: {own}"), explained }
    }
}

fn options(cluster: &Cluster) -> Options {
    Options::new(cluster.addresses()).deadline(DEADLINE)
}
