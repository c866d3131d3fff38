//! Backups of the cluster, saved by the command line or by the leader itself.
//!
//! What holds here: the schedule runs on a thread of its own, with a runtime of its own, so that the main
//! thread waits for no target. Nobody waits for that thread when the node stops: what it was saving is then
//! broken off like that of a killed command, and the next leader goes on with it.

mod save;
mod schedule;

use crate::config::{BackupConfig, NodeConfig};
use crate::metrics::SharedBackupStatus;
use crate::service::Parts;
use rustix::fs::Mode;
use rustix::process::umask;
pub use save::{SaveError, Saved, members_of, save, senders};
use schedule::Schedule;
use std::io;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tracing::error;

/// Files that are written, and objects that are compressed, at once.
const BLOCKING_THREADS: usize = 4;
/// Nobody but the owner may read: a backup has every value.
const OTHERS: u32 = 0o077;

/// The schedule of a member with `[backup]`.
pub(in crate::compose) struct Backups(Option<Scheduled>);

struct Scheduled {
    config: watch::Sender<BackupConfig>,
    /// Takes the schedule, once.
    thread: Option<oneshot::Sender<Schedule>>,
    /// The thread ends when it is dropped.
    _running: oneshot::Sender<()>,
}

impl Backups {
    /// Starts the thread, if backups are configured. It waits for [`Backups::run`].
    ///
    /// # Errors
    /// The system's.
    pub(in crate::compose) fn start(config: &NodeConfig) -> io::Result<Backups> {
        let Some(config) = &config.backup else { return Ok(Backups(None)) };
        if !config.target.contains("://") {
            umask(Mode::from_raw_mode(OTHERS));
        }
        let (thread, schedule) = oneshot::channel();
        let (running, stopped) = oneshot::channel();
        let own = std::thread::Builder::new().name("cairn-backups".into());
        own.spawn(move || work(schedule, stopped))?;
        let config = watch::Sender::new(config.clone());
        Ok(Backups(Some(Scheduled { config, thread: Some(thread), _running: running })))
    }

    /// Saves backups from now on, while this member leads. Only the first call counts.
    pub(in crate::compose) fn run(&mut self, parts: &Parts, status: Option<SharedBackupStatus>) {
        let (Some(scheduled), Some(status)) = (&mut self.0, status) else { return };
        let (replica, tls) = (parts.replica.clone(), parts.config.tls_files());
        let schedule = Schedule::new(replica, tls, scheduled.config.subscribe(), status);
        if let Some(thread) = scheduled.thread.take() {
            // It only ends with this.
            let _ = thread.send(schedule);
        }
    }

    /// Goes on by another schedule. Where backups are stays, and whether there are any.
    pub(in crate::compose) fn reload(&self, new: Option<&BackupConfig>) {
        let (Some(Scheduled { config, .. }), Some(new)) = (&self.0, new) else { return };
        config.send_if_modified(|running| {
            let new = running.reloaded(new);
            let changed = *running != new;
            *running = new;
            changed
        });
    }

    /// Ends it, and does not wait for the end.
    pub(in crate::compose) fn stop(self) {}
}

/// Runs the schedule, once it is there, until its other end is dropped.
fn work(schedule: oneshot::Receiver<Schedule>, stopped: oneshot::Receiver<()>) {
    let mut builder = Builder::new_current_thread();
    let builder = builder.max_blocking_threads(BLOCKING_THREADS);
    let runtime = match builder.thread_name("cairn-backups").enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return error!(%error, "no backups are saved, since their thread cannot be used: restart the node");
        }
    };
    runtime.block_on(async {
        let Ok(schedule) = schedule.await else { return };
        tokio::select! {
            biased;
            _ = stopped => {}
            () = schedule.run() => {}
        }
    });
    // A target may hold up for ever what reads or writes there.
    runtime.shutdown_background();
}
