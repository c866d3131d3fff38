//! The methods of an open engine, and the rules for each request.

use crate::error::{Error, Result};
use crate::io::FileKind;
use crate::open::check_identity;
use crate::state::Engine;
use crate::superblock::{MAX_VOTE_BYTES, MAX_VOTES};
use crate::types::{BootEpoch, FencingHistory, GroupId, Identity, LogId, MemberState, Mode};
use bytes::Bytes;
use std::sync::atomic::Ordering;

mod close;
mod keys;
mod log;

impl Engine {
    /// The identity of the directory.
    pub fn identity(&self) -> &Identity {
        &self.shared.facts.identity
    }

    /// The boot epoch of this open.
    pub fn boot_epoch(&self) -> BootEpoch {
        BootEpoch { number: self.shared.facts.epoch, nonce: self.shared.facts.options.boot_nonce }
    }

    /// The generation of the cluster: 0, or the number that was drawn when an operator made it anew of
    /// one member alone ([`Engine::set_generation`]).
    pub fn generation(&self) -> u32 {
        self.shared.generation.load(Ordering::SeqCst)
    }

    /// From now on the directory belongs to the cluster of this generation. Synced before this
    /// returns.
    ///
    /// # After a crash
    /// During this call: the old generation or the new one.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn set_generation(&self, generation: u32) -> Result<()> {
        self.shared.state.lock().check_open()?;
        self.shared.update_superblock(|s| s.generation = generation).await?;
        self.shared.generation.store(generation, Ordering::SeqCst);
        Ok(())
    }

    /// From now on the directory belongs to the cluster of this name. Synced before this returns.
    ///
    /// # After a crash
    /// During this call: the old name or the new one.
    ///
    /// # Errors
    /// `Invalid`, `Failed`, `Closed`.
    pub async fn set_cluster(&self, cluster: &str) -> Result<()> {
        let identity = Identity { cluster: cluster.to_owned(), ..self.identity().clone() };
        check_identity(&identity)?;
        self.shared.state.lock().check_open()?;
        self.shared.update_superblock(|s| s.identity = identity).await
    }

    /// From now on the directory may be written in the newest format: checkpoints hold only what changed
    /// where that is less. Its superblock says so first, and no earlier release opens it again.
    pub fn raise_format(&self) {
        self.shared.state.lock().checkpoints.newest_format = true;
    }

    /// The boot nonces of the earlier opens.
    pub fn fencing_history(&self) -> FencingHistory {
        self.shared.facts.fencing_history
    }

    /// Whether the member is active or recovering.
    pub fn member_state(&self) -> MemberState {
        *self.shared.member_state.lock()
    }

    /// Sets the member active. The caller knows that everything lost has been restored. The
    /// restored data is synced before the state changes, because a member that counts as active
    /// must not lose it a second time.
    ///
    /// # After a crash
    /// During this call: recovering or active.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn set_active(&self) -> Result<()> {
        self.shared.state.lock().check_begun()?;
        // Applied entries may still be on their way to the device.
        self.barrier().await?;
        self.shared.sync_now().await?;
        self.shared.update_superblock(|s| s.member_state = MemberState::Active).await?;
        *self.shared.member_state.lock() = MemberState::Active;
        Ok(())
    }

    /// Acknowledged entries turned out to be missing. Until [`Engine::set_active`] the member is
    /// recovering, also after restarts. Synced before this returns.
    ///
    /// # After a crash
    /// During this call: active or recovering.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn set_recovering(&self) -> Result<()> {
        self.shared.state.lock().check_open()?;
        *self.shared.member_state.lock() = MemberState::Recovering;
        self.shared.update_superblock(|s| s.member_state = MemberState::Recovering).await
    }

    /// The device no longer keeps completed writes through a power cut. From now on the mode is
    /// `sync`, whatever it was. Returns when everything acknowledged is synced and the superblock
    /// says `sync`.
    ///
    /// # After a crash
    /// During this call: while the superblock still says `device`, a completed write that is lost
    /// counts as damage.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn require_syncs(&self) -> Result<()> {
        {
            let state = self.shared.state.lock();
            state.check_open()?;
            // Under the lock: each append reads the mode under it.
            self.shared.syncs_required.store(true, Ordering::SeqCst);
        }
        // In a task of its own: the caller may be cancelled, and the kernel reports a failed sync
        // only once.
        let engine = self.clone();
        let syncing = tokio::spawn(async move {
            // Before the begin the superblock still says what the last process promised. The begin
            // syncs everything, and records the mode of now.
            if engine.shared.begin.lock().await.is_some() {
                return Ok(());
            }
            // Each write acknowledged without a sync is completed by now, or the barrier waits for
            // it.
            engine.barrier().await?;
            engine.shared.sync_now().await?;
            engine.shared.update_superblock(|s| s.mode = Some(Mode::Sync)).await
        });
        syncing.await.unwrap_or(Err(Error::Closed))
    }

    /// Neither completed writes nor syncs of this device can be trusted: the engine fails, as after
    /// a failed sync.
    pub fn fail_device(&self, reason: &str) {
        self.shared.fail_device(FileKind::Data, "sync", reason);
    }

    /// While `safe`, writes are acknowledged only after a sync, and the unsynced-ack flag is
    /// cleared as soon as everything acknowledged before is synced. The caller uses this while too
    /// few other members hold what a power cut here would lose, and while an acknowledgement is to
    /// mean a sync although this device would allow more. Changes nothing in mode `sync`.
    pub fn set_safe_acks(&self, safe: bool) {
        self.shared.set_safe(safe);
    }

    /// Stores up to 248 bytes for the group, synced before this returns.
    ///
    /// # After a crash
    /// During this call: the old vote or the new one.
    ///
    /// # Errors
    /// `Invalid` for a vote that is too long, or for too many groups; `Failed`, `Closed`.
    pub async fn save_vote(&self, group: GroupId, vote: &[u8]) -> Result<()> {
        self.shared.state.lock().check_open()?;
        let superblock = self.shared.superblock.lock().await;
        let votes = &superblock.current().votes;
        if vote.len() > MAX_VOTE_BYTES || (votes.len() >= MAX_VOTES && !votes.contains_key(&group))
        {
            return Err(Error::Invalid(format!(
                "a vote of {} bytes for group {}",
                vote.len(),
                group.0
            )));
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

    /// Writes a checkpoint of the present state. Resolves when it is synced.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub async fn checkpoint(&self) -> Result<()> {
        let target = self.request_checkpoint()?;
        self.shared.wait_for_checkpoint(target).await
    }

    /// The same without waiting for it.
    ///
    /// # Errors
    /// `Failed`, `Closed`.
    pub fn begin_checkpoint(&self) -> Result<()> {
        self.request_checkpoint().map(drop)
    }

    /// Returns how many checkpoints will have begun when this one has.
    fn request_checkpoint(&self) -> Result<u64> {
        let mut state = self.shared.state.lock();
        state.check_open()?;
        state.checkpoints.requested = true;
        self.shared.signals.writer.notify_one();
        Ok(state.checkpoints.begun + 1)
    }

    /// What the newest checkpoint covers: [`Engine::purge`] up to there takes none of its own.
    pub fn checkpointed(&self, group: GroupId) -> Option<LogId> {
        self.shared.state.lock().checkpoints.applied.get(&group).copied()
    }

    /// Syncs everything written so far.
    ///
    /// # Errors
    /// `Failed`.
    pub async fn sync(&self) -> Result<()> {
        self.shared.sync_now().await.map(drop)
    }
}
