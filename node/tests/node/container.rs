//! What the container runs: the command and the variables of `deploy/Dockerfile`, and the units beside it.
use crate::support::{WAIT_LIMIT, command, finish, hold, http_get, watch};
use std::process::Stdio;

const DOCKERFILE: &str = include_str!("../../../deploy/Dockerfile");

fn line(instruction: &str) -> &'static str {
    let mut lines = DOCKERFILE.lines().filter_map(|line| line.strip_prefix(instruction));
    lines.next_back().unwrap_or_else(|| panic!("no {instruction}")).trim()
}

fn words(instruction: &str) -> Vec<String> {
    serde_json::from_str(line(instruction)).expect("the form without a shell")
}

/// The story: the entry point was a shell. As the container's first process it did not hear SIGTERM
/// while it formatted, what it left was refused by each later start, and `lost+found` at the root of a
/// volume kept it from formatting at all.
#[test]
fn the_containers_first_process_formats_a_new_volume_and_ends_when_it_is_asked() {
    let entry = words("ENTRYPOINT ");
    assert_eq!(entry, ["/usr/local/bin/cairn"], "the server itself, without a shell");
    let folder = tempfile::tempdir().expect("a folder");
    let volume = folder.path().join("volume");
    std::fs::create_dir_all(volume.join("lost+found")).expect("folders");
    let (_ports, addresses) = hold(3);
    let start = || {
        let mut command = command(folder.path(), &words("CMD "));
        command.envs(line("ENV ").split(' ').filter_map(|pair| pair.split_once('=')));
        for (variable, value) in [
            ("CAIRN_DATA_DIR", volume.to_str().expect("text")),
            ("CAIRN_CLUSTER", "c"),
            ("CAIRN_SLOT", "1"),
            ("CAIRN_INSECURE", "true"),
            ("CAIRN_STORAGE_SIZE", "16MiB"),
            ("CAIRN_LISTEN_CLIENT", &addresses[0]),
            ("CAIRN_LISTEN_PEER", &addresses[1]),
            ("CAIRN_LISTEN_HTTP", &addresses[2]),
        ] {
            command.env(variable, value);
        }
        command.stderr(Stdio::piped()).spawn().expect("cairn starts")
    };
    for formatted in [true, false] {
        let mut sent = false;
        let ran = watch(WAIT_LIMIT, start(), |pid| {
            let listens = || std::net::TcpStream::connect(&addresses[2]).is_ok();
            if !sent && listens() && http_get(&addresses[2], "/ready").contains(" 200 ") {
                sent = true;
                let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process");
                rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
            }
        });
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert_eq!(ran.stderr.contains("has been formatted"), formatted, "{}", ran.stderr);
    }
    let status = finish(command(folder.path(), &["--version"]).spawn().expect("cairn starts"));
    assert_eq!(status.code, 0);
}

const UNIT: &str = include_str!("../../../deploy/cairn.service");

/// The last value of a directive in this section of a unit, or of a drop-in. systemd ignores one that stands in
/// another section.
fn value(text: &str, section: &str, directive: &str) -> Option<String> {
    let within = text.split("\n[").find_map(|part| part.strip_prefix(&format!("{section}]\n")))?;
    let mut values =
        within.lines().filter_map(|line| line.strip_prefix(directive)?.strip_prefix('='));
    values.next_back().map(str::to_owned)
}

/// The story: the unit hid the drive whose health the documentation tells the node to ask.
#[test]
fn the_drop_in_for_nvme_drives_gives_back_what_the_unit_takes() {
    let drop_in = include_str!("../../../deploy/cairn.service.d/nvme.conf");
    let value = |text: &str, directive: &str| value(text, "Service", directive);
    // Each of these alone keeps the query from the drive.
    for (directive, taken, given) in [
        ("PrivateDevices", "yes", "no"),
        ("PrivateUsers", "yes", "no"),
        ("CapabilityBoundingSet", "", "CAP_SYS_ADMIN"),
        ("AmbientCapabilities", "", "CAP_SYS_ADMIN"),
        ("DeviceAllow", "", "block-blkext r"),
        ("SupplementaryGroups", "", "disk"),
    ] {
        assert_eq!(value(UNIT, directive).unwrap_or_default(), taken, "{directive} of the unit");
        assert_eq!(value(drop_in, directive).as_deref(), Some(given), "{directive}");
    }
    assert_eq!(value(UNIT, "DevicePolicy").as_deref(), Some("closed"), "only what is allowed");
    assert!(UNIT.contains("cairn.service.d/nvme.conf"), "the unit names its drop-in");
}

/// The story: a data directory on a disk of its own was read-only for the service, and nothing said why.
#[test]
fn the_drop_in_for_a_data_directory_lets_the_node_write_there_once_it_is_mounted() {
    let drop_in = include_str!("../../../deploy/cairn.service.d/data-dir.conf");
    // The unit lets the node write nowhere else.
    assert_eq!(value(UNIT, "Service", "ProtectSystem").as_deref(), Some("strict"));
    assert_eq!(value(UNIT, "Service", "StateDirectory").as_deref(), Some("cairn"));
    assert_eq!(value(UNIT, "Service", "ReadWritePaths"), None);
    assert_eq!(value(UNIT, "Unit", "RequiresMountsFor").as_deref(), Some("/var/lib/cairn"));
    let directory = value(drop_in, "Service", "ReadWritePaths").expect("a directory");
    assert_eq!(value(drop_in, "Unit", "RequiresMountsFor").as_ref(), Some(&directory));
    assert!(drop_in.contains(&format!("\n# {directory} by the data_dir")), "{directory}");
    assert!(drop_in.contains(" /etc/systemd/system/cairn.service.d/data-dir.conf\n"));
    for text in [UNIT, include_str!("../../../docs/operations.md")] {
        assert!(text.contains("cairn.service.d/data-dir.conf"), "whoever needs it finds it");
    }
}

/// The story: a node that could not start was started each 5 s, and each time it opened its directory. After two
/// months it had counted more boots than the other members believe.
#[test]
fn a_node_that_cannot_start_is_started_again_for_ever_and_ever_more_slowly() {
    let value = |directive| value(UNIT, "Service", directive).expect("set");
    assert_eq!(value("Restart"), "on-failure");
    let seconds = |directive| value(directive).parse::<u64>().expect("seconds");
    let (first, last) = (seconds("RestartSec"), seconds("RestartMaxDelaySec"));
    assert!(first <= 5, "a crash costs no more");
    assert!((1..=10).contains(&seconds("RestartSteps")), "the last is reached soon");
    let year = 365 * 24 * 3600;
    assert!((last << 20) > year, "the others believe 2^20 boots");
    // Without this systemd gives up after the fifth start.
    let limit = self::value(UNIT, "Unit", "StartLimitIntervalSec");
    assert_eq!(limit.as_deref(), Some("0"));
}

/// The story: Docker was stopped in an orderly way, each node ended with exit code 0, and none came back.
#[test]
fn each_container_comes_back_unless_somebody_stopped_it() {
    let compose = include_str!("../../../deploy/compose.yaml");
    let restarts: Vec<&str> =
        compose.lines().filter_map(|line| line.trim().strip_prefix("restart: ")).collect();
    assert_eq!(restarts, ["unless-stopped"]);
    let services = compose.split("\nservices:\n").nth(1).expect("services");
    let services = services.split("\nvolumes:\n").next().expect("services");
    // What all of them have in common has it.
    assert_eq!(services.matches("\n    hostname: cairn-").count(), 3);
    assert_eq!(services.matches("\n    <<: *node\n").count(), 3);
    let common = compose.split("\nx-node: &node\n").nth(1).expect("what they have in common");
    assert!(common.split("\n\n").next().is_some_and(|node| node.contains("\n  restart: ")));
}
