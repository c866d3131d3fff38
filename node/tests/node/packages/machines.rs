//! Machines for a package: Debian's own root file system under a real systemd, in a container that has its own
//! processes, network and control group. They share the kernel and the disk.
//!
//! What holds here: only processes, folders and namespaces that this test made are ended or removed, those of a run that
//! was killed at the next start. One run at a time has them. What the system lacks fails the test by its name.

use super::release::{done, system, text};
use crate::support::{Network, POLL, Ran, WAIT_LIMIT, finish_within, only_run};
use cairn_launch::Server;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Of the containers, namespaces and control groups.
const NAME: &str = "cairn-packages";
/// Debian's, whose systemd runs with the control groups of every kernel that Cairn runs on.
const SUITE: &str = "bookworm";
/// What is there beside Debian's smallest system: what the page's commands and the package's recommendations name.
const INCLUDED: &str = "--include=systemd,systemd-sysv,dbus,sudo,ca-certificates";
/// Longer than a machine takes to boot, to format, and to wait for the others.
pub(super) const LONG: Duration = WAIT_LIMIT.saturating_mul(8);
/// Where the reader of the page works on a machine.
pub(super) const DESK: &str = "srv/cairn";
const PROGRAMS: [&str; 7] =
    ["debootstrap", "systemd-nspawn", "nsenter", "ip", "tar", "dpkg-deb", "umount"];

/// Enters a control group, and becomes the program.
const ENTER: &str = r#"echo $$ >"$1/cgroup.procs"; shift; exec "$@""#;

pub(super) struct Machines {
    /// Each with its systemd, by our number of the process.
    running: Vec<(Server, u32)>,
    _network: Network,
    _only: File,
}

fn target() -> PathBuf {
    let folder = super::root().join("target");
    fs::create_dir_all(&folder).expect("a folder");
    folder.canonicalize().expect("a folder")
}

fn tree(slot: usize) -> PathBuf {
    target().join(NAME).join(slot.to_string())
}

/// The control groups of version 2, also where those of version 1 are there as well.
fn control_groups() -> PathBuf {
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    let found = places.into_iter().find(|place| place.join("cgroup.procs").exists());
    found.expect("this test needs control groups of version 2, mounted at /sys/fs/cgroup")
}

fn control_group(slot: usize) -> PathBuf {
    control_groups().join(format!("{NAME}-{slot}"))
}

/// Removes a folder of ours with all in it, and nothing that is mounted there.
pub(super) fn remove_tree(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a list");
    let below = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let below: Vec<&str> = below.filter(|place| Path::new(place).starts_with(folder)).collect();
    for place in below.into_iter().rev() {
        done("umount", &[place]);
    }
    done("rm", &["--recursive", "--force", "--one-file-system", text(folder)]);
}

/// Ends all processes of a machine, and removes its control groups and what systemd-nspawn left. It also runs while a
/// test fails, so what cannot be removed here fails the next start, which names it.
fn end(slot: usize) {
    let group = control_group(slot);
    let began = Instant::now();
    while group.exists() {
        // It has not, if it was just removed.
        let _ = fs::write(group.join("cgroup.kill"), "1");
        remove_group(&group);
        assert!(began.elapsed() < LONG, "{} has processes that do not end", group.display());
        std::thread::sleep(POLL);
    }
    let name = format!("{NAME}-{slot}");
    // systemd-nspawn makes this one where version 1 is there.
    remove_group(&Path::new("/sys/fs/cgroup/systemd").join(&name));
    // From version 256 on it mounts a file system there, which stays when it is killed. The next start would refuse it.
    let left = Path::new("/run/systemd/nspawn");
    let exported = left.join("unix-export").join(&name);
    if exported.exists() {
        system("umount", &["--lazy", text(&exported)]);
        let _ = fs::remove_dir(&exported);
    }
    let _ = fs::remove_dir(left.join("propagate").join(&name));
}

fn remove_group(group: &Path) {
    for inner in fs::read_dir(group).into_iter().flatten().flatten() {
        if inner.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&inner.path());
        }
    }
    // One with processes that are about to end stays, until it is tried again.
    let _ = fs::remove_dir(group);
}

/// Debian's root file system, made once, as a file of `tar`.
fn debian() -> PathBuf {
    let made = target().join(format!("rootfs-{SUITE}.tar"));
    if made.exists() {
        return made;
    }
    let (tree, partial) = (target().join("rootfs.partial"), made.with_extension("partial"));
    remove_tree(&tree);
    println!("making {} by debootstrap", made.display());
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", INCLUDED, SUITE, text(&tree)]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let ran = finish_within(LONG, command.spawn().expect("debootstrap"));
    assert_eq!(ran.code, 0, "this test needs Debian's packages: {}{}", ran.stdout, ran.stderr);
    let file = text(&partial);
    done("tar", &["--create", "--numeric-owner", "--file", file, "-C", text(&tree), "."]);
    fs::rename(&partial, &made).expect("our own");
    remove_tree(&tree);
    made
}

/// The first process of the container that this process runs, by our number.
fn first_process(container: u32) -> Option<u32> {
    let parent = container.to_string();
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let is_child = field("PPid:")?.trim() == parent;
        let is_first = field("NSpid:")?.split_whitespace().next_back() == Some("1");
        (is_child && is_first).then_some(pid)
    })
}

impl Machines {
    /// Boots machines, and waits for each one's systemd. They have the addresses 10.0.0.SLOT. One more address, on a
    /// network namespace without a machine, is that of a client.
    pub(super) fn boot(count: usize) -> Machines {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        for program in PROGRAMS {
            let there = Command::new(program).arg("--version").stdin(Stdio::null()).output();
            assert!(there.is_ok(), "this test needs the program {program}: {there:?}");
        }
        let only = only_run(NAME);
        for slot in 1..=count {
            end(slot);
        }
        Network::remove_leftovers(NAME, count + 1);
        remove_tree(&target().join(NAME));
        let base = debian();
        let network = Network::named(NAME, count + 1);
        let network = network.unwrap_or_else(|lacks| panic!("this test needs namespaces: {lacks}"));
        let mut machines = Machines { running: Vec::new(), _network: network, _only: only };
        for slot in 1..=count {
            unpack(&base, slot);
            machines.start(slot);
        }
        for slot in 1..=count {
            let said = machines.until(slot, "systemd has started all", |machines| {
                let said = machines.run(slot, "systemctl is-system-running").stdout;
                ["running", "degraded"].contains(&said.trim()).then_some(said)
            });
            let failed = machines.done(slot, "systemctl list-units --failed --plain --no-legend");
            println!("machine {slot} is {}: {failed}", said.trim());
        }
        machines
    }

    /// The network namespace of a client beside so many machines.
    pub(super) fn client_namespace(&self) -> PathBuf {
        PathBuf::from(format!("/run/netns/{NAME}-{}", self.running.len() + 1))
    }

    fn start(&mut self, slot: usize) {
        let group = control_group(slot);
        fs::create_dir(&group)
            .unwrap_or_else(|error| panic!("this test needs {}: {error}", group.display()));
        let (folder, name) = (tree(slot), format!("{NAME}-{slot}"));
        let directory = format!("--directory={}", folder.display());
        let machine = format!("--machine={name}");
        let network = format!("--network-namespace-path=/run/netns/{name}");
        let arguments = [
            "-euc",
            ENTER,
            "sh",
            text(&group),
            "systemd-nspawn",
            "--boot",
            directory.as_str(),
            machine.as_str(),
            network.as_str(),
            // Nothing of the machine that runs the test is asked: it may have no systemd.
            "--register=no",
            "--keep-unit",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--console=read-only",
            // The container's own filter forbids them, as Docker's does.
            "--system-call-filter=io_uring_setup io_uring_enter io_uring_register",
        ];
        let mut command = cairn_launch::command("sh", arguments);
        // Those of version 1 need not be mounted here in full.
        command.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1");
        let log = folder.with_extension("log");
        let mut server = Server::start(&name, command, &log).expect("sh runs");
        let began = Instant::now();
        let first = loop {
            if let Some(first) = first_process(server.id()) {
                break first;
            }
            if let Err(ended) = server.check_running() {
                panic!("{ended}\n{}", fs::read_to_string(&log).unwrap_or_default());
            }
            assert!(began.elapsed() < LONG, "no systemd in {}", log.display());
            std::thread::sleep(POLL);
        };
        self.running.push((server, first));
    }

    /// Copies a file to the folder where the reader of the page works.
    pub(super) fn give(&self, slot: usize, file: &Path) {
        let there = self.file(slot, DESK).join(file.file_name().expect("a name"));
        fs::copy(file, &there).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }

    /// A file of a machine, by its path from the machine's root without the first slash.
    pub(super) fn file(&self, slot: usize, path: &str) -> PathBuf {
        tree(slot).join(path)
    }

    /// Runs commands of a shell as root on a machine, in the folder of the page's reader.
    pub(super) fn run(&self, slot: usize, commands: &str) -> Ran {
        let first = self.running[slot - 1].1.to_string();
        let commands = format!("cd /{DESK}\n{commands}\n");
        let all: Vec<String> =
            (1..=self.running.len()).map(|slot| format!("10.0.0.{slot}:7400")).collect();
        let endpoints = format!("CAIRN_ENDPOINTS={}", all.join(","));
        let arguments = [
            "--target",
            first.as_str(),
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--cgroup",
            "--root",
            "--wd",
            "--",
            "/usr/bin/env",
            "-i",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
            "LC_ALL=C.UTF-8",
            endpoints.as_str(),
            "CAIRN_CLIENT_TLS_CA=/srv/cairn/ca.pem",
            "CAIRN_CLIENT_TLS_CERTIFICATE=/srv/cairn/client-app.pem",
            "CAIRN_CLIENT_TLS_KEY=/srv/cairn/client-app-key.pem",
            "/bin/bash",
            "-euc",
            commands.as_str(),
        ];
        let mut command = cairn_launch::command("nsenter", arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // nsenter starts the shell as its child, which ends with it if the limit is over.
        command.process_group(0);
        finish_within(LONG, command.spawn().expect("nsenter runs"))
    }

    /// The same. It must succeed. Returns what was printed, without the last end of a line.
    pub(super) fn done(&self, slot: usize, commands: &str) -> String {
        let ran = self.run(slot, commands);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.code, 0, "machine {slot}: {commands}\n{said}\n{}", self.journal(slot));
        ran.stdout.trim_end_matches('\n').to_owned()
    }

    /// The same, with this answer to each question. sudo may read more answers than the command behind it needs.
    pub(super) fn done_answering(&self, slot: usize, answer: &str, commands: &str) -> String {
        self.done(slot, &format!("exec < <(yes {answer})\n{commands}"))
    }

    /// What a machine's server and its unit said.
    pub(super) fn journal(&self, slot: usize) -> String {
        self.run(slot, "journalctl --no-pager --output cat --unit cairn").stdout
    }

    pub(super) fn until<T>(
        &mut self,
        slot: usize,
        what: &str,
        mut found: impl FnMut(&Machines) -> Option<T>,
    ) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            let log = tree(slot).with_extension("log");
            if let Err(ended) = self.running[slot - 1].0.check_running() {
                panic!("{ended}\n{}", fs::read_to_string(&log).unwrap_or_default());
            }
            let waited = began.elapsed();
            assert!(waited < LONG, "not within {LONG:?}: {what}\n{}", self.journal(slot));
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let count = self.running.len();
        self.running.clear();
        // Also one that did not come as far as its systemd.
        for slot in 1..=count + 1 {
            end(slot);
        }
        // Without a check: the test may have failed already.
        let folder = target().join(NAME);
        let logs = (1..=count).map(|slot| tree(slot).with_extension("log"));
        for log in logs.filter(|_| std::thread::panicking()) {
            println!("{}", cairn_launch::log_end(&log, 20));
        }
        system("rm", &["--recursive", "--force", "--one-file-system", text(&folder)]);
    }
}

/// A machine's own root file system.
fn unpack(base: &Path, slot: usize) {
    let folder = tree(slot);
    fs::create_dir_all(&folder).expect("a folder");
    let (from, to) = (text(base), text(&folder));
    done("tar", &["--extract", "--preserve-permissions", "--numeric-owner", "-f", from, "-C", to]);
    let name = format!("{NAME}-{slot}");
    let write = |path: &str, text: &str| fs::write(folder.join(path), text).expect("our own");
    write("etc/hostname", &format!("{name}\n"));
    write("etc/hosts", &format!("127.0.0.1 localhost\n10.0.0.{slot} {name}\n"));
    // Without one systemd would ask questions at its first boot.
    write("etc/machine-id", &format!("{slot:032x}\n"));
    fs::create_dir_all(folder.join(DESK)).expect("a folder");
}
