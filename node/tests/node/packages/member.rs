//! One member on its machine: its configuration, as an operator writes it, and what its systemd says of it.

use super::machines::Machines;
use std::collections::BTreeMap;
use std::fs;

const CONFIGURATION: &str = "etc/cairn/cairn.toml";
/// Where a machine's kernel would say since when it runs, if it had one of its own.
const BOOT_ID: &str = "srv/boot-id";

/// The example that the package installed, with what `docs/install.md` and the example itself say to change. The
/// machines share one disk, so the data directory is small, and elections take their time. They share one kernel, too,
/// which the unit's own /proc shows: each has a file in its place.
fn configured(example: &str, slot: usize) -> String {
    let own = |port: u16| format!("\"10.0.0.{slot}:{port}\"");
    let (listen, rest) = example.split_once("\n[listen]\n").expect("where it listens");
    let (before, after) = rest.split_once("\n\n").expect("the end of that table");
    let listen_here =
        before.replace("\"10.0.0.1:7400\"", &own(7400)).replace("\"10.0.0.1:7401\"", &own(7401));
    let mut text = format!("{listen}\n[listen]\n{listen_here}\n\n{after}");
    for (given, changed) in [
        ("\nslot = 1 ", format!("\nslot = {slot} ")),
        ("tls/member-1.pem", format!("tls/member-{slot}.pem")),
        ("tls/member-1-key.pem", format!("tls/member-{slot}-key.pem")),
        ("\nsize = \"100GiB\"", format!("\nboot_id_file = \"/{BOOT_ID}\"\nsize = \"512MiB\"")),
        (
            "\ncluster = \"example\"",
            "\ntiming.election_min = \"3s\"\ntiming.election_max = \"6s\"\ncluster = \"example\""
                .to_owned(),
        ),
    ] {
        assert_eq!(text.matches(given).count(), 1, "{given} in {text}");
        text = text.replace(given, &changed);
    }
    text
}

impl Machines {
    /// Changes the installed configuration. Returns its text.
    pub(super) fn configure(&self, slot: usize) -> String {
        let file = self.file(slot, CONFIGURATION);
        let example = fs::read_to_string(&file).expect("the package installed it");
        let text = configured(&example, slot);
        fs::write(&file, &text).expect("our own");
        let id = format!("{slot}1234567-89ab-cdef-0123-456789abcdef\n");
        fs::write(self.file(slot, BOOT_ID), id).expect("our own");
        text
    }

    pub(super) fn configuration(&self, slot: usize) -> Option<String> {
        fs::read_to_string(self.file(slot, CONFIGURATION)).ok()
    }

    /// Properties of the unit.
    pub(super) fn unit(&self, slot: usize) -> BTreeMap<String, String> {
        let shown = self.done(slot, "systemctl show cairn");
        let pairs = shown.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// The number of the server's process, on its machine.
    pub(super) fn server(&self, slot: usize) -> u32 {
        let unit = self.unit(slot);
        let pid: u32 = unit["MainPID"].parse().expect("a number");
        assert!(pid > 1 && unit["ActiveState"] == "active", "{unit:?}");
        pid
    }

    /// Waits until the cluster is well, and reads what was written at the beginning.
    pub(super) fn is_well(&self, slot: usize) {
        self.done(slot, "cairn health --wait 20m");
        assert_eq!(self.done(slot, "cairn get hello"), "world");
    }
}

#[test]
fn an_operator_changes_the_example_in_these_places_alone() {
    let example = super::read("deploy/cairn.example.toml");
    let changed = configured(&example, 3);
    let (before, after): (Vec<&str>, Vec<&str>) =
        (example.lines().collect(), changed.lines().collect());
    let new: Vec<&&str> = after.iter().filter(|line| !before.contains(line)).collect();
    let same = after.iter().filter(|line| before.contains(line)).count();
    assert_eq!((new.len(), same), (9, before.len() - 6), "{new:?}");
    let read: toml::Table = toml::from_str(&changed).expect("TOML");
    assert_eq!(read["slot"].as_integer(), Some(3));
    assert_eq!(read["listen"]["client"].as_str(), Some("10.0.0.3:7400"));
    assert_eq!(read["listen"]["peer"].as_str(), Some("10.0.0.3:7401"));
    assert_eq!(read["members"]["1"]["client"].as_str(), Some("10.0.0.1:7400"));
}
