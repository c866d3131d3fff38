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

/// The story: the unit hid the drive whose health the documentation tells the node to ask.
#[test]
fn the_drop_in_for_nvme_drives_gives_back_what_the_unit_takes() {
    let unit = include_str!("../../../deploy/cairn.service");
    let drop_in = include_str!("../../../deploy/cairn.service.d/nvme.conf");
    let value = |text: &str, directive: &str| -> Option<String> {
        let mut lines =
            text.lines().filter_map(|line| line.strip_prefix(directive)?.strip_prefix('='));
        lines.next_back().map(str::to_owned)
    };
    // Each of these alone keeps the query from the drive.
    for (directive, taken, given) in [
        ("PrivateDevices", "yes", "no"),
        ("PrivateUsers", "yes", "no"),
        ("CapabilityBoundingSet", "", "CAP_SYS_ADMIN"),
        ("AmbientCapabilities", "", "CAP_SYS_ADMIN"),
        ("DeviceAllow", "", "block-blkext r"),
        ("SupplementaryGroups", "", "disk"),
    ] {
        assert_eq!(value(unit, directive).unwrap_or_default(), taken, "{directive} of the unit");
        assert_eq!(value(drop_in, directive).as_deref(), Some(given), "{directive}");
    }
    assert_eq!(value(unit, "DevicePolicy").as_deref(), Some("closed"), "only what is allowed");
    assert!(unit.contains("cairn.service.d/nvme.conf"), "the unit names its drop-in");
    // It lets the node write nowhere else.
    assert_eq!(value(unit, "ProtectSystem").as_deref(), Some("strict"));
    let drop_in = include_str!("../../../deploy/cairn.service.d/data-dir.conf");
    assert_eq!(value(drop_in, "ReadWritePaths"), value(drop_in, "RequiresMountsFor"));
    assert!(unit.contains("cairn.service.d/data-dir.conf"), "the unit names its drop-in");
}
