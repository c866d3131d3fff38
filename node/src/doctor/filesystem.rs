//! The filesystem that holds a directory: its kind, its mount, and what these mean for an
//! overwrite.

use super::Roots;
use cairn_engine::io::FreeSpace;
use std::path::{Path, PathBuf};

/// What a filesystem does with an overwrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesystemKind {
    /// Writes where the old bytes are.
    InPlace,
    /// Writes elsewhere and then changes metadata.
    CopyOnWrite,
    /// Sends the write to another machine.
    Network,
    /// Hands the write to a filesystem or a program that cannot be seen from here: FUSE, overlay, a
    /// hypervisor's share.
    Opaque,
    /// Keeps the write in memory.
    Memory,
    /// Anything else.
    Unknown,
}

/// Options because of which a sync no longer empties the device's cache.
const FLUSH_SUPPRESSED: &[&str] = &["nobarrier", "barrier=0", "barrier=none"];

/// Options because of which direct writes go through the page cache.
const DATA_JOURNALLED: &[&str] = &["data=journal"];

/// A mounted filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// Its type, as in `/proc/self/mountinfo`.
    pub name: String,
    /// What it does with an overwrite.
    pub kind: FilesystemKind,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// What is mounted, such as `/dev/nvme0n1p1`.
    pub source: String,
    /// Its device number, such as `259:1`; `0:…` is not that of a device.
    pub number: String,
    /// Options of the mount and of the filesystem, and of ext4's own defaults those that matter here.
    pub options: Vec<String>,
    /// Free space and block size, if the system reports them.
    pub space: Option<FreeSpace>,
}

impl Filesystem {
    /// Whether it is mounted read-only.
    pub fn read_only(&self) -> bool {
        self.find(&["ro"]).is_some()
    }

    /// The mount option because of which a sync no longer empties the device's cache.
    pub fn flush_suppressed(&self) -> Option<&str> {
        self.find(FLUSH_SUPPRESSED)
    }

    /// The mount option because of which a sync does nothing.
    pub fn sync_dropped(&self) -> Option<&str> {
        self.find(&["volatile", "fsync=volatile"]).filter(|_| self.name == "overlay")
    }

    /// The mount option because of which direct writes go through the page cache.
    pub fn journals_data(&self) -> Option<&str> {
        self.find(DATA_JOURNALLED)
    }

    fn find(&self, wanted: &[&str]) -> Option<&str> {
        self.options.iter().map(String::as_str).find(|option| wanted.contains(option))
    }
}

/// The filesystem that holds an absolute path without links.
///
/// # Errors
/// Why it is not known.
pub(super) fn holding(roots: &Roots, path: &Path) -> Result<Filesystem, String> {
    let file = roots.proc.join("self/mountinfo");
    let text =
        std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let depth = |filesystem: &Filesystem| filesystem.mount_point.iter().count();
    let holding =
        text.lines().filter_map(parse).filter(|found| path.starts_with(&found.mount_point));
    // Of several mounts at one path, the later hides the earlier, and is the greater one here.
    let best = holding.max_by_key(depth);
    let mut best = best.ok_or_else(|| {
        format!("{} shows no mount that holds {}", file.display(), path.display())
    })?;
    let defaults = defaults(roots, &best);
    let unseen: Vec<String> =
        defaults.into_iter().filter(|option| !best.options.contains(option)).collect();
    best.options.extend(unseen);
    Ok(best)
}

/// The options that matter here and that ext4 has from its superblock (`tune2fs -o nobarrier` or `journal_data`).
/// The table of mounts leaves out what equals these defaults; a file of ext4's own shows all that is in force.
/// Where that cannot be read, there are none.
fn defaults(roots: &Roots, filesystem: &Filesystem) -> Vec<String> {
    if !matches!(filesystem.name.as_str(), "ext2" | "ext3" | "ext4") {
        return Vec::new();
    }
    let device = roots.sys.join("dev/block").join(&filesystem.number).canonicalize().ok();
    // The driver names its folder as sysfs names the device.
    let options = device.as_deref().and_then(Path::file_name).and_then(|name| {
        let file = roots.proc.join("fs/ext4").join(name).join("options");
        std::fs::read_to_string(file).ok()
    });
    let matters =
        |option: &&str| FLUSH_SUPPRESSED.contains(option) || DATA_JOURNALLED.contains(option);
    options.unwrap_or_default().lines().filter(matters).map(str::to_string).collect()
}

/// One line: `36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
fn parse(line: &str) -> Option<Filesystem> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(2);
    let number = mount.next()?.to_string();
    let mount_point = PathBuf::from(unescape(mount.nth(1)?));
    let mount_options = mount.next()?;
    let mut filesystem = filesystem.split(' ');
    let name = filesystem.next()?.to_string();
    let source = unescape(filesystem.next()?);
    let options = mount_options.split(',').chain(filesystem.next().unwrap_or("").split(','));
    let mut options: Vec<String> =
        options.filter(|option| !option.is_empty()).map(str::to_string).collect();
    let mut seen = std::collections::BTreeSet::new();
    options.retain(|option| seen.insert(option.clone()));
    Some(Filesystem { kind: kind(&name), name, mount_point, source, number, options, space: None })
}

/// Reverses the kernel's `\040` for bytes that would break the line.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.get(..3).filter(|_| first == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn kind(name: &str) -> FilesystemKind {
    match name {
        "ext2" | "ext3" | "ext4" | "xfs" => FilesystemKind::InPlace,
        // f2fs and nilfs2 write a log. The effect is the same: an overwrite goes elsewhere.
        "btrfs" | "zfs" | "bcachefs" | "f2fs" | "nilfs2" | "apfs" | "ubifs" | "reiser4" => {
            FilesystemKind::CopyOnWrite
        }
        "nfs" | "nfs4" | "cifs" | "smb3" | "smbfs" | "ceph" | "lustre" | "afs" | "beegfs"
        | "gpfs" => FilesystemKind::Network,
        "overlay" | "aufs" | "9p" | "virtiofs" | "vboxsf" | "ecryptfs" | "fuseblk" => {
            FilesystemKind::Opaque
        }
        "tmpfs" | "ramfs" | "devtmpfs" | "hugetlbfs" => FilesystemKind::Memory,
        _ if name == "fuse" || name.starts_with("fuse.") => FilesystemKind::Opaque,
        _ => FilesystemKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(text: &str) -> (tempfile::TempDir, Roots) {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("proc/self")).expect("a folder");
        std::fs::write(folder.path().join("proc/self/mountinfo"), text).expect("a file");
        let roots = Roots::below(folder.path());
        (folder, roots)
    }

    #[test]
    fn the_deepest_mount_holds_a_path_and_the_later_hides_the_earlier() {
        let (_folder, roots) = mounts(
            "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
             30 27 259:1 / /data rw,noatime shared:1 - xfs /dev/nvme0n1p1 rw,nobarrier\n\
             31 27 0:30 / /data rw - tmpfs tmpfs rw\n\
             32 27 0:31 / /da rw - btrfs /dev/sda rw\n",
        );
        let name = |path: &str| holding(&roots, Path::new(path)).map(|found| found.name);
        assert_eq!(name("/data/node"), Ok("tmpfs".into()));
        assert_eq!(name("/database"), Ok("ext4".into()));
        assert_eq!(name("/da"), Ok("btrfs".into()));
    }

    #[test]
    fn every_field_of_a_line_is_read() {
        let found = parse(
            r"36 35 98:0 /mnt1 /mnt\0402 ro,noatime master:1 shared:7 - ext4 /dev/disk\134x rw,data=journal,noatime",
        );
        let found = found.expect("a good line");
        assert_eq!(found.mount_point, Path::new("/mnt 2"));
        assert_eq!((found.source.as_str(), found.number.as_str()), (r"/dev/disk\x", "98:0"));
        assert_eq!(found.options, ["ro", "noatime", "rw", "data=journal"]);
        assert!(found.read_only());
        assert_eq!((found.journals_data(), found.flush_suppressed()), (Some("data=journal"), None));
        assert_eq!(parse("36 35 98:0"), None);
        assert_eq!(parse(""), None);
    }

    /// The story: `tune2fs -o nobarrier` was set on a filesystem over a volatile cache. The kernel leaves out of
    /// the table of mounts what equals the superblock's defaults, so the doctor saw nothing, and every sync
    /// stayed in the cache.
    #[test]
    fn options_that_ext4_has_by_its_superblocks_default_are_found() {
        let (folder, roots) = mounts(
            "30 27 259:1 / /data rw - ext4 /dev/root rw,discard\n\
             31 27 259:2 / /xfs rw - xfs /dev/nvme0n1p2 rw\n\
             32 27 259:3 / /unseen rw - ext4 /dev/nvme0n1p3 rw\n",
        );
        let options = |path: &str| {
            let found = holding(&roots, Path::new(path)).expect("a mount");
            (found.options.join(","), found.flush_suppressed().map(str::to_string))
        };
        assert_eq!(options("/data"), ("rw,discard".into(), None), "no such file");
        let sys = folder.path().join("sys");
        std::fs::create_dir_all(sys.join("dev/block")).expect("a folder");
        for (number, name) in [("259:1", "nvme0n1p1"), ("259:2", "nvme0n1p2")] {
            let device = sys.join("devices/nvme0n1").join(name);
            std::fs::create_dir_all(&device).expect("a folder");
            std::os::unix::fs::symlink(device, sys.join("dev/block").join(number)).expect("a link");
            let shown = folder.path().join("proc/fs/ext4").join(name);
            std::fs::create_dir_all(&shown).expect("a folder");
            std::fs::write(shown.join("options"), "rw\nbsddf\nnobarrier\ndata=journal\ndiscard\n")
                .expect("a file");
        }
        let expected = "rw,discard,nobarrier,data=journal".to_string();
        assert_eq!(options("/data"), (expected, Some("nobarrier".into())));
        assert_eq!(options("/xfs"), ("rw".into(), None), "another filesystem's file");
        assert_eq!(options("/unseen"), ("rw".into(), None), "no such device");
    }

    #[test]
    fn options_that_disable_syncs_are_found() {
        let option = |name: &str, option: &str| {
            parse(&format!("1 1 8:1 / / rw - {name} /dev/x rw,{option}")).expect("a good line")
        };
        for spelling in ["nobarrier", "barrier=0"] {
            assert_eq!(option("ext4", spelling).flush_suppressed(), Some(spelling));
        }
        for spelling in ["volatile", "fsync=volatile"] {
            assert_eq!(option("overlay", spelling).sync_dropped(), Some(spelling));
        }
        assert_eq!(option("xfs", "noquota").flush_suppressed(), None);
    }

    #[test]
    fn kinds_are_recognised_by_name() {
        for (name, expected) in [
            ("ext4", FilesystemKind::InPlace),
            ("btrfs", FilesystemKind::CopyOnWrite),
            ("fuse.sshfs", FilesystemKind::Opaque),
            ("fusectl", FilesystemKind::Unknown),
            ("nfs4", FilesystemKind::Network),
            ("tmpfs", FilesystemKind::Memory),
            ("devtmpfs", FilesystemKind::Memory),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
    }

    #[test]
    fn a_missing_table_of_mounts_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = holding(&Roots::below(folder.path()), Path::new("/")).expect_err("none");
        assert!(error.contains("mountinfo"), "{error}");
    }
}
