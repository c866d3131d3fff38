//! Checkpoints of what changed: what they cost, when they are written, and what a restart makes of them.

use crate::support::store::{GROUP, append, entry, filled, fresh, id, image, options, put_one};
use crate::support::{Disk, Fate, Random, geometry, identity, long_journal, run};
use bytes::Bytes;
use cairn_engine::io::FileKind;
use cairn_engine::{Change, Engine, ListQuery, Mode, Transition};
use std::collections::BTreeMap;
use std::sync::Arc;

const KEYS: u64 = 3000;
const MODE: Mode = Mode::Replicated;
const CHECKPOINTS: [FileKind; 2] = [FileKind::Checkpoint0, FileKind::Checkpoint1];

/// An engine, and what it should hold.
struct Store {
    disk: Disk,
    engine: Engine,
    next: u64,
    model: BTreeMap<String, Bytes>,
}

impl Store {
    /// Both areas hold all of the state in one part.
    async fn new() -> Store {
        let (disk, engine) = fresh(MODE).await;
        let mut store = Store { disk, engine, next: 0, model: BTreeMap::new() };
        for key in 0..KEYS {
            store.put(key).await;
        }
        // The journal filled meanwhile, so there were checkpoints, and what they wrote depends on when
        // they were. The first two after an open are whole.
        store.checkpoint().await;
        store.again(Fate::Kept).await.unwrap();
        for _ in 0..2 {
            store.checkpoint().await;
            assert_eq!(store.parts(), 1);
        }
        store
    }

    async fn put(&mut self, key: u64) {
        self.put_bytes(key, 40).await;
    }

    async fn put_bytes(&mut self, key: u64, bytes: usize) {
        let (name, value) = (format!("key {key:05}"), filled(bytes, self.next));
        put_one(&self.engine, self.next, &name, value.clone()).await.unwrap();
        self.model.insert(name, value);
        self.next += 1;
    }

    async fn delete(&mut self, key: u64) {
        let name = format!("key {key:05}");
        append(&self.engine, vec![entry(self.next, Bytes::new())]).await.unwrap();
        let changes = vec![Change::Delete { key: Bytes::from(name.clone()) }];
        let transition = Transition { applied: id(self.next), changes };
        self.engine.apply(GROUP, vec![transition], image(self.next)).unwrap();
        self.model.remove(&name);
        self.next += 1;
    }

    /// Takes a checkpoint, and purges the log. Returns what was written to the areas.
    async fn checkpoint(&mut self) -> u64 {
        let written = || {
            let written = &self.disk.core.lock().unwrap().written;
            CHECKPOINTS.iter().filter_map(|file| written.get(file)).sum::<u64>()
        };
        let before = written();
        self.engine.checkpoint().await.unwrap();
        let bytes = written() - before;
        self.engine.purge(GROUP, id(self.next - 1)).await.unwrap();
        bytes
    }

    /// Flips a bit in the first part of the newest checkpoint, or in its last one.
    fn damage_newest(&self, first: bool) {
        let areas = CHECKPOINTS.map(|file| {
            let header = self.disk.bytes(file);
            let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
            // Its number, and where its newest part begins.
            (number(40), number(100), file)
        });
        let (_, newest_at, file) = areas.into_iter().max().unwrap();
        let at = if first { 8192 } else { newest_at.max(8192) };
        self.disk.damage(file, |bytes| bytes[at as usize + 30] ^= 1);
    }

    /// Ends the process or the machine, and opens the directory again.
    async fn again(&mut self, fate: Fate) -> cairn_engine::Result<()> {
        self.disk.kill(fate);
        self.engine = Engine::open(Arc::new(self.disk.clone()), None, options(MODE)).await?;
        Ok(())
    }

    /// The keys and values are those of the model.
    async fn check(&self) {
        let query = ListQuery { limit: usize::MAX, max_bytes: u64::MAX, ..ListQuery::default() };
        let view = self.engine.view(GROUP);
        let mut found = BTreeMap::new();
        for item in view.list(&query).items {
            let value = view.read(&item.entry).await.unwrap();
            found.insert(String::from_utf8(item.key.to_vec()).unwrap(), value);
        }
        assert_eq!(found, self.model);
        assert_eq!(self.engine.applied(GROUP), Some(id(self.next - 1)));
    }

    fn parts(&self) -> u64 {
        self.engine.status().checkpoint_parts
    }

    /// The version that the superblock names, and those of both checkpoints.
    fn formats(&self) -> [u8; 3] {
        [FileKind::Superblock, FileKind::Checkpoint0, FileKind::Checkpoint1]
            .map(|file| self.disk.bytes(file)[8])
    }
}

#[test]
fn a_checkpoint_writes_what_changed_and_a_restart_finds_all() {
    run(async {
        let mut store = Store::new().await;
        let whole = KEYS * 40;
        let mut random = Random(7);
        let mut most_parts = 0;
        for round in 0..20 {
            for _ in 0..5 {
                store.put(random.below(KEYS)).await;
                store.delete(random.below(KEYS)).await;
            }
            let bytes = store.checkpoint().await;
            if store.parts() > 1 {
                assert!(bytes < whole / 4, "{bytes} of {whole} bytes in round {round}");
            }
            most_parts = most_parts.max(store.parts());
            if round % 7 == 6 {
                store.again(Fate::Kept).await.unwrap();
                assert_eq!(store.parts(), 0, "nothing is added to what an earlier process wrote");
            }
            store.check().await;
        }
        assert!(most_parts > 2, "{most_parts} parts at most");
    });
}

#[test]
fn a_directory_is_of_format_3_once_a_checkpoint_may_have_several_parts_and_not_before() {
    run(async {
        let disk = Disk::new(geometry());
        Engine::format(&disk, geometry(), &identity()).await.unwrap();
        let engine = Engine::open(Arc::new(disk.clone()), None, options(MODE)).await.unwrap();
        let mut store = Store { disk, engine, next: 0, model: BTreeMap::new() };
        for key in 0..KEYS {
            store.put(key).await;
        }
        for key in 0..4 {
            store.put(key).await;
            store.checkpoint().await;
            assert_eq!((store.parts(), store.formats()), (1, [2, 2, 2]));
        }
        store.engine.raise_format();
        assert_eq!(store.formats(), [2, 2, 2]);
        for key in 0..3 {
            store.put(key).await;
            store.checkpoint().await;
        }
        assert!(store.parts() > 1);
        assert_eq!(store.formats(), [3, 3, 3]);
        store.again(Fate::Kept).await.unwrap();
        store.check().await;
        // Nobody says again that it may be.
        for key in 0..4 {
            store.put(key).await;
            store.checkpoint().await;
        }
        assert!(store.parts() > 1);
        assert_eq!(store.formats(), [3, 3, 3]);
    });
}

#[test]
fn damage_in_any_part_costs_the_newest_checkpoint_and_the_next_one_there_is_whole() {
    run(async {
        for first in [true, false] {
            let mut store = Store::new().await;
            for key in 0..4 {
                store.put(key).await;
                store.delete(key + 100).await;
                store.checkpoint().await;
            }
            let parts = store.parts();
            assert!(parts > 1, "{parts}");
            store.damage_newest(first);
            store.again(Fate::Kept).await.unwrap();
            // The older one and the longer journal: what the checkpoint had is applied again.
            let applied = store.engine.applied(GROUP).map(|id| id.index);
            assert!(applied < Some(store.next - 1), "{applied:?}");
        }
    });
}

#[test]
fn a_scrub_finds_damage_in_a_part_and_the_next_checkpoints_are_whole() {
    run(async {
        let mut store = Store::new().await;
        for key in 0..6 {
            store.put(key).await;
            store.checkpoint().await;
        }
        assert!(store.parts() > 1);
        for file in CHECKPOINTS {
            store.disk.damage(file, |bytes| bytes[8192 + 50] ^= 1);
        }
        let check = async |store: &Store| {
            let checked = store.engine.check_checkpoints(&|_| Box::pin(async {})).await;
            checked.damaged.len()
        };
        assert_eq!(check(&store).await, 2);
        for _ in 0..2 {
            store.checkpoint().await;
            assert_eq!(store.parts(), 1, "nothing is added to what is damaged");
        }
        assert_eq!(check(&store).await, 0);
        store.put(1).await;
        store.checkpoint().await;
        assert_eq!(store.parts(), 2);
    });
}

/// The story: a process ended between a checkpoint that left entries out and their purge, and the next
/// one used their space again. Nobody but that checkpoint knew that they were gone, and it was damaged.
#[test]
fn what_a_checkpoint_left_out_is_gone_for_the_older_one_too_once_its_space_is_used_again() {
    const LARGE: usize = 64 * 1024;
    run(async {
        let disk = Disk::new(long_journal());
        Engine::format(&disk, long_journal(), &identity()).await.unwrap();
        let engine = Engine::open(Arc::new(disk.clone()), None, options(MODE)).await.unwrap();
        engine.raise_format();
        let mut store = Store { disk, engine, next: 0, model: BTreeMap::new() };
        for key in 0..20 {
            store.put_bytes(key, LARGE).await;
        }
        store.engine.leave_out(GROUP, 0);
        store.engine.checkpoint().await.unwrap();
        let through = store.next - 1;
        // Only the log refers to the large values now.
        for key in 0..20 {
            store.put(key).await;
        }
        store.engine.leave_out(GROUP, through);
        store.engine.checkpoint().await.unwrap();
        assert!(store.engine.log_bounds(GROUP).purged < Some(id(through)), "it is still there");
        store.again(Fate::Kept).await.unwrap();
        store.check().await;
        assert_eq!(store.engine.log_bounds(GROUP).purged, Some(id(through)));
        // Without their space these do not fit. No checkpoint is due meanwhile.
        let large = 50;
        assert!((20 + large) * LARGE as u64 > geometry().data_bytes);
        for key in 100..100 + large {
            store.put_bytes(key, LARGE).await;
        }
        store.damage_newest(true);
        store.again(Fate::Kept).await.unwrap();
        let bounds = store.engine.log_bounds(GROUP);
        assert_eq!((bounds.purged, bounds.last), (Some(id(through)), Some(id(store.next - 1))));
        let log = store.engine.read_log(GROUP, through + 1..store.next, u64::MAX).await.unwrap();
        assert_eq!(log.len() as u64, store.next - 1 - through);
        assert_eq!(store.engine.applied(GROUP), Some(id(through)), "from the older checkpoint");
    });
}
