//! How long a chain of backups may be, and what it costs to read one.

use super::*;
use crate::LeftOut;
use crate::manifest::FOLDERS_MAX;

/// Few objects of records: each is synced.
const SIZES: Sizes = Sizes { values: 1000, records: 1 << 16, unrecorded: 1 << 20, ..Sizes::USUAL };

/// A cluster of so many keys with values of 100 bytes.
fn even(keys: u64) -> Cluster {
    let mut cluster = Cluster::new(1);
    cluster.keys.clear();
    for key in 0..keys {
        put(&mut cluster, key);
    }
    cluster
}

fn put(cluster: &mut Cluster, key: u64) {
    cluster.index += 1;
    let mut value = vec![0; 100];
    cluster.rng.fill_bytes(&mut value);
    cluster.keys.insert(format!("key {key:06}").into(), (cluster.index, value.into()));
}

async fn save(cluster: &Cluster, target: &Target, name: &str, base: Option<&str>) -> Manifest {
    let sources = Sources::find(target, SHOP, base, true, None).await.unwrap();
    let items = cluster.items(&sources);
    let begun = Saver::begin_with(target, name, cluster.head(), sources, SIZES).await;
    let (mut saver, keys) = (begun.unwrap(), items.len() as u64);
    for item in items {
        saver.add(item).await.unwrap();
    }
    saver.finish(keys).await.unwrap()
}

/// Saves it so often, each time since the last one, and changes so many keys between. Returns the last
/// backup's name.
async fn chain(cluster: &mut Cluster, target: &Target, backups: usize, writes: usize) -> String {
    let keys = cluster.keys.len() as u64;
    let mut base: Option<String> = None;
    for number in 0..backups {
        let name = format!("b{number:03}");
        save(cluster, target, &name, base.as_deref()).await;
        base = Some(name);
        if number + 1 < backups {
            for _ in 0..writes {
                let key = cluster.rng.random_range(0..keys);
                put(cluster, key);
            }
        }
    }
    base.unwrap()
}

/// Reads the whole backup, with 32 of the usual objects at once. Returns the objects with values that it
/// has, and how many were loaded.
async fn loads(target: &Target, name: &str) -> (usize, usize) {
    let backup = Backup::open(target, name).await.unwrap();
    let mut items = backup.items().unwrap();
    items.values.held_bytes_max = 32 * SIZES.values as u64;
    while items.next().await.unwrap().is_some() {}
    (backup.manifest().values.len(), items.values.loads)
}

/// The story: a backup of a chain of eight loaded each object twenty times.
#[test]
fn a_chain_of_twenty_is_read_with_few_more_loads_than_it_has_objects() {
    run_in_folder(async |_, target| {
        let mut cluster = even(4000);
        let name = chain(&mut cluster, &target, 20, 100).await;
        assert_eq!(Manifest::load(&target, &name).await.unwrap().sources(), 20);
        let (objects, loads) = loads(&target, &name).await;
        assert!(objects > 400 && loads >= objects, "{loads} loads of {objects} objects");
        assert!(loads * 4 <= objects * 5, "{loads} loads of {objects} objects");
        cluster.check(&target, &name).await;
    });
}

#[test]
fn a_chain_of_four_is_read_with_one_load_of_each_object() {
    run_in_folder(async |_, target| {
        let mut cluster = even(4000);
        let name = chain(&mut cluster, &target, 4, 800).await;
        let (objects, loads) = loads(&target, &name).await;
        assert_eq!(loads, objects);
        cluster.check(&target, &name).await;
    });
}

/// What a nightly save since the latest one comes to.
#[test]
fn a_chain_that_needs_too_many_folders_begins_anew() {
    run_in_folder(async |_, target| {
        let mut cluster = even(1000);
        let last = chain(&mut cluster, &target, FOLDERS_MAX, 30).await;
        assert_eq!(Manifest::load(&target, &last).await.unwrap().sources(), FOLDERS_MAX);
        put(&mut cluster, 1);
        let sources = Sources::find(&target, SHOP, Some(&last), true, None).await.unwrap();
        assert_eq!(sources.left_out(), Some((last.as_str(), LeftOut::Needs(FOLDERS_MAX))));
        assert!(sources.held().is_empty());
        let renewed = save(&cluster, &target, "renewed", Some(&last)).await;
        assert_eq!((renewed.sources(), renewed.head.base), (1, None));
        cluster.check(&target, "renewed").await;
        let sources = Sources::find(&target, SHOP, Some("renewed"), true, None).await.unwrap();
        assert_eq!((sources.left_out(), sources.held().len()), (None, 1));
        // What was broken off is gone on with, also beside a base that is left out.
        cluster.save_some(&target, "broken", None, 500).await.unwrap();
        let sources = Sources::find(&target, SHOP, Some(&last), true, None).await.unwrap();
        assert_eq!((sources.left_out().is_some(), sources.resumes().len()), (true, 1));
    });
}
