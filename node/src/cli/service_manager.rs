//! What the service manager, systemd, is told of a server: that it serves, that its main thread still
//! runs, and that it stops (sd_notify).
//!
//! What holds here: nothing is sent unless NOTIFY_SOCKET names a socket. Sending never waits and ends
//! nothing: while no message arrives, one WARN line says so. The main thread itself sends the signs of
//! life, so a main thread that is stuck sends none.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use tracing::warn;

/// Signs of life in the time of the watchdog, so that one or two may come late.
const SIGNS: u32 = 3;
/// A manager that did not hear that the server serves is told again after so long.
const AGAIN: Duration = Duration::from_secs(1);
/// The shortest pause between two of them.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The manager that started this process, if one did.
pub(super) struct ServiceManager {
    socket: Option<Socket>,
    /// The manager restarts a server that shows no sign of life for so long.
    watchdog: Option<Duration>,
    is_watched: Cell<bool>,
    /// The last message did not arrive.
    is_unheard: Cell<bool>,
    /// Nor did the one that the server serves: until it does, systemd takes the server to be starting.
    is_untold: Cell<bool>,
}

struct Socket {
    sender: UnixDatagram,
    manager: SocketAddr,
}

impl Socket {
    fn open(name: &OsStr) -> io::Result<Socket> {
        let manager = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::Error::other("this is neither a path nor @ and an abstract name")),
        };
        let sender = UnixDatagram::unbound()?;
        // A manager that does not read must not hold up the main thread.
        sender.set_nonblocking(true)?;
        Ok(Socket { sender, manager })
    }
}

impl ServiceManager {
    /// The one that the environment names.
    pub(super) fn of_environment() -> ServiceManager {
        fn variable(name: &str) -> Option<OsString> {
            std::env::var_os(name)
        }
        ServiceManager::of(variable)
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> ServiceManager {
        let socket = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()).and_then(|name| {
            let opened = Socket::open(&name);
            if let Err(error) = &opened {
                let name = name.display();
                warn!(%name, %error, "NOTIFY_SOCKET cannot be used: the service manager is told nothing");
            }
            opened.ok()
        });
        let number = |name: &str| -> Option<u64> { variable(name)?.to_str()?.parse().ok() };
        // A shell that started this process may have left it variables of its own.
        let is_own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| *usec > 0 && is_own);
        ServiceManager {
            socket,
            watchdog: watchdog.map(Duration::from_micros),
            is_watched: Cell::new(false),
            is_unheard: Cell::new(false),
            is_untold: Cell::new(false),
        }
    }

    /// The server serves. From now on the watchdog counts.
    pub(super) fn serving(&self) {
        match self.watchdog {
            // The time is said again, since `starting_again` takes it back.
            Some(watchdog) => {
                self.tell(&format!("READY=1\nWATCHDOG_USEC={}", watchdog.as_micros()));
            }
            None => self.tell("READY=1"),
        }
        self.is_untold.set(self.is_unheard.get());
        self.is_watched.set(true);
    }

    /// The server was asked to stop.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// This process replaces itself. A start may keep the main thread for long, so nobody watches until it
    /// serves again.
    pub(super) fn starting_again(&self) {
        if self.watchdog.is_some() {
            self.tell("WATCHDOG_USEC=0");
        }
        self.is_watched.set(false);
    }

    /// Sends the signs of life, and once more that the server serves if nobody heard it. Never returns.
    pub(super) async fn keep_alive(&self) {
        let pause = self.watchdog.map_or(AGAIN, |watchdog| (watchdog / SIGNS).max(PAUSE_MIN));
        loop {
            tokio::time::sleep(pause).await;
            if self.is_untold.get() {
                self.serving();
            } else if self.watchdog.is_some() && self.is_watched.get() {
                self.tell("WATCHDOG=1");
            }
        }
    }

    fn tell(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        let sent = socket.sender.send_to_addr(message.as_bytes(), &socket.manager);
        let was_unheard = self.is_unheard.replace(sent.is_err());
        if let Err(error) = sent
            && !was_unheard
        {
            warn!(%error, told = message, "the service manager cannot be told; the server goes on");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tokio::net::UnixDatagram as Receiver;

    fn manager(variables: &[(&str, &str)]) -> ServiceManager {
        ServiceManager::of(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    fn text(path: &Path) -> &str {
        path.to_str().expect("text")
    }

    async fn heard(receiver: &Receiver) -> String {
        let mut bytes = [0; 128];
        let count = receiver.recv(&mut bytes).await.expect("a message");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    #[tokio::test]
    async fn the_manager_hears_that_a_server_serves_lives_and_stops() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let receiver = Receiver::bind(&path).expect("a socket");
        let manager = manager(&[("NOTIFY_SOCKET", text(&path)), ("WATCHDOG_USEC", "3000")]);
        let hear = async {
            manager.serving();
            assert_eq!(heard(&receiver).await, "READY=1\nWATCHDOG_USEC=3000");
            for _ in 0..3 {
                assert_eq!(heard(&receiver).await, "WATCHDOG=1");
            }
            manager.starting_again();
            // Signs of life of before may lie in front of it. None comes after it.
            while heard(&receiver).await != "WATCHDOG_USEC=0" {}
            manager.stopping();
            assert_eq!(heard(&receiver).await, "STOPPING=1");
        };
        tokio::select! {
            () = hear => {}
            () = manager.keep_alive() => panic!("the signs of life end"),
        }
        assert!(!manager.is_unheard.get());
    }

    #[test]
    fn an_abstract_name_is_a_socket_too_and_without_a_watchdog_its_time_is_not_said() {
        let name = format!("cairn-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let receiver = UnixDatagram::bind_addr(&address).expect("a socket");
        let socket = format!("@{name}");
        let manager = manager(&[("NOTIFY_SOCKET", socket.as_str())]);
        manager.serving();
        manager.starting_again();
        manager.stopping();
        let mut bytes = [0; 128];
        for expected in ["READY=1", "STOPPING=1"] {
            let count = receiver.recv(&mut bytes).expect("a message");
            assert_eq!(&bytes[..count], expected.as_bytes());
        }
    }

    #[test]
    fn a_manager_that_does_not_read_or_is_gone_holds_up_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let receiver = UnixDatagram::bind(&path).expect("a socket");
        let manager = manager(&[("NOTIFY_SOCKET", text(&path))]);
        // The kernel's queue is full at some time.
        while !manager.is_unheard.get() {
            manager.stopping();
        }
        receiver.recv(&mut [0; 128]).expect("a message");
        manager.stopping();
        assert!(!manager.is_unheard.get(), "there is room again");
        drop(receiver);
        manager.stopping();
        assert!(manager.is_unheard.get());
    }

    #[test]
    fn what_is_no_socket_or_is_meant_for_another_process_is_ignored() {
        let long = format!("/{}", "n".repeat(200));
        for name in ["", "vsock:2:1234", "run/notify", long.as_str()] {
            let manager = manager(&[("NOTIFY_SOCKET", name)]);
            assert!(manager.socket.is_none(), "{name}");
            manager.serving();
        }
        assert!(manager(&[]).socket.is_none());
        let own = std::process::id();
        for (pid, usec, expected) in [
            (own, "60000000", Some(Duration::from_secs(60))),
            (own + 1, "60000000", None),
            (own, "0", None),
            (own, "soon", None),
        ] {
            let pid = pid.to_string();
            let manager = manager(&[("WATCHDOG_PID", pid.as_str()), ("WATCHDOG_USEC", usec)]);
            assert_eq!(manager.watchdog, expected, "{pid} {usec}");
        }
    }
}
