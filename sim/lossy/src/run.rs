//! A cluster under test: the machines, the writers, and what all scenarios do with them.

use crate::check;
use crate::cluster::{Cluster, Setup, integer, text};
use crate::figures::Figures;
use crate::load::{Load, SharedHistory, Writer};
use anyhow::{Result, bail};
use cairn_client::{Client, Options};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::time::{Duration, Instant};

/// Machines of a cluster.
pub const MACHINES: usize = 3;

/// Within this a machine whose power was cut must be an active member again.
pub const ACTIVE_LIMIT: Duration = Duration::from_secs(10);

/// Within this machines that are idle, or can spare no other, must have cleared their `lazy` marks.
const STRICT_LIMIT: Duration = Duration::from_secs(10);

/// Within this writes must go on once they can.
const GO_ON_LIMIT: Duration = Duration::from_secs(15);

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
    /// Writers.
    pub writers: u64,
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
    history: SharedHistory,
    idle: Vec<Writer>,
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
            history: SharedHistory::default(),
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
        self.history = SharedHistory::default();
        self.set_up().await
    }

    async fn set_up(&mut self) -> Result<()> {
        self.idle.clear();
        for number in 0..self.plan.writers {
            let (client, seed) = (options(&self.cluster).build()?, self.rng.random());
            self.idle.push(Writer::new(number, client, seed, self.history.clone()));
        }
        self.cluster.start_all()?;
        for number in 0..self.cluster.len() {
            if let Returned::Not { reason, .. } = self.wait_active(number).await? {
                bail!("machine {} does not start: {reason}\n{}", number + 1, self.cluster.logs());
            }
        }
        let status = self.cluster.status()?;
        let backend = status.values().next().and_then(|one| text(one.get("storage")?, "backend"));
        backend.unwrap_or("unknown").clone_into(&mut self.figures.backend);
        Ok(())
    }

    /// All writers at work.
    pub fn load(&mut self) -> Load {
        Load::start(std::mem::take(&mut self.idle))
    }

    /// Ends a period of load.
    ///
    /// # Errors
    /// Where a writer got an answer that no fault explains.
    pub async fn rest(&mut self, load: Load) -> Result<()> {
        let (writers, told) = load.stop().await?;
        self.idle = writers;
        self.figures.add_load(told);
        Ok(())
    }

    /// Lets the load run until it has written something, and a random while longer.
    ///
    /// # Errors
    /// If nothing is acknowledged.
    pub async fn warm_up(&mut self, load: &Load) -> Result<()> {
        if !load.wait_for(self.plan.writers * 4, GO_ON_LIMIT).await {
            bail!("nothing is acknowledged\n{}", self.cluster.logs());
        }
        self.pause(0..600).await;
        Ok(())
    }

    /// Waits until writes go on. If they do not, that is wrong.
    pub async fn goes_on(&mut self, load: &Load) {
        // More than there are writers: at least one belongs to a write that was begun after the disaster.
        if !load.wait_for(self.plan.writers + 1, GO_ON_LIMIT).await {
            self.figures.wrong.push(format!("writes stand still for {GO_ON_LIMIT:?}"));
        }
    }

    /// A random while, in milliseconds.
    pub async fn pause(&mut self, millis: std::ops::Range<u64>) {
        let millis = self.rng.random_range(millis);
        tokio::time::sleep(Duration::from_millis(millis)).await;
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

    /// Waits until a started machine is an active member, as `cairn status` tells: it follows or leads, and has applied
    /// what was committed when it first answered.
    ///
    /// # Errors
    /// A split that the status shows.
    pub async fn wait_active(&mut self, number: usize) -> Result<Returned> {
        let began = self.cluster.started(number)?;
        let mut target = None;
        loop {
            if let Some(reason) = self.cluster.ended(number)? {
                return Ok(Returned::Not { reason: format!("its process ended: {reason}"), explained: true });
            }
            let status = self.cluster.status()?;
            if let Some(own) = status.get(&number) {
                let committed = status.values().filter_map(|one| integer(one, "committed_index")).max();
                let leader = text(own, "leader").is_some();
                if leader && target.is_none() {
                    target = committed;
                }
                let member = matches!(text(own, "role"), Some("leader" | "follower"));
                let active = text(own, "standing").is_none_or(|standing| standing == "active");
                if leader && member && active && target.is_some() && integer(own, "applied_index") >= target {
                    return Ok(Returned::Active(began.elapsed()));
                }
            }
            if began.elapsed() > ACTIVE_LIMIT {
                let own = status.get(&number);
                let explained = own.and_then(|own| text(own, "standing")) == Some("recovering");
                let own = own.map_or("no answer".to_owned(), ToString::to_string);
                let reason = format!("not active within {ACTIVE_LIMIT:?}: {own}");
                return Ok(Returned::Not { reason, explained });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Compares what the cluster and its machines hold with what was written. True if all is right.
    ///
    /// # Errors
    /// Where the cluster cannot be asked.
    pub async fn compare(&mut self) -> Result<Vec<String>> {
        let wrong = check::verify(&mut self.cluster, &self.client, &self.history).await?;
        self.figures.comparisons += 1;
        self.figures.keys = self.history.lock().len() as u64;
        Ok(wrong)
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

fn options(cluster: &Cluster) -> Options {
    Options::new(cluster.addresses()).deadline(DEADLINE)
}
