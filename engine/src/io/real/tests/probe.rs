//! What the probes find on this machine's filesystem, and that they leave nothing behind.

use super::*;
use crate::io::real::{probe, system};
use std::fs::{self, File};
use std::io;

#[test]
fn a_formatted_file_has_written_extents_only_and_can_be_probed_while_it_is_in_use() {
    let (_parent, path) = formatted(&SMALL);
    let _locked = open(&path, Backend::Threads, FileKind::Data);
    let found = probe::probe_file(&path.join("data")).unwrap();
    assert_eq!((found.bytes, found.transfer), (SMALL.data_bytes, Ok(())));
    if let Some(extents) = found.extents {
        let all_written = system::Extents { written_bytes: SMALL.data_bytes, ..Default::default() };
        assert_eq!(extents, all_written);
    }
    assert_eq!(probe::file_extents(&path.join("data")).unwrap(), found.extents);
}

#[test]
fn reserved_space_counts_as_unwritten_and_a_hole_as_missing() {
    let file = tempfile::tempfile().unwrap();
    if !system::allocate(&file, 1 << 20).unwrap() {
        return;
    }
    file.set_len(3 << 20).unwrap();
    if let Some(extents) = system::extents(&file, 3 << 20).unwrap() {
        let expected = system::Extents {
            unwritten_bytes: 1 << 20,
            missing_bytes: 2 << 20,
            ..Default::default()
        };
        assert_eq!(extents, expected);
    }
}

#[test]
fn probing_a_directory_leaves_it_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let found = probe::probe_directory(directory.path()).unwrap();
    assert_eq!(found.transfer, Ok(()));
    if let Some(extents) = found.extents {
        assert_eq!((extents.written_bytes, extents.missing_bytes), (found.bytes, 0));
    }
    if let (true, Some(alignment)) = (found.direct, found.alignment) {
        assert!(alignment.offset_bytes <= 4096, "{alignment:?}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_probed_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    assert_eq!(probe::probe_file(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(probe::probe_directory(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(
        probe::probe_file(directory.path()).unwrap_err().kind(),
        io::ErrorKind::InvalidInput
    );
    assert_eq!(probe::file_extents(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    let file = directory.path().join("file");
    File::create(&file).unwrap();
    assert_eq!(probe::nvme_identify(&file).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    assert!(system::free_space(directory.path()).unwrap().block_bytes > 0);
}
