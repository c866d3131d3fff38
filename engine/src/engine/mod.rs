//! What callers may ask of the engine, and the rules that each request is held to.

use crate::error::{Error, Result};
use crate::io::{Directory, FileKind, Watch, Watched};
use crate::maintain::Installer;
use crate::open;
use crate::state::Engine;
use crate::superblock::{MAX_VOTE_BYTES, MAX_VOTES};
use crate::types::{EngineStatus, Geometry, GroupId, Identity, Lineage, Mode, Options, Run, Standing};
use crate::write::{Writer, syncer};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod keys;
mod log;

impl Engine {
    /// Makes an engine's directory of five zeroed files of this geometry. Ends synced; the superblock comes last.
    ///
    /// # Errors
    /// `Invalid` for a bad identity or geometry, `WrongSize`, `InUse`, `NotFormatted` for a missing file, `Failed`.
    pub async fn format(directory: &dyn Directory, geometry: Geometry, identity: &Identity) -> Result<()> {
        open::format(directory, geometry, identity).await
    }

    /// Whether the identity of a directory can be read. To be asked again where it could not: the storage may have been away. No other
    /// process is kept out meanwhile, and nothing is changed.
    pub async fn reads_identity(directory: &dyn Directory) -> bool {
        open::is_readable(directory).await
    }

    /// Makes a directory whose identity cannot be read ([`Error::is_identity_lost`]) an empty one of another identity. To be
    /// called only where the cluster does without it: what it holds is gone with the first write. A directory whose identity
    /// can be read after all is left as it is. Ends synced.
    ///
    /// # After a crash
    /// During this call: the old state; or no identity, and the next call goes on; or the new identity, with nothing.
    ///
    /// # Errors
    /// `Invalid` for a bad identity, `Foreign`, `NotFormatted`, `NewerFormat`, `WrongSize`, `InUse`, `Io`, `Failed`.
    pub async fn format_again(directory: &dyn Directory, identity: &Identity) -> Result<()> {
        open::format_again(directory, identity).await
    }

    /// Opens and recovers. `expected` (cluster, slot) is compared before anything is written, and a directory that is
    /// refused is left as it was.
    ///
    /// # Errors
    /// `NotFormatted`, `NewerFormat`, `Foreign`, `InUse`, `WrongSize`, `Corrupt`, `Io`, `Failed`.
    pub async fn open(
        directory: Arc<dyn Directory>,
        expected: Option<(String, u16)>,
        options: Options,
    ) -> Result<Engine> {
        let watch = Watch::start(options.io_timeout);
        let directory = Watched { directory, watch };
        let shared = open::open(&directory, expected, options).await?;
        shared.spawn(Writer::new(shared.clone()).run());
        shared.spawn(syncer::run(shared.clone()));
        Ok(Engine::new(shared))
    }

    /// Who this is.
    pub fn identity(&self) -> &Identity {
        &self.shared.facts.identity
    }

    /// This opening of the directory.
    pub fn run(&self) -> Run {
        Run { start: self.shared.facts.epoch, nonce: self.shared.facts.options.run }
    }

    /// The openings before this one.
    pub fn lineage(&self) -> Lineage {
        self.shared.facts.lineage
    }

    /// Whether it remembers everything that it acknowledged.
    pub fn standing(&self) -> Standing {
        *self.shared.standing.lock()
    }

    /// The caller knows that whatever was forgotten is here again. That is synced first, since what came back may not
    /// be lost a second time by a node that thinks itself whole; then the standing is.
    ///
    /// # After a crash
    /// During this call: recovering or active.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn set_active(&self) -> Result<()> {
        self.shared.state.lock().check_open()?;
        // What was applied may still be on its way to the device.
        self.barrier().await?;
        self.shared.sync_now().await?;
        self.shared.update_superblock(|s| s.standing = Standing::Active).await?;
        *self.shared.standing.lock() = Standing::Active;
        Ok(())
    }

    /// What this member acknowledged turned out not to be here: until [`Engine::set_active`] it is recovering, over restarts
    /// too. Synced before this returns.
    ///
    /// # After a crash
    /// During this call: active or recovering.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn set_recovering(&self) -> Result<()> {
        self.shared.state.lock().check_open()?;
        *self.shared.standing.lock() = Standing::Recovering;
        self.shared.update_superblock(|s| s.standing = Standing::Recovering).await
    }

    /// The device keeps completed writes through a power cut no longer: from now on, whatever the mode was, it is `sync`.
    /// Returns when everything that was acknowledged is synced, and the directory says so.
    ///
    /// # After a crash
    /// During this call: what completed and is gone counts as damage, as long as the directory still says `device`.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn distrust_device(&self) -> Result<()> {
        {
            let state = self.shared.state.lock();
            state.check_open()?;
            // Within the lock, under which each append is told what it promises.
            self.shared.distrusted.store(true, Ordering::SeqCst);
        }
        // Whoever asks may end first, and a failed sync is told only once.
        let engine = self.clone();
        let syncing = tokio::spawn(async move {
            // What was acknowledged without a sync is either written by now, or waits for its turn with the rest.
            engine.barrier().await?;
            engine.shared.sync_now().await?;
            engine.shared.update_superblock(|s| s.mode = Some(Mode::Sync)).await
        });
        syncing.await.unwrap_or(Err(Error::Closed))
    }

    /// Neither completed writes nor syncs of this device are worth anything any more: the engine fails, as after a failed sync.
    pub fn give_device_up(&self, reason: &str) {
        self.shared.fail_device(FileKind::Data, "sync", reason);
    }

    /// While `held`, nothing is acknowledged before it is synced, and the `lazy` mark is clear as soon as everything
    /// acknowledged before is synced: for times when too few others hold what a power cut here would take. Has no
    /// effect in other modes than `replicated`.
    pub fn hold_synced(&self, held: bool) {
        self.shared.hold(held);
    }

    /// Stores up to 248 bytes for the group, synced before this returns.
    ///
    /// # After a crash
    /// During this call: the old vote or the new one.
    ///
    /// # Errors
    /// `Invalid` for a vote that is too long or a group too many, `Failed`, `Closed`.
    pub async fn save_vote(&self, group: GroupId, vote: &[u8]) -> Result<()> {
        self.shared.state.lock().check_open()?;
        let superblock = self.shared.superblock.lock().await;
        let votes = &superblock.current().votes;
        if vote.len() > MAX_VOTE_BYTES || (votes.len() >= MAX_VOTES && !votes.contains_key(&group)) {
            return Err(Error::Invalid(format!("a vote of {} bytes for group {}", vote.len(), group.0)));
        }
        drop(superblock);
        self.shared.update_superblock(|s| drop(s.votes.insert(group, vote.to_vec()))).await?;
        self.shared.votes.lock().insert(group, Bytes::copy_from_slice(vote));
        Ok(())
    }

    /// What [`Engine::save_vote`] last stored.
    pub fn vote(&self, group: GroupId) -> Option<Bytes> {
        self.shared.votes.lock().get(&group).cloned()
    }

    /// Writes a checkpoint of everything up to now. Resolves when it is synced.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn checkpoint(&self) -> Result<()> {
        let target = {
            let mut state = self.shared.state.lock();
            state.check_open()?;
            state.checkpoints.requested = true;
            state.checkpoints.begun + 1
        };
        self.shared.signals.writer.notify_one();
        self.shared.wait_for_checkpoint(target).await
    }

    /// Begins to replace a group's whole state by a snapshot from a peer.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn begin_install(&self, group: GroupId) -> Result<Installer> {
        self.shared.state.lock().check_open()?;
        Ok(Installer::new(self.shared.clone(), group))
    }

    /// Syncs everything written so far.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn sync(&self) -> Result<()> {
        self.shared.sync_now().await.map(drop)
    }

    /// What it can say of itself.
    pub fn status(&self) -> EngineStatus {
        self.shared.status()
    }

    /// Waits for writes under way, syncs, and marks a clean shutdown. Later requests return `Closed`; reads go on.
    ///
    /// # Errors
    /// `Failed`: the shutdown is then not marked as clean.
    pub async fn close(&self) -> Result<()> {
        let shared = &self.shared;
        shared.state.lock().closing = true;
        shared.signals.writer.notify_one();
        shared
            .wait_until(|shared| {
                let idle = shared.state.lock().checkpoints.running;
                (shared.progress.lock().writer_ended && !idle || shared.failed().is_some()).then_some(())
            })
            .await;
        let closed = async {
            shared.sync_now().await?;
            shared.signals.syncer.notify_one();
            shared.clear_mark_at_end().await
        };
        let result = closed.await;
        shared.remember_failed_sync().await;
        result
    }
}
