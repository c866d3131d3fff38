//! Nothing is changed, and nobody looks.

use cairn_tls::{Expected, Tls};
use std::io;
use std::time::Duration;

/// No message is duplicated.
pub(crate) const fn duplicate_after() -> Option<Duration> {
    None
}

/// Snapshots are sent in pieces of the usual size.
pub(crate) const fn piece_bytes(usual: u64) -> u64 {
    usual
}

/// Snapshots are read in ranges of the usual size.
pub(crate) const fn range_bytes(usual: u64) -> u64 {
    usual
}

/// What is sent goes to the network.
pub(crate) const fn loses_appends(_slot: u16) -> bool {
    false
}

/// Connects to whoever listens at this address, and with certificates only to the member of this
/// slot, or to any of the cluster.
///
/// # Errors
/// The system's, or the refusal.
pub(crate) async fn connect(
    tls: Option<&Tls>,
    slot: Option<u16>,
    address: &str,
) -> io::Result<cairn_tls::Stream> {
    cairn_tls::connect(tls, slot.map_or(Expected::AnyMember, Expected::Slot), address).await
}

/// Whether nobody listens where a call to a member was sent.
pub(crate) fn is_refused(_slot: u16, error: &tonic::Status) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |one| one.source());
    causes
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Nothing observes it.
pub(crate) const fn note_flushed(_slot: u16, _last: cairn_engine::LogId) {}

/// The network is what it is.
pub(crate) const fn on_network<S>(stream: S) -> S {
    stream
}
