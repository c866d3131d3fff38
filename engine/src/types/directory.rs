//! A data directory: whose it is, its files, and what became of it since it was formatted.

use crate::codec::hash;
use std::fmt;

/// Whose data directory it is: written by `format`, synced before first use, and never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's name, 1 to 64 bytes of UTF-8.
    pub cluster: String,
    /// The number of the member's slot in the cluster, from 1.
    pub slot: u16,
    /// 48 random bits: a member whose directory was wiped and formatted again is a different one.
    pub incarnation: u64,
}

impl Identity {
    /// An incarnation has 48 bits that are not all 0.
    pub const MAX_INCARNATION: u64 = (1 << 48) - 1;
}

/// Identifies the running kernel and the devices under it, to tell a restart of the process from a
/// loss of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelBootId(pub u128);

impl KernelBootId {
    /// The id of this kernel combined with what its devices report of their own history. If that
    /// report changes, the result counts as another boot.
    #[must_use]
    pub fn with_devices(self, histories: &[String]) -> KernelBootId {
        let mut bytes = self.0.to_le_bytes().to_vec();
        for history in histories {
            bytes.extend_from_slice(history.as_bytes());
            bytes.push(b'\n');
        }
        KernelBootId(hash(&bytes))
    }

    /// A number that is equal on all nodes of one running kernel, and does not reveal the id. Never
    /// 0.
    pub fn fingerprint(self) -> u64 {
        let bytes = [b"fingerprint".as_slice(), &self.0.to_le_bytes()].concat();
        u64::try_from(hash(&bytes) & u128::from(u64::MAX)).unwrap_or(u64::MAX).max(1)
    }
}

/// The files of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// Identity, state and votes: four copies, always synced.
    Superblock,
    /// The ring of 4 KiB commit blocks.
    Journal,
    /// The first checkpoint area.
    Checkpoint0,
    /// The second checkpoint area.
    Checkpoint1,
    /// The extents.
    Data,
}

impl FileKind {
    /// Every file, in the order in which `format` creates them. The superblock is last because it
    /// makes the directory valid.
    pub const ALL: [FileKind; 5] = [
        FileKind::Data,
        FileKind::Journal,
        FileKind::Checkpoint0,
        FileKind::Checkpoint1,
        FileKind::Superblock,
    ];

    /// The file's name inside the data directory.
    pub const fn name(self) -> &'static str {
        match self {
            FileKind::Superblock => "superblock",
            FileKind::Journal => "journal",
            FileKind::Checkpoint0 => "checkpoint.0",
            FileKind::Checkpoint1 => "checkpoint.1",
            FileKind::Data => "data",
        }
    }
}

/// What a node may do under its identity, decided at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has everything that it acknowledged.
    Active,
    /// It may have lost acknowledged writes: the machine lost power while some were not yet synced,
    /// a sync failed, or part of the journal or the checkpoints was damaged. The state survives
    /// restarts and ends with [`Engine::set_active`](crate::Engine::set_active).
    Recovering,
}

impl MemberState {
    /// The name used in status and logs.
    pub const fn name(self) -> &'static str {
        match self {
            MemberState::Active => "active",
            MemberState::Recovering => "recovering",
        }
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One open of a data directory. No two opens of one identity have the same value, also not after a
/// crash or on a copy of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootEpoch {
    /// Counts opens.
    pub number: u64,
    /// [`Options::boot_nonce`](crate::Options::boot_nonce) of this open.
    pub nonce: u64,
}

/// The boot nonces of the earlier opens, the latest first; 0 where there was none. A node that
/// knows an earlier boot of a member checks with them whether a later boot continues from it, or
/// from a copy of the disk that was made before it.
pub type FencingHistory = [u64; 16];

/// The sizes of a data directory's files in bytes, each a multiple of 4 KiB, fixed by `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The journal.
    pub journal_bytes: u64,
    /// Each of the two checkpoint areas.
    pub checkpoint_bytes: u64,
    /// The data area.
    pub data_bytes: u64,
}
