//! The image: what `deploy/Dockerfile` says of it, started with a root that is read-only, a user that is not root, a
//! volume, and the profile of system calls.
//!
//! What holds here: nothing is asked of a registry. So the bases of the Dockerfile cannot be had, and its first stage,
//! which compiles, is not run. The files that it takes from there are put together from the release's program and from
//! this machine's libraries. All other lines are the Dockerfile's own. Images, containers and volumes lie in a folder of
//! the test's own, and end with it. One run at a time has them.

use super::machines::remove_tree;
use super::release::{Release, done, system, text};
use crate::support::{POLL, Ran, WAIT_LIMIT, finish_within, only_run};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const DOCKERFILE: &str = include_str!("../../../../deploy/Dockerfile");
const NAME: &str = "cairn-packages";
const USER: u32 = 7400;
const LONG: Duration = WAIT_LIMIT.saturating_mul(4);
/// The command of `docs/install.md` without compose, on the container's own loopback.
const ENVIRONMENT: [&str; 10] = [
    "CAIRN_CLUSTER=example",
    "CAIRN_SLOT=1",
    "CAIRN_STORAGE_SIZE=64MiB",
    "CAIRN_INSECURE=true",
    "CAIRN_LISTEN_CLIENT=0.0.0.0:7400",
    "CAIRN_LISTEN_PEER=0.0.0.0:7401",
    "CAIRN_LISTEN_HTTP=0.0.0.0:7402",
    "CAIRN_ADVERTISE_CLIENT=127.0.0.1:7400",
    "CAIRN_ADVERTISE_PEER=127.0.0.1:7401",
    // For the command line in the container.
    "CAIRN_ENDPOINTS=127.0.0.1:7400",
];

/// The lines of the Dockerfile behind its first stage, on a base that is a file here.
fn without_a_registry(dockerfile: &str) -> String {
    let stages: Vec<&str> = dockerfile.split("\nFROM ").collect();
    assert_eq!(stages.len(), 3, "what comes first, the build, and the image");
    let lines = stages[2].lines().skip(1);
    // Its files come with the base.
    let kept = lines.filter(|line| !line.starts_with("COPY --from=build "));
    let mut text = String::from("FROM scratch\nADD base.tar /\n");
    for line in kept {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// The files of the image: the program, the libraries that it needs, CA certificates, and the volume's folder.
fn base(program: &Path, folder: &Path) {
    let tree = folder.join("tree");
    let put = |file: &str, place: &str| {
        let there = tree.join(place.trim_start_matches('/'));
        fs::create_dir_all(there.parent().expect("a folder")).expect("a folder");
        fs::copy(file, &there).unwrap_or_else(|error| panic!("this test needs {file}: {error}"));
    };
    put(text(program), "/usr/local/bin/cairn");
    let needed = done("ldd", &[text(program)]);
    let words = needed.split_whitespace().filter(|word| word.starts_with('/'));
    for library in words {
        put(library, library);
    }
    let authorities = "/etc/ssl/certs/ca-certificates.crt";
    put(authorities, authorities);
    let data = tree.join("data");
    fs::create_dir(&data).expect("a folder");
    chown(&data, Some(USER), Some(USER)).expect("root may");
    fs::set_permissions(&data, PermissionsExt::from_mode(0o700)).expect("root may");
    let file = folder.join("base.tar");
    done("tar", &["--create", "--numeric-owner", "-f", text(&file), "-C", text(&tree), "."]);
}

/// podman, with a store of its own.
struct Podman {
    folder: PathBuf,
    _only: File,
}

impl Podman {
    fn new() -> Podman {
        assert!(rustix::process::geteuid().is_root(), "this test needs root");
        let only = only_run("cairn-packages-image");
        let target = super::root().join("target");
        fs::create_dir_all(&target).expect("a folder");
        let folder = target.canonicalize().expect("a folder").join("packages-image");
        let podman = Podman { folder, _only: only };
        podman.remove();
        fs::create_dir_all(podman.folder.join("build")).expect("a folder");
        podman
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = cairn_launch::command("podman", ["--storage-driver", "vfs"]);
        command.arg("--root").arg(self.folder.join("store"));
        command.arg("--runroot").arg(self.folder.join("run"));
        // The machine that runs the test may have no systemd.
        command.args(["--cgroup-manager", "cgroupfs", "--events-backend", "file"]);
        command.args(["--runtime", "crun"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        finish_within(LONG, child.unwrap_or_else(|error| panic!("this test needs podman: {error}")))
    }

    fn done(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, 0, "podman {arguments:?}: {ran:?}\n{}", self.log());
        ran.stdout.trim().to_owned()
    }

    fn log(&self) -> String {
        let ran = self.run(&["logs", NAME]);
        format!("{}{}", ran.stdout, ran.stderr)
    }

    fn start_container(&self) {
        let profile = super::root().join("deploy/seccomp-cairn.json").canonicalize();
        let profile = format!("seccomp={}", profile.expect("a profile").display());
        let volume = format!("{NAME}:/data");
        let mut arguments = vec![
            "run",
            "--detach",
            "--name",
            NAME,
            "--pull=never",
            "--read-only",
            // Nothing but the volume can be written, as with Docker.
            "--read-only-tmpfs=false",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
            "--security-opt",
            profile.as_str(),
            "--stop-timeout",
            "60",
            "--volume",
            volume.as_str(),
            // The machine may have neither a network for containers nor control groups for them.
            "--network",
            "none",
            "--cgroups=disabled",
            "--log-driver",
            "k8s-file",
        ];
        for variable in &ENVIRONMENT {
            arguments.extend(["--env", *variable]);
        }
        arguments.push(NAME);
        self.done(&arguments);
    }

    /// Repeats a command of the container's own `cairn` until the server answers it.
    fn until_done(&self, arguments: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let ran = self.run(&[&["exec", NAME, "cairn"][..], arguments].concat());
            if ran.code == 0 {
                return ran.stdout.trim_end_matches('\n').to_owned();
            }
            let running = self.inspect("{{.State.Running}}");
            assert_eq!(running, "true", "{}", self.log());
            assert!(began.elapsed() < LONG, "{arguments:?}: {ran:?}\n{}", self.log());
            std::thread::sleep(POLL);
        }
    }

    fn inspect(&self, format: &str) -> String {
        self.done(&["inspect", "--type", "container", "--format", format, NAME])
    }

    /// The folder of the server's process, as this machine sees it.
    fn process(&self) -> PathBuf {
        Path::new("/proc").join(self.inspect("{{.State.Pid}}"))
    }

    fn remove(&self) {
        if self.folder.join("store").exists() {
            // Of a run that was killed, or of this one.
            self.run(&["rm", "--force", "--time", "0", "--ignore", NAME]);
            self.run(&["volume", "rm", "--force", NAME]);
        }
        remove_tree(&self.folder);
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Without a check, which would hide why the test failed.
            self.run(&["rm", "--force", "--time", "0", "--ignore", NAME]);
            self.run(&["volume", "rm", "--force", NAME]);
            system("rm", &["--recursive", "--force", "--one-file-system", text(&self.folder)]);
        } else {
            self.remove();
        }
    }
}

#[test]
#[ignore = "needs root, podman, crun and a release: ./test packages"]
fn the_image_serves_from_a_read_only_root_and_keeps_its_volume_when_it_is_killed() {
    let podman = Podman::new();
    let build = podman.folder.join("build");
    let unpacked = build.join("package");
    Release::made().extract(&unpacked);
    base(&unpacked.join("usr/bin/cairn"), &build);
    let file = build.join("Dockerfile");
    fs::write(&file, without_a_registry(DOCKERFILE)).expect("our own");
    podman.done(&["build", "--tag", NAME, "--file", text(&file), text(&build)]);

    podman.start_container();
    podman.until_done(&["put", "hello", "world"]);
    let process = podman.process();
    let status = fs::read_to_string(process.join("status")).expect("it runs");
    let user = format!("Uid:\t{USER}\t{USER}\t{USER}\t{USER}");
    for line in [user.as_str(), "NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000"] {
        assert!(status.lines().any(|found| found == line), "{line}: {status}");
    }
    let mounts = fs::read_to_string(process.join("mountinfo")).expect("it runs");
    let options = |place: &str| {
        let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<&str>>());
        let mount = lines.find(|words| words[4] == place);
        mount.unwrap_or_else(|| panic!("{place}: {mounts}"))[5].to_owned()
    };
    assert!(options("/").starts_with("ro"), "{mounts}");
    assert!(options("/data").starts_with("rw"), "{mounts}");
    let opened = fs::read_dir(process.join("fd")).expect("root may").flatten();
    let opened: Vec<PathBuf> = opened.filter_map(|file| fs::read_link(file.path()).ok()).collect();
    let ring = Path::new("anon_inode:[io_uring]");
    assert!(opened.iter().any(|file| file == ring), "the profile allows it: {opened:?}");

    podman.done(&["kill", NAME]);
    podman.done(&["wait", NAME]);
    podman.done(&["start", NAME]);
    assert_eq!(podman.until_done(&["get", "hello"]), "world");
    podman.until_done(&["put", "after", "kill"]);
    podman.done(&["stop", NAME]);
    assert_eq!(podman.inspect("{{.State.ExitCode}}"), "0", "{}", podman.log());
    podman.done(&["start", NAME]);
    assert_eq!(podman.until_done(&["get", "after"]), "kill");
}

#[test]
fn of_the_dockerfile_only_what_needs_a_registry_is_left_out() {
    let built = without_a_registry(DOCKERFILE);
    for line in [
        "FROM scratch",
        "USER 7400:7400",
        "ENV CAIRN_DATA_DIR=/data CAIRN_STORAGE_FORMAT_EMPTY=true",
        "VOLUME /data",
        "STOPSIGNAL SIGTERM",
        "ENTRYPOINT [\"/usr/local/bin/cairn\"]",
        "CMD [\"serve\"]",
    ] {
        assert!(built.lines().any(|found| found == line), "{line}: {built}");
    }
    assert!(!built.contains("distroless") && !built.contains("--from"), "{built}");
    // What was left out puts two things into the image, and `base` puts them there.
    let left_out: Vec<&str> =
        DOCKERFILE.lines().filter(|line| line.starts_with("COPY --from=build ")).collect();
    assert_eq!(left_out.len(), 2, "{left_out:?}");
    assert!(left_out[0].ends_with(" /usr/local/bin/cairn"), "{left_out:?}");
    assert!(left_out[1].contains("--chown=7400:7400 --chmod=0700 "), "{left_out:?}");
}
