//! What `deploy/release` packages: the files that the metadata of `node/Cargo.toml` names are there, and what is
//! installed fits this program. That the example configuration is accepted is checked in `bad_input`. The modules below
//! take a release that was made, install it, and start its image: `./test packages`.

mod image;
mod installed;
mod machines;
mod member;
mod page;
mod release;
mod writers;

use crate::support::{Ran, finish, run};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the packages' tools look for what `deploy/release` made.
const BUILT: &str = "target/release/packaged/";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// One table of `[package.metadata]`.
fn metadata(table: &str) -> toml::Value {
    let manifest: toml::Table = toml::from_str(&read("node/Cargo.toml")).expect("TOML");
    manifest["package"]["metadata"][table].clone()
}

fn text(value: &toml::Value) -> &str {
    value.as_str().expect("text")
}

/// Source and destination of each file of a package, as paths from the repository's root and from `/`.
fn assets(table: &str) -> BTreeSet<(String, String)> {
    let metadata = metadata(table);
    let assets = metadata["assets"].as_array().expect("assets").iter().map(|asset| {
        let (source, destination) = match asset.as_array() {
            // cargo-deb begins in the crate's folder, cargo-generate-rpm in the workspace's.
            Some(words) => {
                let source = text(&words[0]);
                let above = source.strip_prefix("../");
                assert_eq!(above.is_none(), source.starts_with(BUILT), "{source}");
                (above.unwrap_or(source), format!("/{}", text(&words[1])))
            }
            None => (text(&asset["source"]), text(&asset["dest"]).to_owned()),
        };
        // The folder of zsh is Debian's own.
        (source.to_owned(), destination.replace("zsh/vendor-completions", "zsh/site-functions"))
    });
    assets.collect()
}

#[test]
fn both_packages_have_the_same_files_and_each_of_them_is_there() {
    let deb = assets("deb");
    assert_eq!(deb, assets("generate-rpm"));
    let release = read("deploy/release");
    for (source, destination) in &deb {
        if let Some(made) = source.strip_prefix(BUILT) {
            let made = format!("\"$packaged/{}\"", made.trim_end_matches("/*.gz"));
            assert!(release.contains(&made), "deploy/release makes {made}");
        } else if let Some((folder, ending)) = source.split_once('*') {
            let files = fs::read_dir(root().join(folder)).expect(folder);
            let mut names =
                files.map(|file| file.expect(folder).file_name().to_string_lossy().into_owned());
            assert!(names.any(|name| name.ends_with(ending)), "{source}");
            assert!(destination.ends_with('/'), "{destination} is a folder");
        } else {
            assert!(root().join(source).is_file(), "{source}");
        }
    }
    let configuration = ("deploy/cairn.example.toml", "/etc/cairn/cairn.toml");
    assert!(deb.contains(&(configuration.0.to_owned(), configuration.1.to_owned())));
    let rpm = metadata("generate-rpm");
    let files = rpm["assets"].as_array().expect("assets");
    let keeps = files.iter().filter(|file| file.get("config").map(text) == Some("noreplace"));
    let kept: Vec<&str> = keeps.map(|file| text(&file["dest"])).collect();
    assert_eq!(kept, [configuration.1], "an upgrade keeps the operator's configuration");
}

#[test]
fn the_packages_scripts_start_nothing_and_remove_nothing() {
    let (deb, rpm) = (metadata("deb"), metadata("generate-rpm"));
    let folder = format!("node/{}", text(&deb["maintainer-scripts"]));
    let mut scripts: Vec<String> =
        ["postinst", "prerm", "postrm"].map(|script| format!("{folder}/{script}")).into();
    for script in ["post_install_script", "pre_uninstall_script", "post_uninstall_script"] {
        scripts.push(text(&rpm[script]).to_owned());
    }
    for script in &scripts {
        let written = read(script);
        let code: Vec<&str> =
            written.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        let code = code.join("\n");
        for harm in [
            "enable", "start", "restart", "preset", "rm ", "userdel", "deluser", "--remove",
            "find ",
        ] {
            let word = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric());
            let found = code.match_indices(harm).any(|(at, _)| word(at));
            assert!(!found, "{script}: {harm}");
        }
        let parsed = Command::new("sh").arg("-n").arg(root().join(script)).status();
        assert!(parsed.expect("sh").success(), "{script}");
    }
}

#[test]
fn the_unit_runs_the_packaged_program_with_options_that_it_has() {
    let unit = read("deploy/cairn.service");
    let value = |directive: &str| {
        let given = unit.lines().find_map(|line| line.strip_prefix(directive)?.strip_prefix('='));
        given.unwrap_or_else(|| panic!("no {directive}"))
    };
    let installed: BTreeSet<String> = assets("deb").into_iter().map(|asset| asset.1).collect();
    let start: Vec<&str> = value("ExecStart").split(' ').collect();
    assert!(installed.contains(start[0]), "{start:?}");
    let at = start.iter().position(|word| installed.contains(*word) && *word != start[0]);
    let configuration = start[at.expect("the packaged configuration")];
    let folder = tempfile::tempdir().expect("a folder");
    let arguments: Vec<&str> = start[1..]
        .iter()
        .map(|word| if *word == configuration { "none.toml" } else { *word })
        .collect();
    let ran = run(folder.path(), &arguments);
    // It read its options and came as far as the file that is missing.
    assert!(ran.code == 2 && ran.stderr.contains("none.toml"), "{ran:?}");

    // The server says when it serves, and that it lives.
    assert_eq!(value("Type"), "notify");
    assert!(value("WatchdogSec").parse::<u64>().is_ok_and(|seconds| seconds >= 30));
    assert_eq!(value("TimeoutStartSec"), "infinity", "a first start may write for hours");
    let (user, group) = (value("User"), value("Group"));
    let users = read("deploy/packages/cairn.sysusers");
    assert!(users.lines().any(|line| line.starts_with(&format!("u {user} - "))), "{users}");
    let folders = read("deploy/packages/cairn.tmpfiles");
    let example: toml::Table = toml::from_str(&read("deploy/cairn.example.toml")).expect("TOML");
    let key = Path::new(text(&example["tls"]["key"]));
    let keys = key.parent().and_then(Path::to_str).expect("a folder of keys");
    for folder in [text(&example["data_dir"]), keys] {
        let line = format!("d {folder} 0700 {user} {group} -");
        assert!(folders.lines().any(|found| found == line), "{line}");
    }
}

#[test]
fn the_manual_is_written_into_a_folder_or_the_error_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = run(folder.path(), &["-o", "json", "man", "share/man1"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let told: Value = serde_json::from_str(&ran.stdout).expect("one document");
    let written = fs::read_dir(folder.path().join("share/man1")).expect("the folder").count();
    assert!(written > 30 && told["pages"] == written, "{told} {written}");
    fs::write(folder.path().join("taken"), "").expect("a file");
    let ran = run(folder.path(), &["man", "taken"]);
    assert!(ran.code == 1 && ran.stderr.contains("cannot make the folder taken"), "{ran:?}");
}

#[test]
fn the_containers_profile_allows_io_uring_and_no_way_out_of_the_container() {
    let profile: Value = serde_json::from_str(&read("deploy/seccomp-cairn.json")).expect("JSON");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules = profile["syscalls"].as_array().expect("rules");
    let of = |call: &str| -> Vec<&Value> {
        let names = |rule: &&Value| {
            rule["names"].as_array().is_some_and(|n| n.iter().any(|name| name == call))
        };
        rules.iter().filter(names).collect()
    };
    for call in ["io_uring_setup", "io_uring_enter", "io_uring_register", "execve", "fdatasync"] {
        let rules = of(call);
        assert_eq!(rules.len(), 1, "{call}");
        let whole = ["args", "includes", "excludes"].iter().all(|limit| rules[0][limit].is_null());
        assert!(rules[0]["action"] == "SCMP_ACT_ALLOW" && whole, "{call}");
    }
    for call in
        ["mount", "setns", "unshare", "ptrace", "bpf", "keyctl", "userfaultfd", "personality"]
    {
        assert!(of(call).is_empty(), "{call}");
    }
    // With every flag of a namespace it is refused; clone3 looks as if the kernel had none.
    assert_eq!(of("clone")[0]["args"][0]["value"], 0x7e02_0000);
    assert_eq!(of("clone3")[0]["action"], "SCMP_ACT_ERRNO");
    assert_eq!(of("clone3")[0]["errnoRet"], 38);
    let compose = read("deploy/compose.yaml");
    assert!(
        compose
            .contains("security_opt: [\"no-new-privileges:true\", \"seccomp=seccomp-cairn.json\"]")
    );
    let user = read("deploy/Dockerfile").lines().any(|line| line == "USER 7400:7400");
    assert!(user, "a number, so that a cluster's policy sees that it is not root");
}

fn script(name: &str, path: Option<&Path>, input: &str) -> Ran {
    let mut command = Command::new("/bin/bash");
    command.arg(root().join(name)).env("SOURCE_DATE_EPOCH", "86400");
    if let Some(path) = path {
        command.env("PATH", path);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("bash");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A script that ends before it reads has said why.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    finish(child)
}

#[test]
fn a_release_names_all_that_is_missing_and_how_to_get_it() {
    let empty = tempfile::tempdir().expect("a folder");
    let ran = script("deploy/release", Some(empty.path()), "");
    assert_eq!(ran.code, 1, "{ran:?}");
    for line in [
        "  cargo-zigbuild: cargo install --locked cargo-zigbuild",
        "  cargo-deb: cargo install --locked cargo-deb",
        "  cargo-generate-rpm: cargo install --locked cargo-generate-rpm",
        "  zig: pip install ziglang",
        "  jq: apt-get install jq",
        "  readelf: apt-get install binutils",
        "  dpkg-deb: apt-get install dpkg",
        "  rpm: apt-get install rpm",
    ] {
        assert!(ran.stderr.lines().any(|said| said == line), "{line}: {}", ran.stderr);
    }
}

#[test]
fn the_bill_of_materials_names_each_crate_once_with_the_checksum_of_its_archive() {
    let lock: toml::Table = toml::from_str(&read("Cargo.lock")).expect("TOML");
    let packages = lock["package"].as_array().expect("packages");
    let clap = packages.iter().find(|package| text(&package["name"]) == "clap").expect("clap");
    let (version, sum) = (text(&clap["version"]), text(&clap["checksum"]));
    let tree = format!(
        "cairn-node v0.1.0 (/source/node)|Apache-2.0\n\
         cairn-engine v0.1.0 (/source/engine)|Apache-2.0\n\
         clap v{version}|MIT/Apache-2.0\nclap v{version}|MIT/Apache-2.0 (*)\n"
    );
    let ran = script("deploy/sbom", None, &tree);
    if ran.code == 1 && ran.stderr.contains("jq is missing") {
        eprintln!("skipped: {}", ran.stderr);
        return;
    }
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let bill: Value = serde_json::from_str(&ran.stdout).expect("one document");
    assert_eq!(bill["bomFormat"], "CycloneDX");
    assert_eq!(bill["specVersion"], "1.5");
    assert_eq!(bill["metadata"]["timestamp"], "1970-01-02T00:00:00Z");
    let crates = bill["components"].as_array().expect("components");
    let names: Vec<&Value> = crates.iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["cairn-engine", "clap"]);
    assert_eq!(crates[1]["hashes"][0]["content"], sum);
    assert_eq!(crates[1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
    assert_eq!(crates[1]["purl"], format!("pkg:cargo/clap@{version}"));
    let refused = script("deploy/sbom", None, "what is this\n");
    assert!(refused.code != 0 && refused.stderr.contains("what is this"), "{refused:?}");
}
