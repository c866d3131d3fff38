//! Boot-epoch records: the leader logs each new boot epoch of each member.
//!
//! Later members can then recognise an older copy of a disk, and every member knows which version the
//! others speak. The record also ends a recovery: it
//! was proposed after that boot began, so every entry that an earlier boot acknowledged and that
//! can still be committed lies before it.
//!
//! The story: openraft refuses proposals on a leader that no quorum has acknowledged lately, such
//! as one that was elected just now, and drops a proposal without a word if no caller waits for its
//! answer. The record of a member that asked at such a moment was lost, and the member asked again
//! seconds later. After an unsafe recovery this happened every time, because the quorum consists of
//! members that wait for their records.
//!
//! What holds here: a record is proposed until openraft has accepted it, within the leadership in
//! which it was requested; one task at a time proposes for a member.

use crate::core::boot::Boot;
use crate::core::ids::NodeId;
use crate::core::raft_metrics::with_metrics;
use crate::core::types::{Proposal, Reply, Vote};
use crate::core::{codec, runtime};
use crate::storage::Raft;
use openraft::ServerState;
use openraft::errors::ClientWriteError;
use openraft::vote::RaftLeaderId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Between two proposals of a record.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The records that this leader proposes, one per member.
pub(crate) struct EpochRecords {
    raft: Raft,
    /// Each member's boot and the leadership in which it is proposed, until openraft has
    /// accepted it.
    awaited: Mutex<BTreeMap<NodeId, Awaited>>,
}

#[derive(Clone, PartialEq, Eq)]
struct Awaited {
    /// The term of this leadership: a member leads a term at most once.
    term: u64,
    boot: Boot,
    /// An unsafe-recovery record is to precede the boot-epoch record.
    unsafe_recovery: bool,
}

impl EpochRecords {
    pub(crate) fn new(raft: Raft) -> EpochRecords {
        EpochRecords { raft, awaited: Mutex::default() }
    }

    /// Logs a boot, as long as this member leads by `vote`. With `unsafe_recovery`, an
    /// unsafe-recovery record precedes it: it says that this leadership discards what no member
    /// holds any more, and recovering members wait for it. A newer boot of the same member replaces
    /// this request.
    pub(crate) fn propose(
        self: &Arc<Self>,
        vote: Vote,
        member: NodeId,
        boot: Boot,
        unsafe_recovery: bool,
    ) {
        let mut awaited = Awaited { term: vote.leader_id().term(), boot, unsafe_recovery };
        {
            let mut all = self.awaited.lock();
            if let Some(known) = all.get(&member).filter(|known| known.term == awaited.term) {
                // Two concurrent requests are merged: the newer boot, and an unsafe-recovery record
                // if either asks for one.
                if known.boot.epoch.number > awaited.boot.epoch.number
                    || known.boot == awaited.boot && (known.unsafe_recovery || !unsafe_recovery)
                {
                    return;
                }
                awaited.unsafe_recovery |= known.unsafe_recovery;
            }
            all.insert(member, awaited.clone());
        }
        let records = Arc::clone(self);
        runtime::spawn(async move {
            if awaited.unsafe_recovery {
                records.put(member, &awaited, || codec::encode_unsafe_recovery(member)).await;
            }
            records.put(member, &awaited, || codec::encode_boot(member, &awaited.boot)).await;
            let mut all = records.awaited.lock();
            if all.get(&member) == Some(&awaited) {
                all.remove(&member);
            }
        });
    }

    async fn put(&self, member: NodeId, awaited: &Awaited, record: impl Fn() -> Proposal) {
        while self.is_awaited(member, awaited) && !self.taken(record()).await {
            runtime::sleep(RETRY_INTERVAL).await;
        }
    }

    fn is_awaited(&self, member: NodeId, awaited: &Awaited) -> bool {
        let leads = with_metrics(&self.raft, |seen| {
            seen.running_state.is_ok()
                && seen.state == ServerState::Leader
                && seen.current_term == awaited.term
        });
        leads && self.awaited.lock().get(&member) == Some(awaited)
    }

    /// Whether openraft is done with the record: it is applied, or another leader's entry replaced
    /// it.
    async fn taken(&self, record: Proposal) -> bool {
        let (reply, answer) = Reply::pair(Box::new(()));
        match self.raft.client_write_ff(record, Some(reply)).await {
            Ok(()) => !matches!(answer.await, Ok(Err(ClientWriteError::ForwardToLeader(_)))),
            Err(_) => true,
        }
    }
}
