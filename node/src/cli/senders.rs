//! The members that may send the state of the cluster, and who is asked next if one does not.

use super::exit::{StateError, UsageError};
use cairn_client::{Client, NodeStatus};
use cairn_node::backups::{self, SaveError};
use std::time::Duration;

/// How long a node may take to answer, before it sends anything.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Those of [`backups::senders`].
pub(crate) async fn senders(client: &Client) -> anyhow::Result<Vec<(String, NodeStatus)>> {
    backups::senders(client).await.map_err(told)
}

/// Whether another member may send its state though this one does not: it sends it to others, is gone, or
/// cannot read a value.
pub(crate) fn may_ask_another(error: &cairn_client::Error) -> bool {
    use cairn_client::Error::{DeadlineExceeded, Refused, Unavailable, ValueUnreadable};
    matches!(
        error,
        Refused { .. } | Unavailable { .. } | DeadlineExceeded { .. } | ValueUnreadable { .. }
    )
}

/// The error by itself: what it is says how the command ends.
pub(crate) fn told(error: SaveError) -> anyhow::Error {
    match error {
        SaveError::Backup(error) => error.into(),
        SaveError::Client(error) => error.into(),
        SaveError::NotReady { .. } => StateError(error.to_string()).into(),
        SaveError::Nobody => UsageError(error.to_string()).into(),
        SaveError::BrokenOff => error.into(),
    }
}
