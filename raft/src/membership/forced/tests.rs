//! A survivor's directory when the machine loses power, or the process dies, at any operation.

use super::*;
use crate::core::types::{Proposal, StoredMembership, raft_log_id};
use bytes::Bytes;
use cairn_engine::io::{AlignedBuf, Device, Directory, FileKind, IoFuture};
use cairn_engine::{Geometry, Identity, KernelBootId, MemberState, Options, Transition};
use parking_lot::Mutex;
use std::future::ready;
use std::io;
use std::sync::Arc;

type Files = BTreeMap<FileKind, Vec<u8>>;

/// Files in memory that keep apart what is synced. Clones share them.
#[derive(Clone)]
struct Disk(Arc<Mutex<Contents>>);

struct Contents {
    written: Files,
    synced: Files,
    /// How many writes and syncs still work.
    left: usize,
}

impl Disk {
    fn of(files: Files, left: usize) -> Disk {
        Disk(Arc::new(Mutex::new(Contents { written: files.clone(), synced: files, left })))
    }

    fn blank(geometry: &Geometry) -> Disk {
        let file = |kind| (kind, vec![0; geometry.bytes_of(kind) as usize]);
        Disk::of(FileKind::ALL.into_iter().map(file).collect(), usize::MAX)
    }

    /// What is there afterwards: with power lost what was synced, else everything that was written.
    fn after(&self, power_lost: bool) -> Files {
        let contents = self.0.lock();
        if power_lost { contents.synced.clone() } else { contents.written.clone() }
    }

    fn limit(&self, operations: usize) {
        self.0.lock().left = operations;
    }

    fn ended(&self) -> bool {
        self.0.lock().left == 0
    }
}

struct File {
    kind: FileKind,
    disk: Disk,
}

impl File {
    fn with<T>(&self, operate: impl FnOnce(&mut Contents) -> T) -> io::Result<T> {
        let mut contents = self.disk.0.lock();
        contents.left = contents.left.checked_sub(1).ok_or_else(|| io::Error::other("ended"))?;
        Ok(operate(&mut contents))
    }
}

impl Device for File {
    fn size(&self) -> u64 {
        self.disk.0.lock().written[&self.kind].len() as u64
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (from, len) = (offset as usize, buf.len());
        buf.copy_from_slice(&self.disk.0.lock().written[&self.kind][from..from + len]);
        Box::pin(ready((Ok(()), buf)))
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<(io::Result<()>, AlignedBuf)> {
        let (from, len) = (offset as usize, buf.len());
        let written = self.with(|contents| {
            let file = contents.written.get_mut(&self.kind).unwrap();
            file[from..from + len].copy_from_slice(&buf);
        });
        Box::pin(ready((written, buf)))
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        Box::pin(ready(self.with(|contents| {
            let file = contents.written[&self.kind].clone();
            contents.synced.insert(self.kind, file);
        })))
    }
}

impl Directory for Disk {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(File { kind, disk: self.clone() }))
    }

    fn location(&self) -> String {
        "memory".into()
    }

    fn backend(&self) -> &'static str {
        "memory"
    }
}

/// Each on a machine that was started anew.
async fn open(disk: &Disk, boot: u128) -> Engine {
    let options = Options::new(Mode::Replicated, KernelBootId(boot), boot as u64);
    let engine = Engine::open(Arc::new(disk.clone()), None, options).await.unwrap();
    // Only what is promised so is synced.
    engine.set_safe_acks(false);
    engine
}

async fn append(engine: &Engine, id: LogId, payload: Payload) {
    let (meta, values) = codec::encode_payload(payload);
    let (sender, synced) = futures::channel::oneshot::channel();
    let done = Box::new(move |result| drop(sender.send(result)));
    let entries = vec![NewEntry { id, meta, values }];
    engine.append(GROUP, entries, Promise::Synced, done).await.unwrap();
    synced.await.unwrap().unwrap();
}

fn node(slot: u16) -> NodeId {
    NodeId::new(slot, slot.into())
}

fn address() -> MemberAddress {
    MemberAddress { peer: "here:1".into(), client: "here:2".into() }
}

fn voters(slots: std::ops::RangeInclusive<u16>) -> Membership {
    let voters: BTreeSet<NodeId> = slots.map(node).collect();
    let nodes = voters.iter().map(|id| (*id, MemberAddress::default()));
    Membership::new(vec![voters.clone()], nodes.collect::<BTreeMap<_, _>>()).unwrap()
}

const LAST: LogId = LogId { term: 3, index: 2 };
const VOTED: u64 = 5;

/// Member 1 of three, and of five by the last entry of its log, which it has not applied. It lost
/// power, and recovers.
async fn survivor() -> Files {
    let geometry = Geometry::for_total(16 << 20).unwrap();
    let disk = Disk::blank(&geometry);
    let identity = Identity { cluster: "suite".into(), slot: 1, incarnation: 1 };
    Engine::format(&disk, geometry, &identity).await.unwrap();
    let engine = open(&disk, 1).await;
    let (first, second) = (LogId { term: 1, index: 0 }, LogId { term: 3, index: 1 });
    append(&engine, first, Payload::Membership(voters(1..=3))).await;
    append(&engine, second, Payload::Normal(codec::encode_mode(Mode::Replicated))).await;
    append(&engine, LAST, Payload::Membership(voters(1..=5))).await;
    let membership = StoredMembership::new(Some(raft_log_id(first)), voters(1..=3));
    let image = Image { membership: Arc::new(membership), ..Image::default() };
    let applied = Transition { applied: first, changes: Vec::new() };
    engine.apply(GROUP, vec![applied], Arc::new(image)).unwrap();
    engine.save_vote(GROUP, &encode_vote(&Vote::new(VOTED, node(2)))).await.unwrap();
    engine.set_recovering().await.unwrap();
    engine.close().await.unwrap();
    disk.after(true)
}

/// Whether this member is the only voter. Then it is elected as soon as it starts, and everything
/// else of the new cluster must be there.
fn is_new_cluster(engine: &Engine, generation: u32) -> bool {
    let survivor = Survivor::of(engine).unwrap();
    let (last, vote) = (survivor.last_log.unwrap(), stored_vote(engine).unwrap().unwrap());
    assert!(vote.leader_id().term() >= last.term, "openraft's log never leads its vote");
    if survivor.voters.len() > 1 {
        return false;
    }
    assert_eq!(survivor.voters, BTreeMap::from([(node(1), address())]));
    assert_eq!(engine.generation(), generation);
    assert_eq!(engine.member_state(), MemberState::Active);
    assert_eq!(*vote.leader_id().node_id(), node(1));
    assert!(last.term > VOTED, "a vote of another may have been a majority's");
    let metas = engine.read_metas(GROUP, last.index - 3..last.index + 1, 4);
    let [(begin, blank), (_, loss), (_, mode), _] = metas.as_slice() else { panic!("{metas:?}") };
    assert_eq!(begin.term, last.term, "one term for all four");
    assert_eq!(LogRecord::decode(blank), Ok(LogRecord::Blank));
    assert!(matches!(LogRecord::decode(loss), Ok(LogRecord::UnsafeRecovery(_))));
    assert_eq!(LogRecord::decode(mode), Ok(LogRecord::Mode(Mode::Sync)));
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_survivor_knows_the_voters_of_the_last_membership_in_its_log() {
    let engine = open(&Disk::of(survivor().await, usize::MAX), 2).await;
    let survivor = Survivor::of(&engine).unwrap();
    assert_eq!(
        survivor.voters.keys().copied().collect::<Vec<_>>(),
        (1..=5).map(node).collect::<Vec<_>>()
    );
    assert_eq!(survivor.configurations.len(), 1);
    assert_eq!((survivor.id, survivor.last_log), (node(1), Some(LAST)));
}

/// Such a directory is left for the release that can read it.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_whose_end_needs_a_later_release_makes_no_cluster() {
    let next = LogId { index: LAST.index + 1, ..LAST };
    let later = codec::encode_version(version::VERSION + 1);
    let unknown = Proposal { meta: Bytes::from_static(&[200, 1]), values: Vec::new() };
    for record in [later, unknown] {
        let disk = Disk::of(survivor().await, usize::MAX);
        let engine = open(&disk, 2).await;
        append(&engine, next, Payload::Normal(record)).await;
        let refused = [
            Survivor::of(&engine).err().map(|error| error.to_string()),
            force_new_cluster(&engine, address(), 7).await.err().map(|error| error.to_string()),
        ];
        for refused in refused {
            let refused = refused.expect("a refusal");
            assert!(refused.contains("later"), "{refused}");
        }
        assert_eq!((engine.generation(), engine.log_bounds(GROUP).last), (0, Some(next)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_it_on_the_way_there_is_the_old_member_or_the_whole_new_cluster() {
    let base = survivor().await;
    for operations in 0.. {
        let disk = Disk::of(base.clone(), usize::MAX);
        let engine = open(&disk, 2).await;
        disk.limit(operations);
        let done = force_new_cluster(&engine, address(), 7).await.is_ok();
        let ended = disk.ended();
        disk.limit(0);
        drop(engine);
        for power_lost in [true, false] {
            let what = format!("{operations} operations, power lost: {power_lost}");
            let left = Disk::of(disk.after(power_lost), usize::MAX);
            let engine = open(&left, 3).await;
            match engine.generation() {
                7 => {
                    let is_new = is_new_cluster(&engine, 7);
                    assert!(is_new || !done, "{what}");
                }
                generation => {
                    assert_eq!((generation, done), (0, false), "{what}");
                    assert_eq!(engine.log_bounds(GROUP).last, Some(LAST), "{what}");
                    let vote = stored_vote(&engine).unwrap();
                    assert_eq!(vote, Some(Vote::new(VOTED, node(2))), "{what}");
                }
            }
            force_new_cluster(&engine, address(), 9).await.unwrap();
            assert!(is_new_cluster(&engine, 9), "{what}");
        }
        assert!(done || ended, "it failed on a disk that works");
        if done && !ended {
            break;
        }
    }
}
