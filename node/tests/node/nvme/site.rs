//! Three machines with a drive each, and the script that runs on them as their first and only server.

use super::drive::{self, Drive, FOLDER, done, system, text};
use crate::support::{CAIRN, Network, POLL, WAIT_LIMIT};
use cairn_launch::Server;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NAMES: &str = "cairn-nvme-drives";
pub(super) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/nvme/setup");
const MEMBERS: &str =
    "1=10.0.0.1:7400/10.0.0.1:7401,2=10.0.0.2:7400/10.0.0.2:7401,3=10.0.0.3:7400/10.0.0.3:7401";
const DRIVE_BYTES: u64 = 300 << 20;
/// Several elections and formats of a slow machine.
const LONG: Duration = WAIT_LIMIT.saturating_mul(4);
const STARTS: &str = "setup: starting the server\n";

pub(super) struct Site {
    servers: Vec<Option<Server>>,
    /// How long each machine's log was when its script was started.
    began: Vec<usize>,
    drives: Vec<Option<Drive>>,
    made: usize,
    network: Network,
    folder: TempDir,
    _only: File,
}

impl Site {
    pub(super) fn with_blank_drives(machines: usize) -> Site {
        let only = drive::begin();
        Network::remove_leftovers(NAMES, machines);
        let network = Network::named(NAMES, machines);
        let network = network.unwrap_or_else(|lacks| panic!("this test needs namespaces: {lacks}"));
        // After the namespaces, whose names all processes see. What is mounted from here on ends with this thread and
        // what it starts.
        cairn_lossy::disk::isolate().expect("mounts of our own");
        let folder = tempfile::Builder::new().prefix(FOLDER).tempdir().expect("a folder");
        let mut site = Site {
            servers: (0..machines).map(|_| None).collect(),
            began: vec![0; machines],
            drives: (0..machines).map(|_| None).collect(),
            made: 0,
            network,
            folder,
            _only: only,
        };
        for slot in 1..=machines {
            std::fs::create_dir(site.own(slot)).expect("a folder");
            // A kernel of its own, as far as the members see.
            let id = format!("{slot}1234567-89ab-cdef-0123-456789abcdef");
            std::fs::write(site.own(slot).join("boot"), id).expect("a file");
            site.replace_drive(slot);
        }
        site.cairn(1, &["certs", "init", "pki", "--cluster", "nvme"]);
        site.cairn(1, &["certs", "issue", "pki", "--client", "app"]);
        site
    }

    /// The folder of a machine.
    fn own(&self, slot: usize) -> PathBuf {
        self.folder.path().join(slot.to_string())
    }

    fn log(&self, slot: usize) -> String {
        let bytes = std::fs::read(self.own(slot).join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn logs(&self) -> String {
        (1..=self.drives.len()).map(|slot| format!("--- {slot}\n{}", self.log(slot))).collect()
    }

    /// What the script configured.
    pub(super) fn configuration(&self, slot: usize) -> String {
        std::fs::read_to_string(self.own(slot).join("etc/cairn.toml")).expect("a configuration")
    }

    fn cairn(&self, slot: usize, arguments: &[&str]) -> String {
        let ran = self.network.run(slot, self.folder.path(), arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        ran.stdout
    }

    /// A blank drive in place of the machine's, if it had one. Nothing runs there.
    pub(super) fn replace_drive(&mut self, slot: usize) {
        self.until_nothing_writes(slot);
        self.unmount(slot);
        self.drives[slot - 1] = None;
        self.made += 1;
        let name = format!("drive-{}", self.made);
        self.drives[slot - 1] = Some(Drive::blank(self.folder.path(), &name, DRIVE_BYTES));
    }

    /// What a killed script had started, such as a formatting, runs on. It holds the script's lock.
    fn until_nothing_writes(&self, slot: usize) {
        let lock = self.own(slot).join("etc/.setup.lock");
        if lock.exists() {
            done("flock", &[text(&lock), "true"]);
        }
    }

    fn unmount(&self, slot: usize) {
        let mount = self.own(slot).join("mount");
        let began = Instant::now();
        while system("mountpoint", &["--quiet", text(&mount)]).code == 0 {
            // The kernel may still close the files of a process that has ended.
            system("umount", &[text(&mount)]);
            assert!(began.elapsed() < WAIT_LIMIT, "{} stays in use", mount.display());
            std::thread::sleep(POLL);
        }
    }

    fn drive(&self, slot: usize) -> &Drive {
        self.drives[slot - 1].as_ref().expect("a drive")
    }

    /// The lines with which the script marks a drive as its own.
    pub(super) fn mark(&self, slot: usize) -> String {
        let last = self.drive(slot).read(DRIVE_BYTES - (1 << 20), 4096);
        let mark = last.split(|byte| *byte == 0).next().expect("a part");
        String::from_utf8(mark.to_vec()).expect("text")
    }

    /// Starts the script, which becomes the server.
    pub(super) fn start(&mut self, slot: usize) {
        let own = self.own(slot);
        let [mount, fstab, config, boot] =
            ["mount", "fstab", "etc/cairn.toml", "boot"].map(|name| own.join(name));
        let (slot_text, pki) = (slot.to_string(), self.folder.path().join("pki"));
        let drive = self.drive(slot).path().to_owned();
        let boot = format!("storage.boot_id_file={}", boot.display());
        let arguments = [
            SCRIPT,
            "--cluster",
            "nvme",
            "--slot",
            slot_text.as_str(),
            "--members",
            MEMBERS,
            "--certs",
            text(&pki),
            "--drive",
            drive.as_str(),
            "--mount",
            text(&mount),
            "--fstab",
            text(&fstab),
            "--size",
            "64MiB",
            "--config",
            text(&config),
            "--user",
            "root",
            "--cairn",
            CAIRN,
            "--set",
            boot.as_str(),
            "--set",
            "mode=sync",
            "--set",
            "timing.election_min=3s",
            "--set",
            "timing.election_max=6s",
            "--foreground-with",
            "env",
        ];
        self.began[slot - 1] = self.log(slot).len();
        let command = self.network.program(slot, self.folder.path(), "bash", &arguments);
        let name = format!("the script of slot {slot}");
        let server = Server::start(&name, command, &own.join("log")).expect("bash runs");
        self.servers[slot - 1] = Some(server);
    }

    fn check_running(&mut self, slot: usize) {
        let server = self.servers[slot - 1].as_mut().expect("it was started");
        if let Err(ended) = server.check_running() {
            panic!("{ended}\n{}", self.logs());
        }
    }

    /// What the script has printed since it was started, and what became of it.
    pub(super) fn said(&self, slot: usize) -> String {
        self.log(slot).get(self.began[slot - 1]..).unwrap_or_default().to_owned()
    }

    /// Until the script has printed so many lines, or has become the server.
    pub(super) fn until_it_said(&mut self, slot: usize, lines: usize) {
        let began = Instant::now();
        loop {
            let said = self.said(slot);
            if said.contains(STARTS) || said.lines().count() >= lines {
                return;
            }
            self.check_running(slot);
            assert!(began.elapsed() < WAIT_LIMIT, "{said}");
            std::thread::sleep(POLL);
        }
    }

    /// Kills the script, or what became of it, a moment later: alone, so that what it had started runs on, or with that.
    pub(super) fn kill_after(&mut self, slot: usize, moment_ms: u64, alone: bool) {
        std::thread::sleep(Duration::from_millis(moment_ms));
        // It never fails.
        self.check_running(slot);
        if let Some(server) = self.servers[slot - 1].as_mut().filter(|_| alone) {
            let pid = Pid::from_raw(server.id().cast_signed()).expect("a process");
            kill_process(pid, Signal::KILL).expect("our own child");
            server.wait(WAIT_LIMIT).expect("it ends");
        }
        self.kill(slot);
    }

    /// Until the machine remembers that it belonged to a cluster.
    pub(super) fn until_noted(&mut self, slot: usize) {
        self.until("a note of the cluster", |site| {
            let noted = std::fs::read_to_string(site.note(slot)).ok()?;
            (noted == "nvme\n").then_some(())
        });
    }

    /// What an operator does who begins anew.
    pub(super) fn forget(&self, slot: usize) {
        std::fs::remove_file(self.note(slot)).expect("it was noted");
    }

    fn note(&self, slot: usize) -> PathBuf {
        self.own(slot).join("etc/.setup-served")
    }

    /// Kills the machine's server.
    pub(super) fn kill(&mut self, slot: usize) {
        self.servers[slot - 1] = None;
    }

    fn until<T>(&mut self, what: &str, mut found: impl FnMut(&Site) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            let site: &Site = self;
            if let Some(found) = found(site) {
                return found;
            }
            for slot in 1..=self.servers.len() {
                if self.servers[slot - 1].is_some() {
                    self.check_running(slot);
                }
            }
            assert!(began.elapsed() < LONG, "not within {LONG:?}: {what}\n{}", self.logs());
            std::thread::sleep(POLL);
        }
    }

    fn ask(&self, slot: usize, arguments: &[&str]) -> Option<String> {
        let endpoint = format!("10.0.0.{slot}:7400");
        let client = [
            "--endpoints",
            endpoint.as_str(),
            "--tls-ca",
            "pki/ca.pem",
            "--tls-certificate",
            "pki/client-app.pem",
            "--tls-key",
            "pki/client-app-key.pem",
        ];
        let ran = self.network.run(slot, self.folder.path(), &[arguments, &client[..]].concat());
        (ran.code == 0).then_some(ran.stdout)
    }

    /// Repeats a command of a client until it succeeds.
    pub(super) fn until_done(&mut self, slot: usize, arguments: &[&str]) -> String {
        self.until(&format!("{arguments:?}"), |site| site.ask(slot, arguments))
    }

    pub(super) fn until_well(&mut self) {
        self.until_done(1, &["health", "--wait", "20s"]);
    }

    fn member(&self, asked: usize, slot: usize) -> Option<Value> {
        let listed: Value =
            serde_json::from_str(&self.ask(asked, &["members", "-o", "json"])?).ok()?;
        listed.as_array()?.iter().find(|member| member["slot"] == slot).cloned()
    }

    /// Which node has the slot.
    pub(super) fn node_id(&mut self, slot: usize) -> String {
        let member = self.until("the members", |site| site.member(1, slot));
        member["node_id"].as_str().expect("text").to_owned()
    }

    /// Until another node than this one votes for the slot.
    pub(super) fn until_replaced(&mut self, slot: usize, before: &str) {
        self.until("a replacement", |site| {
            let member = site.member(1, slot)?;
            (member["node_id"] != before && member["voter"] == true).then_some(())
        });
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.servers.clear();
        for slot in 1..=self.drives.len() {
            let mount = self.own(slot).join("mount");
            // One that was not made cannot be removed.
            system("umount", &["--lazy", text(&mount)]);
        }
        self.drives.clear();
    }
}

/// For a script that runs without a network of its own.
pub(super) fn temporary() -> TempDir {
    tempfile::Builder::new().prefix(FOLDER).tempdir().expect("a folder")
}

/// Whether nothing is in a folder, or it is not there.
pub(super) fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}
