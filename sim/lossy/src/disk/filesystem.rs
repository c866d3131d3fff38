//! The disk as the kernel sees it: files and directories of a folder below, file data through
//! [`Disk`].
//!
//! Every file is opened for direct I/O, so that the kernel keeps no copy that would outlive a power
//! cut. Locks are left to the kernel, which ties them to the open file description as on any local
//! filesystem. Renaming, links and extended attributes are missing, since the product uses none.

use super::file::open_image;
use super::store::Disk;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The kernel may cache nothing: a file's attributes are cheap here.
const TTL: Duration = Duration::ZERO;

/// No number of an older file is ever reused.
const GENERATION: Generation = Generation(0);

const DIRECT: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// Maps inode numbers to paths of the folder below. Numbers are never used twice.
#[derive(Debug)]
pub(super) struct Names {
    paths: BTreeMap<u64, PathBuf>,
    numbers: BTreeMap<PathBuf, u64>,
    next: u64,
}

impl Names {
    pub(super) fn new(below: PathBuf) -> Names {
        let root = INodeNo::ROOT.0;
        Names {
            paths: BTreeMap::from([(root, below.clone())]),
            numbers: BTreeMap::from([(below, root)]),
            next: root + 1,
        }
    }

    pub(super) fn number(&mut self, path: &Path) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let number = self.next;
        self.next += 1;
        self.numbers.insert(path.to_owned(), number);
        self.paths.insert(number, path.to_owned());
        number
    }

    fn forget(&mut self, path: &Path) {
        if let Some(number) = self.numbers.remove(path) {
            self.paths.remove(&number);
        }
    }
}

pub(super) struct LossyFilesystem {
    pub(super) disk: Disk,
    pub(super) names: Arc<Mutex<Names>>,
}

impl LossyFilesystem {
    fn path(&self, number: INodeNo) -> io::Result<PathBuf> {
        self.names
            .lock()
            .paths
            .get(&number.0)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        Ok(self.path(parent)?.join(name))
    }

    fn attributes(&self, path: &Path) -> io::Result<FileAttr> {
        let found = std::fs::symlink_metadata(path)?;
        let kind = match found.file_type() {
            kind if kind.is_dir() => FileType::Directory,
            kind if kind.is_file() => FileType::RegularFile,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(FileAttr {
            ino: INodeNo(self.names.lock().number(path)),
            size: found.len(),
            blocks: found.len().div_ceil(512),
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm: (found.mode() & 0o7777) as u16,
            nlink: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
            uid: found.uid(),
            gid: found.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// A handle on the file at `path`.
    fn handle(&self, path: &Path) -> io::Result<u64> {
        let number = self.names.lock().number(path);
        self.disk.adopt(number, || open_image(path))?;
        Ok(self.disk.open(number))
    }

    fn create_file(&self, parent: INodeNo, name: &OsStr, mode: u32) -> io::Result<(FileAttr, u64)> {
        let path = self.child(parent, name)?;
        std::fs::File::options().write(true).create_new(true).mode(mode).open(&path)?;
        let handle = self.handle(&path)?;
        Ok((self.attributes(&path)?, handle))
    }

    fn make_directory(&self, parent: INodeNo, name: &OsStr, mode: u32) -> io::Result<FileAttr> {
        let path = self.child(parent, name)?;
        std::fs::DirBuilder::new().mode(mode).create(&path)?;
        self.attributes(&path)
    }

    fn remove(
        &self,
        parent: INodeNo,
        name: &OsStr,
        remove: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = self.child(parent, name)?;
        remove(&path)?;
        self.names.lock().forget(&path);
        Ok(())
    }

    fn entries(&self, number: INodeNo) -> io::Result<Vec<(u64, FileType, PathBuf)>> {
        let folder = self.path(number)?;
        let mut entries = vec![
            (number.0, FileType::Directory, PathBuf::from(".")),
            (INodeNo::ROOT.0, FileType::Directory, PathBuf::from("..")),
        ];
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let attributes = self.attributes(&entry.path())?;
            entries.push((attributes.ino.0, attributes.kind, entry.file_name().into()));
        }
        Ok(entries)
    }

    fn set_size(&self, number: INodeNo, size: Option<u64>) -> io::Result<FileAttr> {
        let path = self.path(number)?;
        if let Some(size) = size {
            self.disk.adopt(number.0, || open_image(&path))?;
            self.disk.resize(number.0, size)?;
        }
        self.attributes(&path)
    }
}

/// Without a number of its own, an error is an I/O error.
fn errno(error: io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::NotFound if error.raw_os_error().is_none() => Errno::ENOENT,
        _ => error.into(),
    }
}

impl Filesystem for LossyFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // If the kernel lacks it, direct I/O is done one request at a time: slower, not wrong.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(256);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.child(parent, name).and_then(|path| self.attributes(&path)) {
            Ok(attributes) => reply.entry(&TTL, &attributes, GENERATION),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.path(number).and_then(|path| self.attributes(&path)) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.set_size(number, size) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        match self.make_directory(parent, name, mode & !umask) {
            Ok(attributes) => reply.entry(&TTL, &attributes, GENERATION),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.remove(parent, name, |path| std::fs::remove_file(path)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.remove(parent, name, |path| std::fs::remove_dir(path)));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file(parent, name, mode & !umask) {
            Ok((attributes, handle)) => {
                reply.created(&TTL, &attributes, GENERATION, FileHandle(handle), DIRECT);
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.path(number).and_then(|path| self.handle(&path)) {
            Ok(handle) => reply.opened(FileHandle(handle), DIRECT),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.disk.close(handle.0);
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.disk.read(handle.0, offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.disk.write(handle.0, offset, bytes) {
            Ok(()) => reply.written(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let (through, time) = match self.disk.begin_sync(handle.0) {
            Ok(begun) => begun,
            Err(error) => return reply.error(errno(error)),
        };
        if time.is_zero() {
            return answer(reply, self.disk.end_sync(handle.0, through));
        }
        // On a thread of its own, so that a sync blocks no write. If the thread cannot be created,
        // the reply is dropped, which the kernel sees as an error.
        let disk = self.disk.clone();
        let _ = std::thread::Builder::new().name("lossy-sync".to_owned()).spawn(move || {
            std::thread::sleep(time);
            answer(reply, disk.end_sync(handle.0, through));
        });
    }

    /// Names are durable at once.
    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode != 0 {
            return reply.error(Errno::ENOTSUP);
        }
        answer(reply, self.disk.extend(number.0, offset.saturating_add(length)));
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.entries(number) {
            Ok(entries) => entries,
            Err(error) => return reply.error(errno(error)),
        };
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (number, kind, name)) in (1_u64..).zip(entries).skip(skip) {
            if reply.add(INodeNo(number), place, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let found = self
            .path(INodeNo::ROOT)
            .and_then(|below| nix::sys::statvfs::statvfs(&below).map_err(io::Error::from));
        match found {
            Ok(found) => reply.statfs(
                found.blocks(),
                found.blocks_free(),
                found.blocks_available(),
                found.files(),
                found.files_free(),
                u32::try_from(found.block_size()).unwrap_or(4096),
                255,
                u32::try_from(found.fragment_size()).unwrap_or(4096),
            ),
            Err(error) => reply.error(errno(error)),
        }
    }
}

fn answer(reply: ReplyEmpty, result: io::Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}
