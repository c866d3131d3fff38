//! Everything that can speak against a mode: a word for programs, a sentence for people, and the way out.

/// Why a mode is refused, or what it is warned of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each has its sentence below")]
pub enum Reason {
    KernelUnsupported,
    ReadOnly,
    TransferFails,
    SyncDropped,
    FlushSuppressed,
    SyncUnseen,
    LayeredDevice,
    VirtualDevice,
    BridgedDevice,
    NetworkDevice,
    Memory,
    DeviceUnknown,
    VolatileCache,
    BackupFailed,
    CacheUnknown,
    NotAtomic,
    AtomicityUnknown,
    CopyOnWrite,
    NetworkFilesystem,
    FilesystemVeiled,
    FilesystemUnknown,
    ExtentsUnwritten,
    ExtentsShared,
    ExtentsUnknown,
    NotDirect,
    Untried,
    FewVoters,
}

impl Reason {
    /// For programs; never changes.
    pub const fn code(self) -> &'static str {
        self.told().0
    }

    /// One sentence.
    pub const fn sentence(self) -> &'static str {
        self.told().1
    }

    /// What would take it away.
    pub const fn way_out(self) -> &'static str {
        self.told().2
    }

    /// Whether an operator who knows the device better than this machine shows it may state so. What the filesystem is
    /// seen to do, no statement about a device changes.
    pub const fn can_be_asserted_away(self) -> bool {
        matches!(
            self,
            Reason::LayeredDevice
                | Reason::VirtualDevice
                | Reason::BridgedDevice
                | Reason::NetworkDevice
                | Reason::DeviceUnknown
                | Reason::VolatileCache
                | Reason::CacheUnknown
                | Reason::NotAtomic
                | Reason::AtomicityUnknown
                | Reason::FilesystemVeiled
                | Reason::FilesystemUnknown
                | Reason::ExtentsUnknown
                | Reason::Untried
        )
    }

    const fn told(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Reason::KernelUnsupported => {
                ("kernel_unsupported", "the server does not run on this kernel", "use Linux 5.15 or newer")
            }
            Reason::ReadOnly => (
                "read_only",
                "the filesystem is mounted read-only",
                "mount it for writing, or choose another directory",
            ),
            Reason::TransferFails => (
                "transfer_fails",
                "no file could be made, or a transfer of 4 KiB or the fdatasync after it failed",
                "see what the system said; a filesystem that wants larger units of direct I/O cannot be used",
            ),
            Reason::SyncDropped => (
                "sync_dropped",
                "the mount drops syncs, so not even a vote survives a power cut",
                "mount without the option `volatile`",
            ),
            Reason::FlushSuppressed => (
                "flush_suppressed",
                "the mount keeps syncs from emptying the device's cache, so not even a vote survives a power cut",
                "mount without `nobarrier` (ext4: with `barrier=1`)",
            ),
            Reason::SyncUnseen => (
                "sync_unseen",
                "whether a sync reaches the medium cannot be seen: the host of a virtual disk may ignore it, and a filesystem \
                 that copies on write may be set to (ZFS with `sync=disabled`)",
                "make sure on the host that the disk's cache mode honours flushes (not QEMU's `unsafe`), and of ZFS that \
                 `sync` is `standard` or `always`",
            ),
            Reason::LayeredDevice => (
                "layered_device",
                "a layer between filesystem and drive (device mapper, RAID, loop, cache) may hold back or tear a write",
                "put the filesystem on a partition or a whole drive",
            ),
            Reason::VirtualDevice => (
                "virtual_device",
                "a hypervisor makes the disk, and what it does with a completed write cannot be seen from here",
                "use a drive that is passed through to this machine, such as a cloud's local NVMe",
            ),
            Reason::BridgedDevice => (
                "bridged_device",
                "a USB bridge stands before the drive and may hide its cache",
                "attach the drive directly",
            ),
            Reason::NetworkDevice => (
                "network_device",
                "the device is on another machine, which can lose completed writes without this one noticing a restart",
                "use a local drive",
            ),
            Reason::Memory => (
                "memory",
                "this is memory: all of it is gone when the machine loses power, as if its disk had been wiped",
                "use a filesystem on a drive; memory is for trying things out",
            ),
            Reason::DeviceUnknown => (
                "device_unknown",
                "the device under the filesystem cannot be seen, or is of an unknown kind",
                "use ext4 or XFS on a local drive, and let the process read /sys",
            ),
            Reason::VolatileCache => (
                "volatile_cache",
                "the device has a volatile write cache, so a completed write can be lost with the power",
                "use a drive with power-loss protection, which reports `write through` (NVMe: VWC 0)",
            ),
            Reason::BackupFailed => (
                "backup_failed",
                "the drive reports that what keeps its cache through a power cut has failed",
                "replace the drive",
            ),
            Reason::CacheUnknown => (
                "cache_unknown",
                "it is not known whether the device has a volatile write cache",
                "let the process read /sys",
            ),
            Reason::NotAtomic => (
                "not_atomic",
                "a write of 4 KiB can be torn by a power cut",
                "use a drive with blocks of 4 KiB or an AWUPF of at least 4 KiB, an aligned partition, and a filesystem \
                 with blocks of 4 KiB",
            ),
            Reason::AtomicityUnknown => (
                "atomicity_unknown",
                "it is not known whether a power cut can tear a write of 4 KiB",
                "use a drive that states its atomic writes; an NVMe drive states them to `cairn doctor` when run as root",
            ),
            Reason::CopyOnWrite => (
                "copy_on_write",
                "the filesystem copies on write, so every write needs metadata that completes later",
                "use ext4 or XFS",
            ),
            Reason::NetworkFilesystem => (
                "network_filesystem",
                "the filesystem is on another machine, which can lose completed writes without this one noticing a restart",
                "use ext4 or XFS on a local drive",
            ),
            Reason::FilesystemVeiled => (
                "filesystem_veiled",
                "the filesystem hands writes to what cannot be seen from here (FUSE, overlay, a hypervisor's share)",
                "use ext4 or XFS directly; in a container, a volume instead of the container's own layer",
            ),
            Reason::FilesystemUnknown => (
                "filesystem_unknown",
                "it is not known what this filesystem does with an overwrite",
                "use ext4 or XFS",
            ),
            Reason::ExtentsUnwritten => (
                "extents_unwritten",
                "files have ranges that were never written, so the first write there needs metadata",
                "make the directory anew with `cairn format`; a copy or a restore of its files may have left holes",
            ),
            Reason::ExtentsShared => (
                "extents_shared",
                "files share, compress or pack their blocks, so the next write goes elsewhere and needs metadata",
                "remove the snapshots or reflinks that share them, or make the directory anew with `cairn format`",
            ),
            Reason::ExtentsUnknown => (
                "extents_unknown",
                "the filesystem does not show its extents, so a write that needs metadata cannot be ruled out",
                "use ext4 or XFS",
            ),
            Reason::NotDirect => (
                "not_direct",
                "there is no direct I/O: a completed write is in the page cache, and a crash of the kernel loses as much \
                 as a power cut",
                "use a filesystem that takes O_DIRECT, such as ext4 (not with data=journal) or XFS",
            ),
            Reason::Untried => (
                "untried",
                "direct I/O and fdatasync could not be tried here",
                "run `cairn doctor` as root or as the user that runs the server",
            ),
            Reason::FewVoters => (
                "few_voters",
                "fewer than three voters cannot give back what one of them forgot",
                "run three voters or more",
            ),
        }
    }
}
