//! What `cairn format` and `cairn grow` show while they write zeros: how long it will take, and a bar
//! on a terminal. A signal ends the work, also where the process is the first of a container, for which
//! the system does nothing of itself.

use super::bar;
use super::output::Output;
use cairn_engine::io::MEASURED_BYTES;
use cairn_node::Error;
use cairn_node::files::Progress;
use serde_json::json;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How fast the first zeros were written, and what that says about the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    /// Bytes to come.
    pub left_bytes: u64,
    pub bytes_per_second: f64,
}

impl Estimate {
    /// `None` before enough is written to tell, and if nothing is left.
    fn of(done: u64, total: u64, took: Duration) -> Option<Estimate> {
        let measured = done >= MEASURED_BYTES && done < total && !took.is_zero();
        measured.then(|| Estimate {
            left_bytes: total - done,
            bytes_per_second: done as f64 / took.as_secs_f64(),
        })
    }

    fn seconds(&self) -> u64 {
        (self.left_bytes as f64 / self.bytes_per_second).ceil() as u64
    }

    pub(crate) fn text(&self) -> String {
        let time = match self.seconds() {
            0..=1 => "1 second".to_owned(),
            seconds @ 2..90 => format!("{seconds} seconds"),
            seconds => format!("{} minutes", (seconds + 30) / 60),
        };
        format!("writing zeros: about {time} at {:.0} MB/s", self.bytes_per_second / 1e6)
    }

    /// Says it on standard error.
    pub(crate) fn note(&self, output: &Output) {
        let value = || {
            json!({ "zeroing": { "left_bytes": self.left_bytes, "seconds": self.seconds(),
                                 "bytes_per_second": self.bytes_per_second.round() } })
        };
        output.note(value, || self.text());
    }
}

/// Runs the work with a bar that begins with `message`. `say` is called once, if there is enough to
/// do for an estimate.
pub(crate) async fn show<T>(
    message: String,
    say: &(dyn Fn(&Estimate) + Sync),
    work: impl AsyncFnOnce(Progress<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let bar = bar::of_bytes(0, &message);
    let watched = Watched::begin().map_err(|error| Error::Platform(error.to_string()))?;
    let (mut began, mut said) = (None, false);
    let mut progress = |done: u64, total: u64| {
        bar.set_length(total);
        bar.set_position(done);
        let began = began.get_or_insert_with(Instant::now);
        if let Some(estimate) = Estimate::of(done, total, began.elapsed()).filter(|_| !said) {
            said = true;
            bar.suspend(|| say(&estimate));
        }
        if watched.is_asked() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let done = work(&mut progress).await;
    bar.finish_and_clear();
    done
}

/// Whether a signal asked the process to end. It is heard on a thread with a runtime of its own: the
/// zeros are written without a pause, and a server has no other thread.
///
/// The story: a server that formatted its directory did not hear SIGTERM. The signal ended it with half
/// of the files made; as the first process of a container it went on to the end.
struct Watched {
    asked: Arc<AtomicBool>,
    /// The thread ends with this.
    _end: oneshot::Sender<()>,
}

impl Watched {
    /// From now on a signal does not end the process by itself.
    fn begin() -> std::io::Result<Watched> {
        let asked = Arc::new(AtomicBool::new(false));
        let (end, ended) = oneshot::channel();
        let (begun, begins) = mpsc::channel();
        let seen = Arc::clone(&asked);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            runtime.block_on(async {
                let mut signal = pin!(crate::cli::signals::termination());
                let first = futures::poll!(signal.as_mut());
                let _ = begun.send(());
                let heard = match first {
                    Poll::Ready(heard) => heard.is_ok(),
                    Poll::Pending => tokio::select! {
                        heard = signal => heard.is_ok(),
                        _ = ended => false,
                    },
                };
                seen.fetch_or(heard, Ordering::Relaxed);
            });
        })?;
        // Fails if the thread is gone already, and then nobody listens.
        let _ = begins.recv();
        Ok(Watched { asked, _end: end })
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    /// The story: the first process of a container formats its volume, on the one thread that a server
    /// has, and is asked to stop. Nothing listened, and the container was killed ten seconds later.
    #[test]
    fn a_signal_ends_the_work_though_it_keeps_the_only_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let stopped = runtime.expect("a runtime").block_on(async {
            // Whoever listens first, the signal does not end the tests.
            let mut listening = std::pin::pin!(crate::cli::signals::termination());
            assert!(futures::poll!(&mut listening).is_pending());
            show(String::new(), &|_| {}, async |progress| {
                let began = Instant::now();
                while began.elapsed() < Duration::from_secs(60) {
                    kill_process(getpid(), Signal::TERM).expect("our own process");
                    std::thread::yield_now();
                    if progress(0, 1).is_break() {
                        return Ok(true);
                    }
                }
                Ok(false)
            })
            .await
        });
        assert!(stopped.expect("no error"), "nobody heard the signal");
    }

    #[test]
    fn the_first_bytes_say_how_long_the_rest_takes() {
        let (mib, second) = (1 << 20, Duration::from_secs(1));
        assert_eq!(Estimate::of(31 * mib, 1 << 30, second), None, "too little is written");
        assert_eq!(Estimate::of(64 * mib, 64 * mib, second), None, "nothing is left");
        let text = |total, took| Estimate::of(100 * mib, total, took).unwrap().text();
        assert_eq!(text(101 * mib, second), "writing zeros: about 1 second at 105 MB/s");
        assert_eq!(text(1100 * mib, second), "writing zeros: about 10 seconds at 105 MB/s");
        assert_eq!(text(100_100 * mib, second), "writing zeros: about 17 minutes at 105 MB/s");
        assert_eq!(text(1100 * mib, 60 * second), "writing zeros: about 10 minutes at 2 MB/s");
    }
}
