//! Creating and finding a data directory.

use super::{Backend, FileDirectory, SMALL, formatted};
use crate::error::Error;
use crate::io::real::system;
use crate::io::{FileKind, SUPERBLOCK_BYTES};
use crate::types::Geometry;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn create(path: &Path, geometry: &Geometry) -> String {
    FileDirectory::create(path, geometry, &mut |_, _| ControlFlow::Continue(()))
        .unwrap_err()
        .to_string()
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_file_has_its_size_in_written_zeros_and_is_private() {
    let (_parent, path) = formatted(&SMALL);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    let sizes = [
        (FileKind::Superblock, SUPERBLOCK_BYTES),
        (FileKind::Journal, SMALL.journal_bytes),
        (FileKind::Checkpoint0, SMALL.checkpoint_bytes),
        (FileKind::Checkpoint1, SMALL.checkpoint_bytes),
        (FileKind::Data, SMALL.data_bytes),
    ];
    for (kind, bytes) in sizes {
        let file = path.join(kind.name());
        assert!(fs::read(&file).unwrap() == vec![0; bytes as usize], "{kind:?}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let extents = system::extents(&File::open(&file).unwrap(), bytes).unwrap();
        assert!(
            extents.is_none_or(|extents| extents.written_bytes == bytes),
            "{kind:?}: {extents:?}"
        );
    }
    assert_eq!(names(&path).len(), sizes.len());
}

#[test]
fn progress_rises_to_the_total() {
    let parent = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    FileDirectory::create(&parent.path().join("a/b"), &SMALL, &mut |done, total| {
        seen.push((done, total));
        ControlFlow::Continue(())
    })
    .unwrap();
    let total =
        SMALL.journal_bytes + 2 * SMALL.checkpoint_bytes + SMALL.data_bytes + SUPERBLOCK_BYTES;
    assert!(seen.is_sorted());
    assert!(seen.iter().all(|&(_, of)| of == total));
    assert_eq!((seen.first(), seen.last()), (Some(&(0, total)), Some(&(total, total))));
}

#[test]
fn a_new_filesystem_with_lost_and_found_is_empty_enough() {
    let parent = tempfile::tempdir().unwrap();
    fs::create_dir(parent.path().join("lost+found")).unwrap();
    FileDirectory::create(parent.path(), &SMALL, &mut |_, _| ControlFlow::Continue(())).unwrap();
    FileDirectory::open(parent.path(), Backend::Auto).unwrap();
}

#[test]
fn a_directory_that_holds_anything_is_refused_and_left_as_it_is() {
    for (name, says) in [
        ("holiday.jpg", "it is not empty (1 files or directories)"),
        ("superblock", "it already is a Cairn data directory (superblock)"),
        ("data", "holds more than an unfinished format leaves (data)"),
    ] {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join(name), "precious").unwrap();
        let error = create(parent.path(), &SMALL);
        assert!(error.contains(says) && error.contains("nothing was changed"), "{error}");
        assert!(error.contains(parent.path().to_str().unwrap()), "{error}");
        assert_eq!(names(parent.path()), [name]);
        assert_eq!(fs::read(parent.path().join(name)).unwrap(), b"precious");
    }
}

#[test]
fn a_formatted_directory_is_not_formatted_again() {
    let (_parent, path) = formatted(&SMALL);
    fs::write(path.join("superblock"), "identity").unwrap();
    assert!(create(&path, &SMALL).contains("already is a Cairn data directory"));
    assert_eq!(fs::read(path.join("superblock")).unwrap(), b"identity");
}

/// The story: a format was killed before the superblock. Each later start refused the directory, a
/// second format too, until somebody removed its files.
#[test]
fn what_an_unfinished_format_left_is_removed_by_the_next_one() {
    let complete = |path: &Path| names(path).len() == FileKind::ALL.len();
    let again = |path: &Path| {
        FileDirectory::create(path, &SMALL, &mut |_, _| ControlFlow::Continue(())).unwrap();
    };
    for removed in 0..FileKind::ALL.len() {
        let (_parent, path) = formatted(&SMALL);
        for kind in FileKind::ALL.into_iter().rev().take(removed) {
            fs::remove_file(path.join(kind.name())).unwrap();
        }
        // Of the last file only a part is there, and the empty checkpoint may be written.
        let last = FileKind::ALL[FileKind::ALL.len() - 1 - removed];
        fs::OpenOptions::new()
            .write(true)
            .open(path.join(last.name()))
            .unwrap()
            .set_len(8192)
            .unwrap();
        let checkpoint = path.join(FileKind::Checkpoint0.name());
        if checkpoint.exists() && last != FileKind::Checkpoint0 {
            let mut bytes = fs::read(&checkpoint).unwrap();
            bytes[..100].fill(7);
            fs::write(&checkpoint, bytes).unwrap();
        }
        assert!(FileDirectory::is_unfinished(&path));
        fs::create_dir(path.join("lost+found")).unwrap();
        again(&path);
        fs::remove_dir(path.join("lost+found")).unwrap();
        assert!(complete(&path), "{removed} files removed");
        FileDirectory::open(&path, Backend::Auto).unwrap();
    }
}

/// With one byte in the journal, the values, or a checkpoint behind the empty one, it is a directory
/// whose superblock is lost.
#[test]
fn a_directory_without_a_superblock_that_holds_anything_is_not_taken_for_an_unfinished_format() {
    for kind in [FileKind::Journal, FileKind::Data, FileKind::Checkpoint0, FileKind::Checkpoint1] {
        let (_parent, path) = formatted(&SMALL);
        let file = path.join(kind.name());
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() = 1;
        fs::write(&file, &bytes).unwrap();
        let error = create(&path, &SMALL);
        assert!(error.contains("holds more than an unfinished format leaves"), "{error}");
        assert!(fs::read(&file).unwrap() == bytes && names(&path).len() == FileKind::ALL.len());
    }
}

#[test]
fn a_format_that_is_under_way_keeps_another_one_away() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("node");
    let under_way = FileDirectory::create(&path, &SMALL, &mut |done, _| {
        if done > 0 {
            assert!(create(&path, &SMALL).contains("in use"));
        }
        ControlFlow::Continue(())
    });
    let under_way = under_way.unwrap();
    assert!(create(&path, &SMALL).contains("in use"), "its superblock is not written yet");
    drop(under_way);
    FileDirectory::create(&path, &SMALL, &mut |_, _| ControlFlow::Continue(())).unwrap();
}

/// The story: a format was killed between its last file and the superblock. `format` then said that
/// the directory was already formatted, and `serve` that it was not and should be.
#[test]
fn opening_reports_an_unfinished_format_and_a_lost_file_as_what_they_are() {
    let (_parent, path) = formatted(&SMALL);
    fs::remove_file(path.join("data")).unwrap();
    let error = FileDirectory::open(&path, Backend::Auto).err().unwrap();
    assert!(
        error.to_string().contains("unfinished format leaves it; if so, `cairn format` removes"),
        "{error}"
    );
    fs::write(path.join("superblock"), "identity").unwrap();
    let error = FileDirectory::open(&path, Backend::Auto).err().unwrap();
    assert!(matches!(&error, Error::MissingFile { file: FileKind::Data, .. }), "{error}");
}

#[test]
fn a_size_that_does_not_fit_is_refused_with_the_figures_before_anything_is_made() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("node");
    let error = create(&path, &Geometry { data_bytes: 1 << 60, ..SMALL });
    let needed = (1u64 << 60)
        + SMALL.journal_bytes
        + 2 * SMALL.checkpoint_bytes
        + SUPERBLOCK_BYTES
        + (1 << 20);
    assert!(error.contains(&format!("not enough space: {needed} bytes needed, ")), "{error}");
    let free: u64 =
        error.split("needed, ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(free < needed);
    assert_eq!(names(parent.path()), [""; 0]);
}

#[test]
fn a_geometry_that_is_not_whole_blocks_or_overflows_is_invalid() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("node");
    for data_bytes in [0, 4097, 1 << 63, u64::MAX - 4095] {
        let geometry = Geometry { data_bytes, ..SMALL };
        let error = FileDirectory::create(&path, &geometry, &mut |_, _| ControlFlow::Continue(()))
            .unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    assert!(!path.exists());
}

#[test]
fn a_create_that_fails_half_way_removes_what_it_made_and_nothing_else() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("a/node");
    let intruder = path.join("superblock");
    let error = FileDirectory::create(&path, &SMALL, &mut |done, _| {
        if done > SMALL.data_bytes {
            fs::write(&intruder, "not ours").unwrap();
        }
        ControlFlow::Continue(())
    })
    .unwrap_err();
    assert!(error.to_string().contains("create failed"), "{error}");
    assert_eq!(names(&path), ["superblock"]);
    assert_eq!(fs::read(&intruder).unwrap(), b"not ours");

    let path = parent.path().join("b/node");
    let panicked = std::panic::catch_unwind(|| {
        FileDirectory::create(&path, &SMALL, &mut |done, _| {
            assert!(done <= SMALL.data_bytes);
            ControlFlow::Continue(())
        })
    });
    assert!(panicked.is_err());
    assert!(!parent.path().join("b").exists());
}

#[test]
fn a_create_that_is_stopped_removes_what_it_made() {
    let parent = tempfile::tempdir().unwrap();
    for after in [0, SMALL.data_bytes] {
        let mut calls = 0;
        let error = FileDirectory::create(&parent.path().join("a/b"), &SMALL, &mut |done, _| {
            if done < after {
                return ControlFlow::Continue(());
            }
            calls += 1;
            ControlFlow::Break(())
        })
        .unwrap_err();
        assert!(error.to_string().contains("stopped"), "{error}");
        assert_eq!((calls, names(parent.path()).len()), (1, 0), "nothing more is written");
    }
}

#[test]
fn a_directory_without_all_files_is_not_formatted() {
    let parent = tempfile::tempdir().unwrap();
    let not_formatted =
        |path: &Path, reason: &str| match FileDirectory::open(path, Backend::Auto).err() {
            Some(Error::NotFormatted { reason: found, .. }) => {
                assert!(found.contains(reason), "{found}")
            }
            other => panic!("{other:?}"),
        };
    not_formatted(&parent.path().join("absent"), "is missing");
    not_formatted(parent.path(), "is missing");
    for kind in FileKind::ALL {
        let (_parent, path) = formatted(&SMALL);
        fs::remove_file(path.join(kind.name())).unwrap();
        not_formatted(&path, kind.name());
        fs::create_dir(path.join(kind.name())).unwrap();
        assert!(FileDirectory::open(&path, Backend::Auto).is_err());
    }
}

#[test]
fn a_file_replaced_by_a_link_is_not_opened() {
    let (parent, path) = formatted(&SMALL);
    let elsewhere = parent.path().join("elsewhere");
    fs::rename(path.join("data"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, path.join("data")).unwrap();
    assert!(FileDirectory::open(&path, Backend::Auto).is_err());
}
