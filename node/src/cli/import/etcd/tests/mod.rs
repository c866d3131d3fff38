//! Snapshots that these tests build, right, wrong and hostile ones.

mod pages;
mod target;

use super::bbolt::{self, Bucket, Database, Walk};
use super::{Error, Found, KEYS_MAX, MESSAGE_BYTES_MAX, Snapshot, check_hash, newest};
use bytes::Bytes;
use pages::{
    Builder, Item, PAGE, bucket, database_of, delete, inline, item, key_value, put, revision,
    snapshot, snapshot_of,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Cursor;

type Held = BTreeMap<Vec<u8>, Vec<u8>>;

fn opened(bytes: Vec<u8>) -> Result<Snapshot<Cursor<Vec<u8>>>, Error> {
    Snapshot::open(Cursor::new(bytes), &|_| {})
}

/// The same without the hash, which takes longer than all else.
fn opened_database(bytes: Vec<u8>) -> Result<Snapshot<Cursor<Vec<u8>>>, Error> {
    let length = bytes.len() as u64;
    let mut database = Database::open(Cursor::new(bytes), length)?;
    let places = newest(&mut database, KEYS_MAX)?;
    Ok(Snapshot { database, places, next: 0 })
}

/// All keys with their values.
fn all(snapshot: &mut Snapshot<Cursor<Vec<u8>>>) -> Result<Held, Error> {
    let mut held = Held::new();
    snapshot.rewind();
    while let Some(found) = snapshot.next()? {
        let Found::Item { key, value } = found else { panic!("{found:?}") };
        assert_eq!(held.insert(key.to_vec(), value.to_vec()), None, "a key comes twice");
    }
    Ok(held)
}

fn held(items: &[(&[u8], &[u8])]) -> Held {
    items.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

fn refused(bytes: Vec<u8>) -> String {
    opened(bytes).err().expect("it is refused").to_string()
}

/// Whether it is a bucket, the key and the value.
type Elements = Vec<(bool, Vec<u8>, Vec<u8>)>;

/// What a walk through a bucket finds.
fn walked(bytes: &[u8], path: &[&[u8]]) -> bbolt::Result<Option<Elements>> {
    let mut database = Database::open(Cursor::new(bytes), bytes.len() as u64)?;
    let Some(bucket) = database.bucket(path)? else { return Ok(None) };
    let mut walk = Walk::new(&mut database, bucket)?;
    let mut found = Vec::new();
    while let Some(element) = walk.next(&mut database)? {
        let key = database.bytes(&element, element.key)?.to_vec();
        found.push((element.is_bucket, key, database.bytes(&element, element.value)?.to_vec()));
    }
    Ok(Some(found))
}

#[test]
fn the_newest_revision_of_each_key_counts_and_what_was_deleted_is_gone() {
    let revisions = [
        put(2, b"a", b"old", 0),
        put(3, b"b", b"kept", 0),
        put(4, b"gone", b"value", 0),
        put(5, b"a", b"new", 0),
        delete(6, b"gone"),
        put(7, b"again", b"first", 9),
        delete(8, b"again"),
        put(9, b"again", b"second", 0),
        put(10, b"leased", b"", 1 << 40),
        put(11, b"\0\xff", b"\xff", 0),
    ];
    let mut snapshot = opened(snapshot_of(&revisions)).expect("a snapshot");
    let expected = held(&[
        (b"a", b"new"),
        (b"b", b"kept"),
        (b"again", b"second"),
        (b"leased", b""),
        (b"\0\xff", b"\xff"),
    ]);
    for _ in 0..2 {
        assert_eq!(all(&mut snapshot).expect("it is read"), expected);
    }
    assert_eq!(snapshot.keys(), 5);
    assert_eq!(snapshot.leased(10).expect("it is read"), (1, vec![Bytes::from("leased")]));
    assert_eq!(snapshot.leased(0).expect("it is read"), (1, Vec::<Bytes>::new()));
}

/// A transaction of etcd gives its writes one main revision.
#[test]
fn the_later_write_of_a_transaction_counts() {
    let of = |sub, value: &[u8]| item(&revision(2, sub, false), &key_value(b"a", value, 0));
    let removed = item(&revision(2, 2, true), &key_value(b"b", b"", 0));
    let revisions = [of(0, b"first"), of(1, b"second"), removed];
    let mut snapshot = opened(snapshot_of(&revisions)).expect("a snapshot");
    assert_eq!(all(&mut snapshot).expect("it is read"), held(&[(b"a", b"second")]));
}

#[test]
fn a_tree_with_branches_and_values_over_many_pages_is_read_in_order() {
    let mut builder = Builder::new();
    let (mut leaves, mut expected) = (Vec::new(), Held::new());
    for leaf in 0..40_u64 {
        let mut items = Vec::new();
        for number in 0..5 {
            let main = 2 + leaf * 5 + number;
            let (key, length) = (format!("key {main}"), [10, 300, 30_000][main as usize % 3]);
            let value = vec![main as u8; length];
            items.push(put(main, key.as_bytes(), &value, 0));
            expected.insert(key.into_bytes(), value);
        }
        leaves.push((revision(2 + leaf * 5, 0, false), builder.leaf(&items)));
    }
    let mut branches = Vec::new();
    for part in leaves.chunks(8) {
        let children: Vec<_> = part.iter().map(|(key, page)| (&key[..], *page)).collect();
        branches.push((part[0].0.clone(), builder.branch(&children)));
    }
    let children: Vec<_> = branches.iter().map(|(key, page)| (&key[..], *page)).collect();
    let top = builder.branch(&children);
    let root = builder.leaf(&[bucket(b"key", top), inline(b"lease", &[])]);
    let mut snapshot = opened(snapshot(builder.finish(root))).expect("a snapshot");
    assert_eq!(snapshot.keys(), 200);
    assert_eq!(all(&mut snapshot).expect("it is read"), expected);
}

#[test]
fn buckets_inside_values_and_inside_buckets_are_found_by_their_path() {
    let mut builder = Builder::new();
    let inner = builder.leaf(&[item(b"deep", b"1"), inline(b"small", &[item(b"deeper", b"2")])]);
    let outer = builder.leaf(&[item(b"inner", b"no bucket"), bucket(b"inner", inner)]);
    let root = builder.leaf(&[inline(b"empty", &[]), bucket(b"outer", outer)]);
    let bytes = builder.finish(root);
    let found = |path: &[&[u8]]| walked(&bytes, path).expect("it is read");
    assert_eq!(found(&[b"empty"]), Some(vec![]));
    let deeper = (false, b"deeper".to_vec(), b"2".to_vec());
    assert_eq!(found(&[b"outer", b"inner", b"small"]), Some(vec![deeper]));
    let inner = found(&[b"outer", b"inner"]).expect("there is one");
    assert_eq!(inner[0], (false, b"deep".to_vec(), b"1".to_vec()));
    assert!(inner[1].0 && inner[1].1 == b"small");
    let missing: [&[&[u8]]; 3] = [&[b"nothing"], &[b"outer", b"deep"], &[b"empty", b"empty"]];
    for path in missing {
        assert_eq!(found(path), None);
    }
    let keys: Vec<_> = found(&[]).expect("the root").into_iter().map(|(_, key, _)| key).collect();
    assert_eq!(keys, [b"empty".to_vec(), b"outer".to_vec()]);
}

/// A small etcd has its keys inside the root bucket.
#[test]
fn the_keys_may_be_inside_the_value_of_their_bucket() {
    let mut builder = Builder::new();
    let root = builder.leaf(&[inline(b"key", &[put(2, b"a", b"1", 0)])]);
    let mut few = opened(snapshot(builder.finish(root))).expect("a snapshot");
    assert_eq!(all(&mut few).expect("it is read"), held(&[(b"a", b"1")]));
    let mut builder = Builder::new();
    let root = builder.leaf(&[inline(b"key", &[])]);
    assert_eq!(opened(snapshot(builder.finish(root))).expect("a snapshot").keys(), 0);
}

#[test]
fn a_torn_meta_page_is_passed_over_and_without_one_nothing_is_read() {
    let good = snapshot_of(&[put(2, b"a", b"1", 0)]);
    let database = &good[..good.len() - 32];
    for torn in [0, PAGE] {
        let mut bytes = database.to_vec();
        bytes[torn + 20] ^= 1;
        let mut read = opened(snapshot(bytes.clone())).expect("the other one is there");
        assert_eq!(all(&mut read).expect("it is read"), held(&[(b"a", b"1")]));
        bytes[PAGE - torn + 20] ^= 1;
        assert!(refused(snapshot(bytes)).contains("no meta page verifies"));
    }
}

/// The story: a client of etcd puts a value that looks like the second meta page of a file with larger pages. Where the true
/// one was torn, the file was read from where the value said.
#[test]
fn a_part_of_a_value_is_no_meta_page() {
    let value = [7; 3 * PAGE];
    let mut database = database_of(&[put(2, b"a", &value, 0)]);
    // Page 4 is in the midst of the value.
    let planted = Builder::of_pages(4 * PAGE).finish(2);
    database[4 * PAGE..][..80].copy_from_slice(&planted[..80]);
    let found = |database: &[u8]| {
        let mut read = opened_database(database.to_vec()).expect("a database");
        all(&mut read).expect("it is read")
    };
    let whole = found(&database);
    assert_eq!(whole.get(&b"a"[..]).map(Vec::len), Some(value.len()));
    // The true second one is torn.
    database[PAGE + 20] ^= 1;
    assert_eq!(found(&database), whole);
}

#[test]
fn a_value_that_no_server_takes_is_named_and_not_read() {
    let large = vec![7; MESSAGE_BYTES_MAX as usize];
    let revisions = [put(2, b"large", &large, 0), put(3, b"small", b"1", 0)];
    let mut snapshot = opened_database(database_of(&revisions)).expect("a database");
    let first = snapshot.next().expect("it is read").expect("there is one");
    let Found::TooLarge { key, bytes } = first else { panic!("{first:?}") };
    assert_eq!(key, "large");
    assert!(bytes > MESSAGE_BYTES_MAX && bytes < MESSAGE_BYTES_MAX + 100, "{bytes}");
    let second = snapshot.next().expect("it is read");
    assert_eq!(second, Some(Found::Item { key: "small".into(), value: "1".into() }));
    assert_eq!(snapshot.next().expect("it is read"), None);
}

#[test]
fn a_file_without_its_hash_or_with_another_one_is_refused() {
    let good = snapshot_of(&[put(2, b"a", b"1", 0)]);
    let without = good[..good.len() - 32].to_vec();
    assert!(refused(without).contains("etcdctl snapshot save"));
    for at in [0, 100, 5 * PAGE / 2, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        assert!(refused(bytes).contains("SHA-256"), "byte {at}");
    }
    let mut cut = good.clone();
    cut.truncate(good.len() - 512);
    assert!(refused(cut).contains("SHA-256"));
    for short in [0, 1, 31, 32, 33] {
        assert!(opened(good[..short].to_vec()).is_err(), "{short} bytes");
    }
    let (length, told) = (good.len() as u64 - 32, std::cell::Cell::new(0));
    check_hash(&mut Cursor::new(&good), length, &|bytes| told.set(bytes)).expect("it verifies");
    assert_eq!(told.get(), length);
}

#[test]
fn a_cut_database_with_a_new_hash_is_refused() {
    let good = snapshot_of(&[put(2, b"a", &[1; 3 * PAGE], 0)]);
    let cut = good[..good.len() - 32 - PAGE].to_vec();
    assert!(refused(snapshot(cut)).contains("the file was cut"));
}

#[test]
fn what_is_no_etcd_is_refused() {
    let mut builder = Builder::new();
    let root = builder.leaf(&[inline(b"lock", &[]), item(b"key", b"no bucket")]);
    assert!(refused(snapshot(builder.finish(root))).contains("no bucket `key`"));
    let of = |key: &[u8], value: &[u8]| refused(snapshot_of(&[item(key, value)]));
    let good = revision(2, 0, false);
    let value = key_value(b"a", b"1", 0);
    let mut negative = good.clone();
    negative[0] = 0x80;
    let mut another = good.clone();
    another[8] = b'-';
    for key in [&good[..16], &[&good[..], b"x"].concat(), &[7; 40], &negative, &another] {
        let error = of(key, &value);
        assert!(error.contains("a key is no revision"), "{key:?}: {error}");
    }
    for value in [&b""[..], b"\x0a\xff", &key_value(b"", b"1", 0), b"\xff\xff\xff"] {
        let error = of(&good, value);
        assert!(error.contains("none of etcd's"), "{value:?}: {error}");
    }
    // The value is a number: that is seen when it is read.
    let number = snapshot_of(&[item(&good, b"\x0a\x01a\x28\x01")]);
    let error = opened(number).expect("a snapshot").next().expect_err("no value").to_string();
    assert!(error.contains("what is at byte 8241 is") && error.contains("no key with"), "{error}");
    let backwards = snapshot_of(&[put(3, b"a", b"1", 0), put(2, b"a", b"2", 0)]);
    assert!(refused(backwards).contains("out of order"));
    let nested = snapshot_of(&[inline(&good, &[])]);
    assert!(refused(nested).contains("a key is no revision"));
}

#[test]
fn more_keys_than_fit_memory_are_refused() {
    let bytes = snapshot_of(&[put(2, b"a", b"", 0), put(3, b"b", b"", 0), delete(4, b"a")]);
    let length = bytes.len() as u64 - 32;
    let count = |most| {
        let mut database = Database::open(Cursor::new(&bytes), length).expect("a database");
        newest(&mut database, most).map(|places| places.len())
    };
    assert!(matches!(count(1), Err(Error::TooMany)));
    assert_eq!(count(2).expect("they fit"), 1);
}

/// Each of these would be read for ever, or over and over, by a reader that trusts it.
#[test]
fn circles_and_pages_of_two_parents_are_found() {
    let key = revision(2, 0, false);
    let with_tree = |build: &dyn Fn(&mut Builder) -> u64| {
        let mut builder = Builder::new();
        let top = build(&mut builder);
        let root = builder.leaf(&[bucket(b"key", top)]);
        refused(snapshot(builder.finish(root)))
    };
    let own = with_tree(&|builder| {
        let id = builder.next();
        builder.branch(&[(&key, id)])
    });
    let pair = with_tree(&|builder| {
        let id = builder.next();
        builder.branch(&[(&key, id + 1)]);
        builder.branch(&[(&key, id)])
    });
    let twice = with_tree(&|builder| {
        let leaf = builder.leaf(&[put(2, b"a", b"1", 0)]);
        builder.branch(&[(&key, leaf), (&key, leaf)])
    });
    let inside = with_tree(&|builder| {
        // The second page of the first leaf is a leaf of its own.
        let leaf = builder.leaf(&[put(2, b"a", &[0; PAGE], 0)]);
        builder.branch(&[(&key, leaf), (&key, leaf + 1)])
    });
    for error in [own, pair, twice, inside] {
        assert!(error.contains("lead to it"), "{error}");
    }
    let deep = with_tree(&|builder| {
        let mut page = builder.leaf(&[put(2, b"a", b"1", 0)]);
        for _ in 0..40 {
            page = builder.branch(&[(&key, page)]);
        }
        page
    });
    assert!(deep.contains("deeper than 32 levels"), "{deep}");
    for page in [0, 1, 1000, u64::MAX] {
        let error = with_tree(&|builder| builder.branch(&[(&key, page)]));
        assert!(error.contains("the file has 4 pages"), "{page}: {error}");
    }
}

/// Writes numbers into the only leaf of the keys, whose header is at the begin of page 2.
#[test]
fn numbers_of_a_page_that_lead_out_of_it_are_found() {
    let good = snapshot_of(&[put(2, b"a", b"1", 0), put(3, b"b", b"2", 0)]);
    let database = &good[..good.len() - 32];
    let page = 2 * PAGE;
    let changes: [(usize, &[u8], &str); 11] = [
        (page, &[9], "it is another one"),
        (page + 8, &[4, 0], "neither branch nor leaf"),
        (page + 8, &[3, 0], "neither branch nor leaf"),
        (page + 10, &[0xff, 0xff], "no room for 65535 elements"),
        (page + 12, &[0xff, 0xff, 0xff, 0xff], "4294967295 more pages"),
        // Position, length of the key, length of the value of the first element.
        (page + 20, &[0, 0, 0, 0], "a key is at"),
        (page + 20, &[0xff, 0xff, 0xff, 0xff], "a key is at"),
        (page + 24, &[0, 0, 0, 0], "a key is at"),
        (page + 24, &[0xff, 0xff, 0xff, 0xff], "a key is at"),
        (page + 28, &[0xff, 0xff, 0xff, 0xff], "a key is at"),
        // The second one begins inside the first one.
        (page + 36, &[17, 0, 0, 0], "a key is at"),
    ];
    for (at, bytes, says) in changes {
        let mut changed = database.to_vec();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        let error = refused(snapshot(changed));
        assert!(error.contains(says), "{at}: {error}");
    }
}

#[test]
fn a_bucket_that_is_cut_is_found() {
    for length in 0..40 {
        let mut builder = Builder::new();
        let mut cut = inline(b"key", &[put(2, b"a", b"1", 0)]);
        cut.truncate(length);
        let root = builder.leaf(&[cut]);
        let error = refused(snapshot(builder.finish(root)));
        assert!(error.contains("it is damaged: page 2"), "{length}: {error}");
    }
}

/// Reads all that there is, whatever it says.
fn exhaust(database: Vec<u8>) {
    if let Ok(mut snapshot) = opened_database(database) {
        let most = snapshot.keys();
        let _ = snapshot.leased(3);
        let mut found = 0;
        while let Ok(Some(_)) = snapshot.next() {
            found += 1;
        }
        assert!(found <= most);
    }
}

fn any_database() -> Vec<u8> {
    let mut builder = Builder::new();
    let first = builder.leaf(&[put(2, b"a", b"1", 0), put(3, b"b", &[2; 2 * PAGE], 5)]);
    let second = builder.leaf(&[put(4, b"c", b"3", 0), delete(5, b"a")]);
    let children: [(&[u8], u64); 2] =
        [(&revision(2, 0, false), first), (&revision(4, 0, false), second)];
    let top = builder.branch(&children);
    let lease = inline(b"lease", &[item(b"1", b"2")]);
    let root = builder.leaf(&[bucket(b"key", top), lease]);
    builder.finish(root)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Only the reader stands between these and a panic, or reading for ever.
    #[test]
    fn a_database_with_changed_bytes_does_no_harm(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..6,
        ),
    ) {
        let mut database = any_database();
        let pages = database.len() / PAGE;
        for (page, at, with) in changes {
            // Most numbers are at the begin of a page.
            let at = page.index(pages) * PAGE + at.index(96);
            database[at] = with;
        }
        exhaust(database);
    }

    /// A meta page that verifies leads anywhere.
    #[test]
    fn any_pages_below_a_good_meta_page_do_no_harm(
        pages in prop::collection::vec(
            (0..6_u16, 0..6_u16, prop::collection::vec(0..80_u32, 0..60)), 1..4,
        ),
        top in 0..8_u64,
    ) {
        let mut builder = Builder::new();
        for (flags, count, numbers) in pages {
            builder.raw(flags, count, &numbers);
        }
        let root = builder.leaf(&[bucket(b"key", top)]);
        exhaust(builder.finish(root));
    }

    #[test]
    fn what_is_put_and_deleted_is_what_a_map_has(
        writes in prop::collection::vec(
            (0..8_u8, prop::option::of(prop::collection::vec(any::<u8>(), 0..300))), 0..60,
        ),
    ) {
        let (mut expected, mut revisions) = (Held::new(), Vec::<Item>::new());
        for (number, (key, value)) in writes.into_iter().enumerate() {
            let (main, key) = (number as u64 + 2, vec![key; 3]);
            match value {
                Some(value) => {
                    revisions.push(put(main, &key, &value, 0));
                    expected.insert(key, value);
                }
                None => {
                    revisions.push(delete(main, &key));
                    expected.remove(&key);
                }
            }
        }
        let mut snapshot = opened_database(database_of(&revisions)).expect("a database");
        prop_assert_eq!(all(&mut snapshot).expect("it is read"), expected);
    }
}

#[test]
fn a_bucket_of_the_root_has_its_own_form() {
    let bytes = any_database();
    let mut database = Database::open(Cursor::new(&bytes), bytes.len() as u64).expect("good");
    let found = [&b"key"[..], b"lease"].map(|name| database.bucket(&[name]).expect("good"));
    assert!(matches!(found, [Some(Bucket::Root(_)), Some(Bucket::Inline { .. })]), "{found:?}");
}
