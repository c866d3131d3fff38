//! The fuzz target of snapshots.

use super::pages::{
    Builder, Item, bucket, database_of, delete, inline, item, put, revision, sum_metas,
};
use super::{all, opened_database};

/// The smallest pages that bbolt makes.
const SMALL_PAGE: usize = 1 << 10;

fn small_database(build: fn(&mut Builder) -> u64) -> Vec<u8> {
    let mut builder = Builder::of_pages(SMALL_PAGE);
    let root = build(&mut builder);
    builder.finish(root)
}

/// The meta pages of the input get the right checksums: nobody gets further by chance.
#[test]
fn any_bytes_are_a_database_that_has_each_key_once_or_are_refused() {
    cairn_fuzz::target!(
        "leaf" => small_database(|builder| {
            let leaf = builder.leaf(&[put(2, b"a", b"1", 0), put(3, b"b", b"2", 9), delete(4, b"a")]);
            builder.leaf(&[inline(b"alarm", &[]), bucket(b"key", leaf)])
        }),
        "inside" => small_database(|builder| {
            builder.leaf(&[inline(b"key", &[put(2, b"a", b"1", 0)])])
        }),
        "tree" => small_database(|builder| {
            let first = builder.leaf(&[put(2, b"a", &[1; SMALL_PAGE], 0)]);
            let second = builder.leaf(&[put(3, b"b", b"2", 0), delete(4, b"a")]);
            let keys = [2, 3].map(|main| revision(main, 0, false));
            let top = builder.branch(&[(&keys[0], first), (&keys[1], second)]);
            builder.leaf(&[bucket(b"key", top), inline(b"lease", &[item(b"1", b"2")])])
        }),
    )
    .for_each(|bytes| {
        let mut database = bytes.to_vec();
        sum_metas(&mut database, SMALL_PAGE);
        let most = 16 * database.len() + (1 << 20);
        let read = || {
            let mut snapshot = opened_database(database.clone())?;
            snapshot.leased(3)?;
            all(&mut snapshot)
        };
        let found = match cairn_fuzz::within(most, read) {
            Ok(found) => found,
            Err(error) => return assert!((1..300).contains(&error.to_string().len()), "{error}"),
        };
        let put = |((key, value), main): ((&Vec<u8>, &Vec<u8>), u64)| put(main, key, value, 0);
        let puts: Vec<Item> = found.iter().zip(2..).map(put).collect();
        let mut again = opened_database(database_of(&puts)).expect("a database");
        assert_eq!(all(&mut again).expect("it is read"), found);
    });
}
