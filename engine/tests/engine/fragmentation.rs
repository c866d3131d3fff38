//! A data area that is nearly full of live values stays usable: what is overwritten comes back as
//! space that any value can use.

use crate::support::store::{GROUP, append, entry, id, image, need, options, put};
use crate::support::{Disk, Random, identity, run};
use bytes::Bytes;
use cairn_engine::{Change, Engine, Geometry, Mode, NewEntry, Options, Transition};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Values written before their log entries are applied, as by clients at the same time.
const AT_ONCE: usize = 8;

struct Store {
    engine: Engine,
    random: Random,
    /// The length of each key's value.
    lengths: BTreeMap<u64, usize>,
    live: usize,
    /// What values are cut from.
    bytes: Bytes,
    next: u64,
    /// Writes that found no space before what died was recorded and synced.
    waited: u64,
    /// No write may be refused. The log is purged whenever so many bytes were written, and nothing
    /// else is done for space: no timer and no caller syncs.
    strict: Option<u64>,
    written: u64,
}

impl Store {
    async fn new(data_bytes: u64) -> Store {
        Store::with(data_bytes, options(Mode::Replicated), None).await
    }

    /// A store whose engine alone has to see to it that no write is refused.
    async fn strict(data_bytes: u64, purge_bytes: u64) -> Store {
        let sync_interval = Duration::from_secs(3600);
        let options = Options { sync_interval, ..options(Mode::Replicated) };
        Store::with(data_bytes, options, Some(purge_bytes)).await
    }

    async fn with(data_bytes: u64, options: Options, strict: Option<u64>) -> Store {
        let geometry = Geometry { journal_bytes: 2 << 20, checkpoint_bytes: 4 << 20, data_bytes };
        let disk = Disk::new(geometry);
        Engine::format(&disk, geometry, &identity()).await.unwrap();
        let engine = Engine::open(Arc::new(disk), None, options).await.unwrap();
        let mut random = Random(7);
        let bytes: Vec<u8> = (0..2 << 20).map(|_| random.below(256) as u8).collect();
        Store {
            engine,
            random,
            lengths: BTreeMap::new(),
            live: 0,
            bytes: bytes.into(),
            next: 0,
            waited: 0,
            strict,
            written: 0,
        }
    }

    async fn purge(&mut self) {
        if let Some(last) = self.next.checked_sub(1) {
            self.engine.purge(GROUP, id(last)).await.unwrap();
        }
    }

    /// Purges the log and frees what died, as a member does when space is scarce.
    async fn settle(&mut self) {
        self.purge().await;
        for _ in 0..3 {
            self.engine.barrier().await.unwrap();
            self.engine.sync().await.unwrap();
        }
    }

    /// Puts values of these lengths. A client's check admits each, at the latest after what died
    /// was freed.
    async fn put(&mut self, puts: Vec<(u64, usize)>) {
        let bytes = puts.iter().map(|(_, len)| *len as u64).sum();
        self.written += bytes;
        if self.strict.is_some_and(|most| self.written >= most) {
            self.written = 0;
            self.purge().await;
        }
        if self.engine.check_capacity(need(bytes)).is_err() {
            self.waited += 1;
            let (space, free) = (self.engine.status().space, self.engine.status().free_bytes);
            assert!(self.strict.is_none(), "entry {} is refused: {free} {space:?}", self.next);
            self.settle().await;
            let admitted = self.engine.check_capacity(need(bytes));
            let space = self.engine.status().space;
            admitted
                .unwrap_or_else(|error| panic!("after {} entries: {error}: {space:?}", self.next));
        }
        let mut entries = Vec::new();
        let mut steps = Vec::new();
        for (key, len) in puts {
            let from = self.random.below((self.bytes.len() - len) as u64) as usize;
            entries.push(entry(self.next, self.bytes.slice(from..from + len)));
            steps.push(put(self.next, &key.to_string()));
            self.live = self.live + len - self.lengths.insert(key, len).unwrap_or(0);
            self.next += 1;
        }
        append(&self.engine, entries).await.unwrap();
        self.engine.apply(GROUP, steps, image(self.next)).unwrap();
    }

    async fn delete(&mut self, keys: &[u64]) {
        let applied = id(self.next);
        let without = NewEntry::new(applied, Bytes::new(), vec![]);
        append(&self.engine, vec![without]).await.unwrap();
        let delete = |key: &u64| Change::Delete { key: key.to_string().into() };
        let step = Transition { applied, changes: keys.iter().map(delete).collect() };
        self.engine.apply(GROUP, vec![step], image(self.next)).unwrap();
        self.live -= keys.iter().map(|key| self.lengths.remove(key).unwrap()).sum::<usize>();
        self.next += 1;
    }

    /// Checks that every value is read back, and that what is live is what was put.
    async fn check(&mut self) {
        self.settle().await;
        let space = self.engine.status().space;
        assert_eq!(space.live, self.live as u64);
        assert_eq!((space.log, space.installing), (0, 0));
        let view = self.engine.view(GROUP);
        assert_eq!(view.len(), self.lengths.len());
        let entries: Vec<_> = view.entries().map(|(_, entry)| entry.clone()).collect();
        for read in view.read_all(entries).await {
            read.unwrap();
        }
    }
}

/// Fills the area to `percent` with values of `len` bytes, then overwrites keys at random until
/// the area was written `laps` times over.
async fn overwrite(mut store: Store, percent: u64, len: usize, laps: u64) -> Store {
    let data_bytes = store.engine.status().data_bytes;
    let keys = data_bytes * percent / 100 / len as u64;
    for first in (0..keys).step_by(AT_ONCE) {
        let last = keys.min(first + AT_ONCE as u64);
        store.put((first..last).map(|key| (key, len)).collect()).await;
    }
    for _ in 0..data_bytes * laps / (AT_ONCE * len) as u64 {
        let puts = (0..AT_ONCE).map(|_| (store.random.below(keys), len)).collect();
        store.put(puts).await;
    }
    store
}

/// Puts values from 200 bytes to `longest`, as many of each order of magnitude, and deletes others,
/// so that `percent` of the area are live. Ends when it was written `laps` times over.
async fn mix(store: &mut Store, longest: u64, percent: u64, laps: u64) {
    let data_bytes = store.engine.status().data_bytes;
    let target = (data_bytes * percent / 100) as usize;
    let keys = 800 * ((1 << 20) / longest);
    let (mut fullest, mut written) = (0, 0);
    while written < laps * data_bytes {
        let len = 200.0 * (longest as f64 / 200.0).powf(store.random.below(1000) as f64 / 999.0);
        let (len, key) = (len as usize, store.random.below(keys));
        let old = |store: &Store| store.lengths.get(&key).copied().unwrap_or(0);
        while store.live + len - old(store) > target {
            let number = store.random.below(store.lengths.len() as u64) as usize;
            let victim = *store.lengths.keys().nth(number).unwrap();
            store.delete(&[victim]).await;
        }
        store.put(vec![(key, len)]).await;
        written += len as u64;
        fullest = fullest.max(store.live);
    }
    assert!(fullest > target - (64 << 10), "never nearly full");
}

/// The story: values were packed at byte granularity. Each that died left parts of two blocks
/// behind, and at 78 % live no block came back at all: a put waited for ever.
#[test]
fn values_of_4000_bytes_are_overwritten_at_78_percent_live() {
    run(async {
        let mut store = overwrite(Store::new(16 << 20).await, 78, 4000, 6).await;
        assert!(store.waited > 10, "the area was never full");
        store.check().await;
    });
}

#[test]
fn values_of_4000_bytes_are_overwritten_at_84_percent_live() {
    run(async { overwrite(Store::new(16 << 20).await, 84, 4000, 6).await.check().await });
}

/// The story: a value needed one free run as long as itself, and such a run no longer existed from
/// 35 % live on.
#[test]
fn values_of_200_bytes_to_1_mebibyte_are_overwritten_at_88_percent_live() {
    run(async {
        let mut store = Store::new(64 << 20).await;
        mix(&mut store, 1 << 20, 88, 6).await;
        assert!(store.waited > 10, "never nearly full");
        store.check().await;
    });
}

/// The story: what was dead came back after a sync interval, or after 64 MiB, so that a small
/// engine refused writes while most of its free space only waited for a sync.
#[test]
fn at_84_percent_live_no_value_of_4000_bytes_is_refused_though_no_timer_syncs() {
    // A purge comes after half of the free space was written, and the next one needs what it freed.
    run(async {
        overwrite(Store::strict(16 << 20, 800 << 10).await, 84, 4000, 5).await.check().await
    });
}

#[test]
fn at_91_percent_live_no_value_of_200_bytes_to_256_kibibytes_is_refused_though_no_timer_syncs() {
    run(async {
        let mut store = Store::strict(64 << 20, 512 << 10).await;
        mix(&mut store, 256 << 10, 91, 3).await;
        assert!(store.engine.status().moved_bytes > 0, "nothing was compacted");
        store.check().await;
    });
}

/// The story: 16 values of 250 bytes shared a block. 15 of them were deleted, and the last one kept
/// it: 5 MiB were live, and of 221 MiB only 140 were free.
#[test]
fn what_is_deleted_comes_back_though_each_block_keeps_a_live_value() {
    for in_order in [true, false] {
        run(async {
            let data_bytes = 8 << 20;
            let mut store = Store::new(data_bytes).await;
            let keys = data_bytes * 84 / 100 / 250;
            for first in (0..keys).step_by(64) {
                store.put((first..keys.min(first + 64)).map(|key| (key, 250)).collect()).await;
            }
            let dies = |key: &u64, random: &mut Random| match in_order {
                true => key % 16 != 5,
                false => random.below(16) != 5,
            };
            let random = &mut store.random;
            let dead: Vec<u64> = (0..keys).filter(|key| dies(key, random)).collect();
            for keys in dead.chunks(500) {
                store.delete(keys).await;
            }
            store.settle().await;
            let free = |store: &Store| store.engine.status().free_bytes * 100 / data_bytes;
            let before = free(&store);
            for _ in 0..100 {
                store.settle().await;
            }
            let (after, moved) = (free(&store), store.engine.status().moved_bytes);
            println!("{before} % free, then {after} %; {moved} bytes moved");
            assert!(after >= 90, "{after} % are free: {:?}", store.engine.status().space);
            assert!(moved <= 2 * store.live as u64, "{moved} bytes moved");
            store.check().await;
        });
    }
}
