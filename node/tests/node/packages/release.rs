//! A release: the files that `deploy/release` made, and whether they are what `docs/install.md` says of them.
//!
//! What holds here: the release of `CAIRN_DIST` is read, and never changed.

use crate::support::{Ran, WAIT_LIMIT, finish_within};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The newest glibc that the program may need, as `deploy/release` and the page say.
const GLIBC: (u32, u32) = (2, 28);
/// Several times what the program has: more means that its symbols, or a second copy of a library, are in it.
const MOST_BYTES: u64 = 64 << 20;

/// The files of a release.
pub(super) struct Release {
    folder: PathBuf,
    pub(super) version: &'static str,
    pub(super) deb_arch: &'static str,
}

/// Runs a program of the system to its end.
pub(super) fn system(program: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn();
    let child =
        child.unwrap_or_else(|error| panic!("this test needs the program {program}: {error}"));
    // It may unpack a whole system.
    finish_within(WAIT_LIMIT.saturating_mul(4), child)
}

/// The same, which must succeed. Returns what it printed.
pub(super) fn done(program: &str, arguments: &[&str]) -> String {
    let ran = system(program, arguments);
    assert_eq!(ran.code, 0, "{program} {arguments:?}: {ran:?}");
    ran.stdout
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

impl Release {
    /// That of `CAIRN_DIST`.
    pub(super) fn made() -> Release {
        let folder = std::env::var_os("CAIRN_DIST").map(PathBuf::from);
        let folder = folder.expect("CAIRN_DIST is the folder of a release: run `./test packages`");
        assert!(folder.is_absolute(), "CAIRN_DIST is a whole path: {}", folder.display());
        let deb_arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => panic!("there is no release for {other}"),
        };
        Release { folder, version: env!("CARGO_PKG_VERSION"), deb_arch }
    }

    pub(super) fn deb_name(&self, version: &str) -> String {
        format!("cairn_{version}-1_{}.deb", self.deb_arch)
    }

    pub(super) fn deb(&self) -> PathBuf {
        let file = self.folder.join(self.deb_name(self.version));
        assert!(file.is_file(), "{} is missing: `deploy/release` makes it", file.display());
        file
    }

    fn rpm(&self) -> PathBuf {
        self.folder.join(format!("cairn-{}-1.{}.rpm", self.version, std::env::consts::ARCH))
    }

    /// What the .deb installs, below this folder.
    pub(super) fn extract(&self, folder: &Path) {
        done("dpkg-deb", &["--extract", text(&self.deb()), text(folder)]);
    }

    /// The version after this one: the same program in a package of a higher version, with another example of the
    /// configuration. Returns its version.
    pub(super) fn next(&self, folder: &Path) -> String {
        let (start, last) = self.version.rsplit_once('.').expect("three numbers");
        let next = format!("{start}.{}", last.parse::<u32>().expect("a number") + 1);
        let tree = folder.join("next");
        done("dpkg-deb", &["--raw-extract", text(&self.deb()), text(&tree)]);
        let control = tree.join("DEBIAN/control");
        let before = fs::read_to_string(&control).expect("a control file");
        let line = format!("Version: {}-1\n", self.version);
        assert!(before.contains(&line), "{before}");
        let after = before.replace(&line, &format!("Version: {next}-1\n"));
        fs::write(&control, after).expect("our own");
        let example = tree.join("etc/cairn/cairn.toml");
        let written = fs::read_to_string(&example).expect("an example");
        fs::write(&example, format!("{written}# Of the next version.\n")).expect("our own");
        let deb = folder.join(self.deb_name(&next));
        done("dpkg-deb", &["--root-owner-group", "--build", text(&tree), text(&deb)]);
        next
    }
}

/// The newest glibc whose symbols a program needs.
fn newest_glibc(program: &Path) -> (u32, u32) {
    let said = done("readelf", &["--wide", "--version-info", text(program)]);
    let number = |text: &str| {
        let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<u32>().ok()
    };
    let versions = said.split("GLIBC_").skip(1).filter_map(|rest| {
        let (major, rest) = rest.split_once('.')?;
        Some((number(major)?, number(rest)?))
    });
    versions.max().expect("a program that needs glibc")
}

/// Mode, owner and path of each file of the .deb, as `tar` shows them.
fn listed(deb: &Path) -> Vec<(String, String, String)> {
    let listing = done("dpkg-deb", &["--contents", text(deb)]);
    let files = listing.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), 6, "no links, and no spaces in names: {line}");
        let path = words[5].trim_start_matches('.').trim_start_matches('/');
        (words[0].to_owned(), words[1].to_owned(), format!("/{path}"))
    });
    files.collect()
}

fn count_files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())).count()
}

#[test]
#[ignore = "needs a release: ./test packages"]
fn the_packaged_program_runs_with_an_old_glibc_and_has_no_symbols() {
    let release = Release::made();
    let folder = tempfile::tempdir().expect("a folder");
    release.extract(folder.path());
    let program = folder.path().join("usr/bin/cairn");
    let said = done(text(&program), &["--version"]);
    assert_eq!(said, format!("cairn {}\n", release.version));
    let newest = newest_glibc(&program);
    assert!(newest <= GLIBC, "the program needs glibc {newest:?}");
    let sections = done("readelf", &["--wide", "--sections", text(&program)]);
    assert!(sections.contains(" .gnu_debuglink "), "{sections}");
    for symbols in [" .symtab ", " .debug_info ", " .debug_line "] {
        assert!(!sections.contains(symbols), "{symbols}: {sections}");
    }
    let bytes = fs::metadata(&program).expect("a program").len();
    println!("the program has {bytes} bytes and needs glibc {}.{}", newest.0, newest.1);
    assert!((1 << 20..MOST_BYTES).contains(&bytes), "{bytes} bytes");

    let share = folder.path().join("usr/share");
    let pages = share.join("man/man1");
    assert!(count_files(&pages) > 30, "one page for each command");
    for page in fs::read_dir(&pages).expect("pages").map(|page| page.expect("a page").path()) {
        done("gzip", &["--test", text(&page)]);
    }
    let of_bash = share.join("bash-completion/completions/cairn");
    done("bash", &["-n", text(&of_bash)]);
    for completions in ["zsh/vendor-completions/_cairn", "fish/vendor_completions.d/cairn.fish"] {
        let written = fs::read_to_string(share.join(completions)).expect(completions);
        assert!(written.contains("members"), "{completions} knows the commands");
    }
}

#[test]
#[ignore = "needs a release: ./test packages"]
fn all_files_of_both_packages_belong_to_root_and_two_can_be_executed() {
    let release = Release::made();
    let programs = ["/usr/bin/cairn", "/usr/sbin/cairn-nvme-setup"];
    let deb = listed(&release.deb());
    let mut files = BTreeSet::new();
    for (mode, owner, path) in &deb {
        // By number, where the package names nobody.
        assert!(["root/root", "0/0"].contains(&owner.as_str()), "{owner}: {path}");
        if path.ends_with('/') {
            assert_eq!(mode, "drwxr-xr-x", "{path}");
            continue;
        }
        let is_program = programs.contains(&path.as_str());
        let expected = if is_program { "-rwxr-xr-x" } else { "-rw-r--r--" };
        assert_eq!(mode, expected, "{path}");
        // The folder of zsh is Debian's own.
        files.insert(path.replace("/vendor-completions/", "/site-functions/"));
    }
    assert!(programs.iter().all(|program| files.contains(*program)), "{files:?}");
    let format = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\n]";
    let rpm = text(&release.rpm()).to_owned();
    let query = done("rpm", &["--query", "--package", "--queryformat", format, rpm.as_str()]);
    let mut of_rpm = BTreeSet::new();
    for line in query.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let is_program = programs.contains(&words[2]);
        let mode = if is_program { "-rwxr-xr-x" } else { "-rw-r--r--" };
        assert_eq!((words[0], words[1]), (mode, "root/root"), "{line}");
        of_rpm.insert(words[2].to_owned());
    }
    assert_eq!(files, of_rpm);
    let by = ["--query", "--package", "--queryformat", "%{PAYLOADCOMPRESSOR}", rpm.as_str()];
    assert_eq!(done("rpm", &by), "xz", "every rpm unpacks that");
    let scripts = done("rpm", &["--query", "--package", "--scripts", rpm.as_str()]);
    for words in ["systemd-sysusers cairn.conf", "systemctl disable --now", "daemon-reload"] {
        assert!(scripts.contains(words), "{words}: {scripts}");
    }
    let field = |name: &str| done("dpkg-deb", &["--field", text(&release.deb()), name]);
    assert_eq!(field("Version"), format!("{}-1\n", release.version));
    assert_eq!(field("Architecture"), format!("{}\n", release.deb_arch));
    assert_eq!(field("Depends"), "libc6 (>= 2.28)\n");
}

#[test]
#[ignore = "needs a release: ./test packages"]
fn every_file_of_a_release_is_in_its_list_of_checksums_and_readable_by_all() {
    let release = Release::made();
    let sums = fs::read_to_string(release.folder.join("SHA256SUMS")).expect("a list");
    let mut ran = Command::new("sha256sum");
    ran.args(["--check", "--strict", "--quiet", "SHA256SUMS"]).current_dir(&release.folder);
    assert!(ran.status().expect("sha256sum").success(), "{sums}");
    let listed: BTreeSet<&str> =
        sums.lines().filter_map(|line| Some(line.split_once("  ")?.1)).collect();
    let files = fs::read_dir(&release.folder).expect("a folder").map(|file| file.expect("a file"));
    let mut found = BTreeSet::new();
    for file in files {
        let mode = file.metadata().expect("a file").permissions().mode() & 0o777;
        assert_eq!(mode, 0o644, "{:?}", file.path());
        found.insert(file.file_name().into_string().expect("text"));
    }
    assert!(found.remove("SHA256SUMS"));
    assert_eq!(listed, found.iter().map(String::as_str).collect::<BTreeSet<&str>>());
    // The table of docs/install.md.
    let target = format!("cairn-{}-{}-unknown-linux-gnu", release.version, std::env::consts::ARCH);
    for ending in [".tar.gz", "-debug.tar.gz", ".cdx.json"] {
        assert!(found.contains(&format!("{target}{ending}")), "{ending}: {found:?}");
    }
    assert_eq!(found.len(), 5, "{found:?}");
}
