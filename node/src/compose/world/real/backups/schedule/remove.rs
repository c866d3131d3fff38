//! Removes the backups that need not stay.
//!
//! What holds here: nobody looks at what goes. So it is of this cluster alone, [`REMOVED_AT_ONCE`] backups at most
//! after each that was saved, and nothing where they may be of two clusters of the name. Backups whose time lies in
//! the future stay, beside those that count, and are named once.

use super::{SaveError, Schedule};
use crate::config::BackupConfig;
use cairn_backup::{Keep, Own, Target, prune_own};
use std::time::SystemTime;
use tracing::{error, info, warn};

/// Each backup that is saved makes one superfluous.
const REMOVED_AT_ONCE: usize = 2;

/// What stays. The ages count from the clock of the last leader, which may be a year ahead: so many stay, too,
/// as are younger by the schedule.
fn keep(config: &BackupConfig) -> Keep {
    let within = config.keep_within.unwrap_or_default();
    let younger = within.as_secs() / config.every.as_secs().max(1);
    Keep { last: config.keep.max(usize::try_from(younger).unwrap_or(usize::MAX)), within }
}

impl Schedule {
    /// Removes the backups that need not stay, if it leads.
    ///
    /// # Errors
    /// `BrokenOff`, if it does not lead; `Backup`.
    pub(super) async fn remove_old(
        &mut self,
        target: &Target,
        config: &BackupConfig,
    ) -> Result<(), SaveError> {
        if !self.leads() {
            return Err(SaveError::BrokenOff);
        }
        let members = self.members();
        let own = Own { id: self.id(&members), most: REMOVED_AT_ONCE };
        let pruned = prune_own(target, &keep(config), &own, SystemTime::now()).await?;
        if !pruned.backups.is_empty() || pruned.objects > 0 {
            info!(
                at = target.text(),
                backups = pruned.backups.join(", "),
                objects = pruned.objects,
                bytes = pruned.bytes,
                "backups removed"
            );
        }
        self.ahead(&pruned.ahead, target);
        Ok(())
    }

    /// Names the backups whose time lies in the future, once until these are others.
    fn ahead(&mut self, ahead: &[String], target: &Target) {
        let backups = ahead.join(", ");
        if backups.is_empty() {
            self.told.ahead.end();
        } else if self.told.ahead.is_new(&backups) {
            error!(
                node = %self.replica.node_id(),
                at = target.text(),
                backups,
                "the time of these backups lies in the future: they stay, and `backup.keep` does not count them. A clock is or was \
                 wrong, or somebody else writes at the target; `cairn backup prune --remove NAME --keep NUMBER` removes one"
            );
        }
    }

    /// Logs that, once for each reason.
    pub(super) fn not_removed(&mut self, error: &SaveError, config: &BackupConfig) {
        self.status.lock().failures += 1;
        let why = error.to_string();
        if self.told.unremoved.is_new(&why) {
            warn!(
                node = %self.replica.node_id(),
                at = config.target,
                "old backups are not removed: {why}. It is tried again after the next one; `cairn backup prune --dry-run` shows what would go"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BackupVerify;
    use std::time::Duration;

    const HOUR: Duration = Duration::from_secs(3600);

    /// The story: a clock was a year ahead for one backup, and by the age of all others that was the only one
    /// to stay.
    #[test]
    fn as_many_stay_as_are_younger_by_the_schedule() {
        let config = |keep, keep_within| BackupConfig {
            target: "/a".into(),
            every: HOUR,
            keep,
            keep_within,
            full_every: None,
            encrypt_to: None,
            verify: BackupVerify::None,
        };
        for (keep_last, within, last) in [
            (24, Some(720 * HOUR), 720),
            (7, Some(2 * HOUR), 7),
            (0, Some(3 * HOUR), 3),
            (2, None, 2),
        ] {
            assert_eq!(keep(&config(keep_last, within)).last, last);
        }
    }
}
