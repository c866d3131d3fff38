//! What systemd hears of a server: the socket is the test's own.

use crate::support::{WAIT_LIMIT, command, hold, watch};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

#[test]
fn systemd_hears_that_a_server_serves_lives_and_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("notify");
    let socket = UnixDatagram::bind(&name).expect("a socket");
    // It only turns a hang into a failure.
    socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a limit");
    let heard = || {
        let mut bytes = [0; 128];
        let count = socket.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let (_ports, addresses) = hold(3);
    let mut command = command(folder.path(), &["serve", "--stop-with-stdin"]);
    for (variable, value) in [
        ("CAIRN_DATA_DIR", "data"),
        ("CAIRN_CLUSTER", "c"),
        ("CAIRN_SLOT", "1"),
        ("CAIRN_INSECURE", "true"),
        ("CAIRN_STORAGE_SIZE", "16MiB"),
        ("CAIRN_STORAGE_FORMAT_EMPTY", "true"),
        ("CAIRN_LISTEN_CLIENT", addresses[0].as_str()),
        ("CAIRN_LISTEN_PEER", addresses[1].as_str()),
        ("CAIRN_LISTEN_HTTP", addresses[2].as_str()),
        ("WATCHDOG_USEC", "300000"),
    ] {
        command.env(variable, value);
    }
    command.env("NOTIFY_SOCKET", &name).env_remove("WATCHDOG_PID");
    // If this test fails, the pipe ends and so does the server.
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("cairn starts");

    // It formats its directory before, and nobody watches that.
    assert_eq!(heard(), "READY=1\nWATCHDOG_USEC=300000");
    assert!(TcpStream::connect(&addresses[0]).is_ok(), "it serves clients by then");
    for _ in 0..3 {
        assert_eq!(heard(), "WATCHDOG=1");
    }
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process");
    kill_process(pid, Signal::TERM).expect("it runs");
    // Signs of life come until the end.
    let mut last = heard();
    while last == "WATCHDOG=1" {
        last = heard();
    }
    assert_eq!(last, "STOPPING=1");
    // Signs of life go on until the end, and a full queue would be a warning.
    socket.set_nonblocking(true).expect("set");
    let ran = watch(WAIT_LIMIT, child, |_| while socket.recv(&mut [0; 128]).is_ok() {});
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(!ran.stderr.contains("service manager"), "{}", ran.stderr);
}
