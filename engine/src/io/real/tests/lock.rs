//! Exclusive use of a directory.

use super::{Backend, FileDirectory, SMALL, backends, formatted, open};
use crate::io::{AlignedBuf, Directory, FileKind};
use futures::executor::block_on;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const HELPER_DIRECTORY: &str = "CAIRN_TEST_LOCK_DIRECTORY";

fn refused(path: &Path, kind: FileKind) -> ErrorKind {
    let directory = FileDirectory::open(path, Backend::Auto).unwrap();
    directory.open(kind).err().unwrap().kind()
}

#[test]
fn a_file_opens_once_in_a_process_until_its_device_is_dropped() {
    for backend in backends() {
        let (_parent, path) = formatted(&SMALL);
        let directory = FileDirectory::open(&path, backend).unwrap();
        let device = directory.open(FileKind::Superblock).unwrap();
        assert_eq!(
            directory.open(FileKind::Superblock).err().unwrap().kind(),
            ErrorKind::WouldBlock
        );
        drop(device);
        for _ in 0..20 {
            let device = directory.open(FileKind::Superblock).unwrap();
            block_on(device.write(0, AlignedBuf::zeroed(1))).0.unwrap();
        }
    }
}

#[test]
fn two_directories_in_one_process_exclude_each_other_file_by_file() {
    let (_parent, path) = formatted(&SMALL);
    let _device = open(&path, Backend::Auto, FileKind::Data);
    assert_eq!(refused(&path, FileKind::Data), ErrorKind::WouldBlock);
    open(&path, Backend::Auto, FileKind::Journal);
}

/// Not a test of its own: the other process of the next test.
#[test]
#[ignore = "run by another test"]
fn helper_that_holds_the_lock() {
    let Some(path) = std::env::var_os(HELPER_DIRECTORY) else {
        return;
    };
    let device = open(Path::new(&path), Backend::Auto, FileKind::Superblock);
    println!("locked");
    loop {
        drop(device.write(0, AlignedBuf::zeroed(1)));
        block_on(device.sync()).unwrap();
    }
}

struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn another_process_is_excluded_until_it_is_killed() {
    let (_parent, path) = formatted(&SMALL);
    let mut helper = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "io::real::tests::lock::helper_that_holds_the_lock",
        ])
        .env(HELPER_DIRECTORY, &path)
        .stdout(Stdio::piped())
        .spawn()
        .map(Helper)
        .unwrap();
    let output = BufReader::new(helper.0.stdout.take().unwrap());
    assert!(output.lines().any(|line| line.unwrap().contains("locked")));
    assert_eq!(refused(&path, FileKind::Superblock), ErrorKind::WouldBlock);
    drop(helper);
    open(&path, Backend::Auto, FileKind::Superblock);
}
