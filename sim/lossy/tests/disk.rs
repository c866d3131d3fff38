//! The lossy disk itself, through the kernel: what survives a power cut, and that ended processes
//! cannot write after it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use cairn_lossy::disk::{Behaviour, CutStyle, LossyMount, isolate, missing};
use rand::{SeedableRng, rngs::StdRng};
use std::fs::File;
use std::os::unix::fs::FileExt;
use tempfile::TempDir;

struct Machine {
    disk: LossyMount,
    /// After the disk: unmounted before the folders are removed.
    _folder: TempDir,
}

/// A mounted disk; `None`, with a message, if this machine cannot have one. In CI that is a
/// failure.
fn machine(behaviour: Behaviour) -> Option<Machine> {
    if let Some(missing) = missing() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
        eprintln!("SKIPPED: {missing}");
        return None;
    }
    isolate().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (below, mounted) = (folder.path().join("below"), folder.path().join("disk"));
    std::fs::create_dir(&below).unwrap();
    std::fs::create_dir(&mounted).unwrap();
    let disk = LossyMount::new(&below, &mounted, behaviour).unwrap();
    Some(Machine { disk, _folder: folder })
}

impl Machine {
    fn open(&self) -> File {
        let path = self.disk.path().join("file");
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    fn cut(&self, style: CutStyle) {
        self.disk.disk().cut(style, &mut StdRng::seed_from_u64(1)).unwrap();
    }

    fn block(&self, number: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        self.open().read_exact_at(&mut bytes, number * 4096).unwrap();
        bytes
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn what_was_synced_survives_and_what_was_not_may_not() {
    let Some(machine) = machine(Behaviour::Volatile) else { return };
    let file = machine.open();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(&[2; 8192], 0).unwrap();
    assert_eq!(machine.block(0), [2; 4096], "a write is visible at once");
    machine.cut(CutStyle::Nothing);
    assert_eq!(machine.block(0), [1; 4096]);
    assert_eq!(machine.block(1), [0; 4096]);
    assert_eq!(machine.open().metadata().unwrap().len(), 1 << 20);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn a_dead_process_can_neither_read_nor_write_nor_sync_after_the_cut() {
    let Some(machine) = machine(Behaviour::Volatile) else { return };
    let file = machine.open();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.sync_data().unwrap();
    machine.cut(CutStyle::Nothing);
    assert!(file.write_all_at(&[2; 4096], 0).is_err());
    assert!(file.sync_data().is_err());
    assert!(file.read_exact_at(&mut [0; 4096], 0).is_err());
    assert_eq!(machine.block(0), [1; 4096]);
    assert_eq!(machine.disk.disk().stats().fenced, 3);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn after_a_cut_in_order_no_write_survives_that_came_after_a_lost_one() {
    for seed in 0..50 {
        let Some(machine) = machine(Behaviour::Volatile) else { return };
        let file = machine.open();
        file.set_len(20 * 4096).unwrap();
        for number in 0..20 {
            file.write_all_at(&[1; 4096], number * 4096).unwrap();
        }
        machine.disk.disk().cut(CutStyle::InOrder, &mut StdRng::seed_from_u64(seed)).unwrap();
        let whole: Vec<bool> = (0..20).map(|number| machine.block(number) == [1; 4096]).collect();
        let first_lost =
            (0..20).position(|number| machine.block(number) == [0; 4096]).unwrap_or(20);
        assert!(!whole[first_lost..].contains(&true), "{whole:?}");
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn a_torn_block_is_a_mixture_of_old_and_new_sectors() {
    let mut torn = 0;
    for seed in 0..20 {
        let Some(machine) = machine(Behaviour::Volatile) else { return };
        let file = machine.open();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(&[2; 4096], 0).unwrap();
        machine.disk.disk().cut(CutStyle::Scattered, &mut StdRng::seed_from_u64(seed)).unwrap();
        let block = machine.block(0);
        for sector in block.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]) && [1, 2].contains(&sector[0]));
        }
        torn += u32::from(block.contains(&1) && block.contains(&2));
    }
    assert!(torn > 0);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn a_disk_that_honours_completed_writes_keeps_them() {
    let Some(machine) = machine(Behaviour::Honour) else { return };
    machine.open().write_all_at(&[3; 4096], 0).unwrap();
    machine.cut(CutStyle::Nothing);
    assert_eq!(machine.block(0), [3; 4096]);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn a_disk_that_lies_loses_what_it_called_synced() {
    let Some(machine) = machine(Behaviour::Volatile) else { return };
    let file = machine.open();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.sync_data().unwrap();
    machine.disk.disk().behave(Behaviour::Lie);
    file.write_all_at(&[2; 4096], 0).unwrap();
    file.sync_data().unwrap();
    machine.cut(CutStyle::Nothing);
    assert_eq!(machine.block(0), [1; 4096]);
    assert_eq!(machine.disk.disk().stats().lies, 1);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn unaligned_and_partial_writes_read_back_as_written() {
    let Some(machine) = machine(Behaviour::Volatile) else { return };
    let file = machine.open();
    file.write_all_at(&[1; 10_000], 100).unwrap();
    file.write_all_at(&[2; 300], 4000).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(&[3; 10], 5).unwrap();
    let mut expected = vec![0; 10_100];
    expected[100..].fill(1);
    expected[4000..4300].fill(2);
    expected[5..15].fill(3);
    assert_eq!(std::fs::read(machine.disk.path().join("file")).unwrap(), expected);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn a_flipped_bit_is_read_back_from_synced_and_from_unsynced_blocks() {
    let Some(machine) = machine(Behaviour::Volatile) else { return };
    let file = machine.open();
    let mut rng = StdRng::seed_from_u64(5);
    for sync in [true, false] {
        file.write_all_at(&[1; 8192], 0).unwrap();
        if sync {
            file.sync_data().unwrap();
        }
        let flip = machine.disk.flip("file", &mut rng).unwrap().unwrap();
        let mut found = vec![0; 8192];
        file.read_exact_at(&mut found, 0).unwrap();
        let wrong: Vec<usize> = (0..8192).filter(|at| found[*at] != 1).collect();
        assert_eq!(wrong, [flip.offset as usize]);
        assert_eq!(found[wrong[0]], 1 ^ (1 << flip.bit));
    }
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn a_lock_on_the_open_file_keeps_others_out_until_it_is_closed() {
    let Some(machine) = machine(Behaviour::Volatile) else { return };
    let lock = |file: &File| {
        let mut all = nix::libc::flock { l_type: 0, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
        all.l_type = nix::libc::F_WRLCK as _;
        nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_OFD_SETLK(&all))
    };
    let (first, second) = (machine.open(), machine.open());
    lock(&first).unwrap();
    assert!(lock(&second).is_err());
    drop(first);
    // The kernel releases it a moment after the close: it tells the filesystem first.
    let free = (0..12_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        lock(&second).is_ok()
    });
    assert!(free);
}

#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn nothing_stays_mounted() {
    let Some(machine) = machine(Behaviour::Volatile) else { return };
    let path = machine.disk.path().to_owned();
    let mounted = || {
        let mounts = std::fs::read_to_string("/proc/thread-self/mounts").unwrap();
        mounts.contains(path.to_str().unwrap())
    };
    assert!(mounted());
    let still_open = machine.open();
    let panicked = std::thread::spawn(move || {
        let _machine = machine;
        panic!("as a failing test does");
    });
    assert!(panicked.join().is_err());
    assert!(!mounted());
    drop(still_open);
}
