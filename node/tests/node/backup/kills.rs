//! Saves, restores and prunes that are killed, each at fifty moments: no backup that verifies lacks
//! something, and no directory that a node starts with.
//!
//! What holds here: a moment is how often the threads of the process have waited for something. So it is as
//! far in its work on a slow machine as on a fast one. A backup is compared key by key with what was
//! acknowledged up to its index.

use super::*;
use crate::support::{POLL, WAIT_LIMIT, code, command, run};
use cairn_backup::{Backup, Overview, Target};
use cairn_bucket::{Line, Reset, Server, variables};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Instant;

/// At how many moments each is killed.
const MOMENTS: usize = 50;
/// After so many times as many rounds without one that was killed in its middle the test fails.
pub(super) const ROUNDS_MOST: usize = 10;
/// The keys, and how many of them one batch puts.
const KEYS: usize = 2_000;
const BATCH: usize = 100;

/// How often the threads of a process have waited until now: for a disk, for the network, for one another.
fn waits(process: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| {
        // It may have ended.
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let count =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse::<u64>().ok()
    };
    tasks.filter_map(of_task).sum()
}

/// Draws moments at which processes of one kind are killed.
pub(super) struct Kills {
    random: StdRng,
    /// The most waits that one of them was seen to have.
    most: u64,
}

impl Kills {
    pub(super) fn new(seed: u64) -> Kills {
        Kills { random: StdRng::seed_from_u64(seed), most: 0 }
    }

    pub(super) fn moment(&mut self) -> u64 {
        self.random.random_range(0..=self.most)
    }

    /// Runs a command, and calls `meanwhile` once its threads have waited so often, unless it has ended.
    pub(super) fn run(
        &mut self,
        mut command: Command,
        moment: u64,
        meanwhile: impl FnOnce(&mut std::process::Child),
    ) -> bool {
        let (stdout, stderr) = (Stdio::null(), Stdio::null());
        let mut child = command.stdout(stdout).stderr(stderr).spawn().expect("cairn starts");
        let (began, mut seen) = (Instant::now(), 0);
        while seen < moment && child.try_wait().expect("our own child").is_none() {
            assert!(began.elapsed() < WAIT_LIMIT, "the command did not end");
            seen = seen.max(waits(child.id()));
            std::thread::yield_now();
        }
        self.most = self.most.max(seen);
        meanwhile(&mut child);
        code(child.wait().expect("our own child")) == 0
    }

    /// Runs a command to its end, to learn how far its moments reach.
    fn learn(&mut self, command: Command) {
        assert!(self.run(command, u64::MAX, |_| ()), "it succeeds");
    }

    /// Kills a command at a moment that is drawn. Returns whether it had ended well before.
    fn kill(&mut self, command: Command) -> bool {
        let moment = self.moment();
        self.run(command, moment, |child| child.kill().expect("our own child"))
    }
}

/// Writes some keys and notes what was acknowledged. Nobody else writes.
pub(super) struct Writer {
    client: Client,
    random: StdRng,
    pub(super) writes: Writes,
}

impl Writer {
    /// With every key put once.
    pub(super) async fn new(client: Client, seed: u64) -> Writer {
        let random = StdRng::seed_from_u64(seed);
        let mut writer = Writer { client, random, writes: Writes::default() };
        for first in (0..KEYS).step_by(BATCH) {
            let mut batch = writer.client.batch();
            let puts: Vec<(String, String)> =
                (first..first + BATCH).map(|key| (name(key), writer.value())).collect();
            for (key, value) in &puts {
                batch = batch.put(key.clone(), value.clone());
            }
            let version = batch.commit().await.expect("puts").version;
            for (key, value) in puts {
                writer.writes.entry(key).or_default().insert(version, Some(value));
            }
        }
        writer
    }

    fn value(&mut self) -> String {
        let times = self.random.random_range(1..100);
        format!("{:020}", self.random.random::<u64>()).repeat(times)
    }

    /// Puts or deletes so many keys.
    pub(super) async fn change(&mut self, keys: usize) {
        for _ in 0..keys {
            let key = name(self.random.random_range(0..KEYS));
            let value = (self.random.random_range(0..3) > 0).then(|| self.value());
            let written = match &value {
                Some(value) => self.client.put(key.clone(), value.clone()).await,
                None => self.client.delete(key.clone()).await,
            };
            let version = written.expect("nothing fails here").version;
            self.writes.entry(key).or_default().insert(version, value);
        }
    }
}

fn name(key: usize) -> String {
    format!("writer {key:05}")
}

/// The backup verifies, and has exactly what was acknowledged up to its index.
pub(super) async fn compare(target: &Target, name: &str, writes: &Writes) {
    let opened = Backup::open(target, name).await;
    compare_opened(&opened.unwrap_or_else(|error| panic!("{name}: {error}")), writes).await;
}

async fn compare_opened(backup: &Backup, writes: &Writes) {
    let name = &backup.manifest().name;
    let mut items = backup.items().expect("it is not encrypted");
    let mut found = BTreeMap::new();
    while let Some(item) = items.next().await.unwrap_or_else(|error| panic!("{name}: {error}")) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let value = item.value.expect("a value");
        found.insert(text(&item.key), (Version(item.index), text(&value)));
    }
    assert!(found == at(writes, Version(backup.manifest().head.index)), "{name}");
}

/// The names of all backups at the target, each of which can be read.
pub(super) async fn backups(target: &Target) -> Vec<String> {
    let listed = Overview::list(target).await.expect("a list").into_iter();
    listed.map(|(name, overview)| overview.map(|_| name).expect("a manifest")).collect()
}

/// The index of the newest of them.
async fn newest(target: &Target) -> Option<u64> {
    let listed = Overview::list(target).await.expect("a list").into_iter();
    listed.map(|(_, overview)| overview.expect("a manifest").head.index).max()
}

/// How many saves were begun there and not finished.
pub(super) fn broken_off(files: &Path) -> usize {
    let folders = std::fs::read_dir(files).into_iter().flatten().flatten();
    let begun = |folder: &Path| folder.join("head").exists() && !folder.join("manifest").exists();
    folders.filter(|entry| begun(&entry.path())).count()
}

/// Where backups are saved: how a command names it, where its files lie, and what is in the environment.
struct Place {
    target: String,
    files: PathBuf,
    variables: Vec<(String, String)>,
}

impl Place {
    fn folder(cluster: &Cluster) -> Place {
        let target = target(cluster);
        Place { files: target.clone().into(), target, variables: Vec::new() }
    }

    /// A bucket behind a line, whose connections are reset: in requests, and in answers, also in the one
    /// that an object is stored.
    fn bucket(cluster: &Cluster) -> (Server, Line, Place) {
        let root = cluster.folder.path().join("buckets");
        let files = root.join("backups/of/shop");
        std::fs::create_dir_all(&files).expect("folders");
        let server = Server::start(&root);
        let mut random = StdRng::seed_from_u64(5);
        let line = Line::to(server.address, move || match random.random_range(0..6) {
            0 => Reset::AtAnswer,
            1 => Reset::After(random.random_range(1..50_000)),
            _ => Reset::Never,
        });
        let variables = variables(&format!("http://{}", line.address));
        let place = Place { target: "s3://backups/of/shop".into(), files, variables };
        (server, line, place)
    }

    /// A copy beside it.
    fn copy(&self, number: usize) -> Place {
        let name = format!("copy-{number}");
        let (above, _) = self.target.rsplit_once('/').expect("a path");
        let (target, files) = (format!("{above}/{name}"), self.files.with_file_name(name));
        let copied = Command::new("cp").arg("-r").args([&self.files, &files]).status();
        assert!(copied.expect("cp runs").success());
        Place { target, files, variables: self.variables.clone() }
    }

    fn command(&self, cluster: &Cluster, arguments: &[&str]) -> Command {
        let mut command = command(cluster.folder.path(), arguments);
        command.envs(self.variables.iter().cloned());
        command
    }

    /// Its files, whoever serves them.
    fn opened(&self) -> Target {
        Target::open(self.files.to_str().expect("text")).expect("a folder")
    }
}

/// Whether connections of the line were reset.
fn broke(line: &Line) -> bool {
    let resets = [&line.resets.asking, &line.resets.answering];
    let resets = resets.map(|resets| resets.load(Ordering::Relaxed));
    println!("{resets:?} connections were reset in requests, and in answers");
    resets.iter().sum::<usize>() > 0
}

/// Kills saves of everything and of what changed, in turns, and compares each backup that is there.
async fn kill_saves(cluster: &Cluster, place: &Place, seed: u64) {
    let mut writer = Writer::new(cluster.client(), seed).await;
    let endpoints = cluster.endpoints().join(",");
    let whole = ["backup", "save", &place.target, "--endpoints", &endpoints];
    let since = [&whole[..], &["--since", "latest"]].concat();
    let save = |arguments: &[&str]| place.command(cluster, arguments);
    let mut kills = Kills::new(seed);
    kills.learn(save(&whole));
    let target = place.opened();
    let (mut compared, mut round, mut in_the_middle) = (BTreeSet::new(), 0_usize, 0);
    while round < MOMENTS || in_the_middle == 0 {
        assert!(round < ROUNDS_MOST * MOMENTS, "no save was killed in its middle");
        // Two backups of one second and one index would have the same name.
        writer.change(20).await;
        let (before, there) = (broken_off(&place.files), backups(&target).await.len());
        let ended = kills.kill(save(if round.is_multiple_of(2) { &whole[..] } else { &since[..] }));
        in_the_middle += usize::from(broken_off(&place.files) > before);
        let names = backups(&target).await;
        // What the save before had sent when it was killed may be stored later.
        assert!(!ended || names.len() > there, "round {round}: it was saved, and is not there");
        for name in names {
            if !compared.contains(&name) {
                compare(&target, &name, &writer.writes).await;
                compared.insert(name);
            }
        }
        round += 1;
    }
    println!(
        "{in_the_middle} saves were killed in their middle, {} backups are whole",
        compared.len()
    );
    writer.change(20).await;
    kills.learn(save(&since));
    // Later saves took nothing from earlier ones.
    let names = backups(&target).await;
    assert!(names.len() > compared.len(), "the last one is there");
    for name in names {
        compare(&target, &name, &writer.writes).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_save_that_is_killed_is_no_backup_and_the_next_one_is_whole() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    kill_saves(&cluster, &Place::folder(&cluster), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_save_to_a_bucket_that_is_killed_is_no_backup_though_its_line_breaks_too() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let (_server, line, place) = Place::bucket(&cluster);
    kill_saves(&cluster, &place, 3).await;
    assert!(broke(&line), "the line breaks");
}

/// What a directory says of itself.
pub(super) fn cluster_named_in(cluster: &Cluster, node: usize) -> Value {
    let data = cluster.data(node);
    let data = data.to_str().expect("text");
    let inspected = run(cluster.folder.path(), &["inspect", data, "-o", "json"]);
    let found: Value = serde_json::from_str(&inspected.stdout).unwrap_or_default();
    found["known"]["cluster"].clone()
}

/// What a node logs that cannot read whose directory it has: it serves nobody then, and does not end.
const WAITS: &str = "the identity of this data directory cannot be read";

/// Starts the only node in what a restore left: a directory that opens has all keys, and any other one serves
/// nobody. Returns what the node said there, and `None` if it opened.
pub(super) async fn refuses_or_has_all(
    cluster: &mut Cluster,
    keys: &BTreeMap<String, (Version, String)>,
) -> Option<String> {
    let opens = cluster_named_in(cluster, 0) == "tested";
    let from = cluster.log(0).len();
    cluster.start_node(0);
    if opens {
        cluster.wait_ready().await;
        assert!(all_of(&cluster.client()).await == *keys, "it opens and lacks something");
        cluster.kill_all();
        return None;
    }
    let began = Instant::now();
    while !cluster.has_ended(0) && !cluster.log(0)[from..].contains(WAITS) {
        assert!(began.elapsed() < WAIT_LIMIT, "it goes on: {}", &cluster.log(0)[from..]);
        tokio::time::sleep(POLL).await;
    }
    match cluster.has_ended(0) {
        true => assert_eq!(cluster.ended(0), 1),
        false => cluster.kill_node(0),
    }
    Some(cluster.log(0)[from..].to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_is_killed_leaves_nothing_that_a_node_starts_with() {
    let mut cluster = Cluster::start(1, "64MiB", "").await;
    let mut writer = Writer::new(cluster.client(), 1).await;
    writer.change(100).await;
    let target = target(&cluster);
    json_of(&cluster.cairn(&["backup", "save", &target, "-o", "json"]));
    let keys = at(&writer.writes, Version(u64::MAX));
    cluster.kill_all();
    cluster.lose_disk(0);
    let config = cluster.config(0).to_owned();
    let folder = cluster.folder.path().to_owned();
    let restore = || command(&folder, &["backup", "restore", &target, "--config", &config]);
    let mut kills = Kills::new(1);
    kills.learn(restore());
    assert_eq!(refuses_or_has_all(&mut cluster, &keys).await, None, "it was restored");
    let (mut round, mut half, mut whole) = (0_usize, 0, 0);
    while round < MOMENTS || half == 0 {
        assert!(round < ROUNDS_MOST * MOMENTS, "no restore was killed in its middle");
        // The one before may have been killed before it made the directory.
        std::fs::remove_dir_all(cluster.data(0)).ok();
        let ended = kills.kill(restore());
        half += usize::from(cluster_named_in(&cluster, 0) == "(being restored)");
        match refuses_or_has_all(&mut cluster, &keys).await {
            None => whole += 1,
            Some(said) => {
                assert!(!ended, "round {round}: it was restored, and does not open: {said}");
                let says = ["is half restored", "is not a Cairn data directory", "No such file"];
                assert!(says.iter().any(|says| said.contains(says)), "round {round}: {said}");
            }
        }
        round += 1;
    }
    println!("{half} directories were half restored, {whole} had all");
}

/// The files in this folder and in the folders in it.
fn files_in(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files_in(&entry.path()) } else { 1 }).sum()
}

/// Saves chains of backups, kills prunes of copies of them, and compares what each leaves: what a list shows
/// must be whole, and the newest is never touched.
async fn kill_prunes(cluster: &Cluster, place: &Place, seed: u64) {
    let mut writer = Writer::new(cluster.client(), seed).await;
    let endpoints = cluster.endpoints().join(",");
    let mut kills = Kills::new(seed);
    for number in 0..7 {
        writer.change(30).await;
        let mut save = vec!["backup", "save", &place.target, "--endpoints", &endpoints];
        if number % 3 > 0 {
            save.extend(["--since", "latest"]);
        }
        Kills::new(seed).learn(place.command(cluster, &save));
    }
    let last = newest(&place.opened()).await;
    let all = files_in(&place.files);
    let (mut round, mut in_the_middle) = (0_usize, 0);
    while round < MOMENTS || in_the_middle < 2 {
        assert!(round < ROUNDS_MOST * MOMENTS, "no prune was killed in its middle");
        let copy = place.copy(round);
        let prune = ["backup", "prune", &copy.target, "--keep", "1", "--yes"];
        let pruning = copy.command(cluster, &prune);
        match round {
            0 => kills.learn(pruning),
            // In every other round once so many files are gone, and as soon as one is.
            _ if round.is_multiple_of(2) => {
                kill_when_gone(pruning, &copy.files, all, 1 + round / 2 % all);
            }
            _ => {
                kills.kill(pruning);
            }
        }
        let left = copy.opened();
        assert_eq!(newest(&left).await, last, "round {round}");
        for name in backups(&left).await {
            let manifest = copy.files.join(&name).join("manifest");
            match Backup::open(&left, &name).await {
                Ok(backup) => compare_opened(&backup, &writer.writes).await,
                // A server still removes what it was asked to when the prune was killed.
                Err(error) => assert!(!manifest.exists(), "{name}: {error}"),
            }
        }
        let left_over = files_in(&copy.files);
        Kills::new(seed).learn(copy.command(cluster, &prune));
        in_the_middle += usize::from(left_over < all && files_in(&copy.files) < left_over);
        for name in backups(&left).await {
            compare(&left, &name, &writer.writes).await;
        }
        std::fs::remove_dir_all(&copy.files).expect("our own copy");
        round += 1;
    }
    println!("{in_the_middle} prunes were killed before they had removed all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_that_is_killed_leaves_only_backups_that_verify() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    kill_prunes(&cluster, &Place::folder(&cluster), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_of_a_bucket_that_is_killed_leaves_only_backups_that_verify() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let (_server, line, place) = Place::bucket(&cluster);
    kill_prunes(&cluster, &place, 4).await;
    assert!(broke(&line), "the line breaks");
}

/// Kills a prune once so many files are gone of `all` in a folder, or when it has ended.
fn kill_when_gone(mut pruning: Command, folder: &Path, all: usize, gone: usize) {
    let pruning = pruning.stdout(Stdio::null()).stderr(Stdio::null());
    let (mut child, began) = (pruning.spawn().expect("cairn starts"), Instant::now());
    while files_in(folder) + gone > all && child.try_wait().expect("our own child").is_none() {
        assert!(began.elapsed() < WAIT_LIMIT, "the prune did not end");
    }
    child.kill().expect("our own child");
    child.wait().expect("our own child");
}
