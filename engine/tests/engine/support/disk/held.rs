//! Held operations, what no power cut can lose, and copies of a disk.

use super::Disk;
use cairn_engine::io::FileKind;
use std::sync::Arc;

impl Disk {
    /// Another disk with the same content. Call it while no engine uses this one.
    pub fn copy(&self) -> Disk {
        Disk::of(self.core.lock().unwrap().rules.copy())
    }

    /// From now on writes and syncs of this file do not end.
    pub fn hold(&self, kind: FileKind) {
        self.core.lock().unwrap().held = Some(kind);
    }

    /// Ends what was held, but not all at once.
    pub fn release(&self) {
        self.core.lock().unwrap().held = None;
        self.released.notify_waiters();
    }

    /// From now on `acknowledged` returns how much was acknowledged.
    pub fn counts(&self, acknowledged: impl Fn() -> usize + Send + Sync + 'static) {
        let mut core = self.core.lock().unwrap();
        core.counts = Some(Arc::new(acknowledged));
        core.durable.clear();
    }

    /// How much of what was acknowledged no power cut can lose: journal and data were both synced
    /// since.
    pub fn durable(&self) -> usize {
        let core = self.core.lock().unwrap();
        let of = |kind| core.durable.get(&kind).copied().unwrap_or(0);
        of(FileKind::Journal).min(of(FileKind::Data))
    }

    /// How many blocks of completed writes the last power cut lost.
    pub fn lost(&self) -> u64 {
        self.core.lock().unwrap().lost
    }

    /// Waits while operations of this file are held.
    pub(super) async fn while_held(&self, kind: FileKind, number: u64) {
        loop {
            let released = self.released.notified();
            if self.core.lock().unwrap().held != Some(kind) {
                return;
            }
            released.await;
            for _ in 0..number % 3 {
                tokio::task::yield_now().await;
            }
        }
    }
}
