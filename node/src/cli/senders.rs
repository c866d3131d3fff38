//! The members that may send the state of the cluster, and who is asked next if one does not.

use super::exit::{StateError, UsageError};
use super::output::Output;
use cairn_client::{Client, NodeStatus};
use cairn_node::backups::{self, SaveError};
use serde_json::json;
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

/// Says that a member does not send its state, and who is asked next.
pub(crate) fn note_not_sent(output: &Output, endpoint: &str, why: &str, other: &str) {
    output.note(
        || json!({ "not_sent_by": endpoint, "why": why, "asking": other }),
        || format!("{endpoint} does not send its state ({why}); asking {other}"),
    );
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
