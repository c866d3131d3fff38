//! A cluster made anew of one member alone, when a majority of the *disks* is lost for good.
//!
//! This is not recovery: it discards what only the lost members held, and nobody knows what that was.
//! An operator decides it for the survivor with the longest log.
//!
//! What holds here:
//! - the generation is drawn anew and synced before anything else changes. Messages of another
//!   generation are refused on both sides. So a second survivor that is made anew by mistake is
//!   another cluster, and the other survivors, whose directories stay as they are, belong to neither;
//! - everything that the directory holds is synced before its member counts as active;
//! - the membership of the survivor alone, the record that counts the loss, and mode `sync` are
//!   synced behind all that the log holds, in a term above every vote and entry. A crash on the way
//!   leaves a member that cannot be elected, and the same call goes on.

use crate::core::codec::{self, LogRecord};
use crate::core::error::Error;
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::types::{Membership, Payload, Vote};
use crate::core::version;
use crate::storage::log_store::{encode_vote, stored_vote};
use crate::storage::state_machine::Image;
use crate::transport::generation::{generation_text, is_uninitialized};
use cairn_engine::{Engine, LogId, Mode, NewEntry, Promise};
use openraft::vote::RaftLeaderId;
use std::collections::{BTreeMap, BTreeSet};

/// Entries read at once.
const READ_ENTRIES: usize = 1024;

/// What a stopped member knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// Its identity.
    pub id: NodeId,
    /// The last entry of its log.
    pub last_log: Option<LogId>,
    /// The last entry that it has applied.
    pub applied: Option<LogId>,
    /// The voters of the last membership in its log, and where they were.
    pub voters: BTreeMap<NodeId, MemberAddress>,
    /// Its configurations: two while a change was under way; then a majority of each was needed.
    pub configurations: Vec<BTreeSet<NodeId>>,
}

impl Survivor {
    /// What the directory of this engine says.
    ///
    /// # Errors
    /// `State`, if what it holds cannot be read, also what is not applied; `TooOld`, if the cluster's
    /// version needs a later release.
    pub fn of(engine: &Engine) -> Result<Survivor, Error> {
        let own = engine.identity();
        let membership = last_membership(engine)?;
        let address = |id: &NodeId| membership.get_node(id).cloned().unwrap_or_default();
        Ok(Survivor {
            id: NodeId::new(own.slot, own.incarnation),
            last_log: engine.log_bounds(GROUP).last,
            applied: engine.applied(GROUP),
            voters: membership.voter_ids().map(|id| (id, address(&id))).collect(),
            configurations: membership.get_joint_config().clone(),
        })
    }
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::State(error.to_string())
}

/// The last membership of the log, applied or not.
fn last_membership(engine: &Engine) -> Result<Membership, Error> {
    let image = Image::decode(&engine.view(GROUP).machine()).map_err(unreadable)?;
    version::check(image.version)?;
    let mut membership = image.membership.membership().clone();
    let Some(last) = engine.log_bounds(GROUP).last else { return Ok(membership) };
    let mut next = engine.applied(GROUP).map_or(0, |applied| applied.index + 1);
    while next <= last.index {
        let metas = engine.read_metas(GROUP, next..last.index + 1, READ_ENTRIES);
        let Some((end, _)) = metas.last() else { break };
        next = end.index + 1;
        for (_, meta) in metas {
            match LogRecord::of_members(&meta).map_err(unreadable)? {
                Some(LogRecord::Membership(found)) => membership = found,
                Some(LogRecord::Version(version)) => version::check(version)?,
                _ => {}
            }
        }
    }
    Ok(membership)
}

/// Makes the cluster anew of this member alone, reached at `address`, in mode `sync` and under this
/// generation, which the caller draws at random and which is not 0. The engine is closed next, and
/// the node started.
///
/// # After a crash
/// The directory is as before; or it belongs to the new generation and cannot be elected, and another
/// call goes on; or it is the new cluster.
///
/// # Errors
/// `Config`, if the directory holds nothing; `State`; `Engine`.
pub async fn force_new_cluster(
    engine: &Engine,
    address: MemberAddress,
    generation: u32,
) -> Result<(), Error> {
    if is_uninitialized(engine) || engine.log_bounds(GROUP).last.is_none() {
        return Err(Error::Config("this data directory holds nothing of a cluster".into()));
    }
    let own = Survivor::of(engine)?.id;
    engine.set_generation(generation).await?;
    engine.set_active().await?;
    let last = engine.log_bounds(GROUP).last.unwrap_or(LogId { term: 0, index: 0 });
    let voted = stored_vote(engine).map_err(unreadable)?;
    let voted = voted.map_or(0, |vote| vote.leader_id().term());
    let term = last.term.max(voted) + 1;
    engine.save_vote(GROUP, &encode_vote(&Vote::new(term, own))).await?;
    let alone = Membership::new(vec![BTreeSet::from([own])], BTreeMap::from([(own, address)]));
    // As each term, it begins with a blank entry. The membership is the last: without it the member
    // cannot be elected.
    let payloads = [
        Payload::Blank,
        Payload::Normal(codec::encode_unsafe_recovery(own)),
        Payload::Normal(codec::encode_mode(Mode::Sync)),
        Payload::Membership(alone.map_err(unreadable)?),
    ];
    let entries = payloads.into_iter().zip(last.index + 1..).map(|(payload, index)| {
        let (meta, values) = codec::encode_payload(payload);
        NewEntry { id: LogId { term, index }, meta, values }
    });
    let (sender, synced) = futures::channel::oneshot::channel();
    let done = Box::new(move |result| {
        sender.send(result).ok();
    });
    engine.append(GROUP, entries.collect(), Promise::Synced, done).await?;
    synced.await.map_err(unreadable)??;
    tracing::warn!(
        node = %own,
        generation = %generation_text(generation),
        last_log = %last,
        "an operator made the cluster anew of this member alone: what only the others held is lost"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
