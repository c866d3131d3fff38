//! Exit codes, and which error ends with which.

use super::DEFAULT_ENDPOINT;
use super::output::Output;
use cairn_client::{Error as ClientError, shown};
use cairn_node::config::ConfigError;
use std::io;
use std::process::ExitCode;

/// Shown under `cairn --help`.
pub(crate) const TABLE: &str = "\
Exit codes:
  0  done
  1  failed
  2  usage: the command line, the configuration or an input is not acceptable
  3  the key, or the backup, does not exist; or the changes that a watch is to
     tell are no longer kept
  4  a condition did not hold, or the cluster's state does not allow a change,
     or that a member is stopped; nothing was changed. Or the cluster answers
     and is not well
  5  the outcome of a write is unknown: it may or may not have been applied
  6  unavailable: no node answered, TLS failed with each, no leader, or no
     answer in time; or an unsafe recovery needs a decision
  7  the cluster's storage is full; reads and deletes go on
  8  the value exists and cannot be read intact
  9  no mode's promise can be kept in the directory
 10  not allowed: a node answered, and knows no name of the caller by
     certificate or token, or no role of it that allows this";

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    ConditionFailed = 4,
    OutcomeUnknown = 5,
    Unavailable = 6,
    StorageFull = 7,
    ValueUnreadable = 8,
    NothingJustified = 9,
    NotAllowed = 10,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An error of the caller, for messages that no library error fits.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub String);

/// The cluster's state does not allow it, and nothing was changed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct StateError(pub String);

/// Prints the error on standard error.
pub(crate) fn failed(output: &Output, error: &anyhow::Error) -> ExitCode {
    // The reader of our output closed the pipe, so it has what it wants.
    if error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    {
        return Exit::Done.into();
    }
    let exit = of(error);
    let message = format!("{}{}", in_full(error), hint(error));
    // A node may have written part of it, and would begin a line of its own there.
    let message = match error.downcast_ref::<ClientError>() {
        Some(_) => shown::one_line(&message),
        None => message.as_str().into(),
    };
    output.error(&message, exit as u8);
    exit.into()
}

/// The error with its causes, each said once: the text of a client's error holds those of its causes.
pub(crate) fn in_full(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for said in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = said;
        } else if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
    }
    text
}

/// What to do if nothing listens at the default address.
fn hint(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref() {
        Some(ClientError::Unavailable { tried, .. }) if *tried == [DEFAULT_ENDPOINT] => {
            "; `cairn dev` starts a cluster here, --endpoints or CAIRN_ENDPOINTS names one elsewhere"
        }
        _ => "",
    }
}

/// The exit code of an error.
pub(crate) fn of(error: &anyhow::Error) -> Exit {
    if let Some(error) = error.downcast_ref::<ClientError>() {
        return of_client(error);
    }
    use cairn_backup::Error as BackupError;
    match error.downcast_ref() {
        Some(
            BackupError::Target { .. }
            | BackupError::Key { .. }
            | BackupError::NoIdentity { .. }
            | BackupError::WrongIdentity { .. }
            | BackupError::NotEncrypted(_)
            | BackupError::Mixed { .. },
        ) => return Exit::Usage,
        Some(BackupError::Missing { .. }) => return Exit::NotFound,
        _ => {}
    }
    use cairn_node::Error as NodeError;
    let configuration = match error.downcast_ref() {
        Some(
            NodeError::Config(_)
            | NodeError::NotRestored(_)
            | NodeError::ModeRefused { .. }
            | NodeError::Doctor(_),
        ) => true,
        Some(NodeError::NothingJustified { .. }) => return Exit::NothingJustified,
        _ => error.is::<cairn_node::doctor::Error>(),
    };
    if configuration || error.is::<ConfigError>() || error.is::<UsageError>() {
        return Exit::Usage;
    }
    if error.is::<StateError>() {
        return Exit::ConditionFailed;
    }
    Exit::Failed
}

fn of_client(error: &ClientError) -> Exit {
    match error {
        ClientError::OutcomeUnknown { .. } => Exit::OutcomeUnknown,
        ClientError::ConditionFailed { .. }
        | ClientError::RangeTooLarge { .. }
        | ClientError::Refused { .. } => Exit::ConditionFailed,
        ClientError::Compacted { .. } | ClientError::HistoryDiscarded => Exit::NotFound,
        ClientError::StorageFull { .. } => Exit::StorageFull,
        ClientError::ValueUnreadable { .. } => Exit::ValueUnreadable,
        ClientError::Unauthenticated { .. } | ClientError::PermissionDenied { .. } => {
            Exit::NotAllowed
        }
        ClientError::InvalidKey { .. }
        | ClientError::ValueTooLarge { .. }
        | ClientError::RequestTooLarge { .. }
        | ClientError::InvalidRequest(_)
        | ClientError::InvalidOptions(_) => Exit::Usage,
        ClientError::DeadlineExceeded { .. }
        | ClientError::Unavailable { .. }
        | ClientError::NoLeader { .. }
        | ClientError::Overloaded { .. }
        | ClientError::ScanBroken { .. } => Exit::Unavailable,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_table() {
        for exit in [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::NotFound,
            Exit::ConditionFailed,
            Exit::OutcomeUnknown,
            Exit::Unavailable,
            Exit::StorageFull,
            Exit::ValueUnreadable,
            Exit::NothingJustified,
            Exit::NotAllowed,
        ] {
            assert!(TABLE.contains(&format!("\n{:3}  ", exit as u8)), "{exit:?}");
        }
    }

    /// An error whose text holds that of its cause, as a client's does.
    #[derive(Debug, thiserror::Error)]
    #[error("unavailable: {0} (tried a:1)")]
    struct Telling(#[source] io::Error);

    /// The story: errors of the client got causes, and the command line would have said each twice.
    #[test]
    fn a_cause_that_is_said_is_not_said_again() {
        let error = Telling(io::Error::from(io::ErrorKind::ConnectionRefused));
        let error = anyhow::Error::new(error).context("while putting");
        let once = "while putting: unavailable: connection refused (tried a:1)";
        assert_eq!(in_full(&error), once);
        let silent =
            anyhow::Error::new(io::Error::from(io::ErrorKind::NotFound)).context("no file");
        assert_eq!(in_full(&silent), "no file: entity not found");
    }

    #[test]
    fn a_context_does_not_hide_the_code() {
        let error =
            anyhow::Error::new(ClientError::NoLeader { tried: vec![] }).context("while putting");
        assert_eq!(of(&error), Exit::Unavailable);
        let error = anyhow::Error::new(ConfigError::Conflict("no".into()));
        assert_eq!(of(&error), Exit::Usage);
        let error = anyhow::Error::new(StateError("no".into())).context("while deciding");
        assert_eq!(of(&error), Exit::ConditionFailed);
    }
}
