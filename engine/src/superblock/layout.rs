//! The bytes of one superblock copy. The table is in `docs/format.md`; a golden test compares the
//! two.

use crate::codec::{Reader, sealed};
use crate::io::BLOCK;
use crate::types::{
    FencingHistory, Geometry, GroupId, Identity, KernelBootId, MemberState, Mode, ScrubProgress,
};
use bytes::BufMut;
use std::collections::BTreeMap;

pub(crate) const MAGIC: [u8; 8] = *b"CAIRN.SB";
/// The format of a new directory.
pub(crate) const FIRST_FORMAT: u32 = 2;
/// The revision that a format writes. Every open writes newer ones.
pub(super) const FIRST_REVISION: u64 = 1;
/// The newest format: a checkpoint may hold what changed since another one.
pub(crate) const NEWEST_FORMAT: u32 = 3;
const CHECKSUM_AT: usize = 16;
const CLUSTER_BYTES: usize = 64;
const VOTES_AT: usize = 256;
/// Votes that one superblock holds, each for one group.
pub(crate) const MAX_VOTES: usize = 14;
const FENCING_HISTORY_AT: usize = VOTES_AT + MAX_VOTES * (8 + MAX_VOTE_BYTES);
/// Each mode at the number that stands for it.
const MODES: [Option<Mode>; 4] =
    [None, Some(Mode::Device), Some(Mode::Replicated), Some(Mode::Sync)];
/// Each member state at the number that stands for it.
const MEMBER_STATES: [MemberState; 2] = [MemberState::Active, MemberState::Recovering];
/// The longest vote, in bytes.
pub(crate) const MAX_VOTE_BYTES: usize = 248;

/// The journal's end when the unsynced-ack flag was last cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clean {
    pub sequence: u64,
    pub checksum: u128,
}

/// Everything that must be known before the journal is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// No release that reads less than this format opens the directory.
    pub format: u32,
    /// Counts updates.
    pub revision: u64,
    pub identity: Identity,
    /// The generation of its cluster: random, drawn when an operator made the cluster anew of one
    /// survivor, and taken over by nodes that join it; else 0.
    pub generation: u32,
    pub geometry: Geometry,
    /// The unsynced-ack flag: this machine may have acknowledged writes that are not synced.
    pub unsynced_acks: bool,
    /// The mode of the last open. It decides whether completed writes survive a power cut.
    pub mode: Option<Mode>,
    /// The kernel under which the directory was last opened.
    pub boot: KernelBootId,
    /// Counts opens; every journal block carries it.
    pub epoch: u64,
    /// The journal's end when the unsynced-ack flag was last cleared.
    pub clean: Clean,
    pub member_state: MemberState,
    /// Random, drawn at each open.
    pub boot_nonce: u64,
    pub scrub: ScrubProgress,
    /// A write or sync failed since the last open, under the kernel `boot`. Journal blocks up to
    /// this sequence may have been acknowledged by then. Unsynced data may be lost already, or be
    /// lost at the next power cut.
    pub failed_sync: Option<u64>,
    pub votes: BTreeMap<GroupId, Vec<u8>>,
    /// The boot nonces of the earlier opens, the latest first.
    pub fencing_history: FencingHistory,
}

/// Why a copy cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// The magic is missing.
    Absent,
    /// Our magic, a matching checksum, a format that this program does not read.
    Version(u32),
    /// Anything else.
    Damaged,
}

impl Superblock {
    /// Whether every acknowledgement so far waited for its sync.
    pub(crate) fn acks_are_synced(&self) -> bool {
        match self.mode {
            Some(Mode::Sync) => true,
            Some(Mode::Replicated) => !self.unsynced_acks,
            Some(Mode::Device) | None => false,
        }
    }

    /// The superblock of a directory that was never opened under this identity.
    pub(crate) fn first(identity: Identity, geometry: Geometry) -> Superblock {
        Superblock {
            format: FIRST_FORMAT,
            revision: FIRST_REVISION,
            identity,
            generation: 0,
            geometry,
            unsynced_acks: false,
            mode: None,
            boot: KernelBootId::default(),
            epoch: 0,
            clean: Clean::default(),
            member_state: MemberState::Active,
            boot_nonce: 0,
            scrub: ScrubProgress::default(),
            failed_sync: None,
            votes: BTreeMap::new(),
            fencing_history: FencingHistory::default(),
        }
    }

    /// A block that is not a copy, but shows that there was one.
    pub(crate) fn void() -> Vec<u8> {
        let mut block = MAGIC.to_vec();
        block.resize(BLOCK, 0);
        block
    }

    /// One block of bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.put_slice(&MAGIC);
        out.put_u32_le(self.format);
        out.put_u32_le(0);
        out.put_u128_le(0);
        out.put_u64_le(self.revision);
        let cluster = self.identity.cluster.as_bytes();
        debug_assert!(cluster.len() <= CLUSTER_BYTES);
        out.put_u16_le(cluster.len() as u16);
        out.put_u16_le(self.identity.slot);
        out.put_u32_le(self.generation);
        out.put_slice(cluster);
        out.resize(112, 0);
        out.put_u64_le(self.identity.incarnation);
        out.put_u64_le(self.geometry.journal_bytes);
        out.put_u64_le(self.geometry.checkpoint_bytes);
        out.put_u64_le(self.geometry.data_bytes);
        out.put_u32_le(u32::from(self.unsynced_acks));
        out.put_u32_le(number(&MODES, self.mode));
        out.put_u128_le(self.boot.0);
        out.put_u64_le(self.epoch);
        out.put_u64_le(self.clean.sequence);
        out.put_u128_le(self.clean.checksum);
        out.put_u64_le(self.votes.len() as u64);
        out.put_u32_le(number(&MEMBER_STATES, self.member_state));
        out.put_u32_le(0);
        out.put_u64_le(self.boot_nonce);
        out.put_u64_le(self.scrub.position);
        out.put_u64_le(self.scrub.elapsed_s);
        out.put_u32_le(u32::from(self.scrub.paused));
        out.put_u32_le(u32::from(self.failed_sync.is_some()));
        out.put_u64_le(self.failed_sync.unwrap_or(0));
        debug_assert!(out.len() == VOTES_AT);
        for (group, vote) in &self.votes {
            let end = out.len() + 8 + MAX_VOTE_BYTES;
            out.put_u32_le(group.0);
            out.put_u32_le(vote.len() as u32);
            out.put_slice(vote);
            out.resize(end, 0);
        }
        out.resize(FENCING_HISTORY_AT, 0);
        for nonce in self.fencing_history {
            out.put_u64_le(nonce);
        }
        out.resize(BLOCK, 0);
        sealed::seal(&mut out, CHECKSUM_AT);
        out
    }

    /// Reads one copy.
    pub(crate) fn decode(block: &[u8]) -> Result<Superblock, Unusable> {
        let mut r = Reader::new(block);
        if r.bytes(8) != Some(&MAGIC) {
            return Err(Unusable::Absent);
        }
        sealed::verify(block, CHECKSUM_AT).ok_or(Unusable::Damaged)?;
        match r.u32() {
            Some(format @ FIRST_FORMAT..=NEWEST_FORMAT) => {
                Self::decode_fields(format, block).ok_or(Unusable::Damaged)
            }
            Some(other) => Err(Unusable::Version(other)),
            None => Err(Unusable::Damaged),
        }
    }

    fn decode_fields(format: u32, block: &[u8]) -> Option<Superblock> {
        let mut r = Reader::new(block.get(32..)?);
        let revision = r.u64()?;
        let cluster_len = usize::from(r.u16()?);
        let slot = r.u16()?;
        let generation = r.u32()?;
        let cluster =
            std::str::from_utf8(r.bytes(CLUSTER_BYTES)?.get(..cluster_len)?).ok()?.to_owned();
        let identity = Identity { cluster, slot, incarnation: r.u64()? };
        let geometry =
            Geometry { journal_bytes: r.u64()?, checkpoint_bytes: r.u64()?, data_bytes: r.u64()? };
        geometry.check().ok()?;
        let unsynced_acks = *[false, true].get(r.u32()? as usize)?;
        let mode = *MODES.get(r.u32()? as usize)?;
        let boot = KernelBootId(r.u128()?);
        let epoch = r.u64()?;
        let clean = Clean { sequence: r.u64()?, checksum: r.u128()? };
        let count = usize::try_from(r.u64()?).ok().filter(|n| *n <= MAX_VOTES)?;
        let member_state = *MEMBER_STATES.get(r.u32()? as usize)?;
        r.u32()?;
        let boot_nonce = r.u64()?;
        let scrub =
            ScrubProgress { position: r.u64()?, elapsed_s: r.u64()?, paused: r.u32()? == 1 };
        let failed = r.u32()? == 1;
        let failed_sync = Some(r.u64()?).filter(|_| failed);
        let mut votes = BTreeMap::new();
        let mut r = Reader::new(block.get(VOTES_AT..)?);
        for _ in 0..count {
            let group = GroupId(r.u32()?);
            let len = usize::try_from(r.u32()?).ok()?;
            votes.insert(group, r.bytes(MAX_VOTE_BYTES)?.get(..len)?.to_vec());
        }
        let mut r = Reader::new(block.get(FENCING_HISTORY_AT..)?);
        let mut fencing_history = FencingHistory::default();
        for nonce in &mut fencing_history {
            *nonce = r.u64()?;
        }
        Some(Superblock {
            format,
            revision,
            identity,
            generation,
            geometry,
            unsynced_acks,
            mode,
            boot,
            epoch,
            clean,
            member_state,
            boot_nonce,
            scrub,
            failed_sync,
            votes,
            fencing_history,
        })
    }
}

/// The number of a value in its table.
fn number<T: PartialEq>(table: &[T], value: T) -> u32 {
    let at = table.iter().take_while(|other| **other != value).count();
    assert!(at < table.len(), "each value has a number");
    at as u32
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn example() -> Superblock {
        Superblock {
            format: FIRST_FORMAT,
            revision: 7,
            identity: Identity { cluster: "prod".into(), slot: 2, incarnation: 0xabcdef },
            generation: 0x1234_5678,
            geometry: Geometry::for_total(64 << 20).unwrap(),
            unsynced_acks: true,
            mode: Some(Mode::Replicated),
            boot: KernelBootId(0x0123_4567_89ab_cdef),
            epoch: 3,
            clean: Clean { sequence: 41, checksum: 99 },
            member_state: MemberState::Recovering,
            boot_nonce: 0x7777,
            scrub: ScrubProgress { position: 0x5555, elapsed_s: 0x66, paused: true },
            failed_sync: Some(0x88),
            votes: BTreeMap::from([(GroupId(0), vec![1, 2, 3])]),
            fencing_history: std::array::from_fn(|at| 0x9900 + at as u64),
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_format_document() {
        let block = example().encode();
        assert_eq!(block.len(), BLOCK);
        assert_eq!(&block[0..8], b"CAIRN.SB");
        assert_eq!(block[8..12], 2u32.to_le_bytes(), "format");
        let newest = Superblock { format: NEWEST_FORMAT, ..example() };
        assert_eq!(newest.encode()[8..12], 3u32.to_le_bytes(), "format");
        assert_eq!(Superblock::decode(&newest.encode()), Ok(newest));
        assert_eq!(block[32..40], 7u64.to_le_bytes(), "revision");
        assert_eq!(block[40..42], 4u16.to_le_bytes(), "cluster length");
        assert_eq!(block[42..44], 2u16.to_le_bytes(), "slot");
        assert_eq!(block[44..48], 0x1234_5678u32.to_le_bytes(), "generation");
        assert_eq!(&block[48..52], b"prod");
        assert_eq!(block[112..120], 0xabcdefu64.to_le_bytes(), "incarnation");
        assert_eq!(block[120..128], (4u64 << 20).to_le_bytes(), "journal bytes");
        assert_eq!(block[144..148], 1u32.to_le_bytes(), "unsynced_acks");
        assert_eq!(block[148..152], 2u32.to_le_bytes(), "mode");
        assert_eq!(block[152..168], 0x0123_4567_89ab_cdefu128.to_le_bytes(), "boot id");
        assert_eq!(block[168..176], 3u64.to_le_bytes(), "epoch");
        assert_eq!(block[176..184], 41u64.to_le_bytes(), "clean sequence");
        assert_eq!(block[184..200], 99u128.to_le_bytes(), "clean checksum");
        assert_eq!(block[200..208], 1u64.to_le_bytes(), "votes");
        assert_eq!(block[208..212], 1u32.to_le_bytes(), "member_state");
        assert_eq!(block[216..224], 0x7777u64.to_le_bytes(), "boot_nonce");
        assert_eq!(block[224..232], 0x5555u64.to_le_bytes(), "scrub position");
        assert_eq!(block[232..240], 0x66u64.to_le_bytes(), "scrub time");
        assert_eq!(block[240..244], 1u32.to_le_bytes(), "scrub paused");
        assert_eq!(block[244..248], 1u32.to_le_bytes(), "a sync failed");
        assert_eq!(block[248..256], 0x88u64.to_le_bytes(), "acknowledged then");
        assert_eq!(block[256..260], 0u32.to_le_bytes(), "group");
        assert_eq!(block[260..264], 3u32.to_le_bytes(), "vote length");
        assert_eq!(&block[264..267], &[1, 2, 3]);
        assert_eq!(block[3840..3848], 0x9900u64.to_le_bytes(), "the latest boot nonce");
        assert_eq!(block[3960..3968], 0x990fu64.to_le_bytes(), "the earliest boot nonce");
    }

    #[test]
    fn another_version_is_not_taken_for_damage() {
        for version in [0, 1, 4] {
            let mut block = example().encode();
            block[8] = version;
            assert_eq!(Superblock::decode(&block), Err(Unusable::Damaged));
            sealed::seal(&mut block, CHECKSUM_AT);
            assert_eq!(Superblock::decode(&block), Err(Unusable::Version(version.into())));
        }
        assert_eq!(Superblock::decode(&[0; BLOCK]), Err(Unusable::Absent));
    }

    #[test]
    fn any_bytes_decode_to_a_superblock_or_to_the_reason_why_not() {
        let fencing_history = FencingHistory::default();
        let short = Superblock { fencing_history, ..example() };
        let first = Superblock::first(example().identity, example().geometry);
        let [short, first] = [short, first].map(|block| cairn_fuzz::shortened(block.encode()));
        cairn_fuzz::target!("first" => first, "voted" => short, "full" => example().encode())
            .for_each(|bytes| {
                let raw = Superblock::decode(bytes);
                assert!(raw != Err(Unusable::Absent) || !bytes.starts_with(&MAGIC));
                let forged = sealed::forge(b"CAIRN.SB\x02\0\0\0", bytes, CHECKSUM_AT);
                match cairn_fuzz::within(4 * BLOCK, || Superblock::decode(&forged)) {
                    Ok(superblock) => {
                        assert!(superblock.geometry.check().is_ok());
                        assert!(superblock.votes.values().all(|vote| vote.len() <= MAX_VOTE_BYTES));
                        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
                    }
                    Err(why) => assert_eq!(why, Unusable::Damaged),
                }
            });
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(revision: u64, unsynced_acks: bool, epoch: u64, vote in prop::collection::vec(any::<u8>(), 0..MAX_VOTE_BYTES)) {
            let block = Superblock { revision, unsynced_acks, epoch, votes: BTreeMap::from([(GroupId(9), vote)]), ..example() };
            prop_assert_eq!(Superblock::decode(&block.encode()), Ok(block));
        }

        #[test]
        fn any_flipped_bit_is_noticed(bit in 64usize..BLOCK * 8) {
            let mut block = example().encode();
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Superblock::decode(&block), Err(Unusable::Damaged));
        }
    }
}
