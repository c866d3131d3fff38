//! Which modes a directory justifies: one pure function over the aspects, tested over all its
//! inputs.
//!
//! ```text
//! facts ──► aspects (each one of a few words) ──► judge ──► for each mode: refusals and warnings
//! ```
//!
//! What holds here: `device` is justified only if every aspect is known and supports it. An
//! operator can only assert properties of the device, never against a filesystem that is seen to
//! contradict them. A mode that is not refused is justified, and the verdict is the strongest of
//! those. The strongest is the one that needs most from the machine: `device`, then `replicated`,
//! then `sync`.

use super::device::Medium;
use super::filesystem::FilesystemKind;
use super::reason::Reason;
use cairn_engine::Mode;
use serde::Serialize;

/// Whether the device's cache can lose completed writes. All layers together are what the last of
/// them here is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cache {
    /// Every layer reports that it has no volatile cache.
    None,
    /// Some layer does not report it.
    Unknown,
    /// Some layer reports that it has one.
    Volatile,
    /// Some drive reports that the backup power of its cache has failed. Syncs still empty the
    /// cache.
    Unprotected,
    /// The same, but the kernel sends it no syncs, since the drive reports that it has no volatile
    /// cache.
    Unsyncable,
}

/// Whether a write of 4 KiB is complete or absent after a power cut. All layers together are what
/// the last of them here is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Atomicity {
    /// The machine shows that it is.
    Whole,
    /// Not known.
    Unknown,
    /// It may be torn, according to the device or the layout.
    Torn,
}

/// What the extents of the files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// All written, none shared.
    Whole,
    /// Some reserved and not written, or absent.
    Unwritten,
    /// Some shared, compressed or packed.
    Shared,
    /// Not known.
    Unknown,
}

/// The result of a direct write and read of 4 KiB and an `fdatasync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Both worked.
    Direct,
    /// Both worked, through the page cache.
    Buffered,
    /// One failed.
    Fails,
    /// It could not be tried.
    Untried,
}

/// What a sync does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Empties the device's cache.
    Sent,
    /// It goes to something that may ignore it without showing that.
    Unseen,
    /// It does not empty the device's cache.
    Suppressed,
    /// It does nothing.
    Dropped,
}

/// Everything that decides the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each type says what it is")]
pub struct Aspects {
    pub kernel_supported: bool,
    pub writable: bool,
    pub medium: Medium,
    pub cache: Cache,
    pub atomicity: Atomicity,
    pub overwrite: FilesystemKind,
    pub mapping: Mapping,
    pub transfer: Transfer,
    pub flush: Flush,
}

/// How the device contract is known to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Contract {
    /// The machine shows it.
    Shown,
    /// The operator asserts it.
    Asserted,
}

impl Contract {
    /// In words, for status.
    pub const fn words(self) -> &'static str {
        match self {
            Contract::Shown => "shown by the machine",
            Contract::Asserted => "asserted by the operator",
        }
    }
}

/// The reasons against one mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Any of these refuses the mode.
    pub refusals: Vec<Reason>,
    /// What the mode's promise relies on although the machine does not show it.
    pub warnings: Vec<Reason>,
}

impl Judgement {
    /// Whether the mode may run.
    pub fn justified(&self) -> bool {
        self.refusals.is_empty()
    }
}

/// The verdict on a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The strongest mode that is justified.
    pub mode: Option<Mode>,
    /// How `device` is justified, if it is.
    pub contract: Option<Contract>,
    device: Judgement,
    replicated: Judgement,
    sync: Judgement,
}

impl Verdict {
    /// The reasons against a mode.
    pub fn of(&self, mode: Mode) -> &Judgement {
        match mode {
            Mode::Device => &self.device,
            Mode::Replicated => &self.replicated,
            Mode::Sync => &self.sync,
        }
    }
}

/// All modes, the strongest first.
pub const MODES: [Mode; 3] = [Mode::Device, Mode::Replicated, Mode::Sync];

/// Judges the modes for a cluster of `voters`. `asserted`: the operator asserts the device
/// contract.
pub fn judge(aspects: &Aspects, voters: usize, asserted: bool) -> Verdict {
    let any = any_mode(aspects, asserted);
    let shown = [any.as_slice(), &device(aspects)].concat();
    let stated = asserted && shown.iter().all(|reason| reason.can_be_asserted_away());
    let contract = match (shown.is_empty(), stated) {
        (true, _) => Some(Contract::Shown),
        (false, true) => Some(Contract::Asserted),
        (false, false) => None,
    };
    let unseen = unseen(aspects);
    let replicated_warnings = those([
        (aspects.mapping == Mapping::Unknown, Reason::ExtentsUnknown),
        (aspects.transfer == Transfer::Buffered, Reason::NotDirect),
    ]);
    let sync_warnings = those([
        (aspects.medium == Medium::Network, Reason::NetworkDevice),
        (aspects.overwrite == FilesystemKind::Network, Reason::NetworkFilesystem),
    ]);
    let mut verdict = Verdict {
        mode: None,
        contract,
        device: Judgement {
            refusals: if stated { Vec::new() } else { shown },
            warnings: Vec::new(),
        },
        replicated: Judgement {
            refusals: [any.as_slice(), &replicated(aspects, voters, stated)].concat(),
            warnings: [unseen.as_slice(), &replicated_warnings].concat(),
        },
        sync: Judgement { warnings: [unseen, sync_warnings].concat(), refusals: any },
    };
    verdict.mode = MODES.into_iter().find(|mode| verdict.of(*mode).justified());
    verdict
}

/// Each reason whose condition holds.
fn those<const N: usize>(cases: [(bool, Reason); N]) -> Vec<Reason> {
    cases.into_iter().filter_map(|(holds, reason)| holds.then_some(reason)).collect()
}

/// What refuses every mode, because not even votes would be durable.
fn any_mode(aspects: &Aspects, asserted: bool) -> Vec<Reason> {
    // If completed writes survive a power cut, no sync has to empty the cache.
    let cache_matters = match aspects.cache {
        Cache::None => false,
        Cache::Volatile | Cache::Unknown => !asserted,
        Cache::Unprotected | Cache::Unsyncable => true,
    };
    those([
        (!aspects.kernel_supported, Reason::KernelUnsupported),
        (!aspects.writable, Reason::ReadOnly),
        (aspects.transfer == Transfer::Fails, Reason::TransferFails),
        (aspects.cache == Cache::Unsyncable, Reason::BackupFailed),
        (aspects.flush == Flush::Dropped, Reason::SyncDropped),
        (aspects.flush == Flush::Suppressed && cache_matters, Reason::FlushSuppressed),
    ])
}

fn device(aspects: &Aspects) -> Vec<Reason> {
    let memory = aspects.overwrite == FilesystemKind::Memory && aspects.medium != Medium::Memory;
    those([
        (aspects.medium == Medium::Layered, Reason::LayeredDevice),
        (aspects.medium == Medium::Virtual, Reason::VirtualDevice),
        (aspects.medium == Medium::Bridged, Reason::BridgedDevice),
        (aspects.medium == Medium::Network, Reason::NetworkDevice),
        (aspects.medium == Medium::Memory, Reason::Memory),
        (aspects.medium == Medium::Unknown, Reason::DeviceUnknown),
        (aspects.cache == Cache::Volatile, Reason::VolatileCache),
        (aspects.cache == Cache::Unprotected, Reason::BackupFailed),
        (aspects.cache == Cache::Unknown, Reason::CacheUnknown),
        (aspects.atomicity == Atomicity::Torn, Reason::NotAtomic),
        (aspects.atomicity == Atomicity::Unknown, Reason::AtomicityUnknown),
        (aspects.overwrite == FilesystemKind::CopyOnWrite, Reason::CopyOnWrite),
        (aspects.overwrite == FilesystemKind::Network, Reason::NetworkFilesystem),
        (aspects.overwrite == FilesystemKind::Opaque, Reason::FilesystemOpaque),
        (aspects.overwrite == FilesystemKind::Unknown, Reason::FilesystemUnknown),
        (memory, Reason::Memory),
        (aspects.mapping == Mapping::Unwritten, Reason::ExtentsUnwritten),
        (aspects.mapping == Mapping::Shared, Reason::ExtentsShared),
        (aspects.mapping == Mapping::Unknown, Reason::ExtentsUnknown),
        (aspects.transfer == Transfer::Buffered, Reason::NotDirect),
        (aspects.transfer == Transfer::Untried, Reason::Untried),
    ])
}

fn replicated(aspects: &Aspects, voters: usize, stated: bool) -> Vec<Reason> {
    those([
        (voters < 3, Reason::FewVoters),
        (aspects.medium == Medium::Network && !stated, Reason::NetworkDevice),
        (aspects.overwrite == FilesystemKind::CopyOnWrite, Reason::CopyOnWrite),
        (aspects.overwrite == FilesystemKind::Network, Reason::NetworkFilesystem),
        (aspects.mapping == Mapping::Unwritten, Reason::ExtentsUnwritten),
        (aspects.mapping == Mapping::Shared, Reason::ExtentsShared),
    ])
}

/// What cannot be seen, for `replicated` and `sync`.
fn unseen(aspects: &Aspects) -> Vec<Reason> {
    let memory = aspects.medium == Medium::Memory || aspects.overwrite == FilesystemKind::Memory;
    those([
        (memory, Reason::Memory),
        (aspects.medium == Medium::Unknown && !memory, Reason::DeviceUnknown),
        (aspects.overwrite == FilesystemKind::Opaque, Reason::FilesystemOpaque),
        (aspects.overwrite == FilesystemKind::Unknown, Reason::FilesystemUnknown),
        (aspects.transfer == Transfer::Untried, Reason::Untried),
        // Votes are synced in every mode.
        (aspects.flush == Flush::Unseen, Reason::SyncUnseen),
    ])
}

#[cfg(test)]
mod tests;
