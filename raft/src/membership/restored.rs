//! A new cluster with the state of an old one, from a backup.
//!
//! What holds here:
//! - its generation is another one, so no member or client of the old cluster is heard;
//! - its first entry has a term and an index far beyond the backup's: what the old cluster wrote after
//!   the backup has no version that the new one gives again, nor can a session of its clients go on;
//! - each member's directory is made apart from the others. The generation and all identities follow from
//!   the backup, its index, the members and a drawn key: only directories that were made of the same
//!   are one cluster, and those begin with the same state and know each other.

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

/// The least number of versions between the backup's last one and the first of the new cluster: more than the
/// old cluster can have written since, with 100,000 a second for four months.
const VERSIONS_BETWEEN: u64 = 1 << 40;

/// Where the members of a restored cluster are, by their slots.
pub type Members = BTreeMap<u16, MemberAddress>;

/// What a restored cluster begins with. The generation and the identities follow from all of it, so that
/// directories which were not made of the same belong to different clusters.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The cluster's name.
    pub cluster: String,
    /// Its voters.
    pub members: Members,
    /// Drawn for this restore, and the same for all of its members.
    pub key: u64,
    /// The hash of the backup's state.
    pub state: String,
    /// The last entry whose changes are in the backup.
    pub last: LogId,
    /// The generation of the cluster that was backed up.
    pub generation: u32,
    /// The version of that cluster.
    pub version: u32,
}

impl Restored {
    fn hash(&self, of: &str) -> u64 {
        xxh3_64(format!("{of} {self:?}").as_bytes())
    }

    /// The generation of the new cluster: neither 0 nor that of the old one.
    pub fn new_generation(&self) -> u32 {
        let mut generation = self.hash("generation") as u32;
        while generation == 0 || generation == self.generation {
            generation = generation.wrapping_add(1);
        }
        generation
    }

    /// The identity of the member of a slot.
    pub fn identity(&self, slot: u16) -> Identity {
        let incarnation = self.hash(&format!("slot {slot}")) & Identity::MAX_INCARNATION;
        Identity { cluster: self.cluster.clone(), slot, incarnation: incarnation.max(1) }
    }

    /// The voters of the new cluster.
    pub fn voters(&self) -> BTreeMap<NodeId, MemberAddress> {
        let id_of = |slot| NodeId::new(slot, self.identity(slot).incarnation);
        self.members.iter().map(|(slot, address)| (id_of(*slot), address.clone())).collect()
    }

    /// The entry behind which the new cluster's log begins.
    ///
    /// # Errors
    /// `Config`, if no version is left; `TooOld`, if the backup is of a later release.
    pub fn begins_behind(&self) -> Result<LogId, Error> {
        version::check(self.version)?;
        let LogId { term, index } = self.last;
        let apart = VERSIONS_BETWEEN + (u64::from(self.new_generation() & 0xffff) << 32);
        match (term.checked_add(1), index.checked_add(apart)) {
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
        let own = engine.identity();
        let own = NodeId::new(own.slot, own.incarnation);
        let voters = self.voters();
        if !voters.contains_key(&own) {
            return Err(Error::Config(format!("{own} is no member of what is restored")));
        }
        let at = self.begins_behind()?;
        let unreadable = |error: &dyn std::fmt::Display| Error::State(error.to_string());
        let all: BTreeSet<NodeId> = voters.keys().copied().collect();
        let membership = Membership::new(vec![all], voters);
        let membership = membership.map_err(|error| unreadable(&error))?;
        let image = Image {
            membership: Arc::new(StoredMembership::new(Some(raft_log_id(at)), membership)),
            sessions: Sessions::ended(at.index),
            version: self.version,
            ..Image::default()
        };
        installer.fits(cairn_engine::MachineImage::encoded_bytes(&image))?;
        installer.finish(at, Arc::new(image)).await?;
        engine.set_generation(self.new_generation()).await?;
        engine.save_vote(GROUP, &encode_vote(&Vote::new(at.term, own))).await?;
        engine.set_active().await?;
        Ok(())
    }
}
