//! The .deb on three machines: installed as `docs/install.md` says, run by a real systemd, exchanged under load, removed
//! and purged.
//!
//! What holds here: the commands of an operator are those of the page. What is asked beside them is only looked at.

use super::machines::Machines;
use super::page::Reader;
use super::release::Release;
use super::writers::Writers;
use crate::support::run;
use std::path::Path;

/// The data, the keys and the user, which no removal touches.
const KEPT: &str = "test -s /var/lib/cairn/superblock && test -s /etc/cairn/tls/ca.pem && id cairn";

struct Story {
    release: Release,
    next: String,
    machines: Machines,
    /// What the operator wrote.
    configurations: Vec<String>,
}

#[test]
#[ignore = "needs root, systemd-nspawn, debootstrap and a release: ./test packages"]
fn a_package_is_installed_as_the_page_says_upgraded_under_load_and_removed() {
    let release = Release::made();
    let folder = tempfile::tempdir().expect("a folder");
    let next = release.next(folder.path());
    issue(folder.path());
    let machines = Machines::boot(3);
    let mut story = Story { release, next, machines, configurations: Vec::new() };
    for slot in 1..=3 {
        story.install(slot, folder.path());
        story.start(slot);
    }
    story.machines.done(1, "cairn health --wait 20m");
    story.machines.done(1, "cairn put hello world");
    for slot in 1..=3 {
        story.runs_as_the_unit_says(slot);
    }
    story.is_started_again_when_it_is_stuck(2);
    story.stops_and_starts(3);
    story.upgrade_under_load(folder.path());
    story.remove_and_purge(3);
}

/// The certificates of three members and of a client.
fn issue(folder: &Path) {
    let made = |arguments: &[&str]| {
        let ran = run(folder, arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
    };
    made(&["certs", "init", "pki", "--cluster", "example"]);
    made(&["certs", "issue", "pki", "--client", "app"]);
    for slot in 1..=3 {
        let (slot, address) = (slot.to_string(), format!("10.0.0.{slot}"));
        made(&["certs", "issue", "pki", "--member", &slot, "--address", &address]);
    }
}

impl Story {
    fn reader(&self, slot: usize) -> Reader<'_> {
        let (version, arch) = (self.release.version, self.release.deb_arch);
        Reader { slot, version, next: &self.next, arch }
    }

    fn install(&self, slot: usize, folder: &Path) {
        let machines = &self.machines;
        machines.give(slot, &self.release.deb());
        let own = [format!("member-{slot}.pem"), format!("member-{slot}-key.pem")];
        let all =
            ["ca.pem".to_owned(), "client-app.pem".to_owned(), "client-app-key.pem".to_owned()];
        for file in own.iter().chain(&all) {
            machines.give(slot, &folder.join("pki").join(file));
        }
        println!("{}", machines.done(slot, &self.reader(slot).commands("From a .deb", 0)));
        let shown = "dpkg-query --show --showformat '${Status} ${Version}' cairn";
        let expected = format!("install ok installed {}-1", self.release.version);
        assert_eq!(machines.done(slot, shown), expected);
        // "It enables and starts nothing."
        let unit = machines.unit(slot);
        assert_eq!((&*unit["LoadState"], &*unit["ActiveState"]), ("loaded", "inactive"));
        assert_eq!(unit["UnitFileState"], "disabled");
        for place in ["/var/lib/cairn", "/etc/cairn/tls"] {
            let mode = machines.done(slot, &format!("stat --format '%a %U:%G' {place}"));
            assert_eq!(mode, "700 cairn:cairn", "{place}");
        }
        let there = "cairn --version && test -s /usr/share/man/man1/cairn-serve.1.gz && \
                     test -x /usr/sbin/cairn-nvme-setup && test -s /usr/share/doc/cairn/install.md";
        assert_eq!(machines.done(slot, there), format!("cairn {}", self.release.version));
    }

    /// The first start. It returns when the ports answer.
    fn start(&mut self, slot: usize) {
        let configuration = self.machines.configure(slot);
        self.configurations.push(configuration);
        self.machines.done(slot, &self.reader(slot).commands("After either", 0));
        self.machines.done(slot, &format!("exec 3<>/dev/tcp/10.0.0.{slot}/7400"));
    }

    fn runs_as_the_unit_says(&self, slot: usize) {
        let machines = &self.machines;
        machines.is_well(slot);
        let unit = machines.unit(slot);
        for (name, value) in [
            ("Type", "notify"),
            ("WatchdogUSec", "1min"),
            ("User", "cairn"),
            ("ActiveState", "active"),
            ("SubState", "running"),
            ("UnitFileState", "enabled"),
            ("NRestarts", "0"),
            ("NoNewPrivileges", "yes"),
            ("ProtectSystem", "strict"),
        ] {
            assert_eq!(unit[name], value, "{name} on machine {slot}");
        }
        let server = machines.server(slot);
        let status = machines.done(slot, &format!("cat /proc/{server}/status"));
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000"] {
            assert!(status.lines().any(|found| found == line), "{line}: {status}");
        }
        // The unit's filter of system calls allows it, as docs/install.md and the unit say.
        let files = machines.done(slot, &format!("ls -l /proc/{server}/fd"));
        assert!(files.contains("anon_inode:[io_uring]"), "{files}");
        let journal = machines.done(slot, "journalctl --no-pager --output cat --identifier cairn");
        let as_json = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok();
        let levels = journal.lines().filter_map(|line| as_json(line)?.get("level").cloned());
        assert!(levels.count() > 0, "log.format of the example is json: {journal}");
        assert!(!journal.contains("\"ERROR\""), "{journal}");
    }

    fn is_started_again_when_it_is_stuck(&mut self, slot: usize) {
        let before = self.machines.server(slot);
        self.machines.done(slot, &format!("kill -STOP {before}"));
        self.machines.until(slot, "systemd starts it again", |machines| {
            let unit = machines.unit(slot);
            (unit["NRestarts"] == "1" && unit["ActiveState"] == "active").then_some(())
        });
        assert_ne!(self.machines.server(slot), before);
        let journal = self.machines.journal(slot);
        assert!(journal.contains("Watchdog timeout"), "{journal}");
        self.machines.is_well(slot);
    }

    fn stops_and_starts(&self, slot: usize) {
        let machines = &self.machines;
        machines.done(slot, "systemctl stop cairn");
        let unit = machines.unit(slot);
        assert_eq!((&*unit["ActiveState"], &*unit["Result"]), ("inactive", "success"));
        assert_eq!(unit["ExecMainStatus"], "0", "{}", machines.journal(slot));
        machines.done(1, "cairn put while away");
        machines.done(slot, "systemctl start cairn");
        machines.is_well(slot);
        assert_eq!(machines.done(slot, "cairn get while"), "away");
    }

    fn upgrade_under_load(&self, folder: &Path) {
        let machines = &self.machines;
        let writers = Writers::start(machines.client_namespace(), &folder.join("pki"));
        writers.wait_for(100);
        for slot in 1..=3 {
            machines.give(slot, &folder.join(self.release.deb_name(&self.next)));
            let before = machines.server(slot);
            let commands = self.reader(slot).commands("Upgrading", 0);
            // "`dpkg` asks": the operator keeps what is there.
            println!("{}", machines.done_answering(slot, "N", &commands));
            let version = machines.done(slot, "dpkg-query --show --showformat '${Version}' cairn");
            assert_eq!(version, format!("{}-1", self.next));
            assert_ne!(machines.server(slot), before);
            let kept = machines.configuration(slot);
            assert_eq!(kept.as_ref(), self.configurations.get(slot - 1));
            machines.done(slot, "test -s /etc/cairn/cairn.toml.dpkg-dist");
            writers.wait_for(100);
        }
        // "A package stops and restarts nothing."
        let before = machines.server(2);
        let deb = self.release.deb_name(&self.next);
        machines.done_answering(2, "N", &format!("dpkg --install ./{deb}"));
        assert_eq!(machines.server(2), before);
        writers.wait_for(100);
        let outcome = writers.stop();
        println!("{} acknowledged", outcome.acknowledged);
        assert!(outcome.wrong.is_empty(), "acknowledged and lost: {:?}", outcome.wrong);
        assert!(outcome.failed.is_empty(), "failed while upgrading: {:?}", outcome.failed);
        machines.is_well(1);
    }

    fn remove_and_purge(&self, slot: usize) {
        let machines = &self.machines;
        let reader = self.reader(slot);
        // apt-get asks before it removes.
        println!("{}", machines.done_answering(slot, "y", &reader.commands("Removing", 0)));
        let gone = "! test -e /usr/bin/cairn && ! test -e /usr/lib/systemd/system/cairn.service && \
                    ! systemctl is-active cairn && ! systemctl is-enabled cairn";
        machines.done(slot, gone);
        machines.done(slot, KEPT);
        assert_eq!(machines.configuration(slot).as_ref(), self.configurations.get(slot - 1));
        // Two of three go on.
        assert_eq!(machines.done(1, "cairn get hello"), "world");
        machines.done(1, "cairn put after removal");

        println!("{}", machines.done(slot, "sudo apt-get purge --yes cairn"));
        machines.done(slot, KEPT);
        let left = machines.done(slot, "ls --almost-all /etc/cairn");
        assert_eq!(left, "tls", "a purge removes the configuration");
        assert_eq!(machines.configuration(slot), None);

        machines.done(slot, &reader.commands("Removing", 1));
        machines.done(slot, "! test -e /var/lib/cairn && ! test -e /etc/cairn && ! id cairn");
    }
}
