//! The signals that end the program.

use super::output::tell;
use rustix::process::{Signal as Sent, getpid, kill_process};
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Resolves with the signal's name when the process is asked to end: SIGTERM or SIGINT.
///
/// # Errors
/// If the system does not allow watching signals.
pub(crate) async fn termination() -> io::Result<&'static str> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        biased;
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}

/// SIGHUP, which comes when the terminal is closed. `None`, if the process was started to outlive its
/// terminal, as by `nohup`: to listen would undo that.
///
/// # Errors
/// If the system does not allow watching signals.
pub(crate) fn hangups() -> io::Result<Option<Signal>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match ignores(&status, SignalKind::hangup()) {
        true => Ok(None),
        false => signal(SignalKind::hangup()).map(Some),
    }
}

/// From now on a terminal that is closed ends the command as SIGTERM does, and does so once: both the kernel and
/// a shell may tell of one terminal, and that is no wish to end what is being undone.
///
/// The story: the terminal of an ephemeral cluster was closed, and gigabytes stayed in the folder for temporary
/// files. That of a game day was closed, and a member stayed paused.
///
/// # Errors
/// If the system does not allow watching signals.
pub(crate) fn end_with_terminal() -> io::Result<()> {
    let Some(mut hangups) = hangups()? else { return Ok(()) };
    tokio::spawn(async move {
        if hangups.recv().await.is_some() {
            tell("SIGHUP received");
            // Every step hears SIGTERM. It is our own process, to which it can be sent.
            let _ = kill_process(getpid(), Sent::TERM);
        }
        // A later one ends nothing.
        while hangups.recv().await.is_some() {}
    });
    Ok(())
}

/// Whether a process ignores this signal, by its `/proc/PID/status`.
fn ignores(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| (mask >> (signal.as_raw_value() - 1)) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_ignores_is_read_from_its_status() {
        let ignoring = |mask: &str| format!("SigBlk:\t1\nSigIgn:\t{mask}\nSigCgt:\t1\n");
        // SIGPIPE is number 13.
        let both = ignoring("0000000000001001");
        assert!(ignores(&both, SignalKind::hangup()) && ignores(&both, SignalKind::pipe()));
        assert!(!ignores(&both, SignalKind::terminate()));
        assert!(!ignores(&ignoring("0000000000001000"), SignalKind::hangup()));
        assert!(!ignores("", SignalKind::hangup()));
    }
}
