//! Whether a run hangs, judged by the processor time of its thread: how long a run takes on the wall clock depends on what
//! else the machine does.
//!
//! What holds here: a run that only gets too little of the processor does not hang. One that waits for ever uses none at all;
//! a thread that wants the processor always gets some within [`STILL_LOOKS`].

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// A run that takes more processor time than this hangs; the others take seconds.
const HANG: Duration = Duration::from_secs(180);
/// The time between two looks at a run.
const LOOK: Duration = Duration::from_secs(1);
/// A run that used no processor time between so many looks waits for ever.
const STILL_LOOKS: u32 = 120;

/// Runs this on a thread of its own with a stack of so many bytes.
///
/// # Errors
/// If there is no thread, if it panicked, or if it hangs. Then it is left to itself, since a thread cannot be ended.
pub(crate) fn run_watched<T: Send + 'static>(
    stack_bytes: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (tell_thread, thread) = mpsc::channel();
    let (tell_end, end) = mpsc::channel();
    let body = move || {
        // Whoever does not hear of it has gone.
        let _ = tell_thread.send(std::fs::read_link("/proc/thread-self"));
        let _ = tell_end.send(run());
    };
    let spawned = std::thread::Builder::new().stack_size(stack_bytes).spawn(body);
    spawned.map_err(|error| format!("no thread: {error}"))?;
    let thread = thread.recv().ok().and_then(Result::ok).map(|path| Path::new("/proc").join(path));
    let mut watch = Watch::default();
    loop {
        match end.recv_timeout(LOOK) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err("the run's thread panicked".into()),
            Err(RecvTimeoutError::Timeout) => {
                // Where processor time cannot be told, nothing is known of a run before its end.
                if let Some(hang) = processor_time(thread.as_ref()).and_then(|time| watch.look(time)) {
                    return Err(hang);
                }
            }
        }
    }
}

/// What a thread has used so far; its path is `/proc/PID/task/TID`.
fn processor_time(thread: Option<&PathBuf>) -> Option<Duration> {
    let text = std::fs::read_to_string(thread?.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// What was seen of a run's processor time.
#[derive(Debug, Default)]
struct Watch {
    last: Option<Duration>,
    still: u32,
}

impl Watch {
    /// Takes a look; says how the run hangs if it does.
    fn look(&mut self, used: Duration) -> Option<String> {
        self.still = if self.last.replace(used) == Some(used) { self.still + 1 } else { 0 };
        if used > HANG {
            return Some(format!("it hangs: it took more than {HANG:?} of processor time"));
        }
        (self.still >= STILL_LOOKS).then(|| {
            format!("it hangs: it used no processor time for {:?}, and {used:?} before", LOOK * STILL_LOOKS)
        })
    }
}

#[cfg(test)]
#[allow(clippy::expect_used)] // a test may fail
mod tests {
    use super::*;

    fn looks(times: impl IntoIterator<Item = u64>) -> Option<String> {
        let mut watch = Watch::default();
        times.into_iter().find_map(|millis| watch.look(Duration::from_millis(millis)))
    }

    /// The story: a machine that built something else beside it took a run of half a minute for one that hangs.
    #[test]
    fn a_run_that_gets_little_of_the_processor_does_not_hang_however_long_it_takes() {
        assert_eq!(looks((0..100_000).map(|look| look / 100 * 10)), None);
    }

    #[test]
    fn a_run_that_takes_too_much_processor_time_hangs() {
        assert!(looks((0..200).map(|look| look * 1000)).expect("it hangs").contains("more than 180s"));
        assert_eq!(looks((0..=180).map(|look| look * 1000)), None);
    }

    #[test]
    fn a_run_that_waits_for_ever_hangs() {
        let told = looks((0..7).chain([7; 121])).expect("it hangs");
        assert!(told.contains("no processor time for 120s, and 7ms before"), "{told}");
        assert_eq!(looks((0..7).chain([7; 119]).chain([8; 119])), None);
    }

    #[test]
    fn a_run_on_a_thread_gives_its_result_or_the_news_of_its_panic_and_its_processor_time_is_told() {
        let used = || {
            let thread = Path::new("/proc").join(std::fs::read_link("/proc/thread-self").expect("Linux"));
            processor_time(Some(&thread))
        };
        assert!(run_watched(1 << 20, used).expect("it ends").is_some());
        let panicked = run_watched(1 << 20, || std::panic::resume_unwind(Box::new(())));
        assert_eq!(panicked, Err("the run's thread panicked".into()));
    }
}
