//! Encrypted backups: who reads them, what is seen without a key, and what is refused.

use super::server::{Line, Reset};
use super::*;
use crate::encryption::decrypt;
use crate::record::{Record, Summary};
use crate::save::{Kind, write};
use crate::{Encryption, Identities, Recipients};
use age::x25519::Identity;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Few objects: an exchange of keys for each takes milliseconds in a build for tests.
const SIZES: Sizes = Sizes { values: 20_000, records: 4_000, unrecorded: 1 << 20, ..Sizes::USUAL };

fn identities(keys: &[&Identity]) -> Identities {
    keys.iter().fold(Identities::default(), |all, key| all.and((*key).clone()))
}

/// How a process encrypts to these, that has the secret keys of those.
pub(super) fn to(recipients: &[&Identity], has: &[&Identity]) -> Arc<Encryption> {
    let texts: Vec<String> = recipients.iter().map(|key| key.to_public().to_string()).collect();
    Arc::new(Encryption::new(Recipients::read(&texts).unwrap(), identities(has)))
}

/// Saves a state, and breaks off after so many keys.
pub(super) async fn save_some(
    cluster: &Cluster,
    target: &Target,
    name: &str,
    base: Option<&str>,
    encryption: Option<&Arc<Encryption>>,
    most: usize,
) -> crate::Result<Option<Manifest>> {
    let sources = Sources::find(target, SHOP, base, true, encryption).await?;
    let items = cluster.items(&sources);
    let keys = items.len();
    let mut saver = Saver::begin_with(target, name, cluster.head(), sources, SIZES).await?;
    for item in items.into_iter().take(most) {
        saver.add(item).await?;
    }
    if most < keys {
        saver.break_off().await?;
        return Ok(None);
    }
    saver.finish(keys as u64).await.map(Some)
}

pub(super) async fn save(
    cluster: &Cluster,
    target: &Target,
    name: &str,
    base: Option<&str>,
    encryption: &Arc<Encryption>,
) -> Manifest {
    let saved = save_some(cluster, target, name, base, Some(encryption), usize::MAX).await;
    saved.unwrap().unwrap()
}

pub(super) async fn unlocked(target: &Target, name: &str, key: &Identity) -> crate::Result<Backup> {
    Backup::open(target, name).await?.unlock(&identities(&[key]))
}

/// Saves three, each since the one before. Returns the states.
async fn chain(cluster: &mut Cluster, target: &Target, encryption: &Arc<Encryption>) -> Vec<Keys> {
    let mut states = Vec::new();
    for number in 0..3_usize {
        let base = number.checked_sub(1).map(|base| format!("b{base}"));
        save(cluster, target, &format!("b{number}"), base.as_deref(), encryption).await;
        states.push(cluster.keys.clone());
        cluster.work(30);
    }
    states
}

#[test]
fn a_chain_of_three_is_read_by_each_recipient_and_shows_nobody_else_a_key_or_a_value() {
    run(async |folder, target| {
        let (office, vault) = (Identity::generate(), Identity::generate());
        let mut cluster = Cluster::new(50);
        let encryption = to(&[&office, &vault], &[&office]);
        let states = chain(&mut cluster, &target, &encryption).await;
        for (number, state) in states.iter().enumerate() {
            for key in [&office, &vault] {
                let backup = unlocked(&target, &format!("b{number}"), key).await.unwrap();
                check_opened(state, &backup).await;
                assert_eq!(backup.manifest().head.recipients, encryption.recipients());
            }
        }
        let last = Manifest::load(&target, "b2").await.unwrap();
        assert_eq!((last.sources(), last.format), (3, 2));
        let hash_of = |state: &Keys| {
            let mut summary = Summary::default();
            for (key, (index, value)) in state {
                let (key, index, hash) = (key.clone(), *index, xxh3_128(value));
                let item =
                    Item { key, term: 1, index, length: value.len() as u32, hash, value: None };
                summary.add(&Record::of(&item, 0, 0)).unwrap();
            }
            summary.hash()
        };
        let hashes: Vec<String> = states.iter().map(hash_of).collect();
        let mut objects = 0;
        for path in files(&folder) {
            let bytes = std::fs::read(&path).unwrap();
            let has = |text: &[u8]| bytes.windows(text.len()).any(|at| at == text);
            assert!(!has(b"key 0") && !has(b"key 1"), "{}", path.display());
            assert!(!hashes.iter().any(|hash| has(hash.as_bytes())), "{}", path.display());
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with("values-") || name.starts_with("records-") {
                assert!(bytes.starts_with(b"age-encryption.org/v1\n"), "{}", path.display());
                objects += 1;
            }
        }
        assert!(objects > 6, "{objects} objects");
        // They are the hashes that are seen where nothing is encrypted.
        let plain = cluster.save(&target, "plain", None).await;
        assert_eq!(plain.state, hash_of(&cluster.keys));
    });
}

#[test]
fn without_the_key_a_backup_is_listed_compared_and_pruned_and_verify_names_the_way_out() {
    run(async |folder, target| {
        let (key, stranger) = (Identity::generate(), Identity::generate());
        let mut cluster = Cluster::new(51);
        let states = chain(&mut cluster, &target, &to(&[&key], &[&key])).await;
        let listed = Manifest::list(&target).await.unwrap();
        let keys = listed.into_iter().map(|(_, manifest)| manifest.unwrap().keys as usize);
        assert!(keys.eq(states.iter().map(BTreeMap::len)));

        let backup = Backup::open(&target, "b2").await.unwrap();
        let public = key.to_public().to_string();
        let nothing = Identities::default();
        for refused in [
            backup.verify(|_| ()).await.err().unwrap(),
            backup.items().err().unwrap(),
            Backup::open(&target, "b2").await.unwrap().unlock(&nothing).err().unwrap(),
        ] {
            assert!(matches!(refused, Error::NoIdentity { .. }), "{refused}");
            let said = refused.to_string();
            assert!(said.contains("--identity FILE") && said.contains(&public), "{said}");
        }
        let refused = unlocked(&target, "b2", &stranger).await.err().unwrap();
        assert!(matches!(refused, Error::WrongIdentity { .. }), "{refused}");
        let said = refused.to_string();
        assert!(said.contains(&public) && said.contains(&stranger.to_public().to_string()));

        let (mut bytes, objects) = (0, backup.manifest().objects().count());
        let compared = backup.verify_stored(|object| bytes += object).await.unwrap();
        assert_eq!((compared, bytes), (objects, backup.manifest().stored_bytes()));
        for object in backup.manifest().objects() {
            let path = folder.path().join(&object.path);
            let stored = std::fs::read(&path).unwrap();
            let mut flipped = stored.clone();
            flipped[stored.len() / 2] ^= 1;
            for damaged in [&flipped[..], &stored[..stored.len() - 1]] {
                std::fs::write(&path, damaged).unwrap();
                let found = backup.verify_stored(|_| ()).await.unwrap_err();
                assert!(matches!(found, Error::Damaged { .. }), "{found}");
            }
            std::fs::write(&path, stored).unwrap();
        }

        let last = Keep { last: 1, within: Duration::ZERO };
        let later = SystemTime::now() + Duration::from_secs(2 * 24 * 3600);
        let pruned = prune(&target, &last, &[], later, false).await.unwrap();
        assert_eq!(pruned.backups, ["b0", "b1"]);
        check_opened(&states[2], &unlocked(&target, "b2", &key).await.unwrap()).await;
    });
}

#[test]
fn a_backup_that_builds_on_another_one_is_encrypted_to_the_same() {
    run(async |folder, target| {
        let (office, vault) = (Identity::generate(), Identity::generate());
        let mut cluster = Cluster::new(52);
        cluster.save(&target, "plain", None).await;
        let both = to(&[&office, &vault], &[&vault]);
        save(&cluster, &target, "both", None, &both).await;
        cluster.work(20);
        let (one, texts) = (to(&[&office], &[&office]), both.recipients().join(", "));
        for (base, encryption, said) in [
            ("plain", Some(&one), "`plain` is not encrypted, and the new one would be encrypted"),
            ("both", None, "and the new one would be not encrypted"),
            ("both", Some(&one), "and the new one would be encrypted to"),
            // It cannot find where the earlier one has a value.
            ("both", Some(&to(&[&office, &vault], &[])), "--identity FILE"),
            ("both", Some(&to(&[&office, &vault], &[&Identity::generate()])), "are those of age1"),
        ] {
            let tried = save_some(&cluster, &target, "new", Some(base), encryption, usize::MAX);
            let refused = tried.await.unwrap_err().to_string();
            assert!(refused.contains(&format!("backup `{base}` is ")), "{refused}");
            assert!(refused.contains(said), "{refused}");
            assert!(base == "plain" || refused.contains(&texts), "{refused}");
            assert!(!folder.path().join("new").exists(), "{refused}");
        }
        // Whole backups need no secret key, and the order of recipients is no difference.
        save(&cluster, &target, "whole", None, &to(&[&vault, &office], &[])).await;
        let next = to(&[&vault, &office], &[&office]);
        let saved = save(&cluster, &target, "new", Some("both"), &next).await;
        assert_eq!((saved.head.base.as_deref(), saved.sources()), (Some("both"), 2));
        for name in ["whole", "new"] {
            check_opened(&cluster.keys, &unlocked(&target, name, &office).await.unwrap()).await;
        }
    });
}

/// Whoever can write at the target can put a backup there that nobody encrypted.
#[test]
fn a_backup_that_is_not_encrypted_is_refused_where_an_identity_says_that_it_is() {
    run_in_folder(async |folder, target| {
        let key = Identity::generate();
        let cluster = Cluster::new(53);
        let saved = save(&cluster, &target, "b0", None, &to(&[&key], &[])).await;
        cluster.save(&target, "plain", None).await;
        let refused = unlocked(&target, "plain", &key).await.err().unwrap();
        assert!(matches!(&refused, Error::NotEncrypted(name) if name == "plain"), "{refused}");
        assert!(refused.to_string().contains("leave --identity out"), "{refused}");
        cluster.check(&target, "plain").await;

        let head = Head { recipients: Vec::new(), ..saved.head.clone() };
        let stripped = Manifest { format: 1, head, ..saved };
        std::fs::write(folder.path().join("b0/manifest"), stripped.encode().unwrap()).unwrap();
        let refused = unlocked(&target, "b0", &key).await.err().unwrap();
        assert!(matches!(refused, Error::NotEncrypted(_)), "{refused}");
        let backup = Backup::open(&target, "b0").await.unwrap();
        assert!(matches!(backup.verify(|_| ()).await, Err(Error::Damaged { .. })));
    });
}

#[test]
fn every_flipped_bit_and_every_cut_of_an_encrypted_backup_is_found() {
    run_in_folder(async |folder, target| {
        let key = Identity::generate();
        let mut cluster = Cluster::new(54);
        let encryption = to(&[&key], &[&key]);
        save(&cluster, &target, "b0", None, &encryption).await;
        cluster.work(50);
        let saved = save(&cluster, &target, "b1", Some("b0"), &encryption).await;
        let mut paths: Vec<&str> = saved.objects().map(|object| object.path.as_str()).collect();
        paths.push("b1/manifest");
        let mut random = StdRng::seed_from_u64(54);
        for round in 0..100 {
            let path = folder.path().join(paths[round % paths.len()]);
            let bytes = std::fs::read(&path).unwrap();
            let (mut changed, at) = (bytes.clone(), random.random_range(0..bytes.len()));
            match random.random_range(0..4) {
                0 => changed.truncate(at),
                1 => changed.push(random.random()),
                _ => changed[at] ^= 1 << random.random_range(0..8),
            }
            std::fs::write(&path, &changed).unwrap();
            let verified = match unlocked(&target, "b1", &key).await {
                Ok(backup) => backup.verify(|_| ()).await.map(drop),
                Err(error) => Err(error),
            };
            let error = verified.expect_err(&format!("round {round}, {}", path.display()));
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            std::fs::write(&path, &bytes).unwrap();
        }
        check_opened(&cluster.keys, &unlocked(&target, "b1", &key).await.unwrap()).await;
    });
}

/// Whoever can write at the target can make the checksums right, too.
#[test]
fn what_is_put_in_the_place_of_an_encrypted_object_is_found_whatever_its_checksum_is() {
    run_in_folder(async |folder, target| {
        let key = Identity::generate();
        let cluster = Cluster::new(55);
        let saved = save(&cluster, &target, "b0", None, &to(&[&key], &[])).await;
        let foreign = to(&[&Identity::generate()], &[]);
        let at = folder.path().join("b0/manifest");
        for path in [saved.values[0].path.clone(), saved.records[0].path.clone()] {
            let file = folder.path().join(&path);
            let stored = std::fs::read(&file).unwrap();
            let plain = decrypt(&stored, &identities(&[&key])).unwrap();
            let flipped = |at: usize| {
                let mut flipped = stored.clone();
                flipped[at] ^= 1;
                flipped
            };
            // Of the key of this file, for the recipient, in base64.
            let mut of_recipient = stored.clone();
            of_recipient[90] = if stored[90] == b'B' { b'C' } else { b'B' };
            for (bytes, what) in [
                (plain.clone(), "is not encrypted as its backup is"),
                (foreign.values(&plain).unwrap(), "is encrypted to others than its backup is"),
                (flipped(0), "is not encrypted as its backup is"),
                (of_recipient, "is encrypted to others than its backup is"),
                (flipped(stored.len() - 1), "cannot be decrypted"),
                (stored[..stored.len() - 1].to_vec(), "cannot be decrypted"),
                (stored[..10].to_vec(), "is not encrypted as its backup is"),
            ] {
                std::fs::write(&file, &bytes).unwrap();
                let mut manifest = saved.clone();
                let objects = manifest.values.iter_mut().chain(&mut manifest.records);
                for object in objects.filter(|object| object.path == path) {
                    object.bytes = bytes.len() as u64;
                    object.crc32 = crc32fast::hash(&bytes);
                }
                std::fs::write(&at, manifest.encode().unwrap()).unwrap();
                let backup = unlocked(&target, "b0", &key).await.unwrap();
                backup.verify_stored(|_| ()).await.unwrap();
                let error = backup.verify(|_| ()).await.unwrap_err();
                assert!(matches!(error, Error::Damaged { .. }), "{error}");
                let said = error.to_string();
                assert!(said.contains(&path) && said.contains(what), "{said}");
            }
            std::fs::write(&file, &stored).unwrap();
        }
        std::fs::write(&at, saved.encode().unwrap()).unwrap();
        check_opened(&cluster.keys, &unlocked(&target, "b0", &key).await.unwrap()).await;
    });
}

#[test]
fn the_hash_of_another_state_is_damage() {
    run_in_folder(async |folder, target| {
        let key = Identity::generate();
        let mut cluster = Cluster::new(56);
        let encryption = to(&[&key], &[]);
        let before = save(&cluster, &target, "b0", None, &encryption).await;
        cluster.work(10);
        let after = save(&cluster, &target, "b1", None, &encryption).await;
        for (state, what) in [
            (before.state.clone(), "its records are not those of"),
            ("0".repeat(32), "the hash of its state is not encrypted"),
            ("no base64".into(), "the hash of its state is not encrypted"),
        ] {
            let mixed = Manifest { state, ..after.clone() };
            std::fs::write(folder.path().join("b1/manifest"), mixed.encode().unwrap()).unwrap();
            let error = unlocked(&target, "b1", &key).await.unwrap().verify(|_| ()).await;
            let error = error.unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
    });
}

/// A member ended the save, and the next one is asked by the same process: nobody gave that a secret key.
#[test]
fn a_save_that_broke_off_is_gone_on_with_by_its_own_process_or_with_the_key() {
    run(async |_, target| {
        let (key, other) = (Identity::generate(), Identity::generate());
        let cluster = Cluster::new(57);
        let own = to(&[&key], &[]);
        let broken = save_some(&cluster, &target, "broken", None, Some(&own), 60).await;
        assert!(broken.unwrap().is_none());
        let resumes = async |encryption: Option<&Arc<Encryption>>| {
            let found = Sources::find(&target, SHOP, None, true, encryption).await.unwrap();
            found.resumes().to_vec()
        };
        assert_eq!(resumes(Some(&own)).await, ["broken"]);
        assert_eq!(resumes(Some(&to(&[&key], &[&key]))).await, ["broken"]);
        for of_another in [
            Some(to(&[&key], &[])),
            Some(to(&[&key], &[&other])),
            Some(to(&[&key, &other], &[&key])),
            Some(to(&[&other], &[&key])),
            None,
        ] {
            assert!(resumes(of_another.as_ref()).await.is_empty());
        }
        let saved = save(&cluster, &target, "whole", None, &own).await;
        let taken = saved.values.iter().filter(|object| object.path.starts_with("broken/"));
        assert!(taken.count() > 0 && saved.head.resumes == ["broken"]);
        check_opened(&cluster.keys, &unlocked(&target, "whole", &key).await.unwrap()).await;
        // Another process without the secret key begins anew.
        let saved = save(&cluster, &target, "anew", None, &to(&[&key], &[])).await;
        assert_eq!((saved.sources(), saved.head.resumes.len()), (1, 0));
        check_opened(&cluster.keys, &unlocked(&target, "anew", &key).await.unwrap()).await;
    });
}

/// Encrypted twice, the same object has other bytes. A call that is made again must not do that.
#[test]
fn an_encrypted_object_that_was_stored_without_an_answer_is_stored_once() {
    let (place, direct) = Place::bucket();
    run_once(async {
        let key = Identity::generate();
        let encryption = to(&[&key], &[]);
        let mut resets = vec![Reset::AtAnswer, Reset::AtAnswer];
        let server = place.server.as_ref().unwrap().address;
        let line = Line::to(server, move || resets.pop().unwrap_or(Reset::Never));
        let (target, raw) = (line.target("s3://backups/of/shop"), vec![7; 10_000]);
        let path = "b0/values-000000".to_owned();
        let write = write(&target, path.clone(), 0, raw.clone(), Kind::Values, Some(encryption));
        let object = write.await.unwrap();
        assert_eq!(line.resets.answering.load(Ordering::Relaxed), 2);
        let stored = direct.get(&path, object.bytes).await.unwrap().unwrap();
        assert_eq!(crc32fast::hash(&stored), object.crc32);
        let packed = decrypt(&stored, &identities(&[&key])).unwrap();
        assert_eq!(zstd::stream::decode_all(&packed[..]).unwrap(), raw);
    });
}
