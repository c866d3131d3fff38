//! Damage is found wherever it is, and what does not fit is refused.

use super::*;
use crate::record::{Named, Piece};
use crate::{LeftOut, Object};
use prost::Message;

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    run(async |folder, target| {
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
        let rounds = if folder.server.is_some() { 200 } else { 400 };
        for round in 0..rounds {
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
    run(async |_, target| {
        let cluster = Cluster::new(5);
        cluster.save(&target, "base", None).await;
        let mut other = Cluster::new(6);
        other.index = cluster.index;
        let refused = other.save_some(&target, "next", Some("base"), usize::MAX).await;
        assert!(matches!(refused, Err(Error::History { .. })));
        assert!(matches!(Backup::open(&target, "next").await, Err(Error::Missing { .. })));
    });
}

/// The same where no value tells: after the recovery a key has a version of a term which the base has not, at an index
/// that the base has.
#[test]
fn a_base_is_refused_by_a_term_that_its_history_does_not_have() {
    run_in_folder(async |folder, target| {
        let cluster = Cluster::new(5);
        let saved = cluster.save(&target, "base", None).await;
        let Head { index, .. } = saved.head;
        let begin = async |name: &'static str, term, index| {
            let sources = Sources::find(&target, SHOP, Some("base"), false, None).await.unwrap();
            let head = Head { term, index, ..cluster.head() };
            Saver::begin_with(&target, name, head, sources, SMALL).await
        };
        let of_base = cluster.items(&Sources::default())[0].clone();
        let item = |term, index| {
            let value = Bytes::from_static(b"new");
            let hash = xxh3_128(&value);
            Item { term, index, length: 3, hash, value: Some(value), ..of_base.clone() }
        };
        // By the state's own last entry: of a term before, of no term of that entry, and behind the base's.
        for (term, at) in [(0, index + 1), (2, index), (2, index - 1)] {
            let refused = begin("head", term, at).await.err().unwrap();
            assert!(matches!(refused, Error::OtherHistory { .. }), "{refused}");
            assert!(refused.to_string().contains("backup `base`"), "{refused}");
            assert!(folder.is_empty("head"));
        }
        // By a key's version.
        for (name, term, at) in
            [("early", 2, index - 1), ("last", 2, index), ("late", 0, index + 1)]
        {
            let mut saver = begin(name, 2, index + 9).await.unwrap();
            let refused = saver.add(item(term, at)).await.unwrap_err();
            assert!(matches!(refused, Error::History { .. }), "{name}: {refused}");
        }
        // The member has another entry there, and so sends what it would leave out.
        let mut saver = begin("sent", 2, index + 9).await.unwrap();
        let refused = saver.add(item(1, index - 1)).await.unwrap_err();
        assert!(matches!(refused, Error::OtherHistory { .. }), "{refused}");
        // In the same history both are as they should be.
        let mut saver = begin("same", 2, index + 9).await.unwrap();
        saver.add(item(2, index + 1)).await.unwrap();
    });
}

/// A cluster that was made anew under the same name has the same versions again, of other writes.
#[test]
fn a_value_of_the_base_with_the_same_version_and_another_hash_is_not_taken() {
    run_in_folder(async |_, target| {
        let mut cluster = Cluster::new(8);
        cluster.save(&target, "base", None).await;
        for (_, value) in cluster.keys.values_mut() {
            // As long, and not the same.
            *value = value.iter().map(|byte| !byte).collect();
        }
        let refused = cluster.save_some(&target, "next", Some("base"), usize::MAX).await;
        assert!(matches!(refused, Err(Error::History { .. })));
        assert!(matches!(Backup::open(&target, "next").await, Err(Error::Missing { .. })));
    });
}

/// The story: the records of a base said that values end behind the ends of their objects. A save named these places, and
/// what it saved could not be read.
#[test]
fn a_value_of_the_base_that_lies_outside_of_its_object_is_not_taken() {
    run_in_folder(async |folder, target| {
        let cluster = Cluster::new(21);
        let mut saved = cluster.save(&target, "b0", None).await;
        let values = saved.values.clone();
        for object in &mut saved.records {
            let at = folder.path().join(&object.path);
            let stored = std::fs::read(&at).unwrap();
            let raw = zstd::stream::decode_all(&stored[..]).unwrap();
            let mut piece = Piece::read(&raw.into()).unwrap();
            for record in piece.records.iter_mut().filter(|record| record.length > 0) {
                let of = values.iter().find(|object| object.number == record.object).unwrap();
                record.offset = of.raw_bytes - u64::from(record.length) + 1;
            }
            let raw = piece.encode_to_vec();
            let stored = zstd::stream::encode_all(&raw[..], 1).unwrap();
            std::fs::write(&at, &stored).unwrap();
            (object.bytes, object.raw_bytes) = (stored.len() as u64, raw.len() as u64);
            object.crc32 = crc32fast::hash(&stored);
        }
        std::fs::write(folder.path().join("b0/manifest"), saved.encode().unwrap()).unwrap();
        let refused = cluster.save_some(&target, "b1", Some("b0"), usize::MAX).await.unwrap_err();
        assert!(matches!(&refused, Error::Damaged { name, .. } if name == "b0"), "{refused}");
        assert!(refused.to_string().contains("lies outside of its object"), "{refused}");
    });
}

/// Older manifests than this one may lack it: nobody knows of which history they are.
#[test]
fn nothing_builds_on_a_backup_that_does_not_say_its_term() {
    run_in_folder(async |folder, target| {
        let cluster = Cluster::new(5);
        let saved = cluster.save(&target, "base", None).await;
        let head = Head { term: 0, ..saved.head.clone() };
        let text = Manifest { head, ..saved }.encode().unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let (_, json) = text.split_once('\n').unwrap();
        let json = json.replace("\"term\": 0,", "");
        let line = format!("cairn-backup {:08x} {}", crc32fast::hash(json.as_bytes()), json.len());
        let path = folder.path().join("base/manifest");
        std::fs::write(path, format!("{line}\n{json}")).unwrap();
        assert!(!json.contains("term"), "{json}");
        assert_eq!(Manifest::load(&target, "base").await.unwrap().head.term, 0);

        let sources = Sources::find(&target, SHOP, Some("base"), true, None).await.unwrap();
        assert_eq!(sources.left_out(), Some(("base", LeftOut::TermUnknown)));
        assert!(sources.held().is_empty());
        let whole = cluster.save(&target, "whole", Some("base")).await;
        assert_eq!((whole.head.base, whole.records.is_empty()), (None, false));
        cluster.check(&target, "whole").await;
    });
}

#[test]
fn a_value_that_does_not_have_its_hash_and_keys_out_of_order_are_refused() {
    run(async |_, target| {
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
fn an_object_that_goes_while_a_backup_is_saved_leaves_no_backup() {
    run(async |folder, target| {
        let mut cluster = Cluster::new(16);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let sources = Sources::find(&target, SHOP, Some("base"), true, None).await.unwrap();
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
    run(async |folder, target| {
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
    run(async |_, target| {
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

/// What is larger than any object is refused before it is read, and a save writes none.
#[test]
fn a_manifest_that_cannot_be_read_is_not_written() {
    run(async |folder, target| {
        let cluster = Cluster::new(18);
        let larger = Sizes { values: 32 << 20, unrecorded: 64 << 20, ..SMALL };
        let begun =
            Saver::begin_with(&target, "large", cluster.head(), Sources::default(), larger).await;
        let mut saver = begun.unwrap();
        let value = Bytes::from(vec![0; 9 << 20]);
        let item = |key: &'static str| Item {
            key: key.into(),
            term: 1,
            index: 1,
            length: value.len() as u32,
            hash: xxh3_128(&value),
            value: Some(value.clone()),
        };
        saver.add(item("a")).await.unwrap();
        saver.add(item("b")).await.unwrap();
        assert!(matches!(saver.finish(2).await, Err(Error::Damaged { .. })));
        assert!(!folder.path().join("large/manifest").exists());

        let file = std::fs::File::create(folder.path().join("large/manifest")).unwrap();
        file.set_len((128 << 20) + 1).unwrap();
        let refused = Manifest::load(&target, "large").await;
        assert!(matches!(refused, Err(Error::TooLong { .. })));
    });
}

#[test]
fn a_value_that_is_longer_than_any_is_refused() {
    run(async |_, target| {
        let cluster = Cluster::new(18);
        let begun = Saver::begin(&target, "long", cluster.head(), Sources::default()).await;
        let value = Bytes::from(vec![0; (16 << 20) + 1]);
        let (length, hash) = (value.len() as u32, xxh3_128(&value));
        let item =
            Item { key: "a".into(), term: 1, index: 1, length, hash, value: Some(value.clone()) };
        assert!(matches!(begun.unwrap().add(item.clone()).await, Err(Error::Sent(_))));
        let begun = Saver::begin(&target, "longest", cluster.head(), Sources::default()).await;
        let (mut saver, value) = (begun.unwrap(), value.slice(1..));
        let (length, hash) = (value.len() as u32, xxh3_128(&value));
        saver.add(Item { length, hash, value: Some(value), ..item }).await.unwrap();
        saver.finish(1).await.unwrap();
        let backup = Backup::open(&target, "longest").await.unwrap();
        assert_eq!(backup.verify(|_| ()).await.unwrap(), 1);
    });
}

/// A later backup would name the same object, and could not be read.
#[test]
fn records_of_a_break_that_name_what_no_backup_has_are_not_built_upon() {
    run(async |folder, target| {
        let cluster = Cluster::new(19);
        cluster.save_some(&target, "broken", None, 60).await.unwrap();
        let resumes = async || {
            let sources = Sources::find(&target, SHOP, None, true, None).await.unwrap();
            sources.resumes().to_vec()
        };
        assert_eq!(resumes().await, ["broken"]);
        let path = folder.path().join("broken/records-000000");
        let stored = std::fs::read(&path).unwrap();
        let raw = zstd::stream::decode_all(&stored[..]).unwrap();
        let piece = Piece::read(&raw.into()).unwrap();
        let change = |object: &Named| {
            let object = Object { raw_bytes: (16 << 20) + 1, ..Object::from(object) };
            Named::from(&object)
        };
        let named = piece.named.iter().map(change).collect();
        let raw = Piece { named, ..piece }.encode_to_vec();
        std::fs::write(&path, zstd::stream::encode_all(&raw[..], 1).unwrap()).unwrap();
        assert!(resumes().await.is_empty());
    });
}

/// A prune beside a restore: the objects are not damaged, they were removed.
#[test]
fn reading_a_backup_that_is_removed_meanwhile_says_so() {
    run(async |folder, target| {
        let cluster = Cluster::new(20);
        let read = async |name: &str| {
            cluster.save(&target, name, None).await;
            let backup = Backup::open(&target, name).await.unwrap();
            std::fs::remove_file(folder.path().join(name).join("values-000000")).unwrap();
            if name == "removed" {
                std::fs::remove_file(folder.path().join("removed/manifest")).unwrap();
            }
            backup.verify(|_| ()).await.unwrap_err()
        };
        let error = read("removed").await;
        assert!(matches!(&error, Error::Removed(name) if name == "removed"), "{error}");
        let error = read("damaged").await;
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    });
}
