//! What the schedule of backups does on this node.

use super::out::Out;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What is known of it.
#[derive(Debug, Default)]
pub(crate) struct BackupStatus {
    /// From the end of one backup to the beginning of the next, as the schedule of this node says.
    pub(crate) every: Duration,
    /// It looks at the target, saves, verifies, or removes.
    pub(crate) running: bool,
    /// What failed since the node started.
    pub(crate) failures: u64,
    /// When the last backup of the cluster ended, in seconds since 1970. Only the leader knows it.
    pub(crate) last_ended: Option<u64>,
    /// How long that one took.
    pub(crate) last_seconds: u64,
    /// The bytes that it needs at the target.
    pub(crate) last_bytes: u64,
}

/// The same, for those who set it and those who read it.
pub(crate) type SharedBackupStatus = Arc<Mutex<BackupStatus>>;

impl BackupStatus {
    /// Of a node that has done nothing yet.
    pub(crate) fn shared(every: Duration) -> SharedBackupStatus {
        Arc::new(Mutex::new(BackupStatus { every, ..BackupStatus::default() }))
    }

    pub(super) fn write(&self, out: &mut Out<'_, '_>) -> fmt::Result {
        let help =
            "backup.every of this node: from the end of one backup to the beginning of the next";
        out.seconds("backup_interval", help, self.every)?;
        let help = "1 while this node looks at the target of backups, saves or verifies one, or removes old ones";
        out.flag("backup_running", help, self.running)?;
        let help = "Attempts of this node to save, verify or remove backups that failed";
        out.counter("backup_failures", help, self.failures)?;
        let Some(ended) = self.last_ended else { return Ok(()) };
        let help =
            "When the last backup at the target ended, in seconds since 1970; from the leader";
        out.metric(
            "backup_last_success_timestamp",
            help,
            Some(Unit::Seconds),
            ConstGauge::new(ended),
        )?;
        let help = "How long that backup took; from the leader";
        let took = ConstGauge::new(self.last_seconds);
        out.metric("backup_last_duration", help, Some(Unit::Seconds), took)?;
        let help = "Bytes at the target that this backup needs; from the leader";
        out.bytes("backup_last", help, self.last_bytes)
    }
}
