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
        let Restored { cluster, members, key, state, last, generation, version } = self;
        let mut text =
            format!("{of}\n{cluster}\n{key}\n{state}\n{last}\n{generation}\n{version}\n");
        for (slot, MemberAddress { client, peer }) in members {
            text += &format!("{slot} {client} {peer}\n");
        }
        xxh3_64(text.as_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Restored {
        let address = |port: u16| MemberAddress {
            client: format!("a:{port}"),
            peer: format!("a:{}", port + 1),
        };
        Restored {
            cluster: "shop".into(),
            members: (1..=3).map(|slot| (slot, address(7000 + 10 * slot))).collect(),
            key: 5,
            state: "ab".into(),
            last: LogId { term: 3, index: 100 },
            generation: 0,
            version: 1,
        }
    }

    /// Members that are restored of anything else are another cluster.
    #[test]
    fn the_generation_and_every_identity_follow_from_all_that_is_restored() {
        let changes: [fn(&mut Restored); 7] = [
            |plan| plan.cluster.push('s'),
            |plan| plan.key += 1,
            |plan| plan.state.push('c'),
            |plan| plan.last.index += 1,
            |plan| plan.last.term += 1,
            |plan| drop(plan.members.remove(&3)),
            |plan| plan.members.entry(2).or_default().peer.push('0'),
        ];
        let of = |plan: &Restored| {
            (plan.new_generation(), [1, 2].map(|slot| plan.identity(slot).incarnation))
        };
        let before = of(&plan());
        assert_eq!(of(&plan()), before);
        assert_ne!(before.1[0], before.1[1]);
        for (number, change) in changes.into_iter().enumerate() {
            let mut other = plan();
            change(&mut other);
            let (generation, [one, two]) = of(&other);
            assert!(generation != before.0 && one != before.1[0] && two != before.1[1], "{number}");
        }
        let same = Restored { generation: before.0, ..plan() };
        assert_ne!(same.new_generation(), before.0);
    }

    #[test]
    fn versions_begin_far_behind_and_never_wrap() {
        let plan = plan();
        let begins = plan.begins_behind().unwrap();
        assert!(begins.term == 4 && begins.index >= 100 + VERSIONS_BETWEEN, "{begins}");
        let last = Restored { last: LogId { term: 1, index: u64::MAX - 5 }, ..plan.clone() };
        assert!(matches!(last.begins_behind(), Err(Error::Config(_))));
        let newer = Restored { version: version::VERSION + 1, ..plan };
        assert!(newer.begins_behind().is_err());
    }
}
