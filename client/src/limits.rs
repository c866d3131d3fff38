//! The servers' size limits, applied before anything is sent.

use crate::Error;
use crate::convert::key_and_value;
use crate::proto;
use crate::types::Limits;

/// Checks a key. Without limits known, only that it is not empty.
pub(crate) fn check_key(limits: Option<Limits>, key: &[u8]) -> Result<(), Error> {
    let limit = limits.map_or(0, |limits| u64::from(limits.max_key_bytes));
    let actual = key.len() as u64;
    if actual == 0 || (limit != 0 && actual > limit) {
        return Err(Error::InvalidKey { limit, actual });
    }
    Ok(())
}

/// Checks the operations of a write: their number, each key and value, and the sum of their bytes.
pub(crate) fn check_operations(limits: Option<Limits>, operations: &[proto::Operation]) -> Result<(), Error> {
    if operations.is_empty() {
        return Err(Error::InvalidRequest(
            "a batch needs at least one operation".to_owned(),
        ));
    }
    let mut total = 0u64;
    for operation in operations {
        let (key, value) = key_and_value(operation);
        check_key(limits, key)?;
        let actual = value.len() as u64;
        if let Some(limit) = limits.map(|limits| u64::from(limits.max_value_bytes))
            && actual > limit
        {
            return Err(Error::ValueTooLarge { limit, actual });
        }
        total = total.saturating_add(key.len() as u64).saturating_add(actual);
    }
    let Some(limits) = limits else { return Ok(()) };
    check_total("operations", limits.max_batch_operations, operations.len() as u64)?;
    check_total("bytes", limits.max_request_bytes, total)
}

fn check_total(unit: &'static str, limit: u32, actual: u64) -> Result<(), Error> {
    let limit = u64::from(limit);
    if actual > limit {
        return Err(Error::RequestTooLarge { unit, limit, actual });
    }
    Ok(())
}
