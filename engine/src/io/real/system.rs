//! The calls to the system that the standard library does not have.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Takes the exclusive lock of the open file description, or says `WouldBlock` at once. It is released when the last
/// descriptor of this description is closed, and with it the last operation that the kernel still does on it.
pub(super) fn lock(file: &File) -> io::Result<()> {
    // SAFETY: `flock` is plain data, for which zeros are valid: the whole file, and a process id of 0, as OFD locks demand.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open for the length of the call, and `lock` is a live `flock`, as this command expects.
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

/// Bytes that an unprivileged user may still write to the filesystem that holds `path`.
pub(super) fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `statvfs` is plain data, for which zeros are valid.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is a live string that ends in a zero byte, `stat` is a live `statvfs` for the call to fill.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Reserves `bytes` for the file and sets its size. `false` where the filesystem cannot; writing then does both.
pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<bool> {
    let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    loop {
        // SAFETY: the descriptor is open for the length of the call; no memory is passed.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(false),
            _ => return Err(error),
        }
    }
}

const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 1;
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;
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

/// `struct fiemap` of `linux/fiemap.h`, with room for the answer.
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

/// Bytes of the file's first `bytes` that have a written extent, or `None` where the filesystem does not say.
///
/// A write to a range without one changes the filesystem's metadata, which no completed data write carries along.
pub(super) fn written_bytes(file: &File, bytes: u64) -> io::Result<Option<u64>> {
    let mut written = 0u64;
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
        // SAFETY: the descriptor is open for the length of the call; `map` has the layout that this request expects
        // (its size is asserted above), and `extent_count` is the number of extents that it has room for.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut map) } != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => Ok(None),
                _ => Err(error),
            };
        }
        let mut last = true;
        for extent in map.extents.iter().take(map.mapped_extents as usize) {
            let end = extent.logical.saturating_add(extent.length).min(bytes);
            if extent.flags & FIEMAP_EXTENT_UNWRITTEN == 0 {
                written += end.saturating_sub(extent.logical.max(start));
            }
            last = extent.flags & FIEMAP_EXTENT_LAST != 0 || end <= start;
            start = end.max(start);
        }
        if last {
            break;
        }
    }
    Ok(Some(written))
}
