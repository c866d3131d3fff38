//! The values of a message, read from the log.
//!
//! What holds here: the reads go on to their end, and stay charged until then, also if their stream is gone. A value that
//! cannot be read ends its watch alone.

use super::hub::applied;
use super::plan::Plan;
use super::{ended, position};
use crate::admission::memory::Charge;
use crate::admission::refusal;
use crate::service::read::{LIST_READS, to_its_end};
use bytes::Bytes;
use cairn_client::proto;
use cairn_client::proto::watch_ended::Why;
use cairn_engine::LogId;
use cairn_raft::{LoggedValue, Replica};
use futures::StreamExt;
use std::sync::Arc;
use tonic::Status;

/// A value, or why its watch ends.
pub(super) type Value = Result<Bytes, proto::WatchEnded>;

/// A value to read.
struct Wanted {
    at: LogId,
    key: Bytes,
    value: LoggedValue,
}

/// The values that a plan wants, in its order.
pub(super) async fn read(
    replica: &Replica,
    plan: &Plan,
    charge: Charge,
) -> Result<(Vec<Value>, Charge), Status> {
    let changes = plan.parts.iter().flat_map(|part| &part.changes);
    let wanted: Vec<Wanted> = changes
        .filter_map(|change| {
            let value = change.value?;
            Some(Wanted { at: change.at, key: change.key.clone(), value })
        })
        .collect();
    if wanted.is_empty() {
        return Ok((Vec::new(), charge));
    }
    let replica = replica.clone();
    let waiting = Arc::new(());
    let waited_for = Arc::downgrade(&waiting);
    let read = async move {
        futures::stream::iter(wanted)
            .take_while(|_| std::future::ready(waited_for.strong_count() > 0))
            .map(|wanted| value(&replica, wanted))
            .buffered(LIST_READS)
            .collect::<Vec<Value>>()
            .await
    };
    to_its_end(charge, read).await
}

async fn value(replica: &Replica, wanted: Wanted) -> Value {
    match replica.logged_value(wanted.at, wanted.value.number).await {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(gone(replica)),
        Err(error) => {
            let why = match error {
                cairn_engine::Error::Corrupt(_) => Why::Unreadable,
                _ => Why::Move,
            };
            let told = refusal::of_engine_read(&wanted.key, error);
            Err(ended(why, told.message()))
        }
    }
}

/// The log has let an entry go since the history told of it.
pub(super) fn gone(replica: &Replica) -> proto::WatchEnded {
    let oldest = replica.history().oldest.unwrap_or_default();
    let message =
        "the log no longer has a value that was to be told; read the state, and go on behind that";
    proto::WatchEnded {
        oldest: Some(position(oldest)),
        now: Some(position(applied(replica))),
        ..ended(Why::Compacted, message)
    }
}
