//! The signals that end the program.

use tokio::signal::unix::{SignalKind, signal};

/// Resolves with the signal's name when the process is asked to end: SIGTERM or SIGINT.
///
/// # Errors
/// If the system does not allow watching signals.
pub(crate) async fn termination() -> std::io::Result<&'static str> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        biased;
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}
