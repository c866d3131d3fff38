//! Reads a backup again that was saved, if the configuration says so.
//!
//! What holds here: while the last one that this leader saved is not seen to be as it was written, nothing older
//! is removed. Once it is seen to be damaged, nothing builds on it: the next one saves everything.

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
                (self.verified, self.not_verified) = (Verified::Yes, None);
                return Ok(());
            }
            Err(error @ SaveError::BrokenOff) => return Err(error),
            Err(error) => error,
        };
        self.status.lock().failures += 1;
        let is_damaged = matches!(error, SaveError::Backup(Error::Damaged { .. }));
        self.verified = if is_damaged { Verified::Damaged } else { Verified::Unknown };
        let (node, at, why) = (self.replica.node_id(), &config.target, error.to_string());
        if self.not_verified.as_ref() == Some(&why) {
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
        self.not_verified = Some(why);
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
        let lost = async {
            while self.leads() {
                sleep(POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            biased;
            read = read => Ok(read?),
            () = lost => Err(SaveError::BrokenOff),
        }
    }
}
