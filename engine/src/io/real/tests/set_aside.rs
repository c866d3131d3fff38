//! Copies of a damaged directory.

use super::{Backend, FileDirectory, SMALL, formatted};
use crate::io::real::set_aside;
use crate::io::{Directory, FileKind};
use futures::executor::block_on;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const COPIED: [FileKind; 4] =
    [FileKind::Superblock, FileKind::Journal, FileKind::Checkpoint0, FileKind::Checkpoint1];

fn copies(path: &Path) -> usize {
    let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("set-aside")).count()
}

#[test]
fn a_copy_has_every_byte_but_the_values_and_its_zeros_take_no_space() {
    let (_parent, path) = formatted(&SMALL);
    for (number, kind) in COPIED.into_iter().enumerate() {
        let file = path.join(kind.name());
        let mut bytes = fs::read(&file).unwrap();
        bytes[..5000].fill(number as u8 + 1);
        *bytes.last_mut().unwrap() = 9;
        fs::write(&file, bytes).unwrap();
    }
    let directory = FileDirectory::open(&path, Backend::Auto).unwrap();
    // The lock on the files does not keep the copy away.
    let _files = FileKind::ALL.map(|kind| directory.open(kind).unwrap());
    let copy = block_on(directory.set_aside(17)).unwrap();
    assert_eq!(Path::new(&copy), path.join("set-aside.17"));
    for kind in COPIED {
        let copied = Path::new(&copy).join(kind.name());
        assert!(
            fs::read(&copied).unwrap() == fs::read(path.join(kind.name())).unwrap(),
            "{kind:?}"
        );
        assert!(fs::metadata(&copied).unwrap().blocks() * 512 <= 64 << 10, "{kind:?} has holes");
    }
    assert_eq!(fs::read_dir(&copy).unwrap().count(), COPIED.len());
}

#[test]
fn there_are_four_copies_at_most_and_what_a_crash_left_of_one_goes() {
    let (_parent, path) = formatted(&SMALL);
    let directory = FileDirectory::open(&path, Backend::Auto).unwrap();
    fs::create_dir(path.join("set-aside-partial")).unwrap();
    fs::write(path.join("set-aside-partial/journal"), "a part").unwrap();
    for number in 0..4 {
        block_on(directory.set_aside(number)).unwrap();
        assert_eq!(copies(&path), number as usize + 1);
    }
    let error = block_on(directory.set_aside(4)).unwrap_err();
    assert!(error.to_string().contains("there are 4 copies already"), "{error}");
    assert_eq!(copies(&path), 4);
    assert!(block_on(directory.set_aside(2)).is_err(), "no copy replaces another");
}

#[test]
fn a_copy_that_is_given_up_leaves_nothing() {
    let (_parent, path) = formatted(&SMALL);
    let asked = std::cell::Cell::new(0);
    let given_up = || {
        asked.set(asked.get() + 1);
        asked.get() > 2
    };
    set_aside::set_aside(&path, 1, given_up).unwrap_err();
    assert_eq!((asked.get(), copies(&path)), (3, 0));
    set_aside::set_aside(&path, 1, || false).unwrap();
}
