//! Backups in a bucket, by the program with what its environment says.

use super::json_of;
use crate::support::{Cluster, Ran, command, finish};
use cairn_bucket::{Line, Reset, Server, variables};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering;

const TARGET: &str = "s3://backups/of/shop";
const KEYS: usize = 40;

/// Runs the program with the environment of who has a bucket at this address.
fn at(address: SocketAddr, folder: &Path, arguments: &[&str], more: &[(&str, &str)]) -> Ran {
    let mut command = command(folder, arguments);
    command.envs(variables(&format!("http://{address}"))).envs(more.iter().copied());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    finish(child.expect("cairn starts"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_saves_to_a_bucket_whose_line_breaks_once_and_restores_from_it() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    let client = cluster.client();
    // Nothing can be compressed, so that an object is longer than what the line carries until it breaks.
    let mut random = StdRng::seed_from_u64(3);
    let mut values = Vec::new();
    for number in 0..KEYS {
        let mut value = vec![0; 100 << 10];
        random.fill_bytes(&mut value);
        client.put(format!("key {number}"), value.clone()).await.expect("a put");
        values.push(value);
    }
    let folder = cluster.folder.path().to_owned();
    let root = folder.join("buckets");
    std::fs::create_dir_all(root.join("backups")).expect("folders");
    let server = Server::start(&root);
    let line = Line::to(server.address, || Reset::Once(1 << 20));

    let endpoints = cluster.endpoints().join(",");
    let save = ["backup", "save", TARGET, "--endpoints", &endpoints, "-o", "json"];
    let denied = at(server.address, &folder, &save, &[("AWS_SECRET_ACCESS_KEY", "another one")]);
    assert!(denied.code == 1 && denied.stderr.contains("access is denied"), "{denied:?}");
    assert!(!denied.stderr.contains("another one"), "{denied:?}");

    let saved = json_of(&at(line.address, &folder, &save, &[]));
    let resets = [&line.resets.asking, &line.resets.answering];
    let resets: usize = resets.map(|resets| resets.load(Ordering::Relaxed)).iter().sum();
    assert_eq!(resets, 1);
    assert_eq!((&saved["keys"], &saved["resumed"]), (&KEYS.into(), &serde_json::Value::Null));

    let of_bucket = |arguments: &[&str]| at(server.address, &folder, arguments, &[]);
    let listed = json_of(&of_bucket(&["backup", "list", TARGET, "-o", "json"]));
    assert_eq!((listed.as_array().map(Vec::len), &listed[0]["name"]), (Some(1), &saved["name"]));
    let verified = json_of(&of_bucket(&["backup", "verify", TARGET, "-o", "json"]));
    assert_eq!((&verified["verifies"], &verified["keys"]), (&true.into(), &KEYS.into()));

    cluster.kill_all();
    cluster.lose_disk(0);
    let restore = ["backup", "restore", TARGET, "--config", cluster.config(0), "-o", "json"];
    assert_eq!(json_of(&of_bucket(&restore))["keys"], KEYS);
    cluster.start_all().await;
    let client = cluster.client();
    for (number, value) in values.into_iter().enumerate() {
        let found = client.get(format!("key {number}")).await.expect("it serves");
        assert_eq!(found.expect("there").value, value, "key {number}");
    }
}
