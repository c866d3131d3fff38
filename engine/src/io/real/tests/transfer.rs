//! Reads, writes and syncs.

use super::{SMALL, backends, formatted, open};
use crate::io::{AlignedBuf, BLOCK, Device, Directory, FileKind};
use futures::executor::block_on;
use futures::future::join_all;
use std::io::ErrorKind;

/// A block whose content is its number.
fn block(number: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(BLOCK);
    for (place, chunk) in buf.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&(number * 1_000_003 + place as u64).to_le_bytes());
    }
    buf
}

fn read(device: &dyn Device, offset: u64, bytes: usize) -> AlignedBuf {
    let (result, buf) = block_on(device.read(offset, AlignedBuf::zeroed(bytes)));
    result.unwrap();
    buf
}

#[test]
fn what_is_written_is_read_back_by_any_backend_after_a_reopen() {
    for writer in backends() {
        for reader in backends() {
            let (_parent, path) = formatted(&SMALL);
            for kind in FileKind::ALL {
                let device = open(&path, writer, kind);
                block_on(device.write(8192, block(7))).0.unwrap();
                block_on(device.sync()).unwrap();
                assert_eq!(*read(&*device, 8192, BLOCK), *block(7));
                drop(device);
                let device = open(&path, reader, kind);
                assert_eq!(*read(&*device, 8192, BLOCK), *block(7));
                assert_eq!(*read(&*device, 4096, BLOCK), *AlignedBuf::zeroed(BLOCK));
            }
        }
    }
}

#[test]
fn far_more_operations_than_the_ring_holds_all_complete() {
    for backend in backends() {
        let (_parent, path) = formatted(&SMALL);
        let device = open(&path, backend, FileKind::Data);
        let blocks = SMALL.data_bytes / BLOCK as u64;
        // Each future is created, and so each write queued, before the first is polled.
        let writes: Vec<_> =
            (0..blocks).map(|i| device.write(i * BLOCK as u64, block(i))).collect();
        for (result, buf) in block_on(join_all(writes)) {
            result.unwrap();
            assert_eq!(buf.len(), BLOCK);
        }
        block_on(device.sync()).unwrap();
        let reads = (0..blocks).map(|i| device.read(i * BLOCK as u64, AlignedBuf::zeroed(BLOCK)));
        for (i, (result, buf)) in block_on(join_all(reads)).into_iter().enumerate() {
            result.unwrap();
            assert_eq!(*buf, *block(i as u64), "block {i}");
        }
    }
}

#[test]
fn operations_of_several_threads_do_not_mix() {
    for backend in backends() {
        let (_parent, path) = formatted(&SMALL);
        let device = open(&path, backend, FileKind::Data);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    for i in (thread..400).step_by(4) {
                        block_on(device.write(i * BLOCK as u64, block(i))).0.unwrap();
                        assert_eq!(*read(&**device, i * BLOCK as u64, BLOCK), *block(i));
                    }
                });
            }
        });
    }
}

#[test]
fn a_transfer_larger_than_one_kernel_call_is_complete() {
    for backend in backends() {
        let (_parent, path) = formatted(&SMALL);
        let device = open(&path, backend, FileKind::Data);
        let mut buf = AlignedBuf::zeroed(SMALL.data_bytes as usize);
        for (i, part) in buf.chunks_exact_mut(BLOCK).enumerate() {
            part.copy_from_slice(&block(i as u64));
        }
        let (result, written) = block_on(device.write(0, buf));
        result.unwrap();
        assert!(*read(&*device, 0, written.len()) == *written);
    }
}

#[test]
fn an_operation_past_the_end_is_an_error_and_the_file_does_not_grow() {
    for backend in backends() {
        let (_parent, path) = formatted(&SMALL);
        let device = open(&path, backend, FileKind::Journal);
        let end = SMALL.journal_bytes;
        assert_eq!(device.size(), end);
        for (offset, bytes) in
            [(end, BLOCK), (end - BLOCK as u64, 2 * BLOCK), (u64::MAX - 4095, BLOCK)]
        {
            let (result, buf) = block_on(device.read(offset, AlignedBuf::zeroed(bytes)));
            assert_eq!((result.unwrap_err().kind(), buf.len()), (ErrorKind::UnexpectedEof, bytes));
            let (result, buf) = block_on(device.write(offset, AlignedBuf::zeroed(bytes)));
            assert_eq!((result.unwrap_err().kind(), buf.len()), (ErrorKind::UnexpectedEof, bytes));
        }
        assert_eq!(std::fs::metadata(path.join("journal")).unwrap().len(), end);
    }
}

#[test]
fn a_file_truncated_under_us_gives_an_error_and_not_a_short_read() {
    for backend in backends() {
        let (_parent, path) = formatted(&SMALL);
        let device = open(&path, backend, FileKind::Journal);
        std::fs::OpenOptions::new()
            .write(true)
            .open(path.join("journal"))
            .unwrap()
            .set_len(8192)
            .unwrap();
        for offset in [0, 8192] {
            let (result, _) = block_on(device.read(offset, AlignedBuf::zeroed(16384)));
            assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    }
}

/// Lengths need no such test: a buffer is made of whole blocks.
#[test]
fn an_unaligned_offset_is_refused() {
    for backend in backends() {
        let (_parent, path) = formatted(&SMALL);
        let device = open(&path, backend, FileKind::Journal);
        let (result, _) = block_on(device.write(512, AlignedBuf::zeroed(BLOCK)));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(AlignedBuf::zeroed(1).len(), BLOCK);
        assert_eq!(AlignedBuf::copied_from(&[7; BLOCK + 1]).len(), 2 * BLOCK);
    }
}

#[test]
fn a_write_whose_future_and_device_are_dropped_still_lands() {
    for backend in backends() {
        let (_parent, path) = formatted(&SMALL);
        let device = open(&path, backend, FileKind::Data);
        for i in 0..1000 {
            drop(device.write(i * BLOCK as u64, block(i)));
        }
        drop(device);
        // The lock is free only after all of them have ended.
        let device = open(&path, backend, FileKind::Data);
        for i in 0..1000 {
            assert_eq!(*read(&*device, i * BLOCK as u64, BLOCK), *block(i), "block {i}");
        }
    }
}

#[test]
fn a_future_resolves_after_its_device_and_directory_are_gone() {
    for backend in backends() {
        let (_parent, path) = formatted(&SMALL);
        let directory = super::FileDirectory::open(&path, backend).unwrap();
        let device = directory.open(FileKind::Data).unwrap();
        let writes: Vec<_> = (0..500).map(|i| device.write(i * BLOCK as u64, block(i))).collect();
        let sync = device.sync();
        drop((directory, device));
        assert!(block_on(join_all(writes)).into_iter().all(|(result, _)| result.is_ok()));
        block_on(sync).unwrap();
    }
}
