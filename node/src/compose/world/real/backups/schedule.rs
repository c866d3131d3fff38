//! Saves backups as the configuration says, while this member leads, and removes those that need not stay.
//!
//! What holds here:
//! - Nothing of the schedule is replicated. When the last backup of this cluster ended stands at the target, so a
//!   new leader goes on with the schedule, and one saved by hand counts.
//! - A member that does not lead any more ends what it saves with the next piece, and removes nothing. So it does
//!   if it leads again by then: what it knows belongs to the term in which it began to lead. Where
//!   two lead for a moment, by what each knows, two backups begin: an object is created only where there is
//!   none, so neither changes the other's, and a prune sees what began meanwhile.
//! - No member has a secret key. What is encrypted builds on nothing but what this process wrote itself.
//! - A member that begins to lead removes nothing by that.
//! - What another cluster of the same name saves at the target is none of this one's: it says nothing of when the next
//!   one is due. It is named once.
//! - A cause of failure is logged once. What failed is tried again after pauses that grow up to
//!   [`BackupConfig::every`]. A panic is a failure like others: the thread goes on.

mod once;
mod remove;
mod verify;

use self::once::Told;
use self::verify::Verified;
use super::save::{SaveError, Saved, members_of, save, senders};
use crate::config::{BackupConfig, format_size};
use crate::metrics::SharedBackupStatus;
use cairn_backup::{
    ClusterId, Encryption, Ended, Error as BackupError, Identities, Manifest, OfCluster,
    Recipients, Target, ended_last, latest, reaches_back,
};
use cairn_client::{Client, NodeStatus, Options};
use cairn_raft::{Replica, ReplicaStatus, Role};
use cairn_tls::Files;
use futures::FutureExt;
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

/// How often it looks whether this member leads.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a member may take to answer, before it sends anything.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// After the first failure.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// Since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// How long until the next backup, if the last one ended then; zero if it is due.
fn due_in(ended: Duration, every: Duration, now: Duration) -> Duration {
    // A clock is behind the one of the last leader.
    ended.saturating_add(every).saturating_sub(now).min(every)
}

/// When the next try begins: the pause, and the one after it.
fn pauses(pause: Duration, every: Duration) -> (Duration, Duration) {
    (pause.min(every), pause.saturating_mul(2).min(every))
}

/// The term in which a member leads, if it does.
fn led_term(status: &ReplicaStatus) -> Option<u64> {
    (status.role == Role::Leader).then_some(status.term)
}

/// What a step comes to, also if it panics: libraries do so at what they do not expect. What the schedule knows is as good as
/// after another failure.
async fn caught<T>(step: impl Future<Output = Result<T, SaveError>>) -> Result<T, SaveError> {
    let panicked = || BackupError::Task("it panicked, and the log says where".into());
    AssertUnwindSafe(step).catch_unwind().await.unwrap_or_else(|_| Err(panicked().into()))
}

/// What is at the target.
struct Look {
    /// Until the next backup.
    due_in: Duration,
    /// Whether that one saves everything.
    whole: bool,
}

/// Runs while this member does.
pub(super) struct Schedule {
    replica: Replica,
    tls: Option<Files>,
    config: watch::Receiver<BackupConfig>,
    status: SharedBackupStatus,
    /// The term in which this member leads, and in which it learned all that follows.
    leading: Option<u64>,
    /// There may be backups that need not stay.
    unpruned: bool,
    /// What is known of the backup that this member saved last.
    verified: Verified,
    /// What was logged.
    told: Told,
    /// Before the next try.
    pause: Duration,
    /// How the last backup was encrypted, if it was.
    encryption: Option<Arc<Encryption>>,
}

impl Schedule {
    pub(super) fn new(
        replica: Replica,
        tls: Option<Files>,
        config: watch::Receiver<BackupConfig>,
        status: SharedBackupStatus,
    ) -> Schedule {
        Schedule {
            replica,
            tls,
            config,
            status,
            leading: None,
            unpruned: false,
            verified: Verified::Yes,
            told: Told::default(),
            pause: FIRST_PAUSE,
            encryption: None,
        }
    }

    /// Runs until nobody can change the configuration any more.
    pub(super) async fn run(mut self) {
        // When to look at the target.
        let mut due: Option<Instant> = None;
        loop {
            let leading = led_term(&self.replica.status());
            if leading.is_none() || leading != self.leading {
                due = None;
                self.forget();
                self.leading = leading;
            }
            if self.leads() && due.is_none_or(|due| due <= Instant::now()) {
                let wait = self.turn().await;
                due = Some(Instant::now() + wait);
            }
            tokio::select! {
                biased;
                changed = self.config.changed() => match changed {
                    // Another retention is in force at once.
                    Ok(()) => {
                        (due, self.unpruned) = (None, true);
                        let every = self.config.borrow().every;
                        self.status.lock().every = every;
                    }
                    Err(_) => return,
                },
                () = sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Whether it has led since it began to know what it knows.
    fn leads(&self) -> bool {
        self.leading.is_some() && self.leading == led_term(&self.replica.status())
    }

    /// Another member knows from now on what is at the target.
    fn forget(&mut self) {
        (self.unpruned, self.pause) = (false, FIRST_PAUSE);
        (self.verified, self.told) = (Verified::Yes, Told::default());
        self.status.lock().last_ended = None;
    }

    /// Does what is due. Returns when to look again.
    async fn turn(&mut self) -> Duration {
        let config = self.config.borrow_and_update().clone();
        self.status.lock().running = true;
        let done = caught(self.step(&config)).await;
        self.status.lock().running = false;
        match done {
            Ok(wait) => {
                self.pause = FIRST_PAUSE;
                if self.told.unsaved.end() {
                    info!(at = config.target, "backups are saved again");
                }
                wait
            }
            // It does not lead any more.
            Err(SaveError::BrokenOff) => Duration::ZERO,
            Err(error) => self.failed(&error, &config),
        }
    }

    fn failed(&mut self, error: &SaveError, config: &BackupConfig) -> Duration {
        self.status.lock().failures += 1;
        let why = error.to_string();
        if self.told.unsaved.is_new(&why) {
            warn!(
                node = %self.replica.node_id(),
                at = config.target,
                "no backup is saved: {why}. It is tried again; `cairn backup save` shows whether it works"
            );
        }
        let (pause, next) = pauses(self.pause, config.every);
        self.pause = next;
        pause
    }

    async fn step(&mut self, config: &BackupConfig) -> Result<Duration, SaveError> {
        let encryption = self.encryption(config)?;
        let target = Target::open(&config.target)?;
        let mut look = self.look(&target, config).await?;
        if look.due_in.is_zero() {
            let whole = look.whole || self.verified == Verified::Damaged;
            let manifest = self.save(&target, whole, encryption.as_ref()).await?;
            self.tell(&manifest);
            look.due_in = config.every;
            self.unpruned = true;
            self.verify(&target, &manifest.name, config).await?;
        }
        if self.unpruned && self.verified == Verified::Yes {
            // What stays too long keeps no backup from being saved.
            match self.remove_old(&target, config).await {
                Ok(()) => {
                    self.unpruned = false;
                    self.told.unremoved.end();
                }
                Err(error @ SaveError::BrokenOff) => return Err(error),
                Err(error) => self.not_removed(&error, config),
            }
        }
        Ok(look.due_in)
    }

    /// How the next backup is encrypted, if it is. It stays while the recipients do: by this alone the process
    /// goes on with what it wrote and broke off.
    fn encryption(
        &mut self,
        config: &BackupConfig,
    ) -> Result<Option<Arc<Encryption>>, BackupError> {
        self.encryption = match &config.encrypt_to {
            None => None,
            Some(to) => {
                let recipients = Recipients::read(std::slice::from_ref(to))?;
                let last = self.encryption.take();
                let same = last.filter(|last| last.recipients() == recipients.texts());
                let new = || Arc::new(Encryption::new(recipients, Identities::default()));
                Some(same.unwrap_or_else(new))
            }
        };
        Ok(self.encryption.clone())
    }

    /// The identities of the members, as this one knows them.
    fn members(&self) -> Vec<u64> {
        let members = self.replica.status().members.into_iter();
        members.map(|member| member.id.as_u64()).collect()
    }

    /// This cluster, with these members.
    fn id<'a>(&'a self, members: &'a [u64]) -> ClusterId<'a> {
        let engine = self.replica.engine();
        let (name, generation) = (engine.identity().cluster.as_str(), engine.generation());
        ClusterId { name, generation, members }
    }

    async fn look(&mut self, target: &Target, config: &BackupConfig) -> Result<Look, SaveError> {
        let (members, status) = (self.members(), self.replica.status());
        let of = OfCluster {
            id: self.id(&members),
            term: status.term,
            applied_index: status.applied.map_or(0, |applied| applied.index),
        };
        let now = now();
        // One that ended later than the next one is due, counted from now, was saved by a clock that was ahead.
        let until = now.saturating_add(config.every).as_secs();
        let Ended { last, namesake } = ended_last(target, of, until).await?;
        if let Some(backup) = namesake {
            self.namesake(&backup, target);
        }
        let Some(last) = last else {
            return Ok(Look { due_in: Duration::ZERO, whole: false });
        };
        self.tell(&last);
        let due_in = due_in(Duration::from_secs(last.ended), config.every, now);
        let whole = match config.full_every {
            Some(age) if due_in.is_zero() => {
                let began = Duration::from_secs(reaches_back(target, &last).await?);
                now.saturating_sub(began) >= age
            }
            _ => false,
        };
        Ok(Look { due_in, whole })
    }

    /// Says once that another cluster of this name saves there.
    fn namesake(&mut self, backup: &str, target: &Target) {
        if !self.told.namesake.is_new(target.text()) {
            return;
        }
        error!(
            node = %self.replica.node_id(),
            at = target.text(),
            backup,
            "another cluster of this name saves there: this backup is none of this cluster's. Give each its own target. This one goes \
             on with its own backups, and neither builds on the other's nor removes them. If all members were replaced since, or the \
             cluster was made anew, `cairn backup prune --remove NAME` removes what nobody needs"
        );
    }

    /// For the metrics.
    fn tell(&self, last: &Manifest) {
        let mut status = self.status.lock();
        status.last_ended = Some(last.ended);
        status.last_seconds = last.ended.saturating_sub(last.head.began);
        status.last_bytes = last.stored_bytes();
    }

    async fn save(
        &self,
        target: &Target,
        whole: bool,
        encryption: Option<&Arc<Encryption>>,
    ) -> Result<Manifest, SaveError> {
        let client = self.client()?;
        let mut failed = SaveError::Nobody;
        for (endpoint, status) in senders(&client).await? {
            let sender = (endpoint.as_str(), &status);
            match self.save_from(&client, sender, target, whole, encryption).await {
                // Another one may send its state.
                Err(error @ SaveError::Client(_)) => failed = error,
                Err(error) => return Err(error),
                Ok(Saved { manifest, resumed, left_out }) => {
                    let resumed = resumed.join(", ");
                    let left_out = left_out.map_or(String::new(), |(name, _)| name);
                    let encrypted_to = manifest.head.recipients.join(", ");
                    let new = format_size(manifest.own_bytes());
                    info!(
                        name = manifest.name,
                        at = target.text(),
                        from = endpoint,
                        since = manifest.head.base.as_deref().unwrap_or("-"),
                        resumed,
                        left_out,
                        encrypted_to,
                        keys = manifest.keys,
                        new,
                        "backup saved"
                    );
                    return Ok(manifest);
                }
            }
        }
        Err(failed)
    }

    async fn save_from(
        &self,
        client: &Client,
        sender: (&str, &NodeStatus),
        target: &Target,
        whole: bool,
        encryption: Option<&Arc<Encryption>>,
    ) -> Result<Saved, SaveError> {
        // To build on an encrypted one takes the secret key.
        let base = match whole || encryption.is_some() {
            true => None,
            false => base(target, sender.1).await?,
        };
        let each = |_, _| match self.leads() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        match save(client, sender, target, base.as_deref(), encryption, each).await {
            Err(error) if base.is_some() && error.is_of_source() => {
                let why = error.to_string();
                warn!(
                    at = target.text(),
                    why, "nothing builds on the latest backup: this one saves everything"
                );
                save(client, sender, target, None, encryption, each).await
            }
            saved => saved,
        }
    }

    /// A client of the members where they are now. It shows this member's certificate.
    fn client(&self) -> Result<Client, cairn_client::Error> {
        let members = self.replica.status().members.into_iter();
        let endpoints = members.map(|member| member.address.client);
        let endpoints = endpoints.filter(|endpoint| !endpoint.is_empty());
        let options = Options::new(endpoints).deadline(NODE_TIMEOUT);
        let options = options.cluster(self.replica.engine().identity().cluster.as_str());
        let options = match &self.tls {
            Some(Files { ca, certificate, key }) => options.tls(ca, certificate, key),
            None => options,
        };
        options.build()
    }
}

/// The backup of this cluster that the next one builds on.
async fn base(target: &Target, of: &NodeStatus) -> Result<Option<String>, SaveError> {
    let members = members_of(of);
    let of = OfCluster {
        id: ClusterId { name: &of.cluster, generation: of.generation, members: &members },
        term: of.term,
        applied_index: of.applied_index,
    };
    match latest(target, Some(of), SystemTime::now()).await {
        Ok(name) => Ok(Some(name)),
        Err(BackupError::NoLatest(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    async fn panics() -> Result<Duration, SaveError> {
        panic!("a library")
    }

    /// The story: a library panicked at a variable of the environment. The thread of the schedule was gone, no metric said
    /// so, and no backup was saved until the node was started anew.
    #[tokio::test]
    async fn a_panic_in_a_step_is_a_failure_like_others() {
        let failed = caught(panics()).await.unwrap_err();
        assert!(matches!(&failed, SaveError::Backup(BackupError::Task(_))), "{failed}");
        assert!(failed.to_string().contains("it panicked"), "{failed}");
        assert_eq!(caught(async { Ok(HOUR) }).await.unwrap(), HOUR);
    }

    #[test]
    fn the_next_backup_is_due_so_long_after_the_end_of_the_last_one() {
        let ended = 1000 * HOUR;
        for (now, due) in [
            (ended, HOUR),
            (ended + HOUR / 4, HOUR * 3 / 4),
            (ended + HOUR, Duration::ZERO),
            (ended + 100 * HOUR, Duration::ZERO),
            // A clock is behind the one of the last leader.
            (ended - HOUR / 4, HOUR),
        ] {
            assert_eq!(due_in(ended, HOUR, now), due, "{now:?}");
        }
        // What a target says may be any number.
        assert_eq!(due_in(Duration::MAX, HOUR, ended), HOUR);
    }

    #[test]
    fn pauses_between_tries_grow_up_to_the_interval() {
        let mut pause = FIRST_PAUSE;
        let mut waited = Vec::new();
        for _ in 0..6 {
            let (now, next) = pauses(pause, Duration::from_secs(100));
            waited.push(now.as_secs());
            pause = next;
        }
        assert_eq!(waited, [10, 20, 40, 80, 100, 100]);
        assert_eq!(
            pauses(HOUR, Duration::from_secs(60)).0,
            Duration::from_secs(60),
            "a new interval"
        );
    }
}
