//! Reads a backup again that was saved, if the configuration says so.
//!
//! What holds here: while the last one that this leader saved is not seen to be as it was written, nothing older
//! is removed. Once it is seen to be damaged, nothing builds on it: the next one saves everything. What a read finds
//! counts only if this member led from its begin to its end, in one term.

use super::{POLL_INTERVAL, SaveError, Schedule};
use crate::config::{BackupConfig, BackupVerify};
use cairn_backup::{Backup, Error, Target};
use tokio::time::sleep;
use tracing::{error, warn};

/// What is known of the backup that this leader saved last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verified {
    /// It is as it was written, nobody asked, or there is none.
    Yes,
    /// It could not be read.
    Unknown,
    /// It is damaged.
    Damaged,
}

impl Schedule {
    /// Verifies a backup that was saved.
    ///
    /// # Errors
    /// `BrokenOff`, if it does not lead any more. Anything else is logged, once for each reason.
    pub(super) async fn verify(
        &mut self,
        target: &Target,
        name: &str,
        config: &BackupConfig,
    ) -> Result<(), SaveError> {
        let error = match self.read_again(target, name, config.verify).await {
            Ok(()) => {
                self.verified = Verified::Yes;
                self.told.unverified.end();
                return Ok(());
            }
            Err(error @ SaveError::BrokenOff) => return Err(error),
            Err(error) => error,
        };
        self.status.lock().failures += 1;
        let is_damaged = matches!(error, SaveError::Backup(Error::Damaged { .. }));
        self.verified = if is_damaged { Verified::Damaged } else { Verified::Unknown };
        let (node, at, why) = (self.replica.node_id(), &config.target, error.to_string());
        if !self.told.unverified.is_new(&why) {
            return Ok(());
        }
        if is_damaged {
            error!(
                %node,
                at,
                "the backup that was saved is not as it was written: {why}. Nothing is removed, and the next one saves everything"
            );
        } else {
            warn!(
                %node,
                at,
                "the backup that was saved could not be verified: {why}. Nothing is removed until the next one is; \
                 `cairn backup verify` shows whether it works"
            );
        }
        Ok(())
    }

    async fn read_again(
        &self,
        target: &Target,
        name: &str,
        how: BackupVerify,
    ) -> Result<(), SaveError> {
        let read = async {
            match how {
                BackupVerify::None => Ok(()),
                BackupVerify::Stored => {
                    let backup = Backup::open(target, name).await?;
                    backup.verify_stored(|_| ()).await.map(drop)
                }
                BackupVerify::All => {
                    let backup = Backup::open(target, name).await?;
                    backup.verify(|_| ()).await.map(drop)
                }
            }
        };
        while_leading(|| self.leads(), read).await
    }
}

/// What a read finds, if this member leads until its end.
async fn while_leading(
    leads: impl Fn() -> bool,
    read: impl Future<Output = Result<(), Error>>,
) -> Result<(), SaveError> {
    let lost = async {
        while leads() {
            sleep(POLL_INTERVAL).await;
        }
    };
    let found = tokio::select! {
        biased;
        read = read => read,
        () = lost => return Err(SaveError::BrokenOff),
    };
    // It may have ended between two looks.
    if leads() { Ok(found?) } else { Err(SaveError::BrokenOff) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The story: leadership was lost and won again while a backup was read. The verdict of the first one counted in
    /// the second one, which removed older backups by it.
    #[tokio::test]
    async fn a_verdict_counts_in_the_term_alone_in_which_its_read_began() {
        let led = Cell::new(Some(5));
        let leads = || led.get() == Some(5);
        assert!(while_leading(leads, async { Ok(()) }).await.is_ok());
        let lost_and_won = async {
            led.set(None);
            led.set(Some(7));
            Ok(())
        };
        let verdict = while_leading(leads, lost_and_won).await;
        assert!(matches!(verdict, Err(SaveError::BrokenOff)), "{verdict:?}");
        // A read that does not end is left.
        let verdict = while_leading(leads, std::future::pending()).await;
        assert!(matches!(verdict, Err(SaveError::BrokenOff)), "{verdict:?}");
    }
}
