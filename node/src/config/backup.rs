//! When the cluster saves backups of itself, and which of them stay.

use super::{ConfigError, Layers, NodeConfig, Security, forms};
use std::time::Duration;

/// The schedule of backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupConfig {
    /// Where they are: an absolute path, or a bucket.
    pub target: String,
    /// From the end of one to the beginning of the next.
    pub every: Duration,
    /// The latest stay, so many.
    pub keep: usize,
    /// Younger ones stay too.
    pub keep_within: Option<Duration>,
    /// Once the latest one needs objects of that age, the next one saves everything.
    pub full_every: Option<Duration>,
    /// To whom they are encrypted: a recipient of age, or the absolute path of a file with some. Each one
    /// then has everything.
    pub encrypt_to: Option<String>,
    /// How each one is read again once it is saved.
    pub verify: BackupVerify,
}

/// How a backup is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackupVerify {
    /// Not at all.
    None,
    /// Its objects are compared with their lengths and checksums.
    Stored,
    /// Its keys and values are compared with their hashes, too.
    All,
}

impl BackupConfig {
    /// `None` without a target.
    pub(super) fn read(layers: &Layers) -> Result<Option<BackupConfig>, ConfigError> {
        let target = layers.text("backup.target")?;
        if target == "none" {
            return Ok(None);
        }
        // Their keys say how long they are at least.
        let some_period = |key| layers.read(key, |text| forms::parse_some_period(text, 0));
        Ok(Some(BackupConfig {
            target,
            every: layers.read("backup.every", |text| forms::parse_period(text, 0))?,
            keep: layers.read("backup.keep", |text| {
                text.parse::<usize>().map_err(|_| "expected a whole number".to_string())
            })?,
            keep_within: some_period("backup.keep_within")?,
            full_every: some_period("backup.full_every")?,
            encrypt_to: Some(layers.text("backup.encrypt_to")?).filter(|text| text != "none"),
            verify: match layers.text("backup.verify")?.as_str() {
                "stored" => BackupVerify::Stored,
                "all" => BackupVerify::All,
                _ => BackupVerify::None,
            },
        }))
    }

    /// What a running node takes of a new schedule: all of it, but nothing if backups are elsewhere, which needs
    /// a restart. What should stay there says nothing of what is here.
    pub fn reloaded(&self, new: &BackupConfig) -> BackupConfig {
        if new.target == self.target { new.clone() } else { self.clone() }
    }
}

impl NodeConfig {
    pub(super) fn check_backup(&self) -> Result<(), ConfigError> {
        let conflict = |what: &str| Err(ConfigError::Conflict(what.into()));
        let Some(backup) = &self.backup else { return Ok(()) };
        if backup.keep == 0 && backup.keep_within.unwrap_or_default() <= backup.every {
            return conflict(
                "backup.keep = 0 leaves no backup when the next one is due: keep 1 or more, or give a backup.keep_within that is \
                 longer than backup.every",
            );
        }
        if backup.encrypt_to.is_some() && backup.full_every.is_some() {
            return conflict(
                "backup.full_every says when a backup has everything, and with backup.encrypt_to each one has, since no member has \
                 the secret key that reads the one before: leave one of the two out",
            );
        }
        if backup.encrypt_to.is_some() && backup.verify == BackupVerify::All {
            return conflict(
                "backup.verify = \"all\" reads keys and values, and with backup.encrypt_to no member has the secret key: use \
                 backup.verify = \"stored\", and run `cairn backup verify --identity FILE` where the key is",
            );
        }
        if !self.access.is_empty() && self.security == Some(Security::Insecure) {
            return conflict(
                "backup.target needs members that can prove who they are, since they ask one another for the state: with `access`, \
                 give certificates (`tls.…`) instead of insecure = true",
            );
        }
        Ok(())
    }
}
