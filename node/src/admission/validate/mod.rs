//! Converts a request to a [`Command`], or refuses it with the input and the limit.

use super::refusal::{over_limit, value_damaged};
use crate::config::{KEY_BYTES_MAX, Limits};
use bytes::Bytes;
use cairn_client::proto;
use cairn_client::proto::condition::Kind as ConditionKind;
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::operation::Kind as OperationKind;
use cairn_engine::Value;
use cairn_raft::{Command, Condition, Operation, Session};
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
                "operation {position} is neither put, delete nor check"
            )));
        };
        let operation = match kind {
            OperationKind::Put(put) => {
                new_key(limits, &put.key)?;
                value(limits, &put.key, &put.value)?;
                bytes = bytes.saturating_add(put.value.len());
                let value = intact(&put.key, put.value, put.value_crc32)?;
                Operation::Put { key: put.key, value, condition: condition(put.condition) }
            }
            OperationKind::Delete(delete) => {
                Operation::Delete { key: delete.key, condition: condition(delete.condition) }
            }
            OperationKind::Check(check) => {
                Operation::Check { key: check.key, condition: condition(check.condition) }
            }
        };
        key(key_of(&operation))?;
        bytes = bytes.saturating_add(key_of(&operation).len());
        operations.push(operation);
    }
    let limit = limits.max_request_bytes;
    if bytes > limit {
        let message = format!(
            "the request has {bytes} bytes of keys and values; at most {limit} are allowed (`limits.max_request_bytes`)"
        );
        return Err(over_limit(Reason::RequestTooLarge, message, limit, bytes));
    }
    Ok(Checked { command: Command { synced: request.synced, session, operations }, bytes })
}

fn key_of(operation: &Operation) -> &Bytes {
    match operation {
        Operation::Put { key, .. }
        | Operation::Delete { key, .. }
        | Operation::Check { key, .. } => key,
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
