//! The state machine's progress, for those who wait for it.

use super::mode_in_force::ModeInForce;
use super::state_machine::identities::Identities;
use super::state_machine::image::{Image, UnsafeRecoveries};
use crate::core::ids::NodeId;
use crate::core::runtime::{self, WatchReceiver, WatchSender};
use cairn_engine::{BootEpoch, LogId};
use openraft_rt::{WatchReceiver as _, WatchSender as _};
use parking_lot::Mutex;
use std::sync::Arc;

/// Shared between the state machine and the parts that read its progress.
pub(crate) struct Progress {
    applied: WatchSender<Option<LogId>>,
    watch: WatchReceiver<Option<LogId>>,
    unsafe_recoveries: Mutex<UnsafeRecoveries>,
    identities: Identities,
    modes: Arc<ModeInForce>,
}

impl Progress {
    /// The state machine keeps `identities` and `modes` up to date through [`Progress::publish`].
    pub(crate) fn new(identities: Identities, modes: Arc<ModeInForce>) -> Progress {
        let (applied, watch) = runtime::watch(None);
        Progress { applied, watch, unsafe_recoveries: Mutex::default(), identities, modes }
    }

    /// A snapshot through `index` is about to be installed, and this is its image.
    pub(crate) fn installs(&self, image: &Image, index: u64) {
        if image.mode.is_some() {
            self.modes.installs(index);
        }
    }

    /// Everything up to `through` is visible, and this is the image there.
    pub(crate) fn publish(&self, image: &Image, through: Option<LogId>) {
        self.identities.set_logged(&image.boot_epochs, &image.removed, image.version);
        *self.unsafe_recoveries.lock() = image.unsafe_recoveries;
        if let Some(through) = through {
            self.modes.applied(through.index, image.mode, image.mode_index);
        }
        self.applied.send(through).ok();
    }

    pub(crate) fn unsafe_recoveries(&self) -> UnsafeRecoveries {
        *self.unsafe_recoveries.lock()
    }

    /// Whether the log has an unsafe-recovery record of this term or a later one.
    pub(crate) fn unsafely_recovered_since(&self, term: u64) -> bool {
        let known = self.unsafe_recoveries();
        known.count > 0 && known.last_term >= term
    }

    /// Whether the record of this boot epoch is the member's latest that is applied.
    pub(crate) fn has_epoch(&self, member: NodeId, epoch: BootEpoch) -> bool {
        self.identities.is_latest(member, epoch)
    }

    /// Returns when entry `index` is applied. Never returns if the state machine ends before.
    pub(crate) async fn wait_applied(&self, index: u64) {
        let mut watch = self.watch.clone();
        loop {
            // A snapshot may skip the entry, so any later one will do.
            if watch.borrow_and_update().is_some_and(|applied| applied.index >= index) {
                return;
            }
            if watch.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::tests::engine;
    use cairn_engine::Mode;

    /// Whoever took part in a leadership under a grant stays recovering until its own one is logged.
    #[tokio::test]
    async fn an_unsafe_recovery_of_an_earlier_term_is_none_of_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let modes = Arc::new(ModeInForce::new(engine(&folder).await, Mode::Replicated, None));
        let progress = Progress::new(Identities::default(), modes);
        let since = || [0, 3, 4, 5].map(|term| progress.unsafely_recovered_since(term));
        assert_eq!(since(), [false; 4]);
        let unsafe_recoveries = UnsafeRecoveries { count: 1, last_term: 4, last_index: 9 };
        progress.publish(&Image { unsafe_recoveries, ..Image::default() }, None);
        assert_eq!(since(), [true, true, true, false]);
    }
}
