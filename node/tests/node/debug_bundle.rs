//! `cairn debug bundle`: what is in the file, and that no secret, no key and no value is.
use crate::support::{Cluster, Ran, command, finish, run, terminal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const KEY: &str = "planted-key-4711";
const VALUE: &str = "planted-value-4711";
const TOKEN: &str = "planted-token-4711";
const S3_SECRET: &str = "plantedS3/wJalrXUtnFEMI";

fn bundle(cluster: &Cluster, more: &[&str]) -> Ran {
    let files = cluster.certificates.as_ref().expect("secured").files("client");
    let [ca, certificate, key] = files.map(|file| file.to_str().expect("text").to_owned());
    let endpoints = cluster.endpoints().join(",");
    let mut all = vec!["debug", "bundle", "--endpoints", &endpoints, "--seconds", "0"];
    all.extend(["--timeout", "120s"]);
    all.extend(["--tls-ca", &ca, "--tls-certificate", &certificate, "--tls-key", &key]);
    all.extend(more);
    let mut command = command(cluster.folder.path(), &all);
    command.env("AWS_SECRET_ACCESS_KEY", S3_SECRET);
    finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("cairn starts"))
}

/// Each file of a bundle, unpacked as anybody would.
fn unpacked(path: &Path) -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let packed = std::fs::read(path).expect("a bundle");
    let tar = zstd::stream::decode_all(&packed[..]).expect("zstd");
    let archive = folder.path().join("bundle.tar");
    std::fs::write(&archive, tar).expect("a file");
    let out = folder.path().join("out");
    std::fs::create_dir(&out).expect("a folder");
    let ran = Command::new("tar").arg("-xf").arg(&archive).current_dir(&out).status();
    assert!(ran.expect("tar").success());
    let files = std::fs::read_dir(&out).expect("a folder").map(|entry| entry.expect("an entry"));
    let text = |path| std::fs::read_to_string(path).expect("text");
    files.map(|file| (file.file_name().into_string().expect("text"), text(file.path()))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_holds_what_explains_a_fault_and_no_secret_no_key_and_no_value() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    cluster.start_all().await;
    cluster.client().put(KEY, VALUE).await.expect("written");
    let files = cluster.certificates.as_ref().expect("secured").files("client");
    let private_key = std::fs::read_to_string(&files[2]).expect("a key");
    assert!(private_key.contains("PRIVATE KEY"), "{private_key}");
    let log = cluster.folder.path().join("planted.log");
    let planted = format!(
        "{}the first line\nauthorization: Bearer {TOKEN}\nsecret_access_key = {S3_SECRET}\nanother {S3_SECRET}\n\
         {private_key}\npassword={TOKEN}\nthe last line\n",
        cluster.log(0)
    );
    std::fs::write(&log, planted).expect("a file");
    let (log, to) = (log.to_str().expect("text"), cluster.folder.path().join("b.tar.zst"));
    let to_text = to.to_str().expect("text");
    let asked =
        ["--config", cluster.config(0), "--log", log, "--to", to_text, "--yes", "--inspect"];
    let ran = bundle(&cluster, &asked);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("bytes  status.json"), "it is listed before: {}", ran.stderr);

    let files = unpacked(&to);
    let part =
        |name: &str| files.get(name).unwrap_or_else(|| panic!("{name} in {:?}", files.keys()));
    let status: Value = serde_json::from_str(part("status.json")).expect("JSON");
    assert_eq!(status[0]["cluster"], "tested", "{status}");
    let health: Value = serde_json::from_str(part("health.json")).expect("JSON");
    assert!(health["well"].is_boolean(), "{health}");
    // The port of the configuration has TLS.
    for name in ["metrics-begin-1.txt", "metrics-end-1.txt"] {
        assert!(part(name).contains("\ncairn_applied_index "), "{name}: {}", part(name));
    }
    assert!(part("ready-end-1.txt").contains("ready"), "{}", part("ready-end-1.txt"));
    assert!(part("page-begin-1.txt").contains("\"format\""), "{}", part("page-begin-1.txt"));
    assert!(part("config.json").contains("listen.client"), "{}", part("config.json"));
    let doctor: Value = serde_json::from_str(part("doctor.json")).expect("JSON");
    assert!(doctor.is_object(), "{doctor}");
    assert!(part("versions.txt").contains("cairn "), "{}", part("versions.txt"));
    assert!(
        part("log.txt").contains("the first line") && part("log.txt").contains("the last line")
    );
    // The node runs, and its directory was not touched.
    assert!(!files.contains_key("inspect.json"), "{:?}", files.keys());
    let list = part("contents.txt");
    assert!(list.contains("not there  inspect.json") && list.contains("in use"), "{list}");

    let base64 = private_key.lines().nth(1).expect("a line of the key");
    for (name, text) in &files {
        for secret in [KEY, VALUE, TOKEN, S3_SECRET, base64] {
            assert!(!text.contains(secret), "{secret} in {name}");
        }
    }
    for secret in [KEY, VALUE, TOKEN, S3_SECRET, base64] {
        assert!(!ran.stdout.contains(secret) && !ran.stderr.contains(secret), "{ran:?}");
    }
    let again = bundle(&cluster, &["--to", to_text, "--yes"]);
    assert!(again.code == 2 && again.stderr.contains("b.tar.zst exists"), "{again:?}");

    // Where nothing else is given, the configuration says where the member is, and who asks.
    let to = cluster.folder.path().join("own.tar.zst");
    let to_text = to.to_str().expect("text");
    let asked = ["debug", "bundle", "--config", cluster.config(0), "--to", to_text, "--yes"];
    let more = ["--log", log, "--seconds", "0", "--timeout", "120s"];
    let ran = cluster.cairn_alone(&[&asked[..], &more].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    let files = unpacked(&to);
    let status: Value = serde_json::from_str(&files["status.json"]).expect("JSON");
    assert_eq!(status[0]["cluster"], "tested", "{status}");
    let metrics = &files["metrics-begin-1.txt"];
    assert!(metrics.contains("\ncairn_applied_index "), "{metrics}");

    // A node that does not answer is a line, and not the end.
    assert_eq!(cluster.stop_node(0), 0);
    let to = cluster.folder.path().join("down.tar.zst");
    let asked = ["--to", to.to_str().expect("text"), "--yes", "--log", log, "-o", "json"];
    let inspecting = ["--config", cluster.config(0), "--inspect"];
    let ran = bundle(&cluster, &[&asked[..], &inspecting].concat());
    assert_eq!(ran.code, 0, "{ran:?}");
    let told: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let parts = told["parts"].as_array().expect("parts");
    let failed = |name: &str| {
        let part = parts.iter().find(|part| part["name"] == name);
        part.unwrap_or_else(|| panic!("{name} in {told}"))["failed"].is_string()
    };
    assert!(failed("metrics-begin-1.txt") && failed("ready-end-1.txt"), "{told}");
    assert!(!failed("inspect.json") && !failed("doctor.json"), "{told}");
    let files = unpacked(&to);
    assert!(files["status.json"].contains("\"error\""), "{}", files["status.json"]);
    assert!(files["inspect.json"].contains("\"verifies\": true"), "{}", files["inspect.json"]);
}

#[test]
fn without_a_terminal_nothing_is_written_that_nobody_confirmed() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = run(folder.path(), &["debug", "bundle", "--to", "b.tar.zst", "--seconds", "0"]);
    assert!(ran.code == 2 && ran.stderr.contains("--yes"), "{ran:?}");
    assert!(!folder.path().join("b.tar.zst").exists());
}

/// The story: with `-o json` the question came without the list of what the file would hold.
#[test]
fn whoever_is_asked_has_seen_what_the_file_will_hold() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("log"), "a line\n").expect("a file");
    for output in ["text", "json"] {
        let (mut master, line) = terminal();
        let asked = ["debug", "bundle", "--to", "b.tar.zst", "--seconds", "0", "--log", "log"];
        let nowhere = ["-e", "127.0.0.1:1", "--timeout", "1s", "-o", output];
        let mut command = command(folder.path(), &[&asked[..], &nowhere].concat());
        let command = command.stdin(line).stdout(Stdio::piped()).stderr(Stdio::piped());
        // It waits in the terminal until it is read.
        master.write_all(b"no\n").expect("typed");
        let ran = finish(command.spawn().expect("cairn starts"));
        assert!(ran.code == 2 && ran.stderr.contains("not confirmed"), "{ran:?}");
        let list = ran.stderr.find("bytes  log.txt").expect("a list");
        assert!(ran.stderr.find("Write b.tar.zst?") > Some(list), "{ran:?}");
        assert!(!folder.path().join("b.tar.zst").exists() && ran.stdout.is_empty(), "{ran:?}");
    }
}
