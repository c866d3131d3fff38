//! Ranges of keys, in byte order.
//!
//! What holds here: an end that is given is an end, also an empty one. The protocol writes "to the last key"
//! as an empty end, so a range whose end is empty, or not behind its start, is refused before it is sent: it
//! would be another one there.

use std::ops;

use bytes::Bytes;

use crate::{Error, proto};

/// The keys from a start on and before an end, in byte order.
///
/// ```
/// use cairn_client::Range;
/// assert_eq!(Range::prefix("logs/"), Range::from("logs/".."logs0"));
/// assert_eq!(Range::from("logs/"..).end(), None);
/// assert_eq!(Range::from("a"..="b").end().map(|end| &end[..]), Some(&b"b\0"[..]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Range {
    start: Bytes,
    /// `None`: to the last key.
    end: Option<Bytes>,
}

impl Range {
    /// All keys.
    pub fn all() -> Range {
        Range::default()
    }

    /// All keys that begin with this. An empty prefix: all keys.
    pub fn prefix(prefix: impl Into<Bytes>) -> Range {
        let start = prefix.into();
        // Behind a prefix of nothing but the greatest bytes there is no other key.
        let last = start.iter().rposition(|byte| *byte < u8::MAX);
        let end = last.and_then(|last| start.get(..=last)?.split_last());
        let end = end.map(|(last, rest)| [rest, &[last.saturating_add(1)]].concat().into());
        Range { start, end }
    }

    /// The first key that may be in it; may be empty.
    pub fn start(&self) -> &Bytes {
        &self.start
    }

    /// The first key behind it; `None`: it has the last key.
    pub fn end(&self) -> Option<&Bytes> {
        self.end.as_ref()
    }

    /// # Errors
    /// [`Error::InvalidRequest`] if no key can be in it.
    pub(crate) fn to_proto(&self) -> Result<proto::Range, Error> {
        match &self.end {
            Some(end) if *end <= self.start => Err(Error::InvalidRequest(format!(
                "no key is in the range: it begins at `{}` and ends at `{}`, which is not behind that",
                self.start.escape_ascii(),
                end.escape_ascii()
            ))),
            end => {
                Ok(proto::Range { start: self.start.clone(), end: end.clone().unwrap_or_default() })
            }
        }
    }
}

/// The first key behind this one.
fn behind(key: Bytes) -> Bytes {
    [&key[..], &[0]].concat().into()
}

impl<K: Into<Bytes>> From<ops::Range<K>> for Range {
    fn from(range: ops::Range<K>) -> Range {
        Range { start: range.start.into(), end: Some(range.end.into()) }
    }
}

impl<K: Into<Bytes>> From<ops::RangeInclusive<K>> for Range {
    fn from(range: ops::RangeInclusive<K>) -> Range {
        let (start, last) = range.into_inner();
        Range { start: start.into(), end: Some(behind(last.into())) }
    }
}

impl<K: Into<Bytes>> From<ops::RangeFrom<K>> for Range {
    fn from(range: ops::RangeFrom<K>) -> Range {
        Range { start: range.start.into(), end: None }
    }
}

impl<K: Into<Bytes>> From<ops::RangeTo<K>> for Range {
    fn from(range: ops::RangeTo<K>) -> Range {
        Range { start: Bytes::new(), end: Some(range.end.into()) }
    }
}

impl From<ops::RangeFull> for Range {
    fn from(_: ops::RangeFull) -> Range {
        Range::all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_prefix_has_every_key_that_begins_with_it_and_no_other() {
        let keys: [&[u8]; 10] = [
            b"",
            b"a",
            b"a/",
            b"a/1",
            b"a/\xff\xff",
            b"a0",
            b"b",
            b"b\xff",
            b"\xff",
            b"\xff\xff\x01",
        ];
        for prefix in [&b""[..], b"a", b"a/", b"b\xff", b"\xff", b"\xff\xff", b"x"] {
            let range = Range::prefix(Bytes::copy_from_slice(prefix));
            for key in keys {
                let within =
                    *key >= range.start()[..] && range.end().is_none_or(|end| *key < end[..]);
                assert_eq!(within, key.starts_with(prefix), "{key:?} of {prefix:?}");
            }
            assert!(range.to_proto().is_ok());
        }
        assert_eq!(Range::prefix(""), Range::all());
    }

    /// `"a"..""` has no key, and the protocol's empty end is behind every key: all keys from `a` on would be
    /// deleted.
    #[test]
    fn a_range_without_a_key_is_refused_and_never_one_to_the_last_key() {
        for range in [Range::from("a"..""), Range::from("b".."a"), Range::from("a".."a")] {
            assert!(matches!(range.to_proto(), Err(Error::InvalidRequest(_))), "{range:?}");
        }
        assert!(Range::from(.."").to_proto().is_err());
        let to_the_last = proto::Range { start: "a".into(), end: Bytes::new() };
        assert_eq!(Range::from("a"..).to_proto(), Ok(to_the_last));
        assert_eq!(Range::from(..).to_proto(), Ok(proto::Range::default()));
    }
}
