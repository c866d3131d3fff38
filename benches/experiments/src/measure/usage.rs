//! Processor time.

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::time::Duration;

/// The unit of processor times in `/proc/stat`: Linux shows hundredths of a second.
const TICK_MS: u64 = 10;

/// Processor time used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// By this process, outside the kernel.
    pub user: Duration,
    /// By this process, inside the kernel.
    pub system: Duration,
    /// By everything on the machine, also the kernel's threads that write pages back.
    pub machine: Duration,
}

impl Usage {
    /// What was used since `earlier`.
    pub(crate) fn since(self, earlier: Usage) -> Usage {
        Usage {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            machine: self.machine.saturating_sub(earlier.machine),
        }
    }
}

/// What was used so far.
///
/// # Errors
/// If the system does not tell.
pub(crate) fn usage() -> Result<Usage> {
    let used = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
    let time = |us: i64| Duration::from_micros(u64::try_from(us).unwrap_or(0));
    let stat = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    Ok(Usage {
        user: time(used.user_time().num_microseconds()),
        system: time(used.system_time().num_microseconds()),
        machine: busy(&stat).context("/proc/stat has no processor times")?,
    })
}

/// All times of the first line but idle and waiting for I/O. The guests' times are part of the
/// others.
fn busy(stat: &str) -> Option<Duration> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let sum = |ticks: &[u64]| ticks.iter().try_fold(0u64, |sum, ticks| sum.checked_add(*ticks));
    let (all, idle) = (sum(&ticks)?, sum(ticks.get(3..5)?)?);
    Some(Duration::from_millis((all - idle).checked_mul(TICK_MS)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_busy_in_all_but_idle_and_waiting() {
        let stat = "cpu  100 20 30 4000 500 6 7 8 9 10\ncpu0 1 1 1 1\n";
        assert_eq!(busy(stat), Some(Duration::from_millis(1710)));
        for bad in
            ["", "intr 1", "cpu  1 2 3", "cpu  1 2 x 4 5", "cpu  18446744073709551615 1 1 1 1"]
        {
            assert_eq!(busy(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_uses_time_and_the_machine_no_less() {
        let before = usage().unwrap();
        let mut sum = 0u64;
        while usage().unwrap().since(before).user < Duration::from_millis(60) {
            sum = sum.wrapping_add((0..100_000u64).map(std::hint::black_box).sum());
        }
        let used = usage().unwrap().since(before);
        assert!(used.machine + Duration::from_millis(2 * TICK_MS) >= used.user, "{used:?} {sum}");
    }
}
