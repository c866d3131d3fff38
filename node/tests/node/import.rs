//! Keys and values out of a real cluster, and into another one, by the command line.

use crate::support::held::{Held, all, put_all, values};
use crate::support::{Cluster, SLOW_ELECTIONS, json_of, refused};
use pages::{delete, put, snapshot_of};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What builds a snapshot of etcd for the unit tests.
#[path = "../../src/cli/import/etcd/tests/pages.rs"]
#[allow(dead_code, reason = "the unit tests use all of it")]
mod pages;

/// Keys and values that text, JSON, terminals and lines find hard.
fn awkward() -> Held {
    let hard: [(&[u8], &[u8]); 9] = [
        (b"plain", b"value"),
        (b"empty", b""),
        (b"\0", b"\0\0\0"),
        (b"\xff\xfe", b"\xff\x00\x80"),
        (b"line\nend\r\n", b"{\"key\":\"x\",\"value\":\"y\"}\n"),
        (b"quote\"\\", b"\\u0000"),
        ("Zoë 日本".as_bytes(), "\u{202e}\u{1b}[2J\u{2028}".as_bytes()),
        (b"-", b"-"),
        (b"end", b"{\"end\":{\"keys\":0}}"),
    ];
    let mut held: Held =
        hard.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    held.insert(vec![b'k'; 1024], vec![0; 1 << 20]);
    for number in 0..1500 {
        held.insert(format!("many/{number:05}").into_bytes(), vec![b'v'; number % 50]);
    }
    held
}

fn at(cluster: &Cluster, name: &str) -> (PathBuf, String) {
    let path = cluster.folder.path().join(name);
    let text = path.to_str().expect("text").to_owned();
    (path, text)
}

/// A file with these bytes, as an argument.
fn file(cluster: &Cluster, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let (path, text) = at(cluster, name);
    std::fs::write(path, bytes).expect("a file");
    text
}

fn last_line(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("a file of text");
    serde_json::from_str(text.lines().next_back().expect("a line")).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_exported_is_imported_into_another_cluster_as_it_was() {
    let from = Cluster::start(3, "128MiB", SLOW_ELECTIONS).await;
    let to = Cluster::start(1, "128MiB", "").await;
    let (held, client) = (awkward(), to.client());
    put_all(&from.client(), &held).await;
    let (path, file) = at(&from, "all.jsonl");
    let exported = json_of(&from.cairn(&["export", &file, "-o", "json"]));
    assert_eq!(exported["keys"], held.len());
    assert!(exported["index"].as_u64() >= Some(held.len() as u64), "{exported}");
    let mode = path.metadata().expect("a file").permissions().mode();
    assert_eq!(mode & 0o077, 0, "it has every value: it is its owner's alone");
    let end = json!({ "end": { "keys": held.len(), "index": exported["index"] } });
    assert_eq!(last_line(&path), end);

    // It says what it would do, and does nothing.
    let would = json_of(&to.cairn(&["import", &file, "--dry-run", "-o", "json"]));
    assert_eq!((&would["written"], &would["dry_run"]), (&json!(held.len()), &json!(true)));
    assert_eq!(values(&client).await, Held::new());
    let imported = json_of(&to.cairn(&["import", &file, "-o", "json"]));
    assert_eq!((&imported["written"], &imported["same"]), (&json!(held.len()), &json!(0)));
    let first = all(&client).await;
    assert_eq!(values(&client).await, held);

    // Once more: nothing is written.
    let ways: [&[&str]; 4] = [&[], &["--overwrite"], &["--if-absent"], &["--dry-run"]];
    for more in ways {
        let again = [&["import", &file, "-o", "json"][..], more].concat();
        let again = json_of(&to.cairn(&again));
        assert_eq!(
            (&again["written"], &again["same"]),
            (&json!(0), &json!(held.len())),
            "{more:?}"
        );
    }
    assert_eq!(all(&client).await, first, "not even a version changed");

    // An export of the copy has the same keys and values.
    let (copy, copied) = at(&to, "copy.jsonl");
    json_of(&to.cairn(&["export", &copied, "-o", "json"]));
    let lines = |path: &Path| {
        let text = std::fs::read_to_string(path).expect("a file of text");
        let without_version = |line: &str| {
            let mut line: Value = serde_json::from_str(line).expect("JSON");
            line.as_object_mut().expect("an object").remove("version");
            line
        };
        let mut lines: Vec<Value> = text.lines().map(without_version).collect();
        lines.pop();
        lines
    };
    assert_eq!(lines(&path), lines(&copy));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_keys_is_exported_of_one_index_or_by_pages() {
    let cluster = Cluster::start(1, "128MiB", "").await;
    let (held, client) = (awkward(), cluster.client());
    put_all(&client, &held).await;
    let (path, file) = at(&cluster, "part.jsonl");
    let parts: [(&str, &[u8]); 6] = [
        ("many/", b"many/"),
        ("many/0149", b"many/0149"),
        ("nothing", b"nothing"),
        (r"\x00", b"\0"),
        (r"\xff", b"\xff"),
        (r"line\n", b"line\n"),
    ];
    for (prefix, raw) in parts {
        let expected: Held = held
            .iter()
            .filter(|(key, _)| key.starts_with(raw))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let ways: [&[&str]; 2] = [&[], &["--by-pages"]];
        for by_pages in ways {
            let export =
                ["export", &file, "--force", "--prefix", prefix, "--escaped", "-o", "json"];
            let exported = json_of(&cluster.cairn(&[&export[..], by_pages].concat()));
            assert_eq!(exported["keys"], expected.len(), "{prefix} {by_pages:?}");
            assert_eq!(exported["index"].is_null(), !by_pages.is_empty());
            let import = ["import", &file, "--prefix-add", "copy of ", "-o", "json"];
            let imported = json_of(&cluster.cairn(&import));
            assert_eq!(imported["keys"], expected.len());
            let copied = values(&client)
                .await
                .into_iter()
                .filter_map(|(key, value)| Some((key.strip_prefix(b"copy of ")?.to_vec(), value)));
            assert_eq!(copied.collect::<Held>(), expected, "{prefix} {by_pages:?}");
        }
        for key in expected.keys() {
            client.delete([&b"copy of "[..], key].concat()).await.expect("a delete");
        }
    }
    refused(&cluster.cairn(&["export", &file]), 2, &["part.jsonl", "--force replaces it"]);
    let before = std::fs::read(&path).expect("a file");
    let folder = cluster.folder.path().to_str().expect("text");
    refused(&cluster.cairn(&["export", folder, "--force"]), 2, &["no regular file"]);
    assert_eq!(std::fs::read(&path).expect("a file"), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_go_through_standard_output_and_come_from_other_tools() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    client.put("a", "1").await.expect("a put");
    let out = cluster.cairn(&["export"]);
    assert_eq!(out.code, 0, "{out:?}");
    assert_eq!(out.stdout.lines().count(), 2, "{out:?}");
    assert!(out.stderr.contains("exported 1 keys: the state at index"), "{out:?}");
    // Items of a list are lines, and no whole export.
    let listed = json_of(&cluster.cairn(&["list", "-o", "json"]));
    let lines = format!("{}\n{}", listed["items"][0], json!({ "key": "b", "value": "2" }));
    let lines = file(&cluster, "lines", lines);
    refused(&cluster.cairn(&["import", &lines]), 2, &["no end such as", "--partial"]);
    let imported = json_of(&cluster.cairn(&["import", &lines, "--partial", "-o", "json"]));
    assert_eq!((&imported["same"], &imported["written"]), (&json!(1), &json!(1)));
    // Of the tests' standard input there is nothing: that is no export either.
    refused(&cluster.cairn(&["import", "-"]), 2, &["standard input", "no end such as"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_cut_or_wrong_changes_nothing() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    client.put("kept", "1").await.expect("a put");
    let before = all(&client).await;
    let line = |key: &str, value: &str| format!("{}\n", json!({ "key": key, "value": value }));
    let end = |keys: u64| format!("{}\n", json!({ "end": { "keys": keys } }));
    let good: String = (0..300).map(|number| line(&format!("key {number:03}"), "v")).collect();
    let whole = good.clone() + &end(300);
    let import = |text: &str| {
        let file = file(&cluster, "file", text);
        cluster.cairn(&["import", &file])
    };
    refused(&import(&whole[..whole.len() / 2]), 2, &["the file was cut", "nothing was written"]);
    refused(&import(&good), 2, &["no end such as", "nothing was written", "--partial"]);
    refused(&import(&(good.clone() + &end(301))), 2, &["its end says 301 keys, and it has 300"]);
    let long = "k".repeat(1025);
    let large = "v".repeat((1 << 20) + 1);
    for (bad, says) in [
        ("{\"key\":\"a\"}\n".to_owned(), "line 301: neither `value` nor `value_base64`"),
        ("{\"key\":\"a\",\"value_base64\":\"?\"}\n".to_owned(), "line 301: `value_base64` is no"),
        (line(&long, "v"), "it has 1025 bytes, the limit is 1024"),
        (line("large", &large), "line 301: key `large`: its value has 1048577 bytes"),
        (line("", "v"), "line 301: the key is empty"),
        (line("key 007", "v"), "line 301: key `key 007` stands in an earlier line too"),
    ] {
        refused(&import(&(good.clone() + &bad + &end(301))), 2, &[says, "nothing was written"]);
    }
    refused(&cluster.cairn(&["import", "no such file"]), 2, &["no such file"]);
    refused(&cluster.cairn(&["import"]), 2, &["FILE"]);
    assert_eq!(all(&client).await, before);

    // What is there of a file that was cut in the middle of a line can be taken.
    let cut = file(&cluster, "file", &whole[..whole.len() / 2]);
    let part = json_of(&cluster.cairn(&["import", &cut, "--partial", "-o", "json"]));
    let lines = whole[..whole.len() / 2].lines().count() as u64;
    assert_eq!((&part["written"], &part["cut_line"]), (&json!(lines - 1), &json!(lines)));
    // The whole file goes on from there.
    let whole = file(&cluster, "file", whole);
    let rest = json_of(&cluster.cairn(&["import", &whole, "-o", "json"]));
    assert_eq!((&rest["written"], &rest["same"]), (&json!(301 - lines), &json!(lines - 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_exist_stay_unless_they_may_be_replaced() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    let put_before = async || {
        client.put("a", "mine").await.expect("a put");
        client.put("b", "same").await.expect("a put");
        client.delete("c").await.expect("a delete");
    };
    put_before().await;
    let lines = "{\"key\":\"a\",\"value\":\"theirs\"}\n{\"key\":\"b\",\"value\":\"same\"}\n\
                 {\"key\":\"c\",\"value\":\"new\"}\n{\"end\":{\"keys\":3}}\n";
    let lines = file(&cluster, "lines", lines);
    let before = all(&client).await;
    let ways: [&[&str]; 2] = [&[], &["--dry-run"]];
    for more in ways {
        let ran = cluster.cairn(&[&["import", &lines][..], more].concat());
        refused(&ran, 4, &["1 of 3 keys exist with another value (`a`)", "nothing was written"]);
    }
    assert_eq!(all(&client).await, before);
    for (how, values) in
        [("--if-absent", ["mine", "same", "new"]), ("--overwrite", ["theirs", "same", "new"])]
    {
        put_before().await;
        let same = client.get("b").await.expect("a get").expect("there").version;
        let would = json_of(&cluster.cairn(&["import", &lines, how, "--dry-run", "-o", "json"]));
        let did = json_of(&cluster.cairn(&["import", &lines, how, "-o", "json"]));
        for of in ["written", "overwritten", "same", "kept"] {
            assert_eq!(would[of], did[of], "{how} {of}");
        }
        for (key, value) in ["a", "b", "c"].into_iter().zip(values) {
            let item = client.get(key).await.expect("a get").expect("there");
            assert_eq!(item.value, value, "{how}: {key}");
            assert!(key != "b" || item.version == same, "it was not written again");
        }
        let both = cluster.cairn(&["import", &lines, "--if-absent", "--overwrite"]);
        refused(&both, 2, &["cannot be used with"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_etcd_becomes_keys_of_the_cluster() {
    let cluster = Cluster::start(3, "128MiB", SLOW_ELECTIONS).await;
    let client = cluster.client();
    let mut revisions = Vec::new();
    let mut expected = Held::new();
    for number in 0..400_u64 {
        let (key, value) = (format!("/registry/{number}"), vec![number as u8; 700]);
        revisions.push(put(2 + number, key.as_bytes(), &value, 0));
        expected.insert(key.into_bytes(), value);
    }
    revisions.push(put(500, b"/registry/1", b"newer", 0));
    revisions.push(delete(501, b"/registry/2"));
    revisions.push(put(502, b"/lease", b"", 7));
    revisions.push(put(503, b"\xff", b"\0", 0));
    expected.insert(b"/registry/1".to_vec(), b"newer".to_vec());
    expected.remove(&b"/registry/2"[..]);
    expected.insert(b"/lease".to_vec(), Vec::new());
    expected.insert(b"\xff".to_vec(), b"\0".to_vec());
    let bytes = snapshot_of(&revisions);
    let good = file(&cluster, "snapshot.db", &bytes);
    let import = ["import", "--etcd-snapshot", &good];
    let dry = cluster.cairn(&[&import[..], &["--dry-run"]].concat());
    assert_eq!(dry.code, 0, "{dry:?}");
    assert!(dry.stderr.contains("1 keys have a lease in etcd (`/lease`)"), "{dry:?}");
    assert_eq!(values(&client).await, Held::new());
    let imported = json_of(&cluster.cairn(&[&import[..], &["-o", "json"]].concat()));
    assert_eq!(imported["written"], expected.len());
    assert_eq!(imported["without_lease"], 1);
    assert_eq!(values(&client).await, expected);
    let again = json_of(&cluster.cairn(&[&import[..], &["-o", "json"]].concat()));
    assert_eq!((&again["written"], &again["same"]), (&json!(0), &json!(expected.len())));

    let mut damaged = bytes.clone();
    damaged[5000] ^= 1;
    let damaged = file(&cluster, "damaged.db", damaged);
    let ran = cluster.cairn(&["import", "--etcd-snapshot", &damaged]);
    refused(&ran, 2, &["damaged.db", "SHA-256"]);
    let without = file(&cluster, "without.db", &bytes[..bytes.len() - 32]);
    let ran = cluster.cairn(&["import", "--etcd-snapshot", &without]);
    refused(&ran, 2, &["without.db", "etcdctl snapshot save"]);
    // What Cairn refuses is said before anything is written.
    let large = vec![7; (1 << 20) + 1];
    let refusals =
        [put(2, b"fits", b"1", 0), put(3, b"large", &large, 0), put(4, &[b'k'; 2000], b"", 0)];
    let refusals = file(&cluster, "refused.db", snapshot_of(&refusals));
    let ran = cluster.cairn(&["import", "--etcd-snapshot", &refusals]);
    let says = ["2 of its entries", "key `large`: its value has 1048577 bytes", "has 2000 bytes"];
    refused(&ran, 2, &says);
    assert_eq!(client.get("fits").await.expect("a get"), None);
}
