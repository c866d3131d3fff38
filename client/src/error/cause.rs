//! Why an attempt failed: in words, and the system's error below it, where there is one.
//!
//! What holds here: no type of a transport library is kept, and no text of a node that is not safe to show. The system's
//! error is a copy, so an error that is kept keeps nothing of a connection.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use crate::shown::of_node;

/// The I/O error below an [`Error`](crate::Error), which its `source` returns as a [`std::io::Error`]: that of the
/// system, or of a TLS handshake. Clones share it. Two are equal if their kinds and texts are.
#[derive(Clone, Debug)]
pub struct SystemError(Arc<io::Error>);

impl SystemError {
    /// A copy of the first I/O error among this error and its causes.
    pub(crate) fn below(error: &(dyn std::error::Error + 'static)) -> Option<SystemError> {
        let found = io_error(error)?;
        let copy = match found.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(found.kind(), of_node(&found.to_string())),
        };
        Some(SystemError(Arc::new(copy)))
    }
}

impl Deref for SystemError {
    type Target = io::Error;

    fn deref(&self) -> &io::Error {
        &self.0
    }
}

impl PartialEq for SystemError {
    fn eq(&self, other: &SystemError) -> bool {
        self.kind() == other.kind() && self.to_string() == other.to_string()
    }
}

impl Eq for SystemError {}

/// The first I/O error among this error and its causes.
pub(crate) fn io_error<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e io::Error> {
    std::iter::successors(Some(error), |cause| (**cause).source())
        .find_map(|cause| cause.downcast_ref::<io::Error>())
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Why {
    /// In words, with those of the source.
    pub(crate) text: String,
    pub(crate) source: Option<SystemError>,
}

impl From<String> for Why {
    fn from(text: String) -> Why {
        Why { text, source: None }
    }
}

impl From<&str> for Why {
    fn from(text: &str) -> Why {
        Why::from(text.to_owned())
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error that nobody outside of the client needs to know, above another one.
    #[derive(Debug, thiserror::Error)]
    #[error("transport error")]
    struct Transport(#[source] io::Error);

    #[test]
    fn the_systems_error_is_found_below_others_and_copied() {
        let refused = Transport(io::Error::from_raw_os_error(111));
        let found = SystemError::below(&refused).unwrap();
        assert_eq!(
            (found.kind(), found.raw_os_error()),
            (io::ErrorKind::ConnectionRefused, Some(111))
        );
        assert_eq!(SystemError::below(&refused), Some(found.clone()));
        let reset = Transport(io::Error::from(io::ErrorKind::ConnectionReset));
        assert_ne!(SystemError::below(&reset), Some(found));
        assert_eq!(SystemError::below(&std::fmt::Error), None);
    }

    #[test]
    fn what_the_other_side_may_have_written_is_shown_safely() {
        let hostile = io::Error::new(io::ErrorKind::ConnectionAborted, "its name is \u{1b}[2J");
        let found = SystemError::below(&Transport(hostile)).unwrap();
        assert_eq!(found.to_string(), "its name is \\u{1b}[2J");
        assert_eq!(found.kind(), io::ErrorKind::ConnectionAborted);
    }
}
