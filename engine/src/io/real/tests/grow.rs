//! Enlarging the files of a data directory.

use super::{Backend, FileDirectory, SMALL, formatted, open};
use crate::error::{Error, Result};
use crate::io::real::system;
use crate::io::{BLOCK, FileKind};
use crate::types::Geometry;
use std::fs::{self, File, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

const LARGER: Geometry =
    Geometry { checkpoint_bytes: 5 << 20, data_bytes: (21 << 20) + BLOCK as u64, ..SMALL };

fn sizes(geometry: &Geometry) -> [(FileKind, u64); 4] {
    [
        (FileKind::Journal, geometry.journal_bytes),
        (FileKind::Checkpoint0, geometry.checkpoint_bytes),
        (FileKind::Checkpoint1, geometry.checkpoint_bytes),
        (FileKind::Data, geometry.data_bytes),
    ]
}

fn grow(path: &Path, from: &Geometry, to: &Geometry) -> Result<()> {
    FileDirectory::grow(path, from, to, &mut |_, _| ControlFlow::Continue(()))
}

/// Writes something into each file, and returns it.
fn used(path: &Path) -> Vec<(FileKind, Vec<u8>)> {
    let write = |(kind, bytes): (FileKind, u64)| {
        let file = OpenOptions::new().write(true).open(path.join(kind.name())).unwrap();
        file.write_all_at(&[kind as u8 + 1; BLOCK], 0).unwrap();
        file.write_all_at(&[kind as u8 + 1; BLOCK], bytes - BLOCK as u64).unwrap();
        (kind, fs::read(path.join(kind.name())).unwrap())
    };
    sizes(&SMALL).into_iter().map(write).collect()
}

fn check(path: &Path, geometry: &Geometry, before: &[(FileKind, Vec<u8>)]) {
    for ((kind, bytes), (_, old)) in sizes(geometry).into_iter().zip(before) {
        let mut expected = old.clone();
        expected.resize(bytes as usize, 0);
        assert!(fs::read(path.join(kind.name())).unwrap() == expected, "{kind:?}");
        assert_written(path, kind);
    }
}

/// All that the file's length covers is in written extents.
fn assert_written(path: &Path, kind: FileKind) {
    let file = File::open(path.join(kind.name())).unwrap();
    let bytes = file.metadata().unwrap().len();
    let extents = system::extents(&file, bytes).unwrap();
    assert!(extents.is_none_or(|extents| extents.written_bytes == bytes), "{kind:?}: {extents:?}");
}

#[test]
fn files_grow_by_written_zeros_and_keep_what_they_hold() {
    let (_parent, path) = formatted(&SMALL);
    let before = used(&path);
    let mut seen = Vec::new();
    FileDirectory::grow(&path, &SMALL, &LARGER, &mut |done, total| {
        seen.push((done, total));
        sizes(&SMALL)
            .map(|(kind, _)| kind)
            .into_iter()
            .for_each(|kind| assert_written(&path, kind));
        ControlFlow::Continue(())
    })
    .unwrap();
    check(&path, &LARGER, &before);
    let total = sizes(&LARGER).iter().zip(sizes(&SMALL)).map(|(new, old)| new.1 - old.1).sum();
    assert!(seen.is_sorted());
    assert_eq!((seen.first(), seen.last()), (Some(&(0, total)), Some(&(total, total))));
    grow(&path, &LARGER, &LARGER).unwrap();
    check(&path, &LARGER, &before);
}

#[test]
fn a_growth_that_is_stopped_at_any_step_leaves_the_old_lengths() {
    let (_parent, path) = formatted(&SMALL);
    let before = used(&path);
    for stop_at in 0.. {
        let mut step = 0;
        let grown = FileDirectory::grow(&path, &SMALL, &LARGER, &mut |_, _| {
            step += 1;
            if step > stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let Err(error) = grown else {
            assert!(stop_at > 8, "{stop_at}");
            break;
        };
        assert!(error.to_string().contains("the directory has the size that it had"), "{error}");
        check(&path, &SMALL, &before);
    }
    check(&path, &LARGER, &before);
}

/// A killed process leaves longer files, whatever is in them.
#[test]
fn a_growth_begins_again_where_one_was_killed_even_if_that_one_was_larger() {
    let (_parent, path) = formatted(&SMALL);
    let before = used(&path);
    for (longer, to) in [(9 << 20, LARGER), (64 << 20, LARGER), (9 << 20, SMALL)] {
        let data = OpenOptions::new().write(true).open(path.join("data")).unwrap();
        data.set_len(longer).unwrap();
        data.write_all_at(&[7; BLOCK], longer - BLOCK as u64).unwrap();
        grow(&path, &SMALL, &to).unwrap();
        check(&path, &to, &before);
    }
}

#[test]
fn a_growth_that_does_not_fit_is_refused_with_the_figures_and_changes_nothing() {
    let (_parent, path) = formatted(&SMALL);
    let before = used(&path);
    let error = grow(&path, &SMALL, &Geometry { data_bytes: 1 << 60, ..SMALL }).unwrap_err();
    let needed = (1u64 << 60) - SMALL.data_bytes + (1 << 20);
    assert!(error.to_string().contains(&format!("not enough space: {needed} bytes needed, ")));
    check(&path, &SMALL, &before);
}

#[test]
fn files_in_use_and_files_that_are_too_short_do_not_grow() {
    let (_parent, path) = formatted(&SMALL);
    for (kind, _) in sizes(&SMALL).into_iter().skip(1) {
        let device = open(&path, Backend::Threads, kind);
        let refused = grow(&path, &SMALL, &LARGER);
        assert!(matches!(refused, Err(Error::InUse { .. })), "{kind:?}: {refused:?}");
        drop(device);
    }
    let shrunk = grow(&path, &LARGER, &SMALL);
    assert!(matches!(shrunk, Err(Error::Invalid(_))), "{shrunk:?}");
    let longer = Geometry { data_bytes: SMALL.data_bytes + BLOCK as u64, ..SMALL };
    let short = grow(&path, &longer, &LARGER);
    assert!(matches!(short, Err(Error::TooShort { file: FileKind::Data, .. })), "{short:?}");
}
