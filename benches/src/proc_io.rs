//! The kernel's counters of a process: they check the engine's own counters, and show what a put
//! costs.

use anyhow::{Context, Result};

/// The unit of processor times in `/proc`: Linux shows hundredths of a second, whatever its own
/// tick is.
const US_PER_TICK: u64 = 10_000;

/// Bytes that the process caused to be sent to the storage layer (`write_bytes` of `/proc/PID/io`).
pub fn device_bytes_written(pid: Option<u32>) -> Result<u64> {
    let process = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let path = format!("/proc/{process}/io");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    parse_write_bytes(&text).with_context(|| format!("{path} has no write_bytes"))
}

fn parse_write_bytes(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.trim().parse().ok()
}

/// The most memory that the process had so far, in bytes (`VmHWM`): of files in the page cache only what
/// it has mapped.
pub fn peak_memory(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    parse_peak(&text).with_context(|| format!("{path} has no VmHWM"))
}

fn parse_peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Processor time that the process used so far, in all its threads, in microseconds.
pub fn processor_us(pid: Option<u32>) -> Result<u64> {
    let process = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let path = format!("/proc/{process}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let ticks = parse_ticks(&text).with_context(|| format!("{path} has no processor time"))?;
    Ok(ticks * US_PER_TICK)
}

/// The sum of `utime` and `stime`, the 14th and 15th fields. The second field, the program's name
/// in parentheses, may contain any character, so the fields are counted after the last `)`.
fn parse_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// How often threads of the process were switched, of their own accord and not, that have not ended.
pub fn context_switches(pid: u32) -> Result<u64> {
    let threads = format!("/proc/{pid}/task");
    let mut switches = 0;
    for thread in std::fs::read_dir(&threads).with_context(|| threads.clone())? {
        let path = thread?.path().join("status");
        // A thread may have ended since.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        switches += parse_switches(&text)
            .with_context(|| format!("{} has no context switches", path.display()))?;
    }
    Ok(switches)
}

fn parse_switches(status: &str) -> Option<u64> {
    let value = |name| status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
    let kinds: [Option<u64>; 2] =
        ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(value);
    let [own, other] = kinds;
    Some(own? + other?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_user_and_system_whatever_the_name() {
        let stat = "42 (a b) c) S 1 2 3 4 5 6 7 8 9 10 700 80 1 1 20 0 1 0";
        assert_eq!(parse_ticks(stat), Some(780));
    }

    #[test]
    fn context_switches_are_of_both_kinds() {
        let text = "Threads:\t1\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(parse_switches(text), Some(157));
        assert_eq!(parse_switches("Threads:\t1\n"), None);
        assert!(context_switches(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn peak_memory_is_in_bytes() {
        assert_eq!(
            parse_peak("VmPeak:\t 9 kB\nVmHWM:\t    12 kB\nVmRSS:\t 3 kB\n"),
            Some(12 << 10)
        );
        assert_eq!(parse_peak("VmRSS:\t 3 kB\n"), None);
        assert!(peak_memory(std::process::id()).unwrap() > 1 << 20);
    }

    #[test]
    fn write_bytes_is_not_confused_with_cancelled_write_bytes() {
        let text = "rchar: 1\nread_bytes: 2\ncancelled_write_bytes: 3\nwrite_bytes: 4096\n";
        assert_eq!(parse_write_bytes(text), Some(4096));
    }
}
