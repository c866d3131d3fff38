//! Nothing is changed, and nobody looks.

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

/// Whether nobody listens where a call to a member was sent.
pub(crate) fn is_refused(_slot: u16, error: &tonic::Status) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |one| one.source());
    causes
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// Nothing observes it.
pub(crate) const fn note_flushed(_slot: u16, _last: cairn_engine::LogId) {}

/// The network encodes it.
pub(crate) const fn on_its_way<M>(message: M) -> Option<M> {
    Some(message)
}

/// The real network needs no wrapper.
pub(crate) const fn behind_network<S>(service: S) -> S {
    service
}

/// The tonic service around the peer service.
pub(crate) type Served<S> = crate::core::proto::peer_server::PeerServer<S>;
