//! A manifest is read as it was written, or refused.

use super::*;
use crate::keys::KNOWN;
use crate::paths::path_of;

fn manifest() -> Manifest {
    let head = Head {
        generation: 7,
        cluster_version: 2,
        term: 3,
        release: "0.1.0".into(),
        began: 1,
        ..Head::of_shop(1000)
    };
    let object = Object {
        number: 0,
        path: "a-1/values-000000".into(),
        bytes: 10,
        raw_bytes: 20,
        zstd: true,
        crc32: 5,
    };
    let records = Object { path: "a-1/records-000000".into(), ..object.clone() };
    Manifest { records: vec![records], values: vec![object], ..Manifest::new("a-1".into(), head) }
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let manifest = manifest();
    let bytes = manifest.encode().unwrap();
    assert_eq!(Manifest::decode("a-1", &bytes).unwrap(), manifest);
}

/// The members are new: a release before them reads what has them, and wrote none.
#[test]
fn members_change_no_format_and_are_read_as_they_were_written() {
    let plain = manifest();
    assert!(!String::from_utf8_lossy(&plain.encode().unwrap()).contains("members"));
    let head = Head { members: vec![(1 << 48) | 5, u64::MAX], ..plain.head.clone() };
    let named = Manifest { head, ..plain.clone() };
    assert_eq!(named.format, plain.format);
    assert_eq!(Manifest::decode("a-1", &named.encode().unwrap()).unwrap(), named);
}

#[test]
fn an_overview_says_what_the_manifest_does_without_its_objects() {
    let mut manifest = manifest();
    let other = Object { number: 1, path: "b/values-000003".into(), ..manifest.values[0].clone() };
    manifest.values.push(other);
    let overview = Overview::of(&manifest);
    assert_eq!((overview.objects, overview.stored_bytes, overview.own_bytes), (3, 30, 20));
    assert_eq!((&overview.name, &overview.head), (&manifest.name, &manifest.head));
}

/// An older release says that it needs a newer one, and reads nothing of it.
#[test]
fn only_the_manifest_of_an_encrypted_backup_has_a_new_format() {
    let plain = manifest();
    let text = String::from_utf8(plain.encode().unwrap().to_vec()).unwrap();
    assert!(plain.format == 1 && !text.contains("recipients"), "{text}");
    let key = age::x25519::Identity::generate().to_public().to_string();
    let head = Head { recipients: vec![key], ..plain.head };
    let encrypted = Manifest::new("a-1".into(), head);
    assert!(encrypted.format == 2 && encrypted.is_encrypted());
    assert_eq!(Manifest::decode("a-1", &encrypted.encode().unwrap()).unwrap(), encrypted);
}

#[test]
fn every_flipped_bit_and_every_cut_of_a_manifest_is_found() {
    let bytes = manifest().encode().unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            assert!(Manifest::decode("a-1", &flipped).is_err(), "bit {bit} of byte {at}");
        }
        assert!(Manifest::decode("a-1", &bytes[..at]).is_err(), "{at} bytes");
    }
    let longer = [&bytes[..], b"\n"].concat();
    assert!(Manifest::decode("a-1", &longer).is_err());
}

#[test]
fn what_is_longer_than_the_longest_that_is_read_is_not_written() {
    let bytes = sealed(&"four", 1000).unwrap().len() as u64;
    assert!(sealed(&"four", bytes).is_ok());
    let refused = sealed(&"four", bytes - 1).unwrap_err();
    assert!(matches!(refused, Error::TooMuch { .. }), "{refused}");
}

/// What a save counts before there is a manifest.
#[test]
fn the_bytes_of_objects_are_those_that_the_manifest_has() {
    let mut manifest = manifest();
    let before = manifest.encode().unwrap().len() as u64;
    let mut listed = 0;
    for number in 1..1000 {
        let more = Object { number, bytes: u64::from(number) << 20, ..manifest.values[0].clone() };
        listed += more.listed_bytes();
        manifest.values.push(more);
    }
    // The first line has the length, which has more digits now.
    let grown = manifest.encode().unwrap().len() as u64 - before;
    assert!((listed..listed + 10).contains(&grown), "{grown} instead of {listed}");
}

/// A hostile one would make a prune look at any number of names.
#[test]
fn a_head_that_goes_on_with_more_than_a_save_does_is_none() {
    let runtime = real_tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let target = Target::make(folder.path().to_str().unwrap()).unwrap();
        for (name, resumes) in [("most", RESUMED_MAX), ("more", RESUMED_MAX + 1)] {
            let head = Head { resumes: vec!["b".into(); resumes], ..manifest().head };
            head.store(&target, name).await.unwrap();
        }
        assert!(Head::load(&target, "most").await.unwrap().is_some());
        assert_eq!(Head::load(&target, "more").await.unwrap(), None);
        let head = Head { members: vec![1; MEMBERS_MAX + 1], ..manifest().head };
        head.store(&target, "members").await.unwrap();
        assert_eq!(Head::load(&target, "members").await.unwrap(), None);
    });
}

/// Objects with records of so many backups.
fn of_folders(folders: usize) -> Vec<Object> {
    let Manifest { records, .. } = manifest();
    let of = |folder: usize| Object {
        path: path_of(&format!("b{folder}"), "records", 0),
        ..records[0].clone()
    };
    // That of `a-1` has values.
    (1..folders).map(of).collect()
}

/// The story: a list of 128 MiB took gigabytes of memory before anybody saw that no backup has so many members.
#[test]
fn no_list_of_a_manifest_takes_more_memory_than_one_that_a_save_writes() {
    let whole = serde_json::to_string_pretty(&manifest()).unwrap();
    let head = serde_json::to_string_pretty(&manifest().head).unwrap();
    for (list, entry) in [("resumes", "\"\""), ("members", "0"), ("recipients", "\"\"")] {
        let many = format!("\"{list}\": [{}]", vec![entry; 100_000].join(","));
        let with_many = |json: &str| {
            let json = match list {
                "resumes" => json.replace("\"resumes\": []", &many),
                _ => json.replace("\"began\": 1", &format!("\"began\": 1, {many}")),
            };
            assert!(json.len() > many.len());
            format!("{}{json}", first_line(&json))
        };
        let [whole, head] = [&whole, &head].map(|json| with_many(json));
        let decode = || Manifest::decode("a-1", whole.as_bytes());
        let refused = cairn_fuzz::within(64 << 10, decode).unwrap_err().to_string();
        assert!(refused.contains("expected a list of at most"), "{list}: {refused}");
        assert_eq!(cairn_fuzz::within(64 << 10, || Head::decode(head.as_bytes())), None);
    }
}

#[test]
fn what_a_manifest_names_is_checked() {
    let refused = |change: fn(&mut Manifest)| {
        let mut manifest = manifest();
        change(&mut manifest);
        Manifest::decode("a-1", &manifest.encode().unwrap()).unwrap_err().to_string()
    };
    for (change, what) in [
        (
            (|m| m.values[0].path = "../etc/passwd".into()) as fn(&mut Manifest),
            "names an object `../etc/passwd`",
        ),
        (|m| m.values[0].path = "a/records-000000".into(), "names an object"),
        (|m| m.records[0].raw_bytes = u64::MAX, "names an object"),
        (|m| m.values[0].raw_bytes = (16 << 20) + 1, "names an object"),
        (|m| m.head.resumes = vec!["b".into(); 9], "length 9, expected a list of at most 8"),
        (|m| m.head.members = vec![1; 65], "length 65, expected a list of at most 64"),
        (
            |m| m.values.push(Object { path: "a-1/values-000001".into(), ..m.values[0].clone() }),
            "the same number",
        ),
        (|m| m.values.push(Object { number: 1, ..m.values[0].clone() }), "the same path"),
        (|m| m.records = of_folders(33), "names objects of 33 backups"),
        (|m| m.name = "b".into(), "is that of `b`"),
        (|m| m.head.base = Some("../b".into()), "builds on `../b`, which is no backup's name"),
        (|m| m.head.resumes = vec!["b/c".into()], "builds on `b/c`"),
        (|m| m.head.cluster = "c".repeat(65), "the name of its cluster has 65 bytes"),
        (|m| m.head.release = "r".repeat(65), "its release has 65 bytes"),
        (|m| m.format = 9, "has format 9"),
        (|m| m.format = 2, "does not say to whom"),
        (|m| m.head.recipients = vec!["age1\u{1b}[2J".into()], "does not say to whom"),
        (|m| m.state = "0".repeat(8193), "a hash of 8193 bytes"),
        (|m| m.values[0].bytes = (16 << 20) + (16 << 10) + 1, "names an object"),
    ] {
        let refused = refused(change);
        assert!(refused.contains(what), "{refused}");
    }
}

/// The story: a manifest with a name of a hundred megabytes made a log line, an error and a table of as many.
#[test]
fn no_text_of_a_manifest_is_longer_in_an_error_than_a_person_reads() {
    const MANY: usize = 1 << 20;
    let long = || "x".repeat(MANY);
    let changes: [fn(&mut Manifest, String); 8] = [
        |m, long| m.name = long,
        |m, long| m.head.cluster = long,
        |m, long| m.head.release = long,
        |m, long| m.head.base = Some(long),
        |m, long| m.head.resumes = vec![long],
        |m, long| m.head.recipients = vec![long],
        |m, long| m.values[0].path = long,
        |m, long| m.state = long,
    ];
    for change in changes {
        let mut manifest = manifest();
        change(&mut manifest, long());
        let refused = Manifest::decode("a-1", &manifest.encode().unwrap()).unwrap_err();
        assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
        assert!(refused.to_string().len() < 1500, "{}", refused.to_string().len());
    }
    // A text where a number should be.
    let text = String::from_utf8(manifest().encode().unwrap().to_vec()).unwrap();
    let (_, json) = text.split_once('\n').unwrap();
    let json = json.replace("\"keys\": 0", &format!("\"keys\": \"{}\"", long()));
    assert!(json.len() > MANY);
    let refused = Manifest::decode("a-1", format!("{}{json}", first_line(&json)).as_bytes());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("expected u64") || refused.contains('…'), "{refused}");
    assert!(refused.len() < 1500, "{}", refused.len());
}

/// The input stands behind a first line that is right: nobody gets further by chance.
#[test]
fn any_bytes_are_a_manifest_that_is_read_as_it_is_written_or_are_refused() {
    let json = |manifest: &Manifest| serde_json::to_vec_pretty(manifest).unwrap();
    let plain = manifest();
    let [_, recipient] = KNOWN;
    let head = Head {
        base: Some("b0".into()),
        resumes: vec!["b1".into()],
        members: vec![(1 << 48) | 5, u64::MAX],
        recipients: vec![recipient.into()],
        ..plain.head.clone()
    };
    let Manifest { records, values, .. } = manifest();
    let encrypted = Manifest { records, values, ..Manifest::new("a-1".into(), head) };
    let newer = Manifest { format: FORMAT + 1, ..plain.clone() };
    cairn_fuzz::target!(
        "plain" => json(&plain),
        "encrypted" => json(&encrypted),
        "newer" => json(&newer),
    )
    .for_each(|bytes| {
        let Ok(json) = std::str::from_utf8(bytes) else {
            assert!(Manifest::decode("a-1", bytes).is_err());
            return;
        };
        let sealed = format!("{}{json}", first_line(json));
        let most = 64 * sealed.len() + (16 << 10);
        let decoded = cairn_fuzz::within(most, || Manifest::decode("a-1", sealed.as_bytes()));
        let manifest = match decoded {
            Ok(manifest) => manifest,
            Err(Error::Newer { name, format, .. }) => {
                return assert!(name == "a-1" && format > FORMAT);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(matches!(error, Error::Damaged { .. }), "{text}");
                return assert!(text.contains("`a-1`") && text.len() < 1500, "{text}");
            }
        };
        assert_eq!(Manifest::decode("a-1", &manifest.encode().unwrap()).unwrap(), manifest);
        assert!(manifest.records.iter().all(|object| is_path(&object.path, "records")));
        assert!(manifest.values.iter().all(|object| is_path(&object.path, "values")));
        let Head { base, resumes, .. } = &manifest.head;
        assert!(base.iter().chain(resumes).all(|name| is_name(name)));
        assert!(manifest.sources() <= ALL_FOLDERS_MAX);
        // What a hostile one says is added up, too.
        let Overview { objects, stored_bytes, own_bytes, .. } = Overview::of(&manifest);
        assert!(own_bytes <= stored_bytes && objects == manifest.objects().count());
    });
}

#[test]
fn any_bytes_are_a_head_that_is_read_as_it_is_written_or_none() {
    let head = Head { base: Some("b0".into()), members: vec![5], ..manifest().head };
    let seed = serde_json::to_vec_pretty(&head).unwrap();
    cairn_fuzz::target!("head" => seed).for_each(|bytes| {
        let Ok(json) = std::str::from_utf8(bytes) else { return };
        let sealed_head = format!("{}{json}", first_line(json));
        let most = 64 * sealed_head.len() + (16 << 10);
        let decode = || Head::decode(sealed_head.as_bytes());
        let Some(head) = cairn_fuzz::within(most, decode) else { return };
        assert_eq!(Head::decode(&sealed(&head, HEAD_BYTES_MAX).unwrap()), Some(head));
    });
}

#[test]
fn any_bytes_are_what_was_sealed_or_are_refused() {
    let seed = sealed(&"a-1", HEAD_BYTES_MAX).unwrap();
    cairn_fuzz::target!("name" => seed).for_each(|bytes| {
        match cairn_fuzz::within(1 << 10, || unsealed(bytes)) {
            Ok(json) => assert_eq!(format!("{}{json}", first_line(json)).as_bytes(), bytes),
            Err(why) => {
                assert!(["is no text", "is cut", "does not have its checksum"].contains(&why))
            }
        }
    });
}
