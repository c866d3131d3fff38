//! What the kernel counted for a process: the check on what the engine says of itself.

use anyhow::{Context, Result};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_bytes_is_not_confused_with_cancelled_write_bytes() {
        let text = "rchar: 1\nread_bytes: 2\ncancelled_write_bytes: 3\nwrite_bytes: 4096\n";
        assert_eq!(parse_write_bytes(text), Some(4096));
    }
}
