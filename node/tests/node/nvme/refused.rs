//! A drive that holds something is refused by name, and not one of its bytes changes.

use super::drive::{self, Drive, done, system, text};
use super::site::{SCRIPT, is_empty, temporary};
use crate::support::{CAIRN, Ran};
use rustix::fs::{Mode, OFlags};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const BYTES: u64 = 72 << 20;

/// The script on a drive, up to a member that could be started.
fn prepare(folder: &Path, slot: &str, drives: &[&Drive]) -> Ran {
    prepare_as(folder, slot, drives, "/nonexistent", &["--cluster", "nvme"])
}

/// The same with a folder of programs that come before the system's, and with the cluster's name and other options.
fn prepare_as(
    folder: &Path,
    slot: &str,
    drives: &[&Drive],
    programs: &str,
    options: &[&str],
) -> Ran {
    let path = format!("PATH={programs}:{}", std::env::var("PATH").expect("a path"));
    let [mount, fstab, config] = ["mount", "fstab", "etc/cairn.toml"].map(|name| folder.join(name));
    let members = format!("{slot}=127.0.0.1:7400/127.0.0.1:7401");
    let mut arguments = vec![
        path.as_str(),
        "bash",
        SCRIPT,
        "--slot",
        slot,
        "--members",
        members.as_str(),
        "--insecure",
        "--mount",
        text(&mount),
        "--fstab",
        text(&fstab),
        "--config",
        text(&config),
        "--user",
        "root",
        "--cairn",
        CAIRN,
        "--size",
        "16MiB",
        "--set",
        "mode=sync",
        "--no-unit",
    ];
    for drive in drives {
        arguments.extend(["--drive", drive.path()]);
    }
    arguments.extend(options);
    system("env", &arguments)
}

/// A folder with a program of this name that kills who calls it.
fn deadly(folder: &Path, program: &str) -> String {
    let programs = folder.join(format!("deadly-{program}"));
    std::fs::create_dir_all(&programs).expect("a folder");
    let file = programs.join(program);
    std::fs::write(&file, "#!/bin/sh\nkill -KILL $PPID\n").expect("a file");
    std::fs::set_permissions(&file, Permissions::from_mode(0o755)).expect("permissions");
    text(&programs).to_owned()
}

fn label(drive: &Drive) -> String {
    done("blkid", &["-p", "-s", "LABEL", "-o", "value", drive.path()]).trim().to_owned()
}

/// A table of partitions with one of type Linux.
fn partitions(drive: &Drive) {
    let mut entry = [0; 66];
    entry[4] = 0x83;
    entry[8..12].copy_from_slice(&2048u32.to_le_bytes());
    entry[12..16].copy_from_slice(&4096u32.to_le_bytes());
    entry[64..].copy_from_slice(&[0x55, 0xaa]);
    drive.write(446, &entry);
}

fn ext4(drive: &Drive) {
    done("mkfs.ext4", &["-q", "-F", drive.path()]);
}

/// The first bytes of XFS's superblock, which no other tool need be there for.
fn xfs(drive: &Drive) {
    drive.write(0, b"XFSB\0\0\x10\0");
}

fn swap(drive: &Drive) {
    done("mkswap", &[drive.path()]);
}

/// The label of LVM in the second sector.
fn lvm(drive: &Drive) {
    drive.write(512, b"LABELONE\x01\0\0\0\0\0\0\0");
}

/// The superblock of an md array of version 1.2.
fn md(drive: &Drive) {
    drive.write(4096, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
}

fn a_byte_in_the_first_mib(drive: &Drive) {
    drive.write((1 << 20) - 1, &[1]);
}

fn the_last_byte(drive: &Drive) {
    drive.write(BYTES - 1, &[1]);
}

/// What a drive holds, and what its refusal says.
type Kind = (fn(&Drive), &'static str);

#[test]
#[ignore = "needs root and loop devices: ./test nvme"]
fn a_drive_that_holds_anything_is_refused_by_name_and_not_changed() {
    let _only = drive::begin();
    cairn_lossy::disk::isolate().expect("mounts of our own");
    let folder = temporary();
    let folder = folder.path();
    let drive = Drive::blank(folder, "drive", BYTES);
    let refused = |what: &str, slot: &str| {
        let before = drive.contents();
        let ran = prepare(folder, slot, &[&drive]);
        assert_eq!(ran.code, 3, "{what}: {ran:?}");
        let line = ran.stderr.lines().find(|line| line.contains(drive.path()));
        assert!(line.is_some_and(|line| line.contains(what)), "{what}: {ran:?}");
        assert!(drive.contents() == before, "{what}: the drive was changed");
        assert!(is_empty(&folder.join("mount")), "{what}");
    };
    let kinds: [Kind; 8] = [
        (partitions, "it holds dos already: `wipefs --all "),
        (ext4, "it holds ext4 already: `wipefs --all "),
        (xfs, ": it"),
        (swap, "it holds swap already: `wipefs --all "),
        (lvm, ": it"),
        (md, ": it"),
        (a_byte_in_the_first_mib, "its first MiB is not zero: `blkdiscard "),
        (the_last_byte, "its last MiB is not zero: `blkdiscard "),
    ];
    for (put, words) in kinds {
        put(&drive);
        refused(words, "1");
        drive.erase(BYTES);
    }

    // Read-only, since a mount for writing changes it.
    ext4(&drive);
    let elsewhere = folder.join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a folder");
    done("mount", &["-o", "ro,noload", drive.path(), text(&elsewhere)]);
    refused(&format!("it is mounted at {}", elsewhere.display()), "1");
    // With a blank one beside it, that one is used.
    let blank = Drive::blank(folder, "blank", BYTES);
    let before = drive.contents();
    let ran = prepare(folder, "1", &[&drive, &blank]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains(&format!("not used: {}: it is mounted", drive.path())), "{ran:?}");
    assert!(drive.contents() == before, "the drive beside it was changed");
    for mount in [folder.join("mount"), elsewhere] {
        done("umount", &[text(&mount)]);
    }
    drive.erase(BYTES);
    drop(blank);

    // A member's drive: of another slot, and of this one after its filesystem was lost.
    for name in ["etc/cairn.toml", "fstab"] {
        std::fs::remove_file(folder.join(name)).expect("the script wrote it");
    }
    let ran = prepare(folder, "1", &[&drive]);
    assert_eq!(ran.code, 0, "{ran:?}");
    done("umount", &[text(&folder.join("mount"))]);
    refused("it is marked as the drive of slot 1 of cluster nvme", "2");
    drive.write(0, &vec![0; 1 << 20]);
    refused("it is not formatted again", "1");

    // The same with the mark lost: no advice to wipe it, and no other drive is formatted in its place.
    drive.erase(BYTES);
    let ran = prepare(folder, "1", &[&drive]);
    assert_eq!(ran.code, 0, "{ran:?}");
    // One that is mounted already is no other cluster's.
    let other = prepare_as(folder, "1", &[&drive], "/nonexistent", &["--cluster", "other"]);
    assert_eq!(other.code, 3, "{other:?}");
    assert!(other.stderr.contains("is marked as the drive of slot 1 of cluster nvme"), "{other:?}");
    done("umount", &[text(&folder.join("mount"))]);
    let mark = BYTES - (1 << 20);
    drive.write(mark, b"cairn drive 9");
    let blank = Drive::blank(folder, "second", BYTES);
    let ran = prepare(folder, "1", &[&drive, &blank]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("it looks like this member's drive"), "{ran:?}");
    assert!(!ran.stderr.contains("wipefs"), "{ran:?}");
    assert!(blank.contents().iter().all(|byte| *byte == 0), "another drive was formatted");
    drive.erase(BYTES);

    // A program that has it for itself alone.
    let held = rustix::fs::open(drive.path(), OFlags::RDONLY | OFlags::EXCL, Mode::empty());
    let held = held.expect("nobody else has it");
    refused("another program uses it alone", "1");
    drop(held);
}

/// The story: the drive had its label, by which it is mounted at a boot, before its mark said that it was made. Killed
/// between the two, it was mounted and used, and was formatted again once it was found with an unreplayed journal.
#[test]
#[ignore = "needs root and loop devices: ./test nvme"]
fn a_drive_that_was_used_after_an_interrupted_formatting_is_not_formatted_again() {
    let _only = drive::begin();
    cairn_lossy::disk::isolate().expect("mounts of our own");
    let folder = temporary();
    let folder = folder.path();
    let (mount, cluster) = (folder.join("mount"), ["--cluster", "nvme"]);
    let drive = Drive::blank(folder, "drive", BYTES);
    let after_mkfs = deadly(folder, "sync");
    let killed = prepare_as(folder, "1", &[&drive], &after_mkfs, &cluster);
    assert_eq!(killed.code, -9, "{killed:?}");
    assert_eq!(label(&drive), "cairn-making", "no boot mounts it");

    std::fs::create_dir(&mount).expect("the script was killed before it made that");
    done("mount", &[drive.path(), text(&mount)]);
    std::fs::write(mount.join("precious"), "data").expect("a file");
    done("sync", &[]);
    // What was read before may be older than what is there.
    done("blockdev", &["--flushbufs", drive.path()]);
    let in_use = drive.contents();
    let ran = prepare(folder, "1", &[&drive]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("its formatting did not end"), "{ran:?}");
    done("umount", &[text(&mount)]);
    // As a power cut leaves it: the journal is not played back.
    drive.restore(&in_use);
    let ran = prepare(folder, "1", &[&drive]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(std::fs::read_to_string(mount.join("precious")).expect("a file"), "data");
    assert_eq!(label(&drive), "cairn-1");
    done("umount", &[text(&mount)]);

    // Something else than what was being made is somebody's.
    drive.erase(BYTES);
    let killed = prepare_as(folder, "1", &[&drive], &after_mkfs, &cluster);
    assert_eq!(killed.code, -9, "{killed:?}");
    drive.write(0, &vec![0; 1 << 20]);
    swap(&drive);
    let ran = prepare(folder, "1", &[&drive]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("somebody used it since"), "{ran:?}");

    // Killed before the label, the next run sets it.
    drive.erase(BYTES);
    let before_label = deadly(folder, "e2label");
    let killed = prepare_as(folder, "1", &[&drive], &before_label, &cluster);
    assert_eq!(killed.code, -9, "{killed:?}");
    let ran = prepare(folder, "1", &[&drive]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(label(&drive), "cairn-1");
    done("umount", &[text(&mount)]);
}

/// The story: e2fsck of a filesystem that was used sets its count of mounts to zero. Damaged afterwards, it was taken for
/// what a killed mkfs had left, and was formatted again.
#[test]
#[ignore = "needs root and loop devices: ./test nvme"]
fn a_drive_that_was_used_checked_and_damaged_is_not_formatted_again() {
    let _only = drive::begin();
    cairn_lossy::disk::isolate().expect("mounts of our own");
    let folder = temporary();
    let folder = folder.path();
    let mount = folder.join("mount");
    let drive = Drive::blank(folder, "drive", BYTES);
    let after_mkfs = deadly(folder, "sync");
    let killed = prepare_as(folder, "1", &[&drive], &after_mkfs, &["--cluster", "nvme"]);
    assert_eq!(killed.code, -9, "{killed:?}");

    std::fs::create_dir(&mount).expect("the script was killed before it made that");
    done("mount", &[drive.path(), text(&mount)]);
    for name in ["precious", "broken"] {
        std::fs::write(mount.join(name), "data").expect("a file");
    }
    done("umount", &[text(&mount)]);
    done("tune2fs", &["-C", "0", drive.path()]);
    done("debugfs", &["-w", "-R", "clri broken", drive.path()]);
    let checked = system("e2fsck", &["-fn", drive.path()]);
    assert_ne!(checked.code, 0, "it is not damaged: {checked:?}");

    let ran = prepare(folder, "1", &[&drive]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("its formatting had come to its end"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(mount.join("precious")).expect("a file"), "data");
    done("umount", &[text(&mount)]);
}

/// The story: a member that was set up alone, and to whose cluster others were added later, came back with a blank drive.
/// It was told that the data is gone and how to begin anew, which makes a second, empty cluster.
#[test]
#[ignore = "needs root and loop devices: ./test nvme"]
fn a_blank_drive_of_a_member_that_was_set_up_alone_forms_no_second_cluster() {
    let _only = drive::begin();
    cairn_lossy::disk::isolate().expect("mounts of our own");
    let folder = temporary();
    let folder = folder.path();
    let drive = Drive::blank(folder, "drive", BYTES);
    let noted = folder.join("etc/.setup-served");
    std::fs::create_dir(folder.join("etc")).expect("a folder");
    std::fs::write(&noted, "nvme\n").expect("a file");
    let ran = prepare(folder, "1", &[&drive]);
    assert_eq!(ran.code, 3, "{ran:?}");
    let (join, anew) = ran.stderr.split_once("Only if it never did").expect("both cases");
    assert!(join.contains("If the cluster grew, give `--join`"), "{ran:?}");
    assert!(anew.contains(&format!("remove {}", noted.display())), "{ran:?}");
    assert!(drive.contents().iter().all(|byte| *byte == 0), "the drive was changed");
}

/// mkfs.xfs discards a whole drive unless it is told not to, and the mark with it.
#[test]
#[ignore = "needs root and loop devices: ./test nvme"]
fn xfs_keeps_the_mark_of_a_formatting_that_was_interrupted() {
    let _only = drive::begin();
    drive::need("mkfs.xfs");
    cairn_lossy::disk::isolate().expect("mounts of our own");
    let folder = temporary();
    let folder = folder.path();
    let options = ["--cluster", "nvme", "--filesystem", "xfs"];
    // XFS wants 300 MiB for itself.
    let bytes = 400 << 20;
    let drive = Drive::blank(folder, "drive", bytes);
    let killed = prepare_as(folder, "1", &[&drive], &deadly(folder, "sync"), &options);
    assert_eq!(killed.code, -9, "{killed:?}");
    assert_eq!(label(&drive), "cairn-making", "no boot mounts it");
    let mark = drive.read(bytes - (1 << 20), 4096);
    let mark = String::from_utf8_lossy(&mark);
    assert!(mark.contains("\nstate making\n"), "{mark}");

    let ran = prepare_as(folder, "1", &[&drive], "/nonexistent", &options);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("its formatting had come to its end"), "{ran:?}");
    assert_eq!(label(&drive), "cairn-1");
    done("umount", &[text(&folder.join("mount"))]);
}
