//! Bad input and bad directories: each gets a clear message and a non-zero exit code, and nothing
//! is lost.
use crate::support::{Cluster, WAIT_LIMIT, command, refused, run, watch};
use cairn_client::Mode;
use rustix::process::Signal;
use std::fs::OpenOptions;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

#[tokio::test(flavor = "multi_thread")]
async fn inputs_over_the_limits_are_refused_and_harm_nothing() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let cairn = |arguments: &[&str]| cluster.cairn(arguments);
    assert_eq!(cairn(&["put", "kept", "1"]).code, 0);
    let file = cluster.folder.path().join("big");
    std::fs::write(&file, vec![0; (1 << 20) + 1]).expect("a file");

    refused(
        &cairn(&["put", "big", &format!("@{}", file.display())]),
        2,
        &["1048577 bytes", "1048576"],
    );
    refused(&cairn(&["put", "", "x"]), 2, &["key", "empty"]);
    refused(&cairn(&["get", ""]), 2, &["key", "empty"]);
    refused(&cairn(&["put", &"k".repeat(1025), "x"]), 2, &["1025 bytes", "1024"]);
    refused(&cairn(&["put", "file", "@/no/such/file"]), 2, &["/no/such/file"]);
    refused(&cairn(&["put", "--escaped", r"\q", "x"]), 2, &["escape"]);
    assert_eq!(cairn(&["list"]).stdout, "kept\t1\n");
}

#[test]
fn a_bad_configuration_is_refused_with_its_location() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("cairn.toml");
    let serve = |text: &str| {
        std::fs::write(&config, text).expect("a file");
        run(folder.path(), &["serve", "--config", "cairn.toml"])
    };
    refused(
        &serve("cluster = \"c\"\nslto = 1\n"),
        2,
        &["cairn.toml:2", "unknown key `slto`", "did you mean `slot`?"],
    );
    refused(&serve("cluster = \"c\"\nslot = 1\n"), 2, &["`data_dir` is not set", "CAIRN_DATA_DIR"]);
    refused(&serve("cluster = \n"), 2, &["cairn.toml is not valid TOML"]);
    refused(
        &serve("cluster = \"c\"\nslot = 1\ndata_dir = \"d\"\nmode = \"replicated\"\n"),
        2,
        &["1 initial member ", "mode = \"sync\""],
    );
    refused(&run(folder.path(), &["serve", "--config", "none.toml"]), 2, &["none.toml"]);
    refused(
        &run(folder.path(), &["config", "print", "--set", "colour=red"]),
        2,
        &["unknown key `colour`"],
    );
}

#[test]
fn the_example_configuration_is_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/cairn.example.toml");
    for make in [
        &["certs", "init", "pki", "--cluster", "example"][..],
        &["certs", "issue", "pki", "--member", "1"],
    ] {
        assert_eq!(run(folder.path(), make).code, 0);
    }
    let ran = run(
        folder.path(),
        &[
            &["config", "check", "--config", example, "--set", "mode=sync"][..],
            &["--set", "tls.ca=pki/ca.pem", "--set", "tls.certificate=pki/member-1.pem"],
            &["--set", "tls.key=pki/member-1-key.pem"],
        ]
        .concat(),
    );
    // Who may do what is for the reader to say.
    let (valid, warning) = ran.stdout.split_once('\n').expect("two lines");
    assert_eq!(
        (ran.code, valid),
        (0, "valid: member 1 of example, mode sync, configured, TLS as cairn://example/member/1"),
        "{}",
        ran.stderr
    );
    assert!(warning.starts_with("warning: `access` is not configured: "), "{warning}");
    assert_eq!(warning.lines().count(), 1, "{warning}");
}

#[test]
fn config_print_shows_where_each_value_was_given() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("cairn.toml"), "cluster = \"c\"\nslot = 1\n")
        .expect("a file");
    let arguments = ["config", "print", "-o", "json", "--config", "cairn.toml", "--slot", "2"];
    let printed = crate::support::command(folder.path(), &arguments)
        .env("CAIRN_MODE", "sync")
        .output()
        .expect("cairn starts");
    let printed: serde_json::Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    for (key, value, source) in [
        ("cluster", "c", "cairn.toml:1"),
        ("slot", "2", "--slot"),
        ("mode", "sync", "CAIRN_MODE"),
        ("listen.client", "127.0.0.1:7400", "default"),
    ] {
        assert_eq!(
            (&printed[key]["value"], &printed[key]["source"]),
            (&value.into(), &source.into()),
            "{key}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_named_and_the_data_is_unharmed() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    assert_eq!(cluster.cairn(&["put", "kept", "1"]).code, 0);
    assert_eq!(cluster.stop_node(0), 0);

    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = held.local_addr().expect("bound").to_string();
    for key in ["listen.client", "listen.peer", "listen.http"] {
        let set = format!("{key}={address}");
        let ran =
            run(cluster.folder.path(), &["serve", "--config", cluster.config(0), "--set", &set]);
        refused(&ran, 1, &[&address, key, "in use", "choose another port"]);
    }
    cluster.start_node(0);
    cluster.wait_ready().await;
    assert_eq!(cluster.cairn(&["get", "kept"]).stdout, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_another_cluster_or_slot_or_in_use_is_not_touched() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    assert_eq!(cluster.cairn(&["put", "kept", "1"]).code, 0);

    let in_use = run(cluster.folder.path(), &["serve", "--config", cluster.config(0)]);
    refused(&in_use, 1, &["in use by another process", "stop that one"]);
    assert_eq!(cluster.stop_node(0), 0);

    let other =
        run(cluster.folder.path(), &["serve", "--config", cluster.config(0), "--cluster", "other"]);
    refused(
        &other,
        1,
        &["belongs to", "tested", "other", "nothing was changed", "Correct the cluster"],
    );
    let members = "members=7=127.0.0.1:1/127.0.0.1:2";
    let arguments = ["serve", "--config", cluster.config(0), "--slot", "7", "--set", members];
    refused(&run(cluster.folder.path(), &arguments), 1, &["belongs to", "nothing was changed"]);

    let again = run(cluster.folder.path(), &["format", "--config", cluster.config(0)]);
    assert_ne!(again.code, 0);
    assert!(again.stderr.contains("already is a Cairn data directory"), "{}", again.stderr);

    cluster.start_node(0);
    cluster.wait_ready().await;
    assert_eq!(cluster.cairn(&["get", "kept"]).stdout, "1");
}

/// The story: with two more members in its configuration, a cluster of one counted on others to
/// hold what it acknowledged before it was synced.
#[tokio::test(flavor = "multi_thread")]
async fn members_are_not_added_to_a_cluster_of_one_by_its_configuration() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    assert_eq!(cluster.cairn(&["put", "kept", "1"]).code, 0);
    assert_eq!(cluster.stop_node(0), 0);
    let config = std::fs::read_to_string(cluster.config(0)).expect("a configuration");
    let member = |slot| {
        format!("[members.{slot}]\nclient = \"127.0.0.1:{slot}\"\npeer = \"127.0.0.1:1{slot}\"\n")
    };
    std::fs::write(cluster.config(0), config + &member(2) + &member(3)).expect("written");
    cluster.start_node(0);
    cluster.wait_ready().await;
    // It is a cluster of one, and acknowledges like one.
    assert_eq!(cluster.cairn(&["get", "kept"]).stdout, "1");
    assert_eq!(cluster.cairn(&["put", "kept", "2"]).code, 0);
    let status = cluster.statuses().await.remove(0);
    assert_eq!(status.members.len(), 1);
    assert_ne!(status.modes.expect("modes").effective, Mode::Replicated);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_journal_is_refused_and_works_again_when_restored() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    assert_eq!(cluster.cairn(&["put", "kept", "1"]).code, 0);
    assert_eq!(cluster.stop_node(0), 0);

    let journal = cluster.data(0).join("journal");
    let intact = std::fs::read(&journal).expect("the journal");
    let file = OpenOptions::new().write(true).open(&journal).expect("the journal");
    file.set_len(intact.len() as u64 - 8192).expect("truncated");
    drop(file);
    let ran = run(cluster.folder.path(), &["serve", "--config", cluster.config(0)]);
    refused(&ran, 1, &["`journal`", "truncated"]);

    std::fs::write(&journal, intact).expect("restored");
    cluster.start_node(0);
    cluster.wait_ready().await;
    assert_eq!(cluster.cairn(&["get", "kept"]).stdout, "1");
}

/// The story: the error about a damaged directory named file and offset, but neither the directory
/// nor what to do.
#[test]
fn a_damaged_superblock_is_refused_with_the_directory_and_what_to_do() {
    let cluster = Cluster::format(1, "64MiB", "");
    let path = cluster.data(0).join("superblock");
    let file = OpenOptions::new().write(true).open(path).expect("the superblock");
    for copy in 0..3 {
        file.write_all_at(b"damage", copy * (16 << 10) + 100).expect("damaged");
    }
    let ran = run(cluster.folder.path(), &["serve", "--config", cluster.config(0)]);
    let directory = cluster.data(0).display().to_string();
    refused(&ran, 1, &[&directory, "is damaged", "`superblock`", "no other member has its data"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_that_the_directory_does_not_have_is_reported() {
    let mut cluster = Cluster::format(1, "64MiB", "");
    let config = cluster.config(0).to_string();
    cluster.start_node(0);
    cluster.wait_ready().await;
    assert_eq!(cluster.stop_node(0), 0);
    assert!(!cluster.logs().contains("storage.size"), "{}", cluster.logs());
    let text = std::fs::read_to_string(&config).expect("a configuration");
    std::fs::write(&config, text.replace("64MiB", "128MiB")).expect("a file");
    cluster.start_node(0);
    cluster.wait_ready().await;
    let words = "storage.size is 128MiB";
    cluster.logs_with(words, |logs| logs.contains(words)).await;
}

#[test]
fn a_directory_that_was_never_formatted_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments =
        ["serve", "--cluster", "c", "--slot", "1", "--dir", "nowhere", "--set", "insecure=true"];
    refused(&run(folder.path(), &arguments), 1, &["nowhere", "cairn format"]);
    std::fs::create_dir(folder.path().join("full")).expect("a folder");
    std::fs::write(folder.path().join("full/file"), "precious").expect("a file");
    let arguments = ["format", "--cluster", "c", "--slot", "1", "--dir", "full", "--size", "16MiB"];
    let ran = run(folder.path(), &arguments);
    assert_ne!(ran.code, 0);
    assert!(ran.stderr.contains("full"), "{}", ran.stderr);
    assert_eq!(
        std::fs::read_to_string(folder.path().join("full/file")).expect("still there"),
        "precious"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_puts_still_reads_and_deletes_and_frees_its_space() {
    let cluster = Cluster::start(1, "16MiB", "").await;
    let cairn = |arguments: &[&str]| cluster.cairn(arguments);
    let file = cluster.folder.path().join("value");
    std::fs::write(&file, vec![7; 256 << 10]).expect("a file");
    let value = format!("@{}", file.display());

    let mut stored = Vec::new();
    let full = loop {
        let key = format!("key-{:04}", stored.len());
        let ran = cairn(&["put", &key, &value]);
        if ran.code != 0 {
            break ran;
        }
        stored.push(key);
        assert!(stored.len() < 100, "16 MiB never fill up");
    };
    refused(&full, 7, &["full"]);
    println!("{} values of 256 KiB fit into 16 MiB", stored.len());
    assert!(stored.len() > 8);
    for key in &stored {
        assert_eq!(cairn(&["get", key]).stdout.len(), 256 << 10, "{key} is still read");
    }
    for key in &stored {
        assert_eq!(cairn(&["delete", key]).code, 0, "{key} can be deleted");
    }
    let again = async || (cairn(&["put", "again", &value]).code == 0).then_some(());
    cluster.until("space is free again", again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_value_is_not_taken_for_a_missing_one_and_the_rest_is_served() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    let value = "a value that is found in the data file and damaged there. ".repeat(100);
    assert_eq!(cluster.cairn(&["put", "damaged", &value]).code, 0);
    assert_eq!(cluster.cairn(&["put", "kept", "1"]).code, 0);

    // A running node may still have the value in memory. After a restart only the file has it.
    cluster.stop_node(0);
    let path = cluster.data(0).join("data");
    let bytes = std::fs::read(&path).expect("the data");
    // The tail may lie elsewhere.
    let first = value.as_bytes().get(..4096).expect("a whole block");
    let at = bytes.windows(4096).position(|window| window == first).expect("the value is stored");
    let file = OpenOptions::new().write(true).open(&path).expect("the data");
    file.write_all_at(b"A", at as u64).expect("damaged");
    file.sync_all().expect("damaged");
    cluster.start_node(0);
    cluster.wait_ready().await;

    let ran = cluster.cairn(&["get", "damaged"]);
    refused(&ran, 8, &["damaged", "exists"]);
    assert_eq!(ran.stdout, "");
    assert_eq!(cluster.cairn(&["get", "kept"]).stdout, "1");
    assert_eq!(cluster.cairn(&["put", "damaged", "written again"]).code, 0);
    assert_eq!(cluster.cairn(&["get", "damaged"]).stdout, "written again");
}

/// The story: of a restore that was killed when it had just made the superblock's file, the node said
/// that the superblock says how long the superblock should be.
#[test]
fn what_a_killed_format_leaves_of_its_superblock_is_no_damaged_directory() {
    let folder = tempfile::tempdir().expect("a folder");
    let of_command = ["--cluster", "c", "--slot", "1", "--dir", "node"];
    let format = [&["format"][..], &of_command, &["--size", "16MiB"]].concat();
    let serve = [&["serve"][..], &of_command, &["--set", "insecure=true"]].concat();
    assert_eq!(run(folder.path(), &format).code, 0);
    let superblock = folder.path().join("node/superblock");
    let whole = std::fs::read(&superblock).expect("a superblock");

    let copy = whole.len() / 4;
    let mut half = vec![0; whole.len()];
    half[..copy].copy_from_slice(&whole[..copy]);
    std::fs::write(&superblock, half).expect("written");
    let said = ["is not a Cairn data directory", "killed in its last step", "remove the files"];
    refused(&run(folder.path(), &serve), 1, &said);
    refused(&run(folder.path(), &["inspect", "node"]), 1, &said);
    refused(&run(folder.path(), &format), 1, &["move it away first", "nothing was changed"]);

    std::fs::write(&superblock, "").expect("written");
    let said = ["is not a Cairn data directory", "its superblock is empty", "begins anew"];
    refused(&run(folder.path(), &serve), 1, &said);
    refused(&run(folder.path(), &["inspect", "node"]), 1, &said);
    assert_eq!(run(folder.path(), &format).code, 0);

    // In a journal that was written to there may be an acknowledged write.
    std::fs::write(folder.path().join("node/journal"), vec![1; 1 << 20]).expect("written");
    std::fs::write(&superblock, "").expect("written");
    refused(&run(folder.path(), &serve), 1, &["has 0 bytes", "truncated or replaced"]);
}

/// The story: a server that formatted its directory did not hear SIGTERM. The signal left half of the
/// files behind, which every later start refused.
#[test]
fn a_format_that_is_interrupted_removes_what_it_made() {
    let of_command = ["--cluster", "c", "--slot", "1", "--dir", "node"];
    interrupted_format(&[&["format"][..], &of_command, &["--size", "3GiB"]].concat(), Signal::INT);
    let of_server = ["--set", "storage.size=3GiB", "--set", "storage.format_empty=true"];
    let insecure = ["--set", "insecure=true"];
    let arguments = [&["serve"][..], &of_command, &of_server, &insecure].concat();
    interrupted_format(&arguments, Signal::TERM);
}

fn interrupted_format(arguments: &[&str], signal: Signal) {
    let folder = tempfile::tempdir().expect("a folder");
    let made = folder.path().join("node/data");
    let mut command = command(folder.path(), arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut sent = false;
    let ran = watch(WAIT_LIMIT, child, |pid| {
        if !sent && made.exists() {
            sent = true;
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process");
            rustix::process::kill_process(pid, signal).expect("it runs");
        }
    });
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("stopped; what it made is removed"), "{}", ran.stderr);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}
