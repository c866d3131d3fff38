//! Backups that a cluster saves by itself: by whom, when the next one is due, and which of them stay.
//!
//! No test waits for an interval: a backup at the target is made older instead.

mod namesake;
mod removal;

use crate::backup::{RECIPIENT, SECRET};
use crate::support::{Cluster, SLOW_ELECTIONS, http_get, value_of};
use cairn_bucket::{silent, variables};
use cairn_launch::Signal;
use serde_json::{Value, json};
use std::path::PathBuf;

const HOUR: u64 = 3600;

fn folder(cluster: &Cluster) -> PathBuf {
    cluster.folder.path().join("saved")
}

/// Lets each member save backups each hour, and keep two.
fn schedule(cluster: &mut Cluster) {
    let target = folder(cluster);
    for node in 0..cluster.len() {
        let lines = format!("backup.target = {target:?}\nbackup.every = \"1h\"\nbackup.keep = 2");
        cluster.configure(node, &lines);
    }
}

/// What is at the target, in the order of the names.
fn listed(cluster: &Cluster) -> Vec<Value> {
    let target = folder(cluster);
    let target = target.to_str().expect("text");
    let ran = cluster.cairn_alone(&["backup", "list", target, "-o", "json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn names(listed: &[Value]) -> Vec<&str> {
    listed.iter().map(|backup| backup["name"].as_str().expect("a name")).collect()
}

/// Whether the last of them is another one than these.
fn has_new(listed: &[Value], than: &[Value]) -> bool {
    let last = names(listed).last().copied();
    last.is_some_and(|last| !names(than).contains(&last))
}

fn metric(cluster: &Cluster, node: usize, name: &str) -> Option<String> {
    let metrics = http_get(&value_of(cluster.config(node), "listen.http"), "/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    value.map(|value| value.trim().to_owned())
}

/// The backups, once they are as they should, the leader knows of the last one, and nothing is under way.
async fn settled(cluster: &Cluster, what: &str, holds: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let settled = async || {
        let leader = cluster.leader().await;
        let running = metric(cluster, leader, "cairn_backup_running")?;
        let told = metric(cluster, leader, "cairn_backup_last_success_timestamp_seconds")?;
        let listed = listed(cluster);
        let last = listed.iter().filter_map(|backup| backup["ended"].as_u64()).max()?;
        let rests = running == "0" && told == last.to_string();
        (rests && holds(&listed)).then_some(listed)
    };
    cluster.until(what, settled).await
}

/// Stops the leader, and starts it again once the backups are as they should under the next one.
async fn under_the_next_leader(
    cluster: &mut Cluster,
    what: &str,
    holds: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    let leader = cluster.leader().await;
    assert_eq!(cluster.stop_node(leader), 0);
    let listed = settled(cluster, what, holds).await;
    cluster.start_node(leader);
    cluster.wait_ready().await;
    listed
}

/// Lets these backups have ended two hours earlier.
fn age(cluster: &Cluster, listed: &[Value]) {
    rewrite(cluster, listed, |ended| ended - 2 * HOUR);
}

/// Lets these backups have ended at another time.
fn rewrite(cluster: &Cluster, listed: &[Value], other: impl Fn(u64) -> u64) {
    rewrite_each(cluster, listed, |manifest| {
        let ended = manifest["ended"].as_u64().expect("a time");
        manifest["ended"] = other(ended).into();
    });
}

/// Lets the manifests of these backups say something else.
fn rewrite_each(cluster: &Cluster, listed: &[Value], change: impl Fn(&mut Value)) {
    for name in names(listed) {
        let path = folder(cluster).join(name).join("manifest");
        let text = std::fs::read_to_string(&path).expect("a manifest");
        let (_, json) = text.split_once('\n').expect("a line before the JSON");
        let mut manifest: Value = serde_json::from_str(json).expect("JSON");
        change(&mut manifest);
        let json = manifest.to_string();
        let line = format!("cairn-backup {:08x} {}", crc32fast::hash(json.as_bytes()), json.len());
        std::fs::write(&path, format!("{line}\n{json}")).expect("ours");
    }
}

fn verify(cluster: &Cluster, name: &str) -> Value {
    let target = folder(cluster);
    let target = target.to_str().expect("text");
    let ran = cluster.cairn_alone(&["backup", "verify", target, name, "-o", "json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// Lets this node lead.
async fn lead(cluster: &Cluster, node: usize) {
    let operator = cluster.client().operator();
    let slot = u16::try_from(node + 1).expect("a slot");
    let moved = async || operator.move_leader(Some(slot)).await.ok();
    cluster.until("leadership moves", moved).await;
    let leads = async || (cluster.leader().await == node).then_some(());
    cluster.until("it leads", leads).await;
}

/// Writes this into the configuration of a running node instead of that, and lets it read it again.
pub fn reload(cluster: &mut Cluster, node: usize, old: &str, new: &str) {
    let text = std::fs::read_to_string(cluster.config(node)).expect("a configuration");
    assert!(text.contains(old), "{old} is not in\n{text}");
    std::fs::write(cluster.config(node), text.replace(old, new)).expect("a file");
    cluster.signal_node(node, Signal::HUP);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_saves_backups_and_the_next_one_goes_on_with_the_schedule() {
    let mut cluster = Cluster::format(3, "64MiB", SLOW_ELECTIONS);
    std::fs::create_dir(folder(&cluster)).expect("a folder");
    schedule(&mut cluster);
    cluster.start_all().await;
    // There was none, so one was due.
    let first = settled(&cluster, "a first backup", |listed| !listed.is_empty()).await;

    // The next leader goes by what is at the target.
    cluster.client().put("key", "value").await.expect("a put");
    age(&cluster, &first);
    let is_new = |listed: &[Value]| has_new(listed, &first);
    let second = under_the_next_leader(&mut cluster, "one by the next leader", is_new).await;
    let last = second.last().expect("a backup");
    assert_eq!(last["since"], first[first.len() - 1]["name"], "it has what changed alone");
    assert_eq!(verify(&cluster, last["name"].as_str().expect("a name"))["keys"], 1);

    // Two stay.
    age(&cluster, &second);
    let is_new = |listed: &[Value]| listed.len() == 2 && has_new(listed, &second);
    let third = under_the_next_leader(&mut cluster, "two that stay", is_new).await;
    assert_eq!(third[0]["name"], last["name"]);
    for name in names(&third) {
        assert_eq!(verify(&cluster, name)["keys"], 1);
    }

    // None is due now, whoever leads.
    let same = |listed: &[Value]| names(listed) == names(&third);
    under_the_next_leader(&mut cluster, "the next leader knows of them", same).await;
    // A retention that is read again is in force at once.
    let leader = cluster.leader().await;
    reload(&mut cluster, leader, "backup.keep = 2", "backup.keep = 1");
    let one = |listed: &[Value]| names(listed) == names(&third[1..]);
    settled(&cluster, "one that stays", one).await;
    let words = "backup.keep = 1";
    cluster.logs_with(words, |logs| logs.contains(words)).await;
    verify(&cluster, third[1]["name"].as_str().expect("a name"));

    // So is another interval, and it is told by a member that does not lead, too.
    for node in [leader, (leader + 1) % 3] {
        reload(&mut cluster, node, "backup.every = \"1h\"", "backup.every = \"2h\"");
        let told = async || {
            let told = metric(&cluster, node, "cairn_backup_interval_seconds")?;
            told.parse::<f64>().ok().filter(|told| *told > 7199.0)
        };
        cluster.until("the new interval is told", told).await;
    }

    // Where they are needs a restart.
    let (old, new) = (folder(&cluster), cluster.folder.path().join("elsewhere"));
    reload(&mut cluster, leader, &format!("{old:?}"), &format!("{new:?}"));
    let log = cluster.logs_with("it needs a restart", |log| log.contains("need a restart")).await;
    let line = log.lines().find(|line| line.contains("need a restart")).expect("logged");
    assert!(line.contains("backup.target"), "{line}");
}

/// What should stay at another target says nothing of what is here, so a reload takes nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn another_target_is_used_by_a_member_that_was_restarted_and_by_no_other() {
    let mut cluster = Cluster::format(3, "64MiB", SLOW_ELECTIONS);
    let (old, new) = (folder(&cluster), cluster.folder.path().join("elsewhere"));
    for folder in [&old, &new] {
        std::fs::create_dir(folder).expect("a folder");
    }
    schedule(&mut cluster);
    cluster.start_all().await;
    let first = settled(&cluster, "a first backup", |listed| !listed.is_empty()).await;
    let leader = cluster.leader().await;
    reload(&mut cluster, leader, &format!("{old:?}"), &format!("{new:?}"));
    let told = |log: &str| {
        log.lines().any(|line| line.contains("need a restart") && line.contains("backup.target"))
    };
    cluster.logs_with("it needs a restart", told).await;

    // It does not lead, and then leads again: it looks at the target, and one is due.
    lead(&cluster, (leader + 1) % 3).await;
    let same = |listed: &[Value]| names(listed) == names(&first);
    settled(&cluster, "the next leader knows of them", same).await;
    let last_success = "cairn_backup_last_success_timestamp_seconds";
    let forgot = async || metric(&cluster, leader, last_success).is_none().then_some(());
    cluster.until("it saw that another one leads", forgot).await;
    age(&cluster, &first);
    lead(&cluster, leader).await;
    let is_new = |listed: &[Value]| has_new(listed, &first);
    let second = settled(&cluster, "one where the others are", is_new).await;
    let elsewhere = || std::fs::read_dir(&new).expect("a folder").count();
    assert_eq!(elsewhere(), 0);

    assert_eq!(cluster.stop_node(leader), 0);
    cluster.start_node(leader);
    cluster.wait_ready().await;
    lead(&cluster, leader).await;
    let target = new.to_str().expect("text");
    let saved = async || {
        let ran = cluster.cairn_alone(&["backup", "list", target, "-o", "json"]);
        let listed: Vec<Value> = serde_json::from_str(&ran.stdout).ok()?;
        (!listed.is_empty()).then_some(listed)
    };
    let there = cluster.until("one at the new target", saved).await;
    assert_eq!((there.len(), &there[0]["since"]), (1, &Value::Null));
    assert_eq!(names(&listed(&cluster)), names(&second));
}

/// A member has no roles, and nobody else who could save has one here.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_of_a_cluster_with_certificates_is_sent_the_state_as_a_member() {
    let more = format!("{SLOW_ELECTIONS}access.reader = \"read\"");
    let mut cluster = Cluster::secured(3, "64MiB", &more);
    std::fs::create_dir(folder(&cluster)).expect("a folder");
    schedule(&mut cluster);
    for node in 0..cluster.len() {
        cluster.start_node(node);
    }
    let first = cluster.until("a backup", async || listed(&cluster).first().cloned()).await;
    verify(&cluster, first["name"].as_str().expect("a name"));
    let is_call = |line: &str| {
        let words = ["call=\"backup\"", "principal=\"member ", "result=\"ok\""];
        words.iter().all(|word| line.contains(word))
    };
    cluster.logs_with("the call in the audit", |logs| logs.lines().any(is_call)).await;
}

/// The story: a member's certificate is valid for months. The member was removed, and whoever had its disk could take
/// every value.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_members_certificate_takes_no_state() {
    // A member counts as reachable for as long as the shortest election timeout.
    let more = format!("{SLOW_ELECTIONS}mode = \"sync\"");
    let mut cluster = Cluster::secured(3, "64MiB", &more);
    cluster.start_all().await;
    cluster.client().put("key", "value").await.expect("written");
    let [ca, own, key] = cluster.certificates.as_ref().expect("secured").files("member-3");
    let member = cluster.options_of(&[0]).tls(ca, own, key).build().expect("good options");
    let endpoint = cluster.endpoints()[0].clone();
    let state = async || member.operator().state(&endpoint, &[]).await;
    let taken = cluster.until("a member takes it", async || state().await.ok()).await;
    assert_eq!(taken.head().keys, 1);
    drop(taken);

    for node in [2, 1, 0] {
        lead(&cluster, node).await;
    }
    let removed = cluster.cairn(&["members", "remove", "3", "--yes"]);
    assert_eq!(removed.code, 0, "{removed:?}");
    let refused = async || {
        let said = state().await.err()?.to_string();
        said.contains("the cluster has no member of this slot").then_some(said)
    };
    let said = cluster.until("it is refused", refused).await;
    assert!(said.contains("member 3 may not take the state"), "{said}");
}

/// The folder was not mounted. Nothing made another one in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_not_there_is_logged_once_and_used_once_it_is() {
    let mut cluster = Cluster::format(1, "64MiB", "");
    schedule(&mut cluster);
    cluster.start_all().await;
    let failures = |cluster: &Cluster| metric(cluster, 0, "cairn_backup_failures_total");
    let failed = async || failures(&cluster).filter(|count| count != "0");
    let before = cluster.until("a failure", failed).await;
    // It is tried again when the schedule is read again, and fails in the same way.
    reload(&mut cluster, 0, "backup.keep = 2", "backup.keep = 3");
    let again = async || failures(&cluster).filter(|count| *count != before);
    cluster.until("another failure", again).await;
    let target = folder(&cluster);
    assert!(!target.exists(), "it was made");
    assert_eq!(metric(&cluster, 0, "cairn_backup_last_success_timestamp_seconds"), None);

    std::fs::create_dir(&target).expect("a folder");
    reload(&mut cluster, 0, "backup.keep = 3", "backup.keep = 4");
    settled(&cluster, "a backup", |listed| listed.len() == 1).await;
    let words = "backups are saved again";
    let log = cluster.logs_with(words, |log| log.contains(words)).await;
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("no backup is saved")).collect();
    let [line] = lines[..] else { panic!("once: {lines:?}") };
    let words = ["WARN", "expected a folder", target.to_str().expect("text")];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
}

/// No member has the secret key, so an encrypted backup builds on no other one, and none that is not
/// encrypted builds on it.
#[tokio::test(flavor = "multi_thread")]
async fn encrypted_backups_have_everything_and_are_read_with_a_key_that_no_member_has() {
    let mut cluster = Cluster::format(1, "64MiB", "");
    let target = folder(&cluster);
    std::fs::create_dir(&target).expect("a folder");
    schedule(&mut cluster);
    let encrypted = format!("backup.encrypt_to = {RECIPIENT:?}");
    cluster.configure(0, &encrypted);
    cluster.start_all().await;
    let first = settled(&cluster, "a first backup", |listed| !listed.is_empty()).await;
    assert_eq!(first[0]["encrypted_to"], json!([RECIPIENT]));

    cluster.client().put("key", "value").await.expect("a put");
    age(&cluster, &first);
    // It looks at the target at once.
    reload(&mut cluster, 0, "backup.keep = 2", "backup.keep = 3");
    let second = settled(&cluster, "a second one", |listed| has_new(listed, &first)).await;
    let last = second.last().expect("a backup");
    assert_eq!(last["encrypted_to"], json!([RECIPIENT]));
    assert_eq!(last["since"], Value::Null);
    let key = cluster.folder.path().join("key.txt");
    std::fs::write(&key, SECRET).expect("a file");
    let (target, key) = (target.to_str().expect("text"), key.to_str().expect("text"));
    let name = last["name"].as_str().expect("a name");
    let without = cluster.cairn_alone(&["backup", "verify", target, name]);
    assert!(without.code == 2 && without.stderr.contains("--identity FILE"), "{without:?}");
    let with = ["backup", "verify", target, name, "--identity", key, "-o", "json"];
    let with = cluster.cairn_alone(&with);
    assert_eq!(with.code, 0, "{with:?}");
    let verified: Value = serde_json::from_str(&with.stdout).expect("JSON");
    assert_eq!(verified["keys"], 1);

    age(&cluster, &second);
    let plain = "backup.encrypt_to = \"none\"";
    reload(&mut cluster, 0, &encrypted, plain);
    let third = settled(&cluster, "a third one", |listed| has_new(listed, &second)).await;
    let last = third.last().expect("a backup");
    assert_eq!((&last["encrypted_to"], &last["since"]), (&json!([]), &Value::Null));
    assert_eq!(verify(&cluster, last["name"].as_str().expect("a name"))["keys"], 1);
    let words = "nothing builds on the latest backup";
    let log = cluster.logs_with(words, |log| log.contains(words)).await;
    let line = log.lines().find(|line| line.contains(words)).expect("logged");
    assert!(line.contains("the new one would be not encrypted"), "{line}");

    // It is said at once, and not when the next one is due.
    reload(&mut cluster, 0, plain, "backup.encrypt_to = \"age1slip\"");
    let words = ["no backup is saved", "age1slip", "has a slip"];
    let told = |log: &str| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    cluster.logs_with("the recipient is refused", told).await;
}

/// The target is a bucket whose server takes connections, and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn neither_a_put_nor_a_stop_waits_for_a_target_that_does_not_answer() {
    let (_thread, address) = silent();
    let mut cluster = Cluster::format(1, "64MiB", "");
    cluster.configure(0, "backup.target = \"s3://backups/of/shop\"\nbackup.every = \"1h\"");
    cluster.in_environment(0, variables(&format!("http://{address}")));
    cluster.start_all().await;
    let running = async || {
        metric(&cluster, 0, "cairn_backup_running").filter(|running| running == "1").map(drop)
    };
    cluster.until("it looks at the target", async || running().await).await;
    cluster.client().put("key", "value").await.expect("a put");
    // On a slow machine it may be the next look: each ends after some minutes.
    cluster.until("it waits", running).await;
    assert_eq!(cluster.stop_node(0), 0);
}
