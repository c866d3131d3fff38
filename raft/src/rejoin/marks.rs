//! The marks of members that come back, put into the log by the leader that brings them back.
//!
//! The story: openraft takes no entry from a leader that no quorum has acknowledged of late, such as one that was elected just
//! now, and drops a proposal for which nobody waits without a word. The mark of a member that asked at once was lost that way, and
//! the member asked again after seconds. After an accepted loss it was always so: the quorum consists of members that wait for
//! their marks.
//!
//! What holds here: a mark is proposed until openraft has taken it, in the one leadership in which it was asked for, and no longer
//! than the member waits for this very mark; one task at a time proposes for a member.

use crate::codec::{self, Mark};
use crate::ids::NodeId;
use crate::metrics::look_at;
use crate::runtime;
use crate::types::{Raft, Reply, Vote};
use openraft::ServerState;
use openraft::errors::ClientWriteError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Between two proposals of a mark.
const PAUSE: Duration = Duration::from_millis(20);

/// What a leader proposes for members that come back.
pub(crate) struct Marks {
    raft: Raft,
    /// The mark that each member waits for, and the leadership in which it asked: until openraft is done with it.
    awaited: Mutex<BTreeMap<NodeId, (Vote, Mark)>>,
}

impl Marks {
    pub(crate) fn new(raft: Raft) -> Marks {
        Marks { raft, awaited: Mutex::default() }
    }

    /// Puts a mark into the log, as long as this member leads by `vote`. Another mark of the same member takes its place.
    pub(crate) fn propose(self: &Arc<Self>, vote: Vote, mark: Mark) {
        let before = self.awaited.lock().insert(mark.node, (vote, mark));
        if before == Some((vote, mark)) {
            return;
        }
        let marks = Arc::clone(self);
        runtime::spawn(async move {
            while marks.is_awaited(vote, mark) && !marks.taken(mark).await {
                runtime::sleep(PAUSE).await;
            }
            let mut awaited = marks.awaited.lock();
            if awaited.get(&mark.node) == Some(&(vote, mark)) {
                awaited.remove(&mark.node);
            }
        });
    }

    fn is_awaited(&self, vote: Vote, mark: Mark) -> bool {
        let leads = look_at(&self.raft, |seen| {
            seen.running_state.is_ok() && seen.state == ServerState::Leader && seen.vote == vote
        });
        leads && self.awaited.lock().get(&mark.node) == Some(&(vote, mark))
    }

    /// Whether openraft took the mark and is done with it: it is applied, or another leader's entry took its place.
    async fn taken(&self, mark: Mark) -> bool {
        let (reply, answer) = Reply::pair(Box::new(()));
        match self.raft.client_write_ff(codec::encode_mark(mark), Some(reply)).await {
            Ok(()) => !matches!(answer.await, Ok(Err(ClientWriteError::ForwardToLeader(_)))),
            Err(_) => true,
        }
    }
}
