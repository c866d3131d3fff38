//! Backups of states that a model makes, in a folder: chains of them, breaks, damage and pruning.

use crate::save::Sizes;
use crate::{Backup, Error, Head, Item, Keep, Manifest, Saver, Sources, Target, prune};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use real_tokio::task::yield_now;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_128;

const SMALL: Sizes = Sizes { values: 1000, records: 500, unrecorded: 5000 };
const KEEP_ALL: Keep = Keep { last: usize::MAX, within: Duration::ZERO };

/// A cluster's state, and how it changes.
struct Cluster {
    rng: StdRng,
    index: u64,
    keys: Keys,
}

/// The version and the value of each key.
type Keys = BTreeMap<Bytes, (u64, Bytes)>;

impl Cluster {
    fn new(seed: u64) -> Cluster {
        let rng = StdRng::seed_from_u64(seed);
        let mut cluster = Cluster { rng, index: 0, keys: BTreeMap::new() };
        cluster.work(300);
        cluster
    }

    /// Puts and deletes.
    fn work(&mut self, writes: usize) {
        for _ in 0..writes {
            self.index += 1;
            let key = Bytes::from(format!("key {:03}", self.rng.random_range(0..200)));
            if self.rng.random_range(0..4) == 0 {
                self.keys.remove(&key);
                continue;
            }
            let len = [0, 1, 50, 300, 2500][self.rng.random_range(0..5)];
            let mut value = vec![0; len];
            // Some can be compressed.
            if self.rng.random_range(0..2) == 0 {
                self.rng.fill_bytes(&mut value);
            }
            self.keys.insert(key, (self.index, value.into()));
        }
    }

    fn head(&self) -> Head {
        Head {
            cluster: "shop".into(),
            generation: 1,
            cluster_version: 1,
            term: 1,
            index: self.index,
            release: "test".into(),
            base: None,
            resumes: Vec::new(),
            began: 0,
        }
    }

    /// What the cluster sends to somebody who has the values of these sources.
    fn items(&self, sources: &Sources) -> Vec<Item> {
        let held = sources.held();
        let item = |(key, (index, value)): (&Bytes, &(u64, Bytes))| {
            let has = held.iter().any(|held| {
                (1, *index) <= held.through
                    && held.through_key.as_ref().is_none_or(|last| key <= last)
            });
            Item {
                key: key.clone(),
                term: 1,
                index: *index,
                length: value.len() as u32,
                hash: xxh3_128(value),
                value: (!has || value.is_empty()).then(|| value.clone()),
            }
        };
        self.keys.iter().map(item).collect()
    }

    /// Saves it, from what is at the target already. Ends after so many keys.
    async fn save_some(
        &self,
        target: &Target,
        name: &str,
        base: Option<&str>,
        most: usize,
    ) -> crate::Result<Option<Manifest>> {
        let sources = Sources::find(target, "shop", 1, base, true).await?;
        let items = self.items(&sources);
        let keys = items.len();
        let mut saver = Saver::begin_with(target, name, self.head(), sources, SMALL).await?;
        for item in items.into_iter().take(most) {
            saver.add(item).await?;
        }
        if most < keys {
            // What is under way may still be written, as by a process that is killed later.
            for _ in 0..most % 50 {
                yield_now().await;
            }
            return Ok(None);
        }
        saver.finish(keys as u64).await.map(Some)
    }

    async fn save(&self, target: &Target, name: &str, base: Option<&str>) -> Manifest {
        self.save_some(target, name, base, usize::MAX).await.unwrap().unwrap()
    }

    async fn check(&self, target: &Target, name: &str) {
        check(&self.keys, target, name).await;
    }
}

/// The backup is of these keys.
async fn check(keys: &Keys, target: &Target, name: &str) {
    let mut items = Backup::open(target, name).await.unwrap().items();
    let mut found = BTreeMap::new();
    while let Some(item) = items.next().await.unwrap() {
        found.insert(item.key, (item.index, item.value.unwrap()));
    }
    assert!(found == *keys, "{name}");
}

fn folder() -> (TempDir, Target) {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::make(folder.path().to_str().unwrap()).unwrap();
    (folder, target)
}

/// Every file at the target.
fn files(folder: &TempDir) -> Vec<PathBuf> {
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let inside = |name: PathBuf| std::fs::read_dir(name).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> = names.flat_map(inside).collect();
    files.sort();
    files
}

fn run(test: impl Future<Output = ()>) {
    let runtime = real_tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(test);
}

#[test]
fn what_is_saved_is_read_back_however_large_it_is() {
    run(async {
        let (_folder, target) = folder();
        let mut cluster = Cluster::new(1);
        cluster.check(&target, &cluster.save(&target, "first", None).await.name).await;
        let large = Bytes::from(vec![7; 100_000]);
        cluster.keys.insert(Bytes::from("large"), (cluster.index, large));
        cluster.save(&target, "second", None).await;
        cluster.check(&target, "second").await;
        cluster.keys.clear();
        assert_eq!(cluster.save(&target, "nothing", None).await.keys, 0);
        cluster.check(&target, "nothing").await;
    });
}

#[test]
fn a_chain_of_five_backs_up_what_changed_and_what_was_deleted() {
    for seed in 0..6 {
        run(async {
            let (_folder, target) = folder();
            let mut cluster = Cluster::new(seed);
            let mut states = vec![cluster.keys.clone()];
            let whole = cluster.save(&target, "b0", None).await.stored_bytes();
            for number in 1..=5 {
                cluster.work(20);
                let base = format!("b{}", number - 1);
                let manifest = cluster.save(&target, &format!("b{number}"), Some(&base)).await;
                let own = format!("b{number}/values");
                let own = manifest.values.iter().filter(|object| object.path.starts_with(&own));
                let own: u64 = own.map(|object| object.bytes).sum();
                assert!(own * 2 < whole, "{own} of {whole} bytes are new");
                states.push(cluster.keys.clone());
            }
            for (number, state) in states.iter().enumerate() {
                check(state, &target, &format!("b{number}")).await;
            }
        });
    }
}

#[test]
fn a_backup_that_was_broken_off_is_none_and_the_next_one_goes_on_with_it() {
    for seed in 0..20 {
        run(async {
            let (_folder, target) = folder();
            let mut cluster = Cluster::new(seed);
            let base = (seed % 2 == 1).then_some("base");
            if base.is_some() {
                cluster.save(&target, "base", None).await;
                cluster.work(100);
            }
            let mut random = StdRng::seed_from_u64(seed);
            for number in 0..3 {
                let most = random.random_range(0..cluster.keys.len());
                let name = format!("broken{number}");
                cluster.save_some(&target, &name, base, most).await.unwrap();
                assert!(matches!(Backup::open(&target, &name).await, Err(Error::Missing { .. })));
                cluster.work(10);
            }
            let manifest = cluster.save(&target, "whole", base).await;
            cluster.check(&target, "whole").await;
            let old = manifest.values.iter().filter(|object| object.path.starts_with("broken"));
            if seed == 0 {
                assert!(old.count() > 0, "nothing was taken over");
            }
            // What was broken off may go, but for what the backup needs.
            let later = SystemTime::now() + Duration::from_secs(2 * 24 * 3600);
            prune(&target, &KEEP_ALL, &[], later, false).await.unwrap();
            cluster.check(&target, "whole").await;
            let found = target.find().await.unwrap();
            let objects: usize = found.values().map(|found| found.objects.len()).sum();
            let base = base.map(|_| 1).unwrap_or_default();
            let mut named: Vec<String> = Vec::new();
            for (_, manifest) in Manifest::list(&target).await.unwrap() {
                named.extend(manifest.unwrap().objects().map(|object| object.path.clone()));
            }
            named.sort();
            named.dedup();
            assert_eq!(
                objects,
                named.len() + 2 * (1 + base),
                "heads, manifests and what they name"
            );
        });
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    run(async {
        let (folder, target) = folder();
        let mut cluster = Cluster::new(3);
        cluster.save(&target, "b0", None).await;
        cluster.work(50);
        cluster.save(&target, "b1", Some("b0")).await;
        let needed = Manifest::load(&target, "b1").await.unwrap();
        let needed = |path: &PathBuf| {
            let path = path.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_owned();
            path == "b1/manifest" || needed.objects().any(|object| object.path == path)
        };
        let files: Vec<PathBuf> = files(&folder).into_iter().filter(needed).collect();
        let mut random = StdRng::seed_from_u64(4);
        for round in 0..400 {
            let file = &files[round % files.len()];
            let bytes = std::fs::read(file).unwrap();
            let mut changed = bytes.clone();
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..4) {
                0 => changed.truncate(at),
                1 => changed.push(random.random()),
                _ => changed[at] ^= 1 << random.random_range(0..8),
            }
            std::fs::write(file, &changed).unwrap();
            let verified = match Backup::open(&target, "b1").await {
                Ok(backup) => backup.verify(|_| ()).await.map(drop),
                Err(error) => Err(error),
            };
            let error = verified.expect_err(&format!("round {round}, {}", file.display()));
            assert!(matches!(error, Error::Damaged { .. } | Error::Newer { .. }), "{error}");
            std::fs::write(file, &bytes).unwrap();
        }
        for file in &files {
            let bytes = std::fs::read(file).unwrap();
            std::fs::remove_file(file).unwrap();
            let gone = match Backup::open(&target, "b1").await {
                Ok(backup) => backup.verify(|_| ()).await.is_err(),
                Err(_) => true,
            };
            assert!(gone, "{} was removed", file.display());
            std::fs::write(file, &bytes).unwrap();
        }
        cluster.check(&target, "b1").await;
    });
}

/// An unsafe recovery gave indexes to other writes: the base has versions that this history has not.
#[test]
fn a_base_of_another_history_is_refused() {
    run(async {
        let (_folder, target) = folder();
        let cluster = Cluster::new(5);
        cluster.save(&target, "base", None).await;
        let mut other = Cluster::new(6);
        other.index = cluster.index;
        let refused = other.save_some(&target, "next", Some("base"), usize::MAX).await;
        assert!(matches!(refused, Err(Error::History { .. })));
        assert!(matches!(Backup::open(&target, "next").await, Err(Error::Missing { .. })));
    });
}

#[test]
fn a_value_that_does_not_have_its_hash_and_keys_out_of_order_are_refused() {
    run(async {
        let (_folder, target) = folder();
        let cluster = Cluster::new(7);
        let items = cluster.items(&Sources::default());
        let begin = async |name: &str| {
            Saver::begin_with(&target, name, cluster.head(), Sources::default(), SMALL)
                .await
                .unwrap()
        };
        let mut saver = begin("damaged").await;
        let whole = items.iter().find(|item| item.length > 0).unwrap();
        let damaged = Item { hash: whole.hash ^ 1, ..whole.clone() };
        assert!(matches!(saver.add(damaged).await, Err(Error::Sent(_))));
        let mut saver = begin("order").await;
        saver.add(items[1].clone()).await.unwrap();
        assert!(matches!(saver.add(items[0].clone()).await, Err(Error::Sent(_))));
        let mut saver = begin("less").await;
        saver.add(items[0].clone()).await.unwrap();
        assert!(matches!(saver.finish(2).await, Err(Error::Sent(_))));
    });
}

#[test]
fn pruning_keeps_what_is_asked_and_all_that_it_needs() {
    for seed in 0..6 {
        run(async {
            let (_folder, target) = folder();
            let mut cluster = Cluster::new(seed);
            let mut states = Vec::new();
            for number in 0..6 {
                let base = (number % 3 > 0).then(|| format!("b{}", number - 1));
                cluster.save(&target, &format!("b{number}"), base.as_deref()).await;
                states.push(cluster.keys.clone());
                cluster.work(30);
            }
            let last = Keep { last: 2, within: Duration::ZERO };
            let now = SystemTime::now() + Duration::from_secs(2 * 24 * 3600);
            let would = prune(&target, &last, &[], now, true).await.unwrap();
            assert_eq!(would.backups, ["b0", "b1", "b2", "b3"]);
            assert_eq!(Manifest::list(&target).await.unwrap().len(), 6);
            let young = Keep { last: 0, within: Duration::from_secs(3 * 24 * 3600) };
            assert_eq!(prune(&target, &young, &[], now, false).await.unwrap().backups.len(), 0);
            assert_eq!(prune(&target, &last, &[], now, false).await.unwrap(), would);
            for number in [4, 5] {
                check(&states[number], &target, &format!("b{number}")).await;
            }
            assert_eq!(prune(&target, &last, &[], now, false).await.unwrap().objects, 0);
            let named = ["b4".to_owned()];
            prune(&target, &last, &named, now, false).await.unwrap();
            check(&states[5], &target, "b5").await;
            let gone = prune(&target, &last, &named, now, false).await;
            assert!(matches!(gone, Err(Error::Missing { .. })));
        });
    }
}

/// What a backup under way builds on stays, also if nobody else needs it.
#[test]
fn pruning_beside_a_backup_under_way_takes_nothing_from_it() {
    run(async {
        let (_folder, target) = folder();
        let mut cluster = Cluster::new(8);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        cluster.save_some(&target, "broken", Some("base"), 100).await.unwrap();
        let none = Keep::default();
        let now = SystemTime::now();
        let pruned = prune(&target, &none, &[], now, false).await.unwrap();
        assert_eq!((pruned.backups.len(), pruned.objects), (0, 0));
        let named = prune(&target, &none, &["base".to_owned()], now, false).await;
        assert!(named.is_err());
        cluster.save(&target, "whole", Some("base")).await;
        cluster.check(&target, "whole").await;
    });
}

/// A prune that ends at any moment leaves backups that verify, and the next one removes the rest.
#[test]
fn a_prune_that_is_broken_off_leaves_only_whole_backups() {
    for polls in 0..30 {
        run(async {
            let (folder, target) = folder();
            let mut cluster = Cluster::new(9);
            cluster.save(&target, "b0", None).await;
            cluster.work(30);
            cluster.save(&target, "b1", Some("b0")).await;
            cluster.save(&target, "b2", None).await;
            let (keep, now) = (Keep { last: 1, within: Duration::ZERO }, SystemTime::now());
            let mut pruning = Box::pin(prune(&target, &keep, &[], now, false));
            for _ in 0..polls {
                if futures::poll!(&mut pruning).is_ready() {
                    break;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            drop(pruning);
            for (name, manifest) in Manifest::list(&target).await.unwrap() {
                manifest.unwrap();
                Backup::open(&target, &name).await.unwrap().verify(|_| ()).await.unwrap();
            }
            cluster.check(&target, "b2").await;
            let later = now + Duration::from_secs(2 * 24 * 3600);
            prune(&target, &keep, &[], later, false).await.unwrap();
            let kept = Manifest::load(&target, "b2").await.unwrap();
            assert_eq!(files(&folder).len(), kept.objects().count() + 2);
        });
    }
}

/// The story: a folder also held what others wrote, and pruning took that for the rest of a backup.
#[test]
fn pruning_touches_nothing_that_no_backup_wrote() {
    run(async {
        let (folder, target) = folder();
        let cluster = Cluster::new(10);
        cluster.save(&target, "b0", None).await;
        cluster.save(&target, "b1", None).await;
        let others =
            ["postgres/base", "b0/notes", "b0/deeper/values-000000", "x/values-000000", "y"];
        for path in others {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "mine").unwrap();
        }
        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let keep = Keep { last: 1, within: Duration::ZERO };
        assert_eq!(prune(&target, &keep, &[], later, false).await.unwrap().backups, ["b0"]);
        assert!(others.iter().all(|path| folder.path().join(path).exists()));
        assert!(!folder.path().join("b0/head").exists());
        let foreign = prune(&target, &keep, &["x".to_owned()], later, false).await;
        assert!(matches!(foreign, Err(Error::Missing { .. })));
        cluster.check(&target, "b1").await;
        let for_ever = Keep { last: 0, within: Duration::MAX };
        assert_eq!(prune(&target, &for_ever, &[], later, false).await.unwrap().backups.len(), 0);
    });
}

/// The story: a machine whose clock was ahead saved once, and its backup counted as the latest ever after.
#[test]
fn the_later_of_two_backups_is_that_of_the_later_index() {
    run(async {
        let (_folder, target) = folder();
        let mut cluster = Cluster::new(12);
        cluster.save(&target, "z-first", None).await;
        cluster.work(10);
        cluster.save(&target, "a-second", None).await;
        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let keep = Keep { last: 1, within: Duration::ZERO };
        assert_eq!(prune(&target, &keep, &[], later, false).await.unwrap().backups, ["z-first"]);
        cluster.check(&target, "a-second").await;
    });
}

/// The base goes between the look at it and the first object of the backup that builds on it.
#[test]
fn a_backup_whose_base_was_pruned_before_it_began_fails_at_once() {
    run(async {
        let (_folder, target) = folder();
        let mut cluster = Cluster::new(13);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let sources = Sources::find(&target, "shop", 1, Some("base"), true).await.unwrap();
        prune(&target, &KEEP_ALL, &["base".to_owned()], SystemTime::now(), false).await.unwrap();
        let begun = Saver::begin(&target, "next", cluster.head(), sources).await;
        assert!(matches!(begun, Err(Error::Missing { .. })));
    });
}

/// A prune took the manifest that a backup under way builds on, and no more. The next prunes leave the
/// objects until that has ended.
#[test]
fn objects_stay_while_a_backup_under_way_builds_on_one_without_a_manifest() {
    run(async {
        let (folder, target) = folder();
        let mut cluster = Cluster::new(14);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let sources = Sources::find(&target, "shop", 1, Some("base"), true).await.unwrap();
        let items = cluster.items(&sources);
        let begun = Saver::begin(&target, "next", cluster.head(), sources).await;
        let mut saver = begun.unwrap();
        std::fs::remove_file(folder.path().join("base/manifest")).unwrap();
        // The base is so old that it is none under way itself.
        let old = SystemTime::now() - Duration::from_secs(9 * 24 * 3600);
        for file in
            files(&folder).into_iter().filter(|file| file.starts_with(folder.path().join("base")))
        {
            std::fs::File::options().write(true).open(file).unwrap().set_modified(old).unwrap();
        }
        let none = Keep::default();
        assert_eq!(prune(&target, &none, &[], SystemTime::now(), false).await.unwrap().objects, 0);
        let keys = items.len() as u64;
        for item in items {
            saver.add(item).await.unwrap();
        }
        saver.finish(keys).await.unwrap();
        cluster.check(&target, "next").await;
    });
}

#[test]
fn an_object_that_goes_while_a_backup_is_saved_leaves_no_backup() {
    run(async {
        let (folder, target) = folder();
        let mut cluster = Cluster::new(16);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let sources = Sources::find(&target, "shop", 1, Some("base"), true).await.unwrap();
        let items = cluster.items(&sources);
        let begun = Saver::begin(&target, "next", cluster.head(), sources).await;
        let (mut saver, keys) = (begun.unwrap(), items.len() as u64);
        for item in items {
            saver.add(item).await.unwrap();
        }
        std::fs::remove_file(folder.path().join("base/values-000000")).unwrap();
        assert!(matches!(saver.finish(keys).await, Err(Error::Damaged { .. })));
        assert!(matches!(Backup::open(&target, "next").await, Err(Error::Missing { .. })));
    });
}

/// Objects that are whole, and not those of this state.
#[test]
fn records_of_another_state_are_damage() {
    run(async {
        let (folder, target) = folder();
        let mut cluster = Cluster::new(17);
        cluster.save(&target, "before", None).await;
        let (key, (version, value)) = cluster.keys.pop_first().unwrap();
        cluster.keys.insert([&key[..], b"!"].concat().into(), (version, value));
        let other = cluster.save(&target, "after", None).await;
        let before = Manifest::load(&target, "before").await.unwrap();
        assert_eq!((before.keys, before.value_bytes), (other.keys, other.value_bytes));
        let Manifest { records, values, .. } = other;
        let mixed = Manifest { records, values, ..before };
        std::fs::write(folder.path().join("before/manifest"), mixed.encode().unwrap()).unwrap();
        let backup = Backup::open(&target, "before").await.unwrap();
        assert!(matches!(backup.verify(|_| ()).await, Err(Error::Damaged { .. })));
    });
}

#[test]
fn a_version_behind_the_backups_own_is_damage() {
    run(async {
        let (_folder, target) = folder();
        let cluster = Cluster::new(15);
        for (name, term, index) in [("term", 2, 5), ("index", 0, cluster.index + 1)] {
            let begun = Saver::begin(&target, name, cluster.head(), Sources::default()).await;
            let mut saver = begun.unwrap();
            let item = Item { term, index, ..cluster.items(&Sources::default())[0].clone() };
            saver.add(item).await.unwrap();
            saver.finish(1).await.unwrap();
            let backup = Backup::open(&target, name).await.unwrap();
            assert!(matches!(backup.verify(|_| ()).await, Err(Error::Damaged { .. })), "{name}");
        }
    });
}

/// The connection broke: the next save gets only what is missing.
#[test]
fn what_was_received_before_a_break_is_not_sent_again() {
    run(async {
        let (_folder, target) = folder();
        let cluster = Cluster::new(11);
        let items = cluster.items(&Sources::default());
        let begun = Saver::begin(&target, "broken", cluster.head(), Sources::default()).await;
        let mut saver = begun.unwrap();
        for item in items.iter().take(50) {
            saver.add(item.clone()).await.unwrap();
        }
        saver.break_off().await.unwrap();
        let sources = Sources::find(&target, "shop", 1, None, true).await.unwrap();
        assert_eq!(sources.held()[0].through_key.as_ref(), Some(&items[49].key));
        let sent = cluster.items(&sources);
        assert!(sent[..50].iter().all(|item| item.value.is_none() || item.length == 0));
        cluster.save(&target, "whole", None).await;
        cluster.check(&target, "whole").await;
        assert!(Sources::find(&target, "shop", 1, None, false).await.unwrap().held().is_empty());
    });
}

#[test]
fn a_target_that_is_none_is_refused_with_the_way_out() {
    for (text, what) in [("", "expected a folder"), ("ftp://x/y", "`ftp` is not served")] {
        let error = Target::make(text).err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    }
}
