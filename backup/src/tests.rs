//! Backups of states that a model makes, in a folder and in a bucket: chains of them and breaks here, then
//! how they are read, damage, encryption, pruning, and what only buckets have.

mod bounds;
mod buckets;
mod chains;
mod clusters;
mod damage;
mod encryption;
mod ends;
mod foreign;
mod links;
mod own;
mod planted;
mod pruning;
mod races;
mod server;

use self::server::{Reached, Server};
use crate::paths::folder_of;
use crate::save::Sizes;
use crate::{Backup, ClusterId, Error, Head, Item, Keep, Manifest, Saver, Sources, Target, prune};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use real_tokio::task::yield_now;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_128;

const SMALL: Sizes = Sizes { values: 1000, records: 500, unrecorded: 5000, ..Sizes::USUAL };
/// What backups that name no member are of.
const SHOP: ClusterId<'static> = ClusterId { name: "shop", generation: 1, members: &[] };
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
        Head::of_shop(self.index)
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
        let sources = Sources::find(target, SHOP, base, true, None).await?;
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
    check_opened(keys, &Backup::open(target, name).await.unwrap()).await;
}

async fn check_opened(keys: &Keys, backup: &Backup) {
    let mut items = backup.items().unwrap();
    let mut found = BTreeMap::new();
    while let Some(item) = items.next().await.unwrap() {
        found.insert(item.key, (item.index, item.value.unwrap()));
    }
    assert!(found == *keys, "{}", backup.manifest().name);
}

/// Where the backups of a test are, as files: a folder, or a bucket's prefix on the disk of a server.
struct Place {
    files: PathBuf,
    server: Option<Server>,
    _root: TempDir,
}

impl Place {
    fn folder() -> (Place, Target) {
        let root = tempfile::tempdir().unwrap();
        let target = Target::make(root.path().to_str().unwrap()).unwrap();
        (Place { files: root.path().to_owned(), server: None, _root: root }, target)
    }

    fn bucket() -> (Place, Target) {
        let root = tempfile::tempdir().unwrap();
        let files = root.path().join("backups/of/shop");
        std::fs::create_dir_all(&files).unwrap();
        let server = Server::start(root.path());
        let target = server.target("s3://backups/of/shop");
        (Place { files, server: Some(server), _root: root }, target)
    }

    fn path(&self) -> &Path {
        &self.files
    }

    /// Whether nothing of this name is left. The server keeps folders of which every object was removed.
    fn is_empty(&self, name: &str) -> bool {
        let path = self.path().join(name);
        let is_empty = |path: &Path| std::fs::read_dir(path).unwrap().next().is_none();
        match (&self.server, name) {
            (Some(_), "") => files(self).is_empty(),
            (None, "") => is_empty(&path),
            (Some(_), _) => !path.exists() || is_empty(&path),
            (None, _) => !path.exists(),
        }
    }
}

/// Every file at the target.
fn files(place: &Place) -> Vec<PathBuf> {
    let names = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path());
    let inside = |name: PathBuf| std::fs::read_dir(name).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> = names.flat_map(inside).collect();
    files.sort();
    files
}

/// Runs a test with an empty folder, and with an empty bucket.
fn run(test: impl AsyncFn(Place, Target)) {
    run_and(true, test);
}

/// Runs a test with an empty folder, and maybe with an empty bucket.
fn run_and(in_bucket: bool, test: impl AsyncFn(Place, Target)) {
    let places = [Some(Place::folder()), in_bucket.then(Place::bucket)];
    for (place, target) in places.into_iter().flatten() {
        run_once(test(place, target));
    }
}

fn run_in_folder(test: impl AsyncFn(Place, Target)) {
    run_and(false, test);
}

fn run_once(test: impl Future<Output = ()>) {
    let runtime = real_tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

#[test]
fn what_is_saved_is_read_back_however_large_it_is() {
    run(async |_, target| {
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
        run_and(seed == 0, async |_, target| {
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
        run_and(seed < 2, async |_, target| {
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
            let mut broken: Vec<&str> = named.iter().map(|path| folder_of(path)).collect();
            broken.retain(|folder| folder.starts_with("broken"));
            broken.dedup();
            assert_eq!(
                objects,
                named.len() + 2 * (1 + base) + broken.len(),
                "manifests, what they name, and a head in each of these folders"
            );
        });
    }
}

/// The connection broke: the next save gets only what is missing.
#[test]
fn what_was_received_before_a_break_is_not_sent_again() {
    run(async |_, target| {
        let cluster = Cluster::new(11);
        let items = cluster.items(&Sources::default());
        let begun = Saver::begin(&target, "broken", cluster.head(), Sources::default()).await;
        let mut saver = begun.unwrap();
        for item in items.iter().take(50) {
            saver.add(item.clone()).await.unwrap();
        }
        saver.break_off().await.unwrap();
        let sources = Sources::find(&target, SHOP, None, true, None).await.unwrap();
        assert_eq!(sources.held()[0].through_key.as_ref(), Some(&items[49].key));
        let sent = cluster.items(&sources);
        assert!(sent[..50].iter().all(|item| item.value.is_none() || item.length == 0));
        cluster.save(&target, "whole", None).await;
        cluster.check(&target, "whole").await;
        assert!(Sources::find(&target, SHOP, None, false, None).await.unwrap().held().is_empty());
    });
}

#[test]
fn a_target_that_is_none_is_refused_with_the_way_out() {
    for (text, what) in [
        ("", "expected a folder"),
        ("ftp://x/y", "`ftp` is not served; expected a folder, s3://, gs:// or az://"),
        ("s3://", "expected s3://BUCKET"),
        ("s3:///shop", "expected s3://BUCKET or s3://BUCKET/PREFIX"),
        ("gs://key@backups/shop", "expected gs://BUCKET"),
        ("s3://backups/of//shop", "without an empty part"),
        ("s3://backups/of/../shop", "without an empty part, `.`, `..` or"),
    ] {
        let error = Target::make(text).err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    }
    for text in [
        "s3://AKIA:se/cret@backups/shop",
        "gs://secret@backups/shop",
        "s3://AKIA:se'cret@backups/shop",
        "s3://AKIA:se cret@backups/shop",
    ] {
        let error = Target::open(text).err().unwrap().to_string();
        assert!(error.contains("://…@backups/shop`"), "{error}");
        assert!(!error.contains("cret"), "{error}");
    }
}

/// The story: a target was copied from a browser, with a token behind it. It was taken, and the token stood in every error and log line
/// that named the target; where its prefix was no path, in what the library said, too.
#[test]
fn a_target_with_a_query_is_refused_and_its_token_is_not_shown() {
    for text in
        ["az://backups/shop?sig=secret", "s3://backups/of//shop?sig=secret", "gs://b?secret"]
    {
        let error = Target::open(text).err().unwrap().to_string();
        assert!(error.contains("?…`") && error.contains("://BUCKET/PREFIX"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    // A folder may have such a name.
    let root = tempfile::tempdir().unwrap();
    assert!(Target::make(root.path().join("a?b").to_str().unwrap()).is_ok());
}

/// A prune removes what was broken off a day ago, and does not see a save that begins to build on it.
#[test]
fn what_was_broken_off_long_ago_is_not_built_upon() {
    run(async |folder, target| {
        let cluster = Cluster::new(12);
        let sources = Sources::find(&target, SHOP, None, true, None).await.unwrap();
        let items = cluster.items(&sources);
        let begun = Saver::begin_with(&target, "broken", cluster.head(), sources, SMALL).await;
        let mut saver = begun.unwrap();
        for item in items.into_iter().take(50) {
            saver.add(item).await.unwrap();
        }
        saver.break_off().await.unwrap();
        let resumes = async || {
            let sources = Sources::find(&target, SHOP, None, true, None).await.unwrap();
            sources.resumes().to_vec()
        };
        assert_eq!(resumes().await, ["broken"]);
        let long_ago = SystemTime::now() - Duration::from_secs(13 * 3600);
        for path in files(&folder) {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        assert!(resumes().await.is_empty());
    });
}
