//! Reads that fail once, by which nothing may be lost; and reads that fail for good, by which
//! nothing else may be lost.

use crate::support::{Disk, Fate, geometry, identity, place, run, stored};
use bytes::Bytes;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{
    Change, Engine, Error, Extent, GroupId, KernelBootId, LogId, MemberState, Mode, NewEntry,
    Options, Promise, SharedImage, Transition,
};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

const GROUP: GroupId = GroupId(0);
const ENTRIES: u64 = 40;

async fn open(disk: &Disk, boot: u128, salvage: bool) -> cairn_engine::Result<Engine> {
    let mode = Mode::Sync;
    open_with(disk, salvage, Options::new(mode, KernelBootId(boot), 1)).await
}

async fn open_with(disk: &Disk, salvage: bool, options: Options) -> cairn_engine::Result<Engine> {
    let sync_interval = match options.mode {
        Mode::Sync => Duration::from_millis(1),
        _ => Duration::from_secs(3600),
    };
    let options = Options { sync_interval, salvage, log_cache_bytes: 0, ..options };
    Engine::open(Arc::new(disk.clone()), None, options).await
}

fn id(index: u64) -> LogId {
    LogId { term: 1, index }
}

fn value(index: u64) -> Bytes {
    Bytes::from(vec![index as u8 + 1; 1500])
}

async fn append(engine: &Engine, index: u64, meta: usize) {
    append_value(engine, index, meta, value(index)).await;
}

async fn append_value(engine: &Engine, index: u64, meta: usize, value: Bytes) {
    let (done, written) = oneshot::channel();
    let entry = NewEntry::new(id(index), vec![7; meta], vec![value]);
    engine
        .append(GROUP, vec![entry], Promise::Mode, Box::new(move |r| drop(done.send(r))))
        .await
        .unwrap();
    written.await.unwrap().unwrap();
    let changes = vec![Change::Put { key: format!("k{index}").into(), value: 0 }];
    let image: SharedImage = Arc::new(vec![index as u8]);
    engine.apply(GROUP, vec![Transition { applied: id(index), changes }], image).unwrap();
}

/// Writes entries 0 to 39, with checkpoints after 10 and 20; then the process dies. Returns the
/// number of journal blocks.
async fn killed(meta: usize) -> (Disk, u64) {
    let disk = Disk::new(geometry());
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let engine = open(&disk, 1, false).await.unwrap();
    for index in 0..ENTRIES {
        append(&engine, index, meta).await;
        if index == 10 || index == 20 {
            engine.checkpoint().await.unwrap();
        }
    }
    let blocks = engine.status().written_sequence;
    drop(engine);
    disk.kill(Fate::Kept);
    (disk, blocks)
}

/// Active and complete, with every value.
async fn check_complete(engine: &Engine, what: &str) {
    assert_eq!(engine.member_state(), MemberState::Active, "{what}");
    assert_eq!(engine.log_bounds(GROUP).last, Some(id(ENTRIES - 1)), "{what}");
    for index in 0..ENTRIES {
        let (_, bytes) = engine.get(GROUP, format!("k{index}").as_bytes()).await.unwrap().unwrap();
        // The checkpoint covers keys up to here. The rest is in the log and not yet applied.
        assert_eq!(bytes, value(index), "{what}");
        if index == 20 {
            break;
        }
    }
}

/// The story: an open misread one journal block, once, as over a bad cable. It took the block for
/// damaged, dropped everything behind it and recovered from its peers. After a power cut it would
/// have been worse: a misread newest block would have passed for a torn one, and its content would
/// have been lost unnoticed.
#[test]
fn a_journal_block_misread_once_costs_nothing_whichever_it_is_and_however_the_machine_stopped() {
    run(async {
        let (_, blocks) = killed(10).await;
        for block in 1..=blocks {
            for (boot, salvage) in [(1, true), (2, true), (1, false), (2, false)] {
                let (disk, _) = killed(10).await;
                disk.core.lock().unwrap().misread.push((FileKind::Journal, block));
                let what = format!("block {block} of {blocks}, boot {boot}, salvage {salvage}");
                let engine = open(&disk, boot, salvage)
                    .await
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                check_complete(&engine, &what).await;
            }
        }
    });
}

/// A power cut may leave two copies of the superblock that differ from the others. Then a misread
/// must not cost a third one.
#[test]
fn a_superblock_copy_misread_once_costs_nothing() {
    run(async {
        let (disk, _) = killed(10).await;
        for copy in [0, 4] {
            disk.damage(FileKind::Superblock, |bytes| bytes[copy * BLOCK + 50] ^= 1);
        }
        disk.core.lock().unwrap().misread.push((FileKind::Superblock, 8));
        check_complete(&open(&disk, 1, false).await.unwrap(), "copy 2").await;
    });
}

#[test]
fn a_checkpoint_misread_once_costs_nothing() {
    run(async {
        for block in 0..4 {
            let (disk, _) = killed(10).await;
            for file in [FileKind::Checkpoint0, FileKind::Checkpoint1] {
                disk.core.lock().unwrap().misread.push((file, block));
            }
            let engine = open(&disk, 1, true).await.unwrap();
            check_complete(&engine, &format!("block {block}")).await;
        }
    });
}

#[test]
fn a_value_misread_once_is_read_right_and_not_counted_as_damage() {
    run(async {
        let (disk, _) = killed(10).await;
        let engine = open(&disk, 1, false).await.unwrap();
        let blocks = geometry().data_bytes / BLOCK as u64;
        disk.core.lock().unwrap().misread =
            (0..blocks).map(|block| (FileKind::Data, block)).collect();
        check_complete(&engine, "misread").await;
        assert_eq!(engine.status().corrupt_values, 0);
    });
}

/// The story: both copies of a checkpoint's header were read by one request, so one unreadable
/// block hid both. With one such block in each area a directory had no checkpoint any more, and
/// dropped everything.
#[test]
fn an_unreadable_copy_of_a_checkpoints_header_does_not_hide_the_other() {
    run(async {
        for block in 0..2 {
            let (disk, _) = killed(10).await;
            for file in [FileKind::Checkpoint0, FileKind::Checkpoint1] {
                disk.wear_out([(file, block)]);
            }
            let engine = open(&disk, 1, false).await.unwrap();
            check_complete(&engine, &format!("copy {block}")).await;
        }
    });
}

#[test]
fn an_unreadable_journal_block_that_is_not_needed_costs_nothing_and_one_that_is_needed_is_damage() {
    run(async {
        // How many blocks the journal has differs between runs: syncs go by the clock.
        // Behind the journal's end, and behind what may have been in flight; and before the
        // checkpoint.
        for place in [|blocks| blocks + 20, |_| 250, |_| 1] {
            let (disk, blocks) = killed(10).await;
            let block = place(blocks);
            disk.wear_out([(FileKind::Journal, block)]);
            let engine = open(&disk, 1, false).await.unwrap();
            check_complete(&engine, &format!("block {block} of {blocks}")).await;
        }
        // The newest block too: without it, it cannot be known whether it held something
        // acknowledged.
        for (back, boot) in [(0, 1), (0, 2), (3, 1), (3, 2)] {
            let (disk, blocks) = killed(10).await;
            let block = blocks - back;
            disk.wear_out([(FileKind::Journal, block)]);
            let refused = open(&disk, boot, false).await.err().unwrap();
            assert!(
                matches!(&refused, Error::Corrupt(at) if at.file == FileKind::Journal),
                "{refused}"
            );
            let engine = open(&disk, boot, true).await.unwrap();
            assert_eq!(engine.member_state(), MemberState::Recovering, "block {block}");
        }
    });
}

/// The story: the body of a long entry is stored in the data area. When the device could not read
/// it at open, a member with peers refused to start, although damage of the same bytes only made it
/// recover from them.
#[test]
fn an_unreadable_body_is_damage_like_any_other() {
    run(async {
        let (disk, _) = killed(2000).await;
        let engine = open(&disk, 1, false).await.unwrap();
        let extents = engine.extents(GROUP, 0..u64::MAX).await;
        let is_body = |extent: &&Extent| extent.log_id == id(35) && extent.at.len > 1500;
        let body = extents.iter().find(is_body).unwrap().at.offset();
        drop(engine);
        disk.kill(Fate::Kept);
        disk.wear_out([(FileKind::Data, body / BLOCK as u64)]);
        assert!(matches!(open(&disk, 1, false).await, Err(Error::Corrupt(_))));
        let engine = open(&disk, 1, true).await.unwrap();
        assert_eq!(engine.member_state(), MemberState::Recovering);
        assert!(engine.log_bounds(GROUP).last < Some(id(35)));
    });
}

/// The story: the newest value was acknowledged, and no later block said so yet, when the process was
/// killed. The device could not read it at the next open. It passed for a write in flight that was cut, and
/// the member stayed active without what it had acknowledged.
#[test]
fn an_unreadable_newest_value_or_body_is_damage_and_not_a_write_that_was_cut() {
    run(async {
        // What lies in the data area: the value, the body and the value, the body.
        for (meta, bytes, part) in
            [(10, 20_000, 0), (2000, 20_000, 0), (2000, 20_000, 1), (2000, 10, 0)]
        {
            for boot in [1, 2] {
                let (disk, _) = killed(10).await;
                let engine = open(&disk, 1, false).await.unwrap();
                append_value(&engine, ENTRIES, meta, vec![9; bytes].into()).await;
                let extents = engine.extents(GROUP, 0..u64::MAX).await;
                let of_it = |extent: &&Extent| extent.log_id == id(ENTRIES);
                let block =
                    extents.iter().filter(of_it).nth(part).unwrap().at.offset() / BLOCK as u64;
                drop(engine);
                disk.kill(Fate::Kept);
                let what = format!("meta {meta}, value {bytes}, part {part}, boot {boot}");
                disk.wear_out([(FileKind::Data, block)]);
                let refused = open(&disk, boot, false).await.err();
                assert!(matches!(refused, Some(Error::Corrupt(_))), "{what}: {refused:?}");
                let engine = open(&disk, boot, true).await.unwrap();
                assert_eq!(engine.member_state(), MemberState::Recovering, "{what}");
            }
        }
    });
}

/// Writes values that share blocks; then the process dies.
async fn neighbours() -> Disk {
    let disk = Disk::new(geometry());
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let engine = open(&disk, 1, false).await.unwrap();
    let (done, written) = oneshot::channel();
    let values: Vec<Bytes> = (0..8).map(value).collect();
    let entry = NewEntry::new(id(0), Bytes::new(), values);
    engine
        .append(GROUP, vec![entry], Promise::Mode, Box::new(move |r| drop(done.send(r))))
        .await
        .unwrap();
    written.await.unwrap().unwrap();
    drop(engine);
    disk.kill(Fate::Kept);
    disk
}

/// The story: repairing a value writes its whole blocks back, including the neighbours' bytes as
/// read. If one of them was misread at that moment, the repair made the neighbour wrong for good.
#[test]
fn a_neighbour_misread_during_a_repair_is_not_damaged() {
    run(async {
        let disk = neighbours().await;
        let engine = open(&disk, 1, false).await.unwrap();
        let clean = disk.bytes(FileKind::Data);
        let extents = engine.extents(GROUP, 0..u64::MAX).await;
        assert!(
            extents.iter().any(|one| one.at.offset() % BLOCK as u64 != 0),
            "no extent shares a block: {extents:?}"
        );
        for extent in extents {
            let right = stored(&clean, &extent.at);
            let damaged = place(&extent.at, 7);
            let segments = extent.at.segments();
            let blocks = segments.flat_map(|s| s.start / BLOCK as u64..=(s.end - 1) / BLOCK as u64);
            // The first reads find the value damaged; the next ones are for the rewrite.
            for (block, reads_before) in
                blocks.flat_map(|block| (0..6).map(move |before| (block, before)))
            {
                disk.damage(FileKind::Data, |bytes| bytes[damaged] ^= 1);
                {
                    let mut core = disk.core.lock().unwrap();
                    (core.misread, core.misread_after) =
                        (vec![(FileKind::Data, block)], reads_before);
                }
                assert!(engine.repair(GROUP, &extent, &right).await.unwrap());
                let what = format!("{extent:?}, block {block} after {reads_before} reads");
                assert!(disk.bytes(FileKind::Data) == clean, "{what}");
            }
        }
    });
}

/// A disk whose journal carries a value that shares a block with another one, at its place by now;
/// that block, and the carried bytes in it. Nothing is synced by itself.
async fn beside_a_carried_value() -> (Disk, u64, Range<usize>) {
    let disk = Disk::new(geometry());
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let engine = open_with(&disk, false, unsynced()).await.unwrap();
    // Too short to reach the byte that is misread.
    let carried = Bytes::from_static(&[3; 500]);
    let values = [vec![carried], vec![Bytes::from_static(&[9; 9000]), value(1)]];
    for (index, values) in values.into_iter().enumerate() {
        let (done, written) = oneshot::channel();
        let entry = NewEntry::new(id(index as u64), Bytes::new(), values);
        let done = Box::new(move |result| drop(done.send(result)));
        engine.append(GROUP, vec![entry], Promise::Mode, done).await.unwrap();
        written.await.unwrap().unwrap();
    }
    let carried = engine.values_of(GROUP, 0).unwrap().remove(0);
    let beside = engine.values_of(GROUP, 1).unwrap().remove(1);
    let block = carried.offset() / BLOCK as u64;
    let bytes = place(&carried, 0)..place(&carried, 499) + 1;
    assert_eq!(block, beside.offset() / BLOCK as u64);
    drop(engine);
    disk.kill(Fate::Kept);
    (disk, block, bytes)
}

fn unsynced() -> Options {
    Options::new(Mode::Device, KernelBootId(1), 1)
}

/// How many reads an open of this disk does. It reads the blocks of carried values at the end.
async fn reads_of_an_open(disk: &Disk) -> u64 {
    let disk = disk.copy();
    drop(open_with(&disk, false, unsynced()).await.unwrap());
    disk.core.lock().unwrap().reads
}

/// As above, for an open: it puts what the journal carries, and the block lacks, into the block as it
/// reads it. A group commit that took along what waited shares a block with it.
#[test]
fn a_neighbour_misread_while_a_carried_value_is_put_at_its_place_is_not_damaged() {
    run(async {
        let (disk, block, carried) = beside_a_carried_value().await;
        let clean = disk.bytes(FileKind::Data);
        disk.damage(FileKind::Data, |bytes| bytes[carried].fill(0));
        let reads = reads_of_an_open(&disk).await as u32;
        for reads_before in reads - 12..reads {
            let disk = disk.copy();
            {
                let mut core = disk.core.lock().unwrap();
                core.misread = vec![(FileKind::Data, block)];
                core.misread_after = reads_before;
            }
            drop(open_with(&disk, false, unsynced()).await.unwrap());
            assert!(disk.bytes(FileKind::Data) == clean, "after {reads_before} reads");
        }
    });
}

/// The story: a read of such a block timed out. It passed for zeros, and the open wrote them over the
/// neighbour.
#[test]
fn a_neighbour_whose_read_never_returns_is_not_damaged() {
    run(async {
        let (disk, ..) = beside_a_carried_value().await;
        let clean = disk.bytes(FileKind::Data);
        let mut failed = 0;
        for reads_before in 0..reads_of_an_open(&disk).await {
            let disk = disk.copy();
            disk.core.lock().unwrap().hang_reads = Some((FileKind::Data, reads_before));
            let options = Options { io_timeout: Duration::from_millis(20), ..unsynced() };
            failed += u64::from(open_with(&disk, false, options).await.is_err());
            assert!(disk.bytes(FileKind::Data) == clean, "after {reads_before} reads");
        }
        assert!(failed > 0, "no read of the data hung");
    });
}
