//! The servers' size limits, applied before anything is sent.

use bytes::Bytes;

use crate::Error;
use crate::convert::key_and_value;
use crate::proto;
use crate::types::Limits;

/// The most operations of a batch at servers whose operator set no other number.
const USUAL_BATCH_OPERATIONS: u32 = 128;

/// Whether a batch of so many operations takes no more. Before the limits are known, by the usual ones.
pub(crate) fn is_full(limits: Option<Limits>, operations: usize) -> bool {
    let most = limits.map_or(USUAL_BATCH_OPERATIONS, |limits| limits.max_batch_operations);
    usize::try_from(most).is_ok_and(|most| operations >= most)
}

/// Checks a key that may exist. The limit may have been higher when it was put; the server knows
/// how long it can be.
pub(crate) fn check_key(limits: Option<Limits>, key: &[u8]) -> Result<(), Error> {
    match key.is_empty() {
        true => check_new_key(limits, key),
        false => Ok(()),
    }
}

/// Checks the keys of a read: their number, each of them, and the sum of their bytes.
pub(crate) fn check_keys(limits: Limits, keys: &[Bytes]) -> Result<(), Error> {
    if keys.is_empty() {
        return Err(Error::InvalidRequest("a read needs at least one key".to_owned()));
    }
    check_total("keys", limits.max_batch_operations, keys.len() as u64)?;
    for key in keys {
        check_key(Some(limits), key)?;
    }
    let bytes: u64 = keys.iter().map(|key| key.len() as u64).sum();
    check_total("bytes", limits.max_request_bytes, bytes)
}

/// Checks the ends of a range: the sum of their bytes. One may be longer than the longest key of a put, since the limit may have
/// been higher; the server knows how long it can be.
pub(crate) fn check_range(limits: Limits, range: &proto::Range) -> Result<(), Error> {
    let bytes = (range.start.len() as u64).saturating_add(range.end.len() as u64);
    check_total("bytes", limits.max_request_bytes, bytes)
}

/// Checks the key of a put. If the limits are not known yet, checks only that the key is not empty.
fn check_new_key(limits: Option<Limits>, key: &[u8]) -> Result<(), Error> {
    let limit = limits.map_or(0, |limits| u64::from(limits.max_key_bytes));
    let actual = key.len() as u64;
    if actual == 0 || (limit != 0 && actual > limit) {
        return Err(Error::InvalidKey { limit, actual });
    }
    Ok(())
}

/// Checks the operations of a write: their number, each key and value, and the sum of their bytes.
pub(crate) fn check_operations(
    limits: Option<Limits>,
    operations: &[proto::Operation],
) -> Result<(), Error> {
    if operations.is_empty() {
        return Err(Error::InvalidRequest("a batch needs at least one operation".to_owned()));
    }
    let mut total = 0u64;
    for operation in operations {
        let (key, value) = key_and_value(operation);
        match &operation.kind {
            Some(proto::operation::Kind::Put(_)) => check_new_key(limits, key)?,
            // It may begin before every key.
            Some(proto::operation::Kind::DeleteRange(_)) => {}
            _ => check_key(limits, key)?,
        }
        let actual = value.len() as u64;
        // The end of a range is no value.
        let is_put = matches!(operation.kind, Some(proto::operation::Kind::Put(_)));
        if let Some(limit) = limits.map(|limits| u64::from(limits.max_value_bytes))
            && is_put
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
        return Err(Error::RequestTooLarge { unit, limit, actual, message: String::new() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{delete, put};
    use crate::types::Condition;

    const LIMITS: Limits = Limits {
        max_key_bytes: 4,
        max_value_bytes: 8,
        max_batch_operations: 3,
        max_request_bytes: 20,
    };

    fn too_large(unit: &'static str, limit: u64, actual: u64) -> Error {
        Error::RequestTooLarge { unit, limit, actual, message: String::new() }
    }

    fn puts(sizes: &[(usize, usize)]) -> Vec<proto::Operation> {
        let put = |(key, value): &(usize, usize)| {
            put(vec![1; *key].into(), vec![2; *value].into(), Condition::None)
        };
        sizes.iter().map(put).collect()
    }

    #[test]
    fn the_end_of_a_range_is_no_value() {
        let (start, end) = (vec![1; 4].into(), vec![2; 12].into());
        let range = Some(proto::Range { start, end });
        let delete = proto::DeleteRange { range, ..proto::DeleteRange::default() };
        let kind = Some(proto::operation::Kind::DeleteRange(delete));
        let operation = proto::Operation { kind };
        assert_eq!(check_operations(Some(LIMITS), &[operation]), Ok(()));
    }

    #[test]
    fn a_size_at_a_limit_passes_and_one_more_does_not() {
        let check = |sizes: &[(usize, usize)]| check_operations(Some(LIMITS), &puts(sizes));
        assert_eq!(check(&[(4, 8), (4, 4)]), Ok(()));
        assert_eq!(check(&[(5, 0)]), Err(Error::InvalidKey { limit: 4, actual: 5 }));
        let long = delete(vec![1; 5].into(), Condition::None);
        assert_eq!(check_operations(Some(LIMITS), &[long]), Ok(()), "put under a higher limit");
        assert_eq!(check(&[(0, 0)]), Err(Error::InvalidKey { limit: 4, actual: 0 }));
        assert_eq!(check(&[(1, 9)]), Err(Error::ValueTooLarge { limit: 8, actual: 9 }));
        let too_many = too_large("operations", 3, 4);
        assert_eq!(check(&[(1, 0), (1, 0), (1, 0), (1, 0)]), Err(too_many));
        let too_long = too_large("bytes", 20, 21);
        assert_eq!(check(&[(4, 8), (4, 5)]), Err(too_long));
    }

    #[test]
    fn a_read_has_at_least_one_key_and_at_most_as_many_as_a_batch_has_operations() {
        let check = |lengths: &[usize]| {
            let keys: Vec<Bytes> = lengths.iter().map(|length| vec![1; *length].into()).collect();
            check_keys(LIMITS, &keys)
        };
        assert_eq!(check(&[1, 5, 14]), Ok(()), "put under a higher limit");
        assert!(matches!(check(&[]), Err(Error::InvalidRequest(_))));
        let too_many = too_large("keys", 3, 4);
        assert_eq!(check(&[1, 1, 1, 1]), Err(too_many));
        assert_eq!(check(&[1, 0]), Err(Error::InvalidKey { limit: 4, actual: 0 }));
        let too_long = too_large("bytes", 20, 21);
        assert_eq!(check(&[10, 11]), Err(too_long));
    }

    #[test]
    fn the_ends_of_a_range_are_no_longer_than_a_request() {
        let check = |start: usize, end: usize| {
            let range = proto::Range { start: vec![1; start].into(), end: vec![2; end].into() };
            check_range(LIMITS, &range)
        };
        assert_eq!(check(0, 0), Ok(()));
        assert_eq!(check(5, 15), Ok(()), "put under a higher limit");
        assert_eq!(check(5, 16), Err(too_large("bytes", 20, 21)));
    }

    #[test]
    fn before_limits_are_known_only_requests_that_are_always_invalid_are_refused() {
        assert_eq!(check_operations(None, &puts(&[(5_000, 5_000_000)])), Ok(()));
        let empty = delete(Vec::new().into(), Condition::None);
        assert_eq!(
            check_operations(None, &[empty]),
            Err(Error::InvalidKey { limit: 0, actual: 0 })
        );
        assert!(matches!(check_operations(None, &[]), Err(Error::InvalidRequest(_))));
    }
}
