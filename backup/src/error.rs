//! Why a backup cannot be saved or used.

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error. Each names the target or the backup, and the way out where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text names no target.
    #[error("`{text}` is not a target of backups: {reason}")]
    Target {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The target does not do what is asked.
    #[error("{target}: {source}")]
    Store {
        /// The target.
        target: String,
        /// What it says.
        #[source]
        source: object_store::Error,
    },
    /// There is no such backup, or it was never finished.
    #[error("there is no backup `{name}` at {target}")]
    Missing {
        /// The target.
        target: String,
        /// The backup.
        name: String,
    },
    /// Something is not as it was written.
    #[error("backup `{name}` is damaged: {what}")]
    Damaged {
        /// The backup.
        name: String,
        /// The object, and what is wrong with it.
        what: String,
    },
    /// A later release wrote it.
    #[error(
        "backup `{name}` has format {format}, this release reads up to {newest}: use a newer release"
    )]
    Newer {
        /// The backup.
        name: String,
        /// Its format.
        format: u32,
        /// The newest that this release reads.
        newest: u32,
    },
    /// The cluster says that an earlier backup has a value, and it has not.
    #[error(
        "the cluster's history is not the one that backup `{base}` was taken of: key {key} has a version that is not in it. \
         Save a whole backup, without a base"
    )]
    History {
        /// The earlier backup.
        base: String,
        /// The key, as text.
        key: String,
    },
    /// What the cluster sent is not a state.
    #[error("the cluster sent what is no state: {0}")]
    Sent(String),
}

/// Bytes as text for a person.
pub(crate) fn shown(bytes: &[u8]) -> String {
    format!("`{}`", bytes.escape_ascii())
}
