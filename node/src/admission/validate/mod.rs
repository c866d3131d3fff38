//! Converts a request to a [`Command`], or refuses it with the input and the limit.

use super::refusal::{over_limit, value_damaged};
use crate::config::{KEY_BYTES_MAX, Limits};
use bytes::Bytes;
use cairn_client::proto;
use cairn_client::proto::condition::Kind as ConditionKind;
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::operation::Kind as OperationKind;
use cairn_engine::Value;
use cairn_raft::{Command, Condition, Operation, RANGE_KEYS_MAX, Session};
use tonic::Status;

/// A valid request.
#[derive(Debug)]
pub(crate) struct Checked {
    /// What to propose.
    pub command: Command,
    /// Bytes of keys and values.
    pub bytes: usize,
}

/// Checks the key of a put.
pub(crate) fn new_key(limits: &Limits, key: &[u8]) -> Result<(), Status> {
    within(key, limits.max_key_bytes, " (`limits.max_key_bytes`)")
}

/// Checks a key that may exist: the limit may have been higher when it was put.
pub(crate) fn key(key: &[u8]) -> Result<(), Status> {
    within(key, KEY_BYTES_MAX as usize, "")
}

/// Checks the keys of a read.
pub(crate) fn keys(limits: &Limits, keys: &[Bytes]) -> Result<(), Status> {
    let (count, limit) = (keys.len(), limits.max_batch_operations);
    if count == 0 {
        return Err(Status::invalid_argument("the request has no keys; send at least one"));
    }
    if count > limit {
        let message = format!(
            "the request has {count} keys; at most {limit} are allowed (`limits.max_batch_operations`)"
        );
        return Err(over_limit(Reason::RequestTooLarge, message, limit, count));
    }
    keys.iter().try_for_each(|one| key(one))
}

fn within(key: &[u8], limit: usize, named: &str) -> Result<(), Status> {
    if key.is_empty() {
        let message = format!("the key is empty; use 1 to {limit} bytes");
        return Err(over_limit(Reason::KeyInvalid, message, limit, 0));
    }
    if key.len() > limit {
        let message = format!(
            "key `{}…` has {} bytes; at most {limit} are allowed{named}",
            key.get(..32).unwrap_or(key).escape_ascii(),
            key.len()
        );
        return Err(over_limit(Reason::KeyInvalid, message, limit, key.len()));
    }
    Ok(())
}

/// Checks a write.
pub(crate) fn write(limits: &Limits, request: proto::WriteRequest) -> Result<Checked, Status> {
    let count = request.operations.len();
    if count == 0 {
        return Err(Status::invalid_argument("the request has no operations; send at least one"));
    }
    if count > limits.max_batch_operations {
        let limit = limits.max_batch_operations;
        let message = format!(
            "the request has {count} operations; at most {limit} are allowed (`limits.max_batch_operations`)"
        );
        return Err(over_limit(Reason::RequestTooLarge, message, limit, count));
    }
    let session = request.session.map(session).transpose()?;
    let mut bytes = 0_usize;
    let mut operations = Vec::with_capacity(count);
    for (position, operation) in request.operations.into_iter().enumerate() {
        let Some(kind) = operation.kind else {
            return Err(Status::invalid_argument(format!(
                "operation {position} is neither put, delete, check nor the deletion of a range"
            )));
        };
        let operation = match kind {
            OperationKind::Put(put) => {
                new_key(limits, &put.key)?;
                key(&put.key)?;
                value(limits, &put.key, &put.value)?;
                bytes = bytes.saturating_add(put.value.len());
                let value = intact(&put.key, put.value, put.value_crc32)?;
                Operation::Put { key: put.key, value, condition: condition(put.condition) }
            }
            OperationKind::Delete(delete) => {
                key(&delete.key)?;
                Operation::Delete { key: delete.key, condition: condition(delete.condition) }
            }
            OperationKind::Check(check) => {
                key(&check.key)?;
                Operation::Check { key: check.key, condition: condition(check.condition) }
            }
            OperationKind::DeleteRange(delete) => delete_range(delete)?,
        };
        let end = operation.end().map_or(0, Bytes::len);
        bytes = bytes.saturating_add(operation.key().len()).saturating_add(end);
        operations.push(operation);
    }
    range_is_alone(&operations)?;
    let limit = limits.max_request_bytes;
    if bytes > limit {
        let message = format!(
            "the request has {bytes} bytes of keys and values; at most {limit} are allowed (`limits.max_request_bytes`)"
        );
        return Err(over_limit(Reason::RequestTooLarge, message, limit, bytes));
    }
    Ok(Checked { command: Command { synced: request.synced, session, operations }, bytes })
}

/// A range that a request must name. `what` names what it is of.
fn named_range(what: &str, named: Option<proto::Range>) -> Result<proto::Range, Status> {
    let named = named.ok_or_else(|| {
        Status::invalid_argument(format!(
            "{what} names no range; one with neither start nor end has all keys"
        ))
    })?;
    range(named)
}

/// The range of a watch: its first key, and what is behind it; `None`: it goes to the last key.
pub(crate) fn watched(range: Option<proto::Range>) -> Result<(Bytes, Option<Bytes>), Status> {
    let proto::Range { start, end } = named_range("the watch", range)?;
    Ok((start, Some(end).filter(|end| !end.is_empty())))
}

/// The deletion of a range.
fn delete_range(delete: proto::DeleteRange) -> Result<Operation, Status> {
    let proto::Range { start, end } = named_range("the deletion of a range", delete.range)?;
    let most = match delete.most {
        0 => RANGE_KEYS_MAX,
        1..=RANGE_KEYS_MAX => delete.most,
        most => {
            return Err(Status::invalid_argument(format!(
                "the deletion of a range names {most} keys; at most {RANGE_KEYS_MAX} go with one request, more with further ones"
            )));
        }
    };
    Ok(Operation::DeleteRange { start, end, most, whole: delete.whole })
}

/// A range that has keys, as far as its bounds tell. One with neither start nor end has all.
pub(crate) fn range(range: proto::Range) -> Result<proto::Range, Status> {
    let proto::Range { start, end } = &range;
    for bound in [start, end].into_iter().filter(|bound| !bound.is_empty()) {
        // Just behind a key is that key and a byte of zero.
        within(bound, KEY_BYTES_MAX as usize + 1, "")?;
    }
    if !end.is_empty() && end <= start {
        return Err(Status::invalid_argument(format!(
            "the range begins at `{}` and ends at `{}`, which is not behind that",
            start.escape_ascii(),
            end.escape_ascii()
        )));
    }
    Ok(range)
}

/// A range is deleted alone, or beside checks: what one entry of the log does is bounded.
fn range_is_alone(operations: &[Operation]) -> Result<(), Status> {
    let is_range = |operation: &&Operation| matches!(operation, Operation::DeleteRange { .. });
    let is_check = |operation: &&Operation| matches!(operation, Operation::Check { .. });
    let ranges = operations.iter().filter(is_range).count();
    match ranges == 0 || operations.len() == 1 + operations.iter().filter(is_check).count() {
        true => Ok(()),
        false => Err(Status::invalid_argument(
            "a range is deleted beside another change; send it alone, or beside checks",
        )),
    }
}

fn value(limits: &Limits, key: &[u8], value: &[u8]) -> Result<(), Status> {
    let limit = limits.max_value_bytes;
    if value.len() <= limit {
        return Ok(());
    }
    let message = format!(
        "the value of key `{}` has {} bytes; at most {limit} are allowed (`limits.max_value_bytes`). Split it over \
         several keys, or raise the limit on every member",
        key.escape_ascii(),
        value.len()
    );
    Err(over_limit(Reason::ValueTooLarge, message, limit, value.len()))
}

/// The value with its hash, if it has the checksum that its client took. The checksum is compared after
/// the hash was taken: so the hash is that of what the client meant, whenever a bit changes.
fn intact(key: &[u8], value: Bytes, sent: Option<u32>) -> Result<Value, Status> {
    let value = Value::from(value);
    let found = crc32fast::hash(value.bytes());
    match sent {
        Some(sent) if sent != found => Err(value_damaged(format_args!(
            "the value of key `{}` was damaged on its way here: its CRC-32 is {found:08x}, and the request \
                 says {sent:08x}. Nothing was written; send it again",
            key.escape_ascii()
        ))),
        _ => Ok(value),
    }
}

fn condition(condition: Option<proto::Condition>) -> Condition {
    match condition.and_then(|condition| condition.kind) {
        None => Condition::None,
        Some(ConditionKind::Absent(true)) => Condition::Absent,
        Some(ConditionKind::Absent(false)) => Condition::Exists,
        Some(ConditionKind::Version(version)) => Condition::Version(version),
    }
}

fn session(session: proto::Session) -> Result<Session, Status> {
    let client_id: [u8; 16] = session.client_id.as_ref().try_into().map_err(|_| {
        Status::invalid_argument(format!(
            "the session's client_id has {} bytes; it must be 16 random bytes",
            session.client_id.len()
        ))
    })?;
    if session.sequence == 0 || session.lowest_pending > session.sequence {
        return Err(Status::invalid_argument(format!(
            "session sequence {} with lowest pending {}: sequences begin at 1, and a client sends none below lowest_pending",
            session.sequence, session.lowest_pending
        )));
    }
    Ok(Session {
        client_id: u128::from_be_bytes(client_id),
        sequence: session.sequence,
        lowest_pending: session.lowest_pending,
        base_index: session.base_index,
    })
}

#[cfg(test)]
mod tests;
