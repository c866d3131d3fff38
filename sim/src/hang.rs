//! Detects a run that hangs. It looks at the processor time of the run's thread, because time on
//! the wall clock depends on what else the machine does.
//!
//! What holds here: a run that gets little processor time is not reported. A run that waits for
//! ever uses none at all; a thread that can run always gets some within [`STILL_CHECKS`] checks.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// A run that takes more processor time than this hangs; others take seconds.
const HANG: Duration = Duration::from_secs(180);
/// The time between two checks of a run.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A run that used no processor time over this many checks waits for ever.
const STILL_CHECKS: u32 = 120;

/// Runs `run` on a thread of its own with this much stack.
///
/// # Errors
/// If the thread cannot be created, if it panicked, or if it hangs. A thread that hangs is left
/// behind, since a thread cannot be ended from outside.
pub(crate) fn run_watched<T: Send + 'static>(
    stack_bytes: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (send_thread, thread) = mpsc::channel();
    let (send_end, end) = mpsc::channel();
    let body = move || {
        // A send fails only if the receiver gave up on this thread.
        let _ = send_thread.send(std::fs::read_link("/proc/thread-self"));
        let _ = send_end.send(run());
    };
    let spawned = std::thread::Builder::new().stack_size(stack_bytes).spawn(body);
    spawned.map_err(|error| format!("no thread: {error}"))?;
    let thread = thread.recv().ok().and_then(Result::ok).map(|path| Path::new("/proc").join(path));
    let mut watch = Watch::default();
    loop {
        match end.recv_timeout(CHECK_INTERVAL) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err("the run's thread panicked".into()),
            Err(RecvTimeoutError::Timeout) => {
                // Without the processor time, only the end of the run tells anything.
                if let Some(hang) =
                    processor_time(thread.as_ref()).and_then(|time| watch.check(time))
                {
                    return Err(hang);
                }
            }
        }
    }
}

/// The processor time that a thread has used so far; its path is `/proc/PID/task/TID`.
fn processor_time(thread: Option<&PathBuf>) -> Option<Duration> {
    let text = std::fs::read_to_string(thread?.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The processor time of a run at earlier checks.
#[derive(Debug, Default)]
struct Watch {
    last: Option<Duration>,
    still: u32,
}

impl Watch {
    /// Notes the processor time used so far. If the run hangs, returns a description.
    fn check(&mut self, used: Duration) -> Option<String> {
        self.still = if self.last.replace(used) == Some(used) { self.still + 1 } else { 0 };
        if used > HANG {
            return Some(format!("it hangs: it took more than {HANG:?} of processor time"));
        }
        (self.still >= STILL_CHECKS).then(|| {
            format!(
                "it hangs: it used no processor time for {:?}, and {used:?} before",
                CHECK_INTERVAL * STILL_CHECKS
            )
        })
    }
}

#[cfg(test)]
#[allow(clippy::expect_used)] // a test may fail
mod tests {
    use super::*;

    fn checks(times: impl IntoIterator<Item = u64>) -> Option<String> {
        let mut watch = Watch::default();
        times.into_iter().find_map(|millis| watch.check(Duration::from_millis(millis)))
    }

    /// The story: a run took half a minute because the machine was compiling something else, and
    /// was reported as one that hangs.
    #[test]
    fn a_run_that_gets_little_of_the_processor_does_not_hang_however_long_it_takes() {
        assert_eq!(checks((0..100_000).map(|check| check / 100 * 10)), None);
    }

    #[test]
    fn a_run_that_takes_too_much_processor_time_hangs() {
        assert!(
            checks((0..200).map(|check| check * 1000))
                .expect("it hangs")
                .contains("more than 180s")
        );
        assert_eq!(checks((0..=180).map(|check| check * 1000)), None);
    }

    #[test]
    fn a_run_that_waits_for_ever_hangs() {
        let text = checks((0..7).chain([7; 121])).expect("it hangs");
        assert!(text.contains("no processor time for 120s, and 7ms before"), "{text}");
        assert_eq!(checks((0..7).chain([7; 119]).chain([8; 119])), None);
    }

    #[test]
    fn a_run_on_a_thread_returns_its_result_or_its_panic_and_its_processor_time_can_be_read() {
        let used = || {
            let thread =
                Path::new("/proc").join(std::fs::read_link("/proc/thread-self").expect("Linux"));
            processor_time(Some(&thread))
        };
        assert!(run_watched(1 << 20, used).expect("it ends").is_some());
        let panicked = run_watched(1 << 20, || std::panic::resume_unwind(Box::new(())));
        assert_eq!(panicked, Err("the run's thread panicked".into()));
    }
}
