//! The records that say that a run of a member began, put into the log by the leader.
//!
//! A leader logs every start that it hears of, so that an older copy of a disk is told from the disk by whoever comes later. The record is
//! also what ends a recovery: it was proposed after the run began, so whatever an earlier run acknowledged and can still be
//! committed lies before it.
//!
//! The story: openraft takes no entry from a leader that no quorum has acknowledged of late, such as one that was elected just
//! now, and drops a proposal for which nobody waits without a word. The record of a member that asked at once was lost that way, and
//! the member asked again after seconds. After an accepted loss it was always so: the quorum consists of members that wait for
//! their records.
//!
//! What holds here: a record is proposed until openraft has taken it, in the one leadership in which it was asked for; one task at a
//! time proposes for a member.

use crate::core::ids::NodeId;
use crate::core::metrics::look_at;
use crate::core::types::{Proposal, Reply, Vote};
use crate::core::{codec, runtime};
use crate::storage::Raft;
use cairn_engine::Run;
use openraft::ServerState;
use openraft::errors::ClientWriteError;
use openraft::vote::RaftLeaderId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Between two proposals of a record.
const PAUSE: Duration = Duration::from_millis(20);

/// What a leader proposes of its own accord.
pub(crate) struct StartRecords {
    raft: Raft,
    /// Each member's start, and the leadership in which it is proposed: until openraft is done with it.
    awaited: Mutex<BTreeMap<NodeId, Awaited>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Awaited {
    /// In which this member leads: it leads a term once.
    term: u64,
    run: Run,
    /// With the record that this leadership gives up what no member holds any more.
    loss: bool,
}

impl StartRecords {
    pub(crate) fn new(raft: Raft) -> StartRecords {
        StartRecords { raft, awaited: Mutex::default() }
    }

    /// Puts a start into the log, as long as this member leads by `vote`; with `loss`, behind a record that says that this leadership
    /// gives up what no member holds any more, which who recovers waits for. Another start of the same member takes its place.
    pub(crate) fn propose(self: &Arc<Self>, vote: Vote, member: NodeId, run: Run, loss: bool) {
        let mut awaited = Awaited { term: vote.leader_id().term(), run, loss };
        {
            let mut all = self.awaited.lock();
            if let Some(known) = all.get(&member).filter(|known| known.term == awaited.term) {
                // Of two that come at once neither may take back what the other asks for.
                if known.run.start > run.start || known.run == run && (known.loss || !loss) {
                    return;
                }
                awaited.loss |= known.loss;
            }
            all.insert(member, awaited);
        }
        let records = Arc::clone(self);
        runtime::spawn(async move {
            if awaited.loss {
                records.put(member, awaited, || codec::encode_loss(member)).await;
            }
            records.put(member, awaited, || codec::encode_start(member, run)).await;
            let mut all = records.awaited.lock();
            if all.get(&member) == Some(&awaited) {
                all.remove(&member);
            }
        });
    }

    async fn put(&self, member: NodeId, awaited: Awaited, record: impl Fn() -> Proposal) {
        while self.is_awaited(member, awaited) && !self.taken(record()).await {
            runtime::sleep(PAUSE).await;
        }
    }

    fn is_awaited(&self, member: NodeId, awaited: Awaited) -> bool {
        let leads = look_at(&self.raft, |seen| {
            seen.running_state.is_ok()
                && seen.state == ServerState::Leader
                && seen.current_term == awaited.term
        });
        leads && self.awaited.lock().get(&member) == Some(&awaited)
    }

    /// Whether openraft took the record and is done with it: it is applied, or another leader's entry took its place.
    async fn taken(&self, record: Proposal) -> bool {
        let (reply, answer) = Reply::pair(Box::new(()));
        match self.raft.client_write_ff(record, Some(reply)).await {
            Ok(()) => !matches!(answer.await, Ok(Err(ClientWriteError::ForwardToLeader(_)))),
            Err(_) => true,
        }
    }
}
