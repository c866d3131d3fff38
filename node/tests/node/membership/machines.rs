//! Three machines form a cluster by what `docs/operations.md` says, in at most three commands each.
//! The machines are network namespaces, so this needs root; without it the test is skipped and says
//! so.

use crate::support::{Network, POLL, WAIT_LIMIT};
use cairn_launch::Server;
use std::path::{Path, PathBuf};
use std::time::Instant;

const OPERATIONS: &str = include_str!("../../../../docs/operations.md");
const EXAMPLE: &str = include_str!("../../../../deploy/cairn.example.toml");
/// Where the documents' configuration is.
const CONFIGURED: &str = "/etc/cairn/cairn.toml";

/// The commands of the first block of shell commands after this line, without their comments.
fn documented(after: &str) -> Vec<Vec<String>> {
    let (_, section) = OPERATIONS.split_once(&format!("{after}\n")).expect("the section");
    let (_, block) = section.split_once("```sh\n").expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    let words = |line: &str| {
        let command = line.split('#').next().unwrap_or_default();
        command.split_whitespace().map(str::to_string).collect()
    };
    block.lines().map(words).collect()
}

/// The example's configuration for a machine, with its files in a folder.
fn configured(slot: usize, folder: &Path) -> PathBuf {
    let own = format!("{}", folder.display());
    let listens = |port: u16| format!("\"10.0.0.{slot}:{port}\"");
    let (listen, members) = EXAMPLE.split_once("[members.1]").expect("the initial members");
    let listen = listen
        .replace("slot = 1 ", &format!("slot = {slot} "))
        .replace("/var/lib/cairn", &format!("{own}/data-{slot}"))
        .replace("\"10.0.0.1:7400\"", &listens(7400))
        .replace("\"10.0.0.1:7401\"", &listens(7401))
        .replace("/etc/cairn/tls/", &format!("{own}/pki/"))
        .replace("member-1", &format!("member-{slot}"));
    let members = members.replace("\"100GiB\"", "\"64MiB\"");
    let path = folder.join(format!("{slot}.toml"));
    std::fs::write(&path, format!("{listen}[members.1]{members}")).expect("a file");
    path
}

#[test]
fn three_machines_form_a_cluster_by_the_documents_in_three_commands_each() {
    let commands = documented("## Setting up");
    assert!(commands.len() <= 3, "{commands:?}");
    let names: Vec<&str> = commands.iter().map(|words| words[1].as_str()).collect();
    assert_eq!(names.last(), Some(&"serve"), "{names:?}");
    let network = match Network::named(&format!("cairn-{}", std::process::id()), 3) {
        Ok(network) => network,
        Err(reason) => {
            eprintln!("SKIPPED: no network namespaces here: {reason}");
            return;
        }
    };
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();

    let certificates = documented("`clientAuth`. Any CA can issue such certificates. Without one:");
    for words in &certificates {
        for slot in if words.contains(&"--member".into()) { 1..=3 } else { 1..=1 } {
            let number = slot.to_string();
            let address = format!("10.0.0.{slot}");
            let words = words.iter().skip(1).map(|word| match word.as_str() {
                "1" => number.as_str(),
                "10.0.0.1" => address.as_str(),
                word => word,
            });
            let ran = network.run(slot, folder, &words.collect::<Vec<_>>());
            assert_eq!(ran.code, 0, "{ran:?}");
        }
    }

    let mut serving = Vec::new();
    for slot in 1..=3 {
        let path = configured(slot, folder);
        for words in &commands {
            let words = words.iter().skip(1).map(|word| match word == CONFIGURED {
                true => path.to_str().expect("text"),
                false => word,
            });
            let words: Vec<&str> = words.collect();
            if words[0] != "serve" {
                let ran = network.run(slot, folder, &words);
                assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
                continue;
            }
            let log = folder.join(format!("{slot}.log"));
            let server = Server::start("a server", network.cairn(slot, folder, &words), &log);
            serving.push(server.expect("nsenter runs"));
        }
    }

    let client = ["--tls-ca", "pki/ca.pem", "--tls-certificate", "pki/client-app.pem"];
    let client = [&client[..], &["--tls-key", "pki/client-app-key.pem"]].concat();
    let until = |arguments: &[&str]| {
        let began = Instant::now();
        loop {
            let ran = network.run(1, folder, &[arguments, &client].concat());
            if ran.code == 0 {
                return ran;
            }
            let logs = || {
                let log = |slot| std::fs::read_to_string(folder.join(format!("{slot}.log")));
                (1..=3).filter_map(|slot: usize| log(slot).ok()).collect::<String>()
            };
            assert!(began.elapsed() < WAIT_LIMIT, "{ran:?}\n{}", logs());
            std::thread::sleep(POLL);
        }
    };
    until(&["put", "key", "value", "-e", "10.0.0.1:7400"]);
    let members = until(&["members", "-o", "json", "-e", "10.0.0.2:7400"]);
    for slot in 1..=3 {
        assert!(members.stdout.contains(&format!("10.0.0.{slot}:7400")), "{members:?}");
    }
    // Each machine in turn is cut off, and the others serve.
    for slot in (1..=3).rev() {
        network.plug(slot, "down");
        let other = if slot == 1 { "10.0.0.2:7400" } else { "10.0.0.1:7400" };
        if slot != 1 {
            assert_eq!(until(&["get", "key", "-e", other]).stdout, "value");
        }
        network.plug(slot, "up");
        until(&["put", "key", "value", "-e", "10.0.0.3:7400"]);
    }
}
