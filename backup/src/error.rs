//! Why a backup cannot be saved or used.

use real_tokio::task::JoinError;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// The schedule says the same of itself.
const PANICKED: &str = "it panicked, and the log says where";

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
    #[error("{target}: {said}")]
    Store {
        /// The target.
        target: String,
        /// What it says, and what helps.
        said: String,
    },
    /// What is asked for is behind a symbolic link.
    #[error(
        "`{path}` is a symbolic link, which is not followed: no backup wrote it. Name the backup that it leads to, put that in \
         its place, or remove the link"
    )]
    Link {
        /// The link.
        path: String,
    },
    /// What is asked for is a pipe, a socket or a device.
    #[error(
        "`{path}` is neither a file nor a folder, and is not opened: no backup wrote it. Remove it"
    )]
    NoFile {
        /// Where it is.
        path: String,
    },
    /// A folder with the name of a backup may not be read, or a file in it.
    #[error(
        "`{path}` cannot be read ({why}), and may be a backup or a part of one: let this user read the backup's folder and all that \
         is in it, or put that elsewhere"
    )]
    Unreadable {
        /// The folder or the file.
        path: String,
        /// What the system says.
        why: String,
    },
    /// An object is longer than one of its kind can be.
    #[error(
        "`{path}` has {bytes} bytes, and no backup wrote more than {most} there: no backup wrote it, or it is damaged"
    )]
    TooLong {
        /// The object.
        path: String,
        /// Its length.
        bytes: u64,
        /// The most that are read.
        most: u64,
    },
    /// A manifest or a head would be longer than the longest that is read.
    #[error(
        "a backup needs {bytes} bytes to say what it is and where its objects are, and at most {most} are read: \
         save without --since, which needs fewer objects. A state that is too large even so is copied with the \
         directory of a stopped member"
    )]
    TooMuch {
        /// The bytes that it would have.
        bytes: u64,
        /// The most that are read.
        most: u64,
    },
    /// A backup is stored, and it was not seen afterwards that all of it is there.
    #[error(
        "backup `{name}` is stored, and could not be looked at afterwards: {error}; see with `cairn backup verify`"
    )]
    NotLookedAt {
        /// The backup.
        name: String,
        /// Why not.
        error: Box<Error>,
    },
    /// A task of this process did not end.
    #[error("a task of this process ended early: {0}; try again")]
    Task(String),
    /// There is no such backup, or it was never finished.
    #[error(
        "there is no backup `{name}` at {target}; `cairn backup list` shows those that are there"
    )]
    Missing {
        /// The target.
        target: String,
        /// The backup.
        name: String,
    },
    /// It is not clear which backup is the latest, or there is none.
    #[error("{0}")]
    NoLatest(String),
    /// The backups at the target are of two clusters of one name.
    #[error(
        "at {target} backup `{later}` began after `{earlier}` and has a lower index or term: a cluster was made anew under the same \
         name, two clusters save there, or a clock was wrong for one of them. Give each cluster a target of its own; \
         `cairn backup prune --remove NAME` removes what nobody needs"
    )]
    Histories {
        /// The target.
        target: String,
        /// One of the first cluster.
        earlier: String,
        /// One of the other one.
        later: String,
    },
    /// Something is not as it was written.
    #[error(
        "backup `{name}` is damaged: {what}; use another one, and `cairn backup prune --remove {name}` removes it"
    )]
    Damaged {
        /// The backup.
        name: String,
        /// The object, and what is wrong with it.
        what: String,
    },
    /// It was there when it was looked for, and is no more.
    #[error(
        "backup `{0}` was removed while it was read; `cairn backup list` shows those that are there"
    )]
    Removed(String),
    /// A recipient or an identity cannot be used.
    #[error("{given}: {reason}")]
    Key {
        /// What was given, or the file and the line; no secret.
        given: String,
        /// What is wrong with it, and what helps.
        reason: String,
    },
    /// A backup is encrypted, and nobody gave a secret key.
    #[error(
        "backup `{name}` is encrypted to {recipients}: give the file with the secret key of one of them as --identity FILE. \
         `cairn backup list`, `show`, `prune` and `verify --stored` need none"
    )]
    NoIdentity {
        /// The backup.
        name: String,
        /// To whom.
        recipients: String,
    },
    /// A backup is encrypted to others than those whose secret keys were given.
    #[error(
        "backup `{name}` is encrypted to {recipients}, and the secret keys that are given are those of {given}: \
         give one of the backup's as --identity FILE"
    )]
    WrongIdentity {
        /// The backup.
        name: String,
        /// To whom.
        recipients: String,
        /// Whose secret keys they are.
        given: String,
    },
    /// A backup is not encrypted, and somebody expects that it is.
    #[error(
        "backup `{0}` is not encrypted, and --identity says that it is: whoever can write at the target can put such a \
         backup there. If you know that it is yours, leave --identity out"
    )]
    NotEncrypted(String),
    /// A backup would build on one that is not encrypted to the same recipients.
    #[error(
        "backup `{base}` is {its}, and the new one would be {own}: it cannot build on that one. Save without \
         --since, or encrypt it as that one is"
    )]
    Mixed {
        /// The earlier backup.
        base: String,
        /// To whom that one is encrypted, in words.
        its: String,
        /// To whom the new one would be.
        own: String,
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
    /// A backup under way builds on it.
    #[error(
        "a backup under way builds on `{0}`: remove it when that has ended, or a day after it was broken off"
    )]
    Needed(String),
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
    /// The cluster says that it does not have the entry with which an earlier backup ends.
    #[error(
        "the cluster's log does not have the entry with which backup `{base}` ends, term {term} and index {index}: that was taken \
         of another history. Save a whole backup, without a base"
    )]
    OtherHistory {
        /// The earlier backup.
        base: String,
        /// The term of its last entry.
        term: u64,
        /// The index of that entry.
        index: u64,
    },
    /// What the cluster sent is not a state.
    #[error("the cluster sent what is no state: {0}")]
    Sent(String),
}

impl From<JoinError> for Error {
    /// The error's own text has the runtime's number of the task, and what a library said when it panicked: the log has that, and
    /// a cause that is logged once must have the same words each time.
    fn from(error: JoinError) -> Error {
        let how = if error.is_panic() { PANICKED } else { "it was broken off" };
        Error::Task(how.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use real_tokio::task::{spawn, spawn_blocking};

    async fn panics() -> u8 {
        panic!("another")
    }

    /// The story: a library panicked at what it was given. The error had the number of the task, another one each time, so the
    /// schedule logged the same cause again and again, with what the library showed of a secret.
    #[test]
    fn a_task_that_panics_is_an_error_without_its_number_and_its_words() {
        let runtime = real_tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let panicked = spawn_blocking(|| -> u8 { panic!("secret") }).await.unwrap_err();
            let mut said = vec![Error::from(panicked).to_string()];
            said.push(Error::from(spawn(panics()).await.unwrap_err()).to_string());
            let expected =
                "a task of this process ended early: it panicked, and the log says where; try again";
            assert_eq!(said, [expected, expected]);

            let pending = spawn(std::future::pending::<()>());
            pending.abort();
            let said = Error::from(pending.await.unwrap_err()).to_string();
            assert!(said.contains("ended early: it was broken off;"), "{said}");
        });
    }
}
