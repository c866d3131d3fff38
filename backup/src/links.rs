//! Where symbolic links in a folder for backups lead.
//!
//! What holds here: only the name of what is behind a link is asked for, and nothing behind it is opened. A link may lead to a
//! mount whose server is gone, and the system then waits for ever. So a thread of its own asks, nobody waits for it longer than
//! [`LIMIT`]. While it waits beyond that, no other one begins for that link, and no more than [`HUNG_MAX`] do so in a process: any
//! further link then counts as one of which the system says nothing. Only an error that says that nothing is there counts as
//! that: any other one is an error, since something may be there that a backup needs.

use real_tokio::sync::oneshot::error::TryRecvError;
use real_tokio::sync::oneshot::{self, Receiver};
use real_tokio::time::timeout;
use rustix::io::Errno;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// How long the system may take to say where a link leads.
const LIMIT: Duration = Duration::from_secs(10);
/// The most threads that wait for the system beyond that. Each ends only when the system answers.
const HUNG_MAX: usize = 16;

/// Where a path with a link on it leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Led {
    /// Nothing is there.
    Nowhere,
    /// To this path in the folder. No link is on that one.
    Within(String),
    /// Out of the folder.
    Away,
    /// The system does not say it in time.
    Unknown,
}

/// What brings the answer of a thread that asks.
type Answer = Receiver<Result<Led>>;

/// Links of which the system did not say in time where they lead, by the path that was asked for, each with what brings the answer.
///
/// The story: they were kept by the folder for backups. While one link hung, every other one in that folder was unknown too, an error
/// named the wrong one, and to remove that did not help.
struct Hung(Mutex<Vec<(PathBuf, Answer)>>);

static HUNG: Hung = Hung(Mutex::new(Vec::new()));

/// Where this path in a folder leads.
pub(crate) async fn led(folder: &Path, path: &str) -> Result<Led> {
    let (within, at) = (folder.to_owned(), path.to_owned());
    HUNG.asked(&folder.join(path), LIMIT, move || leads(&within, &at)).await
}

impl Hung {
    /// Asks on a thread of its own. The blocking threads of a runtime are few, and its end waits for them.
    async fn asked(
        &self,
        path: &Path,
        limit: Duration,
        ask: impl FnOnce() -> Result<Led> + Send + 'static,
    ) -> Result<Led> {
        if self.keeps_from_asking(path) {
            return Ok(Led::Unknown);
        }
        let (answer, mut answered) = oneshot::channel();
        let own = Builder::new().name("cairn-link".into());
        own.spawn(move || {
            // It is no error that nobody waits for it any more.
            let _ = answer.send(ask());
        })?;
        match timeout(limit, &mut answered).await {
            Ok(Ok(led)) => led,
            Ok(Err(_)) => Err(Error::other("the thread that asked where a link leads ended early")),
            Err(_) => {
                let mut hung = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                hung.push((path.to_owned(), answered));
                Ok(Led::Unknown)
            }
        }
    }

    /// Whether a thread still waits for an answer about this path, or too many do about others.
    fn keeps_from_asking(&self, path: &Path) -> bool {
        let mut hung = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hung.retain_mut(|(_, answer)| matches!(answer.try_recv(), Err(TryRecvError::Empty)));
        hung.len() >= HUNG_MAX || hung.iter().any(|(of, _)| of == path)
    }
}

/// Asks the system, which may wait for ever.
fn leads(folder: &Path, path: &str) -> Result<Led> {
    let behind = match folder.join(path).canonicalize() {
        Ok(behind) => behind,
        Err(error) => return without_name(error),
    };
    let folder = folder.canonicalize()?;
    let within = behind.strip_prefix(&folder).ok().and_then(Path::to_str);
    Ok(within.map_or(Led::Away, |path| Led::Within(path.to_owned())))
}

/// Where a path leads whose end has no name for this process.
fn without_name(error: Error) -> Result<Led> {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Ok(Led::Nowhere),
        // Something is there.
        ErrorKind::PermissionDenied => Ok(Led::Away),
        _ if Errno::from_io_error(&error) == Some(Errno::LOOP) => Ok(Led::Nowhere),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use real_tokio::runtime;
    use std::fs::{create_dir, write};
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;

    /// Ends a test that hangs.
    const LONG: Duration = Duration::from_secs(600);

    /// The story: every error but "permission denied" counted as a link that leads nowhere, also those of a mount whose server
    /// is gone. A prune then removed what the backup behind the link needed.
    #[test]
    fn only_an_error_that_says_that_nothing_is_there_counts_as_that() {
        for nothing in [Errno::NOENT, Errno::NOTDIR, Errno::LOOP] {
            assert_eq!(without_name(nothing.into()).unwrap(), Led::Nowhere, "{nothing}");
        }
        assert_eq!(without_name(Errno::ACCESS.into()).unwrap(), Led::Away);
        for failed in [Errno::STALE, Errno::IO, Errno::TIMEDOUT, Errno::NOTCONN] {
            let said = without_name(failed.into()).unwrap_err();
            assert_eq!(Errno::from_io_error(&said), Some(failed));
        }
    }

    #[test]
    fn a_link_leads_to_a_path_in_the_folder_or_away_or_nowhere() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (folder, away) = (root.path().join("folder"), other.path().join("manifest"));
        create_dir(&folder).unwrap();
        create_dir(folder.join("b0")).unwrap();
        write(folder.join("b0/manifest"), "here").unwrap();
        write(&away, "there").unwrap();
        for (link, to) in [
            ("latest", Path::new("b0")),
            ("again", Path::new("latest")),
            ("away", other.path()),
            ("gone", Path::new("nothing")),
            ("round", Path::new("round")),
            ("file", Path::new("b0/manifest")),
        ] {
            symlink(to, folder.join(link)).unwrap();
        }
        // The folder itself may be behind a link.
        let by_link = root.path().join("link");
        symlink(&folder, &by_link).unwrap();
        for folder in [&folder, &by_link] {
            for (name, expected) in [
                ("latest", Led::Within("b0/manifest".into())),
                ("again", Led::Within("b0/manifest".into())),
                ("away", Led::Away),
                ("gone", Led::Nowhere),
                ("round", Led::Nowhere),
                ("file", Led::Nowhere),
            ] {
                assert_eq!(leads(folder, &format!("{name}/manifest")).unwrap(), expected, "{name}");
            }
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test);
    }

    fn new() -> Hung {
        Hung(Mutex::new(Vec::new()))
    }

    /// What waits until the other end is dropped, as for a mount whose server is gone.
    fn hangs(released: mpsc::Receiver<()>) -> impl FnOnce() -> Result<Led> + Send + 'static {
        move || {
            let _ = released.recv();
            Ok(Led::Nowhere)
        }
    }

    fn is_asked() -> Result<Led> {
        Err(Error::other("it was asked"))
    }

    /// The story: a link led to a mount whose server was gone. The prune behind a backup waited for the system for ever, and
    /// the schedule saved no backup any more.
    #[test]
    fn nobody_waits_for_a_link_that_the_system_says_nothing_of_and_others_beside_it_are_asked_for()
    {
        run(async {
            let (hung, [a, b]) = (new(), ["hung/a", "hung/b"].map(Path::new));
            let (release, released) = mpsc::channel::<()>();
            assert_eq!(hung.asked(a, Duration::ZERO, hangs(released)).await.unwrap(), Led::Unknown);
            assert_eq!(hung.asked(a, LONG, is_asked).await.unwrap(), Led::Unknown);
            // Another link is another matter, also in that folder.
            assert_eq!(hung.asked(b, LONG, || Ok(Led::Away)).await.unwrap(), Led::Away);
            drop(release);
            // The thread ends at some time, and then the next one is asked.
            while hung.asked(a, LONG, || Ok(Led::Away)).await.unwrap() != Led::Away {
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn no_more_threads_wait_than_a_process_may_have_of_them() {
        run(async {
            let (hung, next) = (new(), Path::new("hung/next"));
            let mut releases = Vec::new();
            for number in 0..HUNG_MAX {
                let (release, released) = mpsc::channel::<()>();
                releases.push(release);
                let path = PathBuf::from(format!("hung/{number}"));
                let led = hung.asked(&path, Duration::ZERO, hangs(released)).await;
                assert_eq!(led.unwrap(), Led::Unknown);
            }
            assert_eq!(hung.asked(next, LONG, is_asked).await.unwrap(), Led::Unknown);
            // One of them is enough.
            drop(releases.pop());
            while hung.asked(next, LONG, || Ok(Led::Away)).await.unwrap() != Led::Away {
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn a_thread_that_panics_is_an_error() {
        run(async {
            let panics = || -> Result<Led> { panic!("a library") };
            let failed = new().asked(Path::new("hung/panics"), LONG, panics).await;
            assert!(failed.unwrap_err().to_string().contains("ended early"));
        });
    }
}
