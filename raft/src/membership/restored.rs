//! A new cluster with the state of an old one, from a backup.
//!
//! What holds here:
//! - its generation is another one, so no member or client of the old cluster is heard;
//! - its first entry has a term and an index far beyond the backup's: what the old cluster wrote after
//!   the backup has no version that the new one gives again, nor can a session of its clients go on;
//! - each member's directory is made apart from the others, of the same backup with the same generation:
//!   so all of them begin with the same state, and know each other's identities.

use crate::core::error::Error;
use crate::core::ids::{GROUP, MemberAddress, NodeId};
use crate::core::types::{Membership, StoredMembership, Vote, raft_log_id};
use crate::core::version;
use crate::storage::log_store::encode_vote;
use crate::storage::state_machine::{Image, sessions::Sessions};
use cairn_engine::{Engine, Identity, Installer, LogId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// How many versions lie between the backup's last one and the first of the new cluster: more than the
/// old cluster can have written since, with 100,000 a second for four months.
const VERSIONS_BETWEEN: u64 = 1 << 40;

/// What a restored cluster begins with.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Its voters, and where they are.
    pub members: BTreeMap<NodeId, MemberAddress>,
    /// Its generation, which is not 0.
    pub generation: u32,
    /// The last entry whose changes are in the backup.
    pub last: LogId,
    /// The version of the cluster that was backed up.
    pub version: u32,
}

impl Restored {
    /// The identity of the member of a slot: the same for whoever makes a directory of this backup for
    /// this generation.
    pub fn identity(cluster: &str, state: &str, generation: u32, slot: u16) -> Identity {
        let text = format!("{cluster}/{state}/{generation}/{slot}");
        let incarnation = (xxh3_64(text.as_bytes()) & Identity::MAX_INCARNATION).max(1);
        Identity { cluster: cluster.to_owned(), slot, incarnation }
    }

    /// The entry behind which the new cluster's log begins.
    ///
    /// # Errors
    /// `Config`, if no version is left.
    pub fn begins_behind(&self) -> Result<LogId, Error> {
        let (term, index) = (self.last.term, self.last.index);
        match (term.checked_add(1), index.checked_add(VERSIONS_BETWEEN)) {
            (Some(term), Some(index)) => Ok(LogId { term, index }),
            _ => Err(Error::Config(format!("no version is left behind {}", self.last))),
        }
    }

    /// Makes the state that `installer` has that of the new cluster. The engine is closed next.
    ///
    /// # After a crash
    /// The directory holds nothing, or all of it; the caller says when it may be used.
    ///
    /// # Errors
    /// `Config`; `State`; `Engine`; `TooOld`, if the backup is of a later release.
    pub async fn install(&self, engine: &Engine, installer: Installer) -> Result<(), Error> {
        version::check(self.version)?;
        let own = engine.identity();
        let own = NodeId::new(own.slot, own.incarnation);
        if !self.members.contains_key(&own) || self.generation == 0 {
            return Err(Error::Config(format!("{own} is no member of what is restored")));
        }
        let at = self.begins_behind()?;
        let unreadable = |error: &dyn std::fmt::Display| Error::State(error.to_string());
        let voters: BTreeSet<NodeId> = self.members.keys().copied().collect();
        let membership = Membership::new(vec![voters], self.members.clone());
        let membership = membership.map_err(|error| unreadable(&error))?;
        let image = Image {
            membership: Arc::new(StoredMembership::new(Some(raft_log_id(at)), membership)),
            sessions: Sessions::ended(at.index),
            version: self.version,
            ..Image::default()
        };
        installer.fits(cairn_engine::MachineImage::encoded_bytes(&image))?;
        installer.finish(at, Arc::new(image)).await?;
        engine.set_generation(self.generation).await?;
        engine.save_vote(GROUP, &encode_vote(&Vote::new(at.term, own))).await?;
        engine.set_active().await?;
        Ok(())
    }
}
