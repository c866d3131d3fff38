//! Every reason against a mode: a code for programs, a sentence for people, and what to do.

use serde::Serialize;

/// Why a mode is refused, or what it is warned about. It serializes as its code for programs, which
/// never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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
    #[serde(rename = "filesystem_veiled")]
    FilesystemOpaque,
    FilesystemUnknown,
    ExtentsUnwritten,
    ExtentsShared,
    ExtentsUnknown,
    NotDirect,
    Untried,
    FewVoters,
}

/// What an operator can do if all reasons against mode `device` can be asserted away.
pub const ASSERTION: &str = "if you know that the device keeps completed writes through a power cut and writes 4 KiB \
                             atomically, assert it with storage.assert_device_contract = true";

impl Reason {
    /// One sentence.
    pub const fn sentence(self) -> &'static str {
        self.texts().0
    }

    /// What removes the reason.
    pub const fn way_out(self) -> &'static str {
        self.texts().1
    }

    /// Whether an operator who knows more about the device than the machine shows may assert the
    /// contract against this reason. No assertion about a device changes what the filesystem is
    /// seen to do.
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
                | Reason::FilesystemOpaque
                | Reason::FilesystemUnknown
                | Reason::ExtentsUnknown
                | Reason::Untried
        )
    }

    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Reason::KernelUnsupported => {
                ("the server does not run on this kernel", "use Linux 5.15 or newer")
            }
            Reason::ReadOnly => (
                "the filesystem is mounted read-only",
                "mount it for writing, or choose another directory",
            ),
            Reason::TransferFails => (
                "no file could be created, or a transfer of 4 KiB or the fdatasync after it failed",
                "see the system's message; a filesystem that needs larger units of direct I/O cannot be used",
            ),
            Reason::SyncDropped => (
                "the mount drops syncs, so not even a vote survives a power cut",
                "mount without the option `volatile`",
            ),
            Reason::FlushSuppressed => (
                "the mount, or the queue's `write_cache` set to `write through`, keeps syncs from emptying the device's \
                 cache, so not even a vote survives a power cut",
                "mount without `nobarrier` (ext4: with `barrier=1`), and leave `write back` in `queue/write_cache`",
            ),
            Reason::SyncUnseen => (
                "it cannot be seen whether a sync reaches the medium: the host of a virtual disk may ignore it, and a \
                 copy-on-write filesystem may be set to ignore it (ZFS with `sync=disabled`)",
                "make sure on the host that the disk's cache mode honours flushes (not QEMU's `unsafe`), and on ZFS that \
                 `sync` is `standard` or `always`",
            ),
            Reason::LayeredDevice => (
                "a layer between filesystem and drive (device mapper, RAID, loop, cache) may hold back or tear a write",
                "put the filesystem on a partition or a whole drive",
            ),
            Reason::VirtualDevice => (
                "a hypervisor provides the disk, and what it does with a completed write cannot be seen from here",
                "use a drive that is passed through to this machine, such as a cloud's local NVMe",
            ),
            Reason::BridgedDevice => (
                "the drive is behind a USB bridge, which may hide its cache",
                "attach the drive directly",
            ),
            Reason::NetworkDevice => (
                "the device is on another machine, which can lose completed writes without this one noticing a restart",
                "use a local drive",
            ),
            Reason::Memory => (
                "this is memory: all of it is gone when the machine loses power, as if its disk had been wiped",
                "use a filesystem on a drive; memory is for trying things out",
            ),
            Reason::DeviceUnknown => (
                "the device under the filesystem cannot be seen, or is of an unknown kind",
                "use ext4 or XFS on a local drive, and let the process read /sys",
            ),
            Reason::VolatileCache => (
                "the device has a volatile write cache, so a power cut can lose completed writes",
                "use a drive with power-loss protection, which reports `write through` (NVMe: VWC 0)",
            ),
            Reason::BackupFailed => (
                "the drive reports that the backup power of its cache has failed",
                "replace the drive",
            ),
            Reason::CacheUnknown => (
                "it is not known whether the device has a volatile write cache",
                "let the process read /sys",
            ),
            Reason::NotAtomic => (
                "a write of 4 KiB can be torn by a power cut",
                "use a drive with blocks of 4 KiB or an AWUPF of at least 4 KiB, an aligned partition, and a filesystem \
                 with blocks of 4 KiB",
            ),
            Reason::AtomicityUnknown => (
                "it is not known whether a power cut can tear a write of 4 KiB",
                "use a drive that states its atomic writes; an NVMe drive states them to `cairn doctor` when run as root",
            ),
            Reason::CopyOnWrite => (
                "the filesystem copies on write, so every write needs metadata that completes later",
                "use ext4 or XFS",
            ),
            Reason::NetworkFilesystem => (
                "the filesystem is on another machine, which can lose completed writes without this one noticing a restart",
                "use ext4 or XFS on a local drive",
            ),
            Reason::FilesystemOpaque => (
                "the filesystem hands writes to something that cannot be seen from here (FUSE, overlay, a hypervisor's share)",
                "use ext4 or XFS directly; in a container, a volume instead of the container's own layer",
            ),
            Reason::FilesystemUnknown => {
                ("it is not known what this filesystem does with an overwrite", "use ext4 or XFS")
            }
            Reason::ExtentsUnwritten => (
                "files have ranges that were never written, so the first write there needs metadata",
                "create the directory again with `cairn format`; a copy or a restore of its files may have left holes",
            ),
            Reason::ExtentsShared => (
                "files share, compress or pack their blocks, so the next write goes elsewhere and needs metadata",
                "remove the snapshots or reflinks that share them, or create the directory again with `cairn format`",
            ),
            Reason::ExtentsUnknown => (
                "the filesystem does not show its extents, so a write that needs metadata cannot be ruled out",
                "use ext4 or XFS",
            ),
            Reason::NotDirect => (
                "there is no direct I/O: a completed write is in the page cache, and a kernel crash loses as much as a \
                 power cut",
                "use a filesystem that supports O_DIRECT, such as ext4 (not with data=journal) or XFS",
            ),
            Reason::Untried => (
                "direct I/O and fdatasync could not be tried here",
                "run `cairn doctor` as root or as the user that runs the server",
            ),
            Reason::FewVoters => (
                "fewer than three voters cannot restore what one of them lost",
                "run three voters or more",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    /// Programs read the codes, so they stay even if a variant gets another name.
    #[test]
    fn each_reason_keeps_its_code() {
        for (reason, code) in [
            (Reason::KernelUnsupported, "kernel_unsupported"),
            (Reason::ReadOnly, "read_only"),
            (Reason::TransferFails, "transfer_fails"),
            (Reason::SyncDropped, "sync_dropped"),
            (Reason::FlushSuppressed, "flush_suppressed"),
            (Reason::SyncUnseen, "sync_unseen"),
            (Reason::LayeredDevice, "layered_device"),
            (Reason::VirtualDevice, "virtual_device"),
            (Reason::BridgedDevice, "bridged_device"),
            (Reason::NetworkDevice, "network_device"),
            (Reason::Memory, "memory"),
            (Reason::DeviceUnknown, "device_unknown"),
            (Reason::VolatileCache, "volatile_cache"),
            (Reason::BackupFailed, "backup_failed"),
            (Reason::CacheUnknown, "cache_unknown"),
            (Reason::NotAtomic, "not_atomic"),
            (Reason::AtomicityUnknown, "atomicity_unknown"),
            (Reason::CopyOnWrite, "copy_on_write"),
            (Reason::NetworkFilesystem, "network_filesystem"),
            (Reason::FilesystemOpaque, "filesystem_veiled"),
            (Reason::FilesystemUnknown, "filesystem_unknown"),
            (Reason::ExtentsUnwritten, "extents_unwritten"),
            (Reason::ExtentsShared, "extents_shared"),
            (Reason::ExtentsUnknown, "extents_unknown"),
            (Reason::NotDirect, "not_direct"),
            (Reason::Untried, "untried"),
            (Reason::FewVoters, "few_voters"),
        ] {
            assert_eq!(serde_json::to_value(reason).expect("a code"), code);
        }
    }
}
