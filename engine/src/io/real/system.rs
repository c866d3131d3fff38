//! System calls that the standard library does not have.

use crate::io::AlignedBuf;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Opcode, Updater, ioctl};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// How a filesystem maps the bytes of a file. Each byte counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// In a written extent of this file alone: a write overwrites it in place.
    pub written_bytes: u64,
    /// Reserved and not written: the first write to it changes the filesystem's metadata.
    pub unwritten_bytes: u64,
    /// Shared with another file or a snapshot: a write goes elsewhere and changes metadata.
    pub shared_bytes: u64,
    /// Compressed, or packed together with other data: a write goes elsewhere and changes metadata.
    pub packed_bytes: u64,
    /// Without any extent: the first write to it changes metadata.
    pub missing_bytes: u64,
}

/// The units of direct I/O on a file, in bytes; zeros if the file cannot do direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlignment {
    /// The unit of buffers in memory.
    pub memory_bytes: u32,
    /// The unit of offsets and lengths in the file.
    pub offset_bytes: u32,
}

/// The free space of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes that an unprivileged user may still write.
    pub free_bytes: u64,
    /// The size of its blocks.
    pub block_bytes: u64,
}

/// Takes the exclusive lock of the open file description, or returns `WouldBlock` at once. The lock
/// is released when the last descriptor of this description is closed and the kernel has finished
/// the last operation on it.
pub(super) fn lock(file: &File) -> io::Result<()> {
    // The whole file, and a process id of 0, as OFD locks demand.
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open for the length of the call, and `lock` is a live `flock`, as
    // this command expects.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
        _ => Err(error),
    }
}

/// The free space of the filesystem that holds `path`.
///
/// # Errors
/// The system's.
pub fn free_space(path: &Path) -> io::Result<FreeSpace> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(FreeSpace {
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        block_bytes: stat.f_frsize,
    })
}

/// The units of direct I/O on the file; `None` if the kernel (before 6.1) or the filesystem does
/// not report them.
pub(super) fn direct_alignment(file: &File) -> io::Result<Option<DirectAlignment>> {
    let stat = match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Err(Errno::NOSYS) => return Ok(None),
        answer => answer?,
    };
    let reported = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let (memory_bytes, offset_bytes) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    Ok(reported.then_some(DirectAlignment { memory_bytes, offset_bytes }))
}

/// Zeros as written extents, by the drive (Linux 6.17). rustix does not have it yet.
const WRITE_ZEROES: FallocateFlags = FallocateFlags::from_bits_retain(0x80);

/// Reserves the space of the file's first `bytes`; its length stays. Returns `false` if the
/// filesystem cannot; writing then takes the space.
pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<bool> {
    fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes)
}

/// Lets the drive zero the range, which becomes a part of the file, in written extents. Returns
/// `false` if kernel, filesystem or drive cannot.
pub(super) fn write_zeroes(file: &File, offset: u64, bytes: u64) -> io::Result<bool> {
    fallocate(file, WRITE_ZEROES, offset, bytes)
}

fn fallocate(file: &File, mode: FallocateFlags, offset: u64, bytes: u64) -> io::Result<bool> {
    match retry_on_intr(|| rustix::fs::fallocate(file, mode, offset, bytes)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        answer => Ok(answer.map(|()| true)?),
    }
}

/// The bits of flags that `OpenOptions` takes.
pub(super) fn bits(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

const FS_IOC_FIEMAP: Opcode = 0xC020_660B;
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 1;
/// Its location is unknown, or not decided yet.
const FIEMAP_EXTENT_UNKNOWN: u32 = 0x2 | 0x4;
const FIEMAP_EXTENT_ENCODED: u32 = 0x8;
/// Its bytes are stored among the filesystem's own, or among another file's.
const FIEMAP_EXTENT_PACKED: u32 = 0x200 | 0x400;
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;
const EXTENTS: usize = 64;

/// `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` of `linux/fiemap.h`, with space for the answer.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

const _: () = assert!(size_of::<Extent>() == 56 && size_of::<Fiemap>() == 32 + 56 * EXTENTS);

/// The extents of the file's first `bytes`; `None` if the filesystem does not report them.
pub(super) fn extents(file: &File, bytes: u64) -> io::Result<Option<Extents>> {
    let mut found = Extents::default();
    let mut mapped = 0u64;
    let mut start = 0u64;
    while start < bytes {
        let mut map = Fiemap {
            start,
            length: bytes - start,
            flags: FIEMAP_FLAG_SYNC,
            mapped_extents: 0,
            extent_count: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: `map` has the layout that this request expects (its size is asserted above), and
        // `extent_count` is the number of extents that it has room for.
        match unsafe { ioctl(file, Updater::<FS_IOC_FIEMAP, Fiemap>::new(&mut map)) } {
            Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(None),
            answer => answer?,
        }
        let mut last = true;
        for extent in map.extents.iter().take(map.mapped_extents as usize) {
            let end = extent.logical.saturating_add(extent.length).min(bytes);
            let length = end.saturating_sub(extent.logical.max(start));
            *found.kind(extent.flags) += length;
            mapped += length;
            last = extent.flags & FIEMAP_EXTENT_LAST != 0 || end <= start;
            start = end.max(start);
        }
        if last {
            break;
        }
    }
    found.missing_bytes = bytes.saturating_sub(mapped);
    Ok(Some(found))
}

impl Extents {
    /// The field that counts an extent with these flags, by the strongest reason why a write to it
    /// would need metadata.
    fn kind(&mut self, flags: u32) -> &mut u64 {
        if flags & (FIEMAP_EXTENT_UNWRITTEN | FIEMAP_EXTENT_UNKNOWN) != 0 {
            &mut self.unwritten_bytes
        } else if flags & FIEMAP_EXTENT_SHARED != 0 {
            &mut self.shared_bytes
        } else if flags & (FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_PACKED) != 0 {
            &mut self.packed_bytes
        } else {
            &mut self.written_bytes
        }
    }
}

const NVME_IOCTL_ID: libc::Ioctl = 0x4E40;
const NVME_IOCTL_ADMIN_CMD: libc::Ioctl = 0xC048_4E41_u32 as libc::Ioctl;
const NVME_ADMIN_GET_LOG_PAGE: u8 = 0x02;
const NVME_ADMIN_IDENTIFY: u8 = 0x06;
/// Addresses the whole subsystem.
const NVME_ALL_NAMESPACES: u32 = u32::MAX;
const NVME_LOG_HEALTH: u32 = 0x02;
const HEALTH_BYTES: usize = 512;
const NVME_TIMEOUT_MS: u32 = 5000;
const IDENTIFY_BYTES: usize = 4096;
/// Identify: the namespace given.
pub(super) const IDENTIFY_NAMESPACE: u32 = 0;
/// Identify: the controller.
pub(super) const IDENTIFY_CONTROLLER: u32 = 1;

/// `struct nvme_admin_cmd` of `linux/nvme_ioctl.h`.
#[repr(C)]
#[derive(Default)]
struct NvmeAdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    data: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<NvmeAdminCommand>() == 72);

/// The namespace number of an NVMe block device.
pub(super) fn nvme_namespace(device: &File) -> io::Result<u32> {
    // SAFETY: the descriptor is open for the length of the call; this request takes no argument.
    let number = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ID) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// One data structure of the command Identify, which only reads.
pub(super) fn nvme_identify(device: &File, structure: u32, namespace: u32) -> io::Result<Vec<u8>> {
    let command = NvmeAdminCommand {
        opcode: NVME_ADMIN_IDENTIFY,
        namespace,
        cdw10: structure,
        ..NvmeAdminCommand::default()
    };
    nvme_read(device, command, IDENTIFY_BYTES)
}

/// The log page SMART / Health Information. Reading it changes nothing.
pub(super) fn nvme_health(device: &File) -> io::Result<Vec<u8>> {
    // The number of dwords, less one, is in the upper half.
    let dwords = (HEALTH_BYTES / 4 - 1) as u32;
    let command = NvmeAdminCommand {
        opcode: NVME_ADMIN_GET_LOG_PAGE,
        namespace: NVME_ALL_NAMESPACES,
        cdw10: dwords << 16 | NVME_LOG_HEALTH,
        ..NvmeAdminCommand::default()
    };
    nvme_read(device, command, HEALTH_BYTES)
}

/// Sends one of the two commands above, which transfer `bytes` bytes to the host.
fn nvme_read(device: &File, command: NvmeAdminCommand, bytes: usize) -> io::Result<Vec<u8>> {
    let mut data = AlignedBuf::zeroed(bytes);
    let mut command = NvmeAdminCommand {
        data: data.as_mut_ptr() as u64,
        data_bytes: bytes as u32,
        timeout_ms: NVME_TIMEOUT_MS,
        ..command
    };
    // SAFETY: the descriptor is open for the length of the call; `command` has the layout that this
    // request expects (its size is asserted above) and names `data`, which is live, at least as
    // long as it says, and borrowed by nobody else. Both commands transfer exactly that many bytes
    // to it, and the call returns when that is over.
    let status = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &raw mut command) };
    match status {
        0 => Ok(data.get(..bytes).unwrap_or_default().to_vec()),
        1.. => Err(io::Error::other(format!("the drive answered with status {status:#x}"))),
        _ => Err(io::Error::last_os_error()),
    }
}
