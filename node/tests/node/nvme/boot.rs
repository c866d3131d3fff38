//! The boot script of `deploy/nvme/terraform`, evaluated for each cloud and run with programs of this test in place of the
//! cloud's and of the package managers.
//!
//! What holds here: a script sees no other folder than the test's, since `/root` is replaced by one of it, and calls no
//! program that would change the machine. It needs no root.

use super::drive::text;
use super::site::temporary;
use crate::support::{Ran, finish};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Of a package without a byte.
const SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const FILES: [&str; 3] = ["ca.pem", "member-2.pem", "member-2-key.pem"];

/// Each cloud with the name of its package.
const CLOUDS: [(&str, &str); 2] = [("gcp", "cairn.deb"), ("aws", "cairn.rpm")];

/// What both clouds' commands do: `… cp OPTION scheme://bucket/KEY FILE`. The first `fails` calls fail.
const COPY: &str = r#"
while [ $# -gt 2 ]; do shift; done
left=$(cat "$BOOT/fails")
if [ "$left" -gt 0 ]; then
    echo $((left - 1)) >"$BOOT/fails"
    exit 1
fi
cp "$BOOT/bucket/${1#*://certs/}" "$2"
"#;

/// The first call finds that another program has the lock. What is there already is not installed again.
const INSTALL: &str = r#"
if [ ! -e "$BOOT/tried" ]; then
    touch "$BOOT/tried"
    exit 1
fi
case "$*" in
*reinstall*) touch "$BOOT/user" ;;
*)
    [ -e "$BOOT/programs/cairn-nvme-setup" ] || touch "$BOOT/user"
    install -m 0755 "$BOOT/later/cairn-nvme-setup" "$BOOT/later/mkfs.ext4" "$BOOT/programs/"
    ;;
esac
"#;

/// What it configures makes the user. Another package of the machine cannot be configured.
const CONFIGURE: &str = r#"
[ ! -e "$BOOT/programs/cairn-nvme-setup" ] || touch "$BOOT/user"
exit 1
"#;

/// Programs that the machine has, and what they do.
const PROGRAMS: [(&str, &str); 8] = [
    ("gcloud", COPY),
    ("aws", COPY),
    ("apt-get", INSTALL),
    ("dnf", INSTALL),
    ("dpkg", CONFIGURE),
    ("rpm", "[ -e \"$BOOT/programs/cairn-nvme-setup\" ]\n"),
    ("getent", "[ -e \"$BOOT/user\" ]\n"),
    ("sleep", "\n"),
];

/// Those that a package brings.
const LATER: [(&str, &str); 2] = [("cairn-nvme-setup", "\n"), ("mkfs.ext4", "\n")];

/// A template with one setting, for a machine whose cloud has these functions. Directives of Terraform that end with `~}`
/// leave nothing of their line.
fn evaluated(template: &str, functions: &str, package: &str) -> String {
    let values = [
        ("machine", functions),
        ("cluster", "example"),
        ("slot", "2"),
        ("members", "1=10.0.1.10:7400/10.0.1.10:7401,2=10.0.2.10:7400/10.0.2.10:7401"),
        ("failure_domain", "b"),
        ("bucket", "certs"),
        ("package.key", package),
        ("package.sha256", SHA256),
        ("size", "800GiB"),
        ("key", "mode"),
        ("value", "sync"),
    ];
    let lines = template.lines().filter(|line| {
        let is_directive = line.starts_with("%{");
        assert_eq!(is_directive, line.contains("%{"), "{line}");
        assert!(!is_directive || line.ends_with("~}"), "{line}");
        !is_directive
    });
    let mut script = lines.collect::<Vec<_>>().join("\n").replace("$${", "\0");
    for (name, value) in values {
        script = script.replace(&format!("${{{name}}}"), value);
    }
    assert!(!script.contains("${"), "a value is not known here: {script}");
    script.replace('\0', "${")
}

/// A machine that boots again and again.
struct Machine {
    folder: TempDir,
    script: String,
    package: &'static str,
}

impl Machine {
    /// With a package and the first certificates in its bucket.
    fn new(cloud: &str, package: &'static str) -> Machine {
        let folder = temporary();
        let read = |file: &str| {
            let terraform = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/nvme/terraform");
            fs::read_to_string(terraform.join(file)).expect("a file of the deployment")
        };
        let (template, functions) = (read("boot.tftpl"), read(&format!("{cloud}/machine.sh")));
        let root = folder.path().join("root");
        let script = evaluated(&template, &functions, package);
        let script = script.replace("/root/", &format!("{}/", text(&root)));
        for name in ["root", "bucket/slot-2", "programs", "given", "later"] {
            fs::create_dir_all(folder.path().join(name)).expect("a folder");
        }
        let machine = Machine { folder, script, package };
        for (below, programs) in [("given", &PROGRAMS[..]), ("later", &LATER[..])] {
            for (name, does) in programs {
                let program = format!("#!/bin/sh\necho \"{name} $*\" >>\"$BOOT/log\"\n{does}");
                machine.write(&format!("{below}/{name}"), &program);
            }
        }
        machine.write(&format!("bucket/{package}"), "");
        machine.renew("first");
        // A program that this process wrote itself might still be open for writing in a child that another thread is
        // about to start, and could not be run.
        let installed = machine.run("install -m 0755 \"$BOOT\"/given/* \"$BOOT/programs/\"");
        assert_eq!(installed.code, 0, "{installed:?}");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, contents: &str) {
        fs::write(self.path(name), contents).expect("a file");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).expect("it is there");
    }

    fn run(&self, script: &str) -> Ran {
        let mut command = Command::new("bash");
        command.args(["-c", script]).env("BOOT", self.folder.path());
        // The system's folder of administrators' programs may have those that a package brings.
        command.env("PATH", format!("{}:/usr/bin:/bin", text(&self.path("programs"))));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().expect("bash runs"))
    }

    /// A boot during which the first so many copies fail.
    fn boot(&self, fails: usize) -> Ran {
        self.write("fails", &fails.to_string());
        self.write("log", "");
        self.run(&self.script)
    }

    /// Other certificates in the bucket.
    fn renew(&self, words: &str) {
        for file in FILES {
            self.write(&format!("bucket/slot-2/{file}"), &format!("{words} {file}"));
        }
    }

    /// Checks that all certificates of the machine are these.
    fn has(&self, words: &str) {
        for file in FILES {
            let there = fs::read_to_string(self.path("root/pki").join(file)).expect("it is there");
            assert_eq!(there, format!("{words} {file}"));
        }
    }

    /// The calls of the last boot, one a line.
    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("a log")
    }

    /// How many of them begin so.
    fn called(&self, begin: &str) -> usize {
        self.log().lines().filter(|line| line.starts_with(begin)).count()
    }
}

/// The story: each copy and the installation were tried once, at a moment when the network may not be there and another
/// program installs updates. The machine then waited for its next boot.
#[test]
fn a_machine_whose_network_comes_late_installs_the_package_and_becomes_a_member() {
    for (cloud, package) in CLOUDS {
        let machine = Machine::new(cloud, package);
        let ran = machine.boot(3);
        assert_eq!(ran.code, 0, "{cloud}: {ran:?}");
        assert_eq!(machine.called("sleep 10"), 4, "{cloud}: three copies and the installation");
        machine.has("first");
        let script = "cairn-nvme-setup --cluster example --slot 2 --members 1=10.0.1.10:7400/10.0.1.10:7401,\
            2=10.0.2.10:7400/10.0.2.10:7401 --certs ";
        assert_eq!(machine.called(script), 1, "{cloud}");
        let rest = " --size 800GiB --set mode=sync --filesystem ext4\n";
        assert!(machine.log().ends_with(rest), "{cloud}: {}", machine.log());
        assert!(!machine.path("root").join(machine.package).exists(), "{cloud}: it is used up");
        // At the next boot nothing is installed, and no copy is tried twice.
        let ran = machine.boot(1);
        assert_eq!(ran.code, 0, "{cloud}: {ran:?}");
        for program in ["apt-get", "dnf", "sleep"] {
            assert_eq!(machine.called(program), 0, "{cloud}: {program}");
        }
        machine.has("first");
    }
}

#[test]
fn certificates_are_replaced_all_together_or_not_at_all() {
    for (cloud, package) in CLOUDS {
        let machine = Machine::new(cloud, package);
        assert_eq!(machine.boot(0).code, 0, "{cloud}");
        machine.renew("second");
        machine.remove("bucket/slot-2/member-2-key.pem");
        let ran = machine.boot(0);
        assert_eq!(ran.code, 0, "{cloud}: {ran:?}");
        assert!(ran.stderr.contains("those of before stay"), "{cloud}: {ran:?}");
        machine.has("first");
        assert_eq!(
            machine.called("cairn-nvme-setup"),
            1,
            "{cloud}: the member starts all the same"
        );

        machine.renew("third");
        assert_eq!(machine.boot(0).code, 0, "{cloud}");
        machine.has("third");

        // With one missing there is nothing to go on with, and the bucket is waited for.
        machine.remove("root/pki/ca.pem");
        machine.renew("fourth");
        assert_eq!(machine.boot(2).code, 0, "{cloud}");
        assert_eq!(machine.called("sleep 10"), 2, "{cloud}");
        machine.has("fourth");
    }
}

/// The story: a boot that was cut left the program without its user, and every later boot took the package for
/// installed.
#[test]
fn an_installation_that_was_cut_before_it_made_the_user_is_finished() {
    for (cloud, package) in CLOUDS {
        let machine = Machine::new(cloud, package);
        assert_eq!(machine.boot(0).code, 0, "{cloud}");
        machine.remove("user");
        let ran = machine.boot(0);
        assert_eq!(ran.code, 0, "{cloud}: {ran:?}");
        assert!(machine.path("user").exists(), "{cloud}: {ran:?}");
        assert_eq!(machine.called("cairn-nvme-setup"), 1, "{cloud}");
    }
}

#[test]
fn a_package_that_never_comes_or_is_another_one_is_not_installed() {
    for (cloud, package) in CLOUDS {
        let machine = Machine::new(cloud, package);
        let ran = machine.boot(1000);
        assert_ne!(ran.code, 0, "{cloud}: {ran:?}");
        assert_eq!(machine.called("sleep 10"), 60, "{cloud}: it gives up");
        machine.write(&format!("bucket/{package}"), "another one");
        let ran = machine.boot(0);
        assert_ne!(ran.code, 0, "{cloud}: {ran:?}");
        for program in ["apt-get", "dnf", "cairn-nvme-setup"] {
            assert_eq!(machine.called(program), 0, "{cloud}: {program}");
        }
    }
}
