//! What the kernel says of this process, by the names that all programs use (`process_…`), and the memory that it may
//! use, for which there is no such name.
//!
//! What holds here: what cannot be read is left out.

use super::out::Out;
use crate::doctor::memory_limit;
use crate::platform::descriptors;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Unit;
use std::fmt;
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

/// The kernel counts a process's time in hundredths of a second, whatever its own tick is.
const TICK_MS: u64 = 10;

/// When this process started, since the epoch.
static STARTED: OnceLock<Duration> = OnceLock::new();

#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(&mut encoder);
        if let Some(times) = read("/proc/self/stat").as_deref().and_then(Times::of) {
            let cpu = ConstCounter::new(times.cpu.as_secs_f64());
            out.metric("process_cpu", "Processor time used", Some(Unit::Seconds), cpu)?;
        }
        if let Some(started) = started(&STARTED, reckoned) {
            let help = "When the process started, since the epoch";
            out.seconds("process_start_time", help, started)?;
        }
        if let Some(status) = read("/proc/self/status") {
            let sizes = [
                ("process_resident_memory", "Memory that is resident", "VmRSS:"),
                ("process_virtual_memory", "Address space", "VmSize:"),
            ];
            for (name, help, line) in sizes {
                if let Some(kib) = number(&status, line) {
                    out.bytes(name, help, kib << 10)?;
                }
            }
            if let Some(threads) = number(&status, "Threads:") {
                out.gauge("process_threads", "Threads", threads)?;
            }
        }
        if let Some(limit) = memory_limit() {
            let help =
                "Memory that the process may use: of the machine, or less by its control group";
            out.bytes("cairn_memory_limit", help, limit.bytes)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            out.gauge("process_open_fds", "Open descriptors", open.count() as u64)?;
        }
        out.gauge("process_max_fds", "Descriptors that may be open", descriptors())
    }
}

/// When this process started, by the kernel, as it was reckoned first. The time of the boot follows the
/// clock: when the clock is set it is another one, and whoever watches for a restart saw one.
fn started(
    first: &OnceLock<Duration>,
    reckoned: impl FnOnce() -> Option<Duration>,
) -> Option<Duration> {
    match first.get() {
        Some(started) => Some(*started),
        None => {
            let started = reckoned()?;
            Some(*first.get_or_init(|| started))
        }
    }
}

/// The same, as it is now.
fn reckoned() -> Option<Duration> {
    let times = read("/proc/self/stat").as_deref().and_then(Times::of)?;
    let booted = read("/proc/stat").as_deref().and_then(booted)?;
    Some(booted.saturating_add(times.started))
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The number behind the name of a line.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// When the machine was booted, since the epoch.
fn booted(stat: &str) -> Option<Duration> {
    number(stat, "btime").map(Duration::from_secs)
}

/// Of a process.
#[derive(Debug, PartialEq, Eq)]
struct Times {
    /// In user and in kernel mode.
    cpu: Duration,
    /// Since the machine was booted.
    started: Duration,
}

impl Times {
    fn of(stat: &str) -> Option<Times> {
        // The name of the program, in parentheses, may hold anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = |place: usize| fields.get(place)?.parse::<u64>().ok();
        let time = |ticks: u64| Duration::from_millis(ticks.saturating_mul(TICK_MS));
        let (user, kernel, started) = (ticks(11)?, ticks(12)?, ticks(19)?);
        Some(Times { cpu: time(user.saturating_add(kernel)), started: time(started) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_process_follow_its_name_whatever_that_is() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 4 0 12345 99 1";
        let expected =
            Times { cpu: Duration::from_secs(2), started: Duration::from_millis(123_450) };
        for name in ["cairn", "a b", "a) S 9 9 (b"] {
            assert_eq!(Times::of(&format!("7 ({name}) {rest}")), Some(Times { ..expected }));
        }
        assert_eq!(Times::of("7 (cairn) S 1 2"), None);
        assert_eq!(Times::of(""), None);
    }

    /// The story: the clock was set by a second, and each node seemed to have started again.
    #[test]
    fn the_start_stays_what_it_was_reckoned_to_be_first() {
        let (first, at) = (OnceLock::new(), |seconds| Some(Duration::from_secs(seconds)));
        assert_eq!(started(&first, || None), None, "it cannot be read yet");
        assert_eq!(started(&first, || at(7)), at(7));
        assert_eq!(started(&first, || at(8)), at(7));
        assert_eq!(started(&first, || None), at(7));
    }

    #[test]
    fn the_kernel_tells_each_of_them() {
        let stat = read("/proc/self/stat").expect("Linux");
        assert!(Times::of(&stat).is_some_and(|times| times.started > Duration::ZERO), "{stat}");
        assert!(reckoned() > Some(Duration::ZERO));
        let status = read("/proc/self/status").expect("Linux");
        for line in ["VmRSS:", "VmSize:", "Threads:"] {
            assert!(number(&status, line) > Some(0), "{line} of\n{status}");
        }
    }
}
