//! Drives for the test: loop devices over files of the test's own folder.
//!
//! What holds here: a device ends with its [`Drive`]. Those that a killed run left are found by the name of their
//! folder, and detached at the next start.

use crate::support::{Ran, finish, only_run};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How the folders of all runs begin.
pub(super) const FOLDER: &str = "cairn-nvme-drives-";
/// What the script, and this test, cannot do without.
const PROGRAMS: [&str; 13] = [
    "losetup",
    "mkfs.ext4",
    "e2fsck",
    "e2label",
    "debugfs",
    "tune2fs",
    "mkswap",
    "blkid",
    "wipefs",
    "flock",
    "ip",
    "nsenter",
    "umount",
];

/// Runs a program of the system to its end.
pub(super) fn system(program: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")))
}

/// The same, which must succeed. Returns what it printed.
pub(super) fn done(program: &str, arguments: &[&str]) -> String {
    let ran = system(program, arguments);
    assert_eq!(ran.code, 0, "{program} {arguments:?}: {ran:?}");
    ran.stdout
}

/// Fails the test if the system does not have this program.
pub(super) fn need(program: &str) {
    let there = Command::new(program).arg("--help").stdin(Stdio::null()).output();
    assert!(there.is_ok(), "this test needs the program {program}: {there:?}");
}

/// Only one run at a time, while this is held. Fails the test if the system cannot have what it needs, and removes
/// the drives of earlier runs.
pub(super) fn begin() -> File {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    for program in PROGRAMS {
        need(program);
    }
    let control = Path::new("/dev/loop-control");
    assert!(control.exists(), "this test needs loop devices, and {} is missing", control.display());
    let lock = only_run("cairn-nvme-drives");
    let all = done("losetup", &["--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE"]);
    for line in all.lines().filter(|line| line.contains(FOLDER)) {
        let device = line.split(' ').next().expect("a name");
        // In use still by a process that is about to end, it goes with that.
        system("losetup", &["--detach", device]);
    }
    lock
}

/// A blank drive.
pub(super) struct Drive {
    device: PathBuf,
}

impl Drive {
    pub(super) fn blank(folder: &Path, name: &str, bytes: u64) -> Drive {
        let file = folder.join(name);
        let made = File::create_new(&file).expect("a file of its own");
        made.set_len(bytes).expect("a sparse file");
        let ran = system("losetup", &["--find", "--show", text(&file)]);
        assert_eq!(ran.code, 0, "this test needs a free loop device: {ran:?}");
        Drive { device: PathBuf::from(ran.stdout.trim()) }
    }

    pub(super) fn path(&self) -> &str {
        text(&self.device)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(&self.device).expect("a device");
        file.write_all_at(bytes, offset).expect("written");
        file.sync_all().expect("synced");
    }

    pub(super) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let file = File::open(&self.device).expect("a device");
        file.read_exact_at(&mut bytes, offset).expect("read");
        bytes
    }

    /// Makes it blank again.
    pub(super) fn erase(&self, bytes: u64) {
        let zeros = vec![0; 1 << 20];
        for offset in (0..bytes).step_by(zeros.len()) {
            self.write(offset, &zeros);
        }
    }

    /// Puts back what [`Self::contents`] returned.
    pub(super) fn restore(&self, contents: &[u8]) {
        for (number, part) in contents.chunks(1 << 20).enumerate() {
            self.write(u64::try_from(number << 20).expect("an offset"), part);
        }
    }

    /// All that is on it.
    pub(super) fn contents(&self) -> Vec<u8> {
        std::fs::read(&self.device).expect("readable")
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        // A detached device stays until its last user is gone, and would be found by its label until then.
        if let Ok(file) = OpenOptions::new().write(true).open(&self.device) {
            let _ = file.write_all_at(&vec![0; 1 << 20], 0);
            let _ = file.sync_all();
        }
        system("losetup", &["--detach", text(&self.device)]);
    }
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}
