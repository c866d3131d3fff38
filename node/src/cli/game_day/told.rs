//! What one key of the load was told, and what is wrong with what it has.
//!
//! What holds here: a key has one writer, so each write replaces the one that was acknowledged before it. A
//! key that has something else lost a write, or got one that nobody was told of.

use bytes::Bytes;
use cairn_client::{Error, Version, WriteInfo};

/// Bytes of a value.
const VALUE_BYTES: usize = 256;
/// Digits of the number at its begin.
const DIGITS: usize = 16;

/// A write that was acknowledged and is not there, or a value that nobody wrote.
pub(super) type Lost = String;

/// What one key was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) key: String,
    /// The number of the last write that was acknowledged.
    pub(super) acknowledged: Option<u64>,
    /// The version that it got.
    pub(super) version: Option<Version>,
    /// The number of a later write whose outcome is unknown.
    pub(super) unknown: Option<u64>,
    /// It does not have what it should. Nothing more is known of it.
    pub(super) lost: bool,
}

/// How a put ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    Acknowledged {
        version: Version,
        /// What it replaced.
        previous: Option<Version>,
    },
    Refused,
    Unknown,
}

impl Ended {
    pub(super) fn of(result: &Result<WriteInfo, Error>) -> Ended {
        match result {
            Ok(info) => Ended::Acknowledged { version: info.version, previous: info.previous },
            Err(error) if error.is_outcome_unknown() => Ended::Unknown,
            Err(_) => Ended::Refused,
        }
    }
}

impl Told {
    pub(super) fn new(prefix: &str, number: u32, sequence: u64, at: usize) -> Told {
        Told { key: format!("{prefix}{number}/{sequence:08}/{at:03}"), ..Told::default() }
    }

    /// A write of this number is acknowledged. Returns what is wrong with the version that it replaced.
    pub(super) fn was_acknowledged(
        &mut self,
        number: u64,
        version: Version,
        previous: Option<Version>,
    ) -> Option<Lost> {
        let (last, expected) = (self.acknowledged, self.version);
        (self.acknowledged, self.version) = (Some(number), Some(version));
        if previous == expected {
            return None;
        }
        let found = match previous {
            Some(found) => format!("version {found}"),
            None => "no key".to_owned(),
        };
        let key = &self.key;
        Some(match last.zip(expected) {
            Some((last, expected)) => format!(
                "`{key}`: write {last} was acknowledged as version {expected}, and the next one found {found}"
            ),
            None => format!("`{key}`: its first write found {found}, which nobody was told of"),
        })
    }

    /// What is wrong with this value that was read.
    pub(super) fn compared(&mut self, value: Option<Bytes>) -> Option<Lost> {
        let number = value.as_deref().and_then(number_of);
        let lost = self.lacks(value);
        self.lost = lost.is_some();
        // The write whose outcome was unknown is applied. It is at most once, so nothing else may be there
        // later.
        if number.is_some() && number == self.unknown {
            self.acknowledged = self.unknown.take();
        }
        lost
    }

    /// What is wrong with this value of the key.
    fn lacks(&self, value: Option<Bytes>) -> Option<Lost> {
        let Told { key, acknowledged, unknown, .. } = self;
        let Some(value) = value else {
            let number = (*acknowledged)?;
            return Some(format!(
                "`{key}`: write {number} was acknowledged, and the key does not exist"
            ));
        };
        match number_of(&value) {
            None => Some(format!("`{key}` has a value that nobody wrote")),
            Some(number) if Some(number) == *acknowledged || Some(number) == *unknown => None,
            Some(number) => Some(match acknowledged {
                Some(last) => {
                    format!("`{key}`: write {last} was acknowledged, and write {number} is there")
                }
                None => format!("`{key}`: write {number} is there, which was refused"),
            }),
        }
    }
}

/// A value with this number.
pub(super) fn value_of(number: u64) -> Bytes {
    let mut text = format!("{number:0DIGITS$x}");
    while text.len() < VALUE_BYTES {
        text.push('.');
    }
    text.into()
}

/// The number of a value; `None` if none has these bytes.
fn number_of(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value.get(..DIGITS)?).ok()?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (value_of(number) == value).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(acknowledged: Option<u64>, unknown: Option<u64>) -> Told {
        Told { key: "k".into(), acknowledged, unknown, ..Told::default() }
    }

    #[test]
    fn what_was_acknowledged_is_there_or_the_write_whose_outcome_is_unknown() {
        let there = |number| Some(value_of(number));
        for (key, value) in [
            (told(None, None), None),
            (told(Some(7), None), there(7)),
            (told(None, Some(8)), None),
            (told(None, Some(8)), there(8)),
            (told(Some(7), Some(8)), there(7)),
            (told(Some(7), Some(8)), there(8)),
        ] {
            assert_eq!(key.lacks(value), None, "{key:?}");
        }
        for (key, value, says) in [
            (told(Some(7), None), None, "write 7 was acknowledged, and the key does not exist"),
            (told(Some(7), Some(8)), None, "does not exist"),
            (told(Some(7), None), there(6), "write 7 was acknowledged, and write 6 is there"),
            (told(None, None), there(6), "which was refused"),
            (told(Some(7), None), Some("7".into()), "a value that nobody wrote"),
        ] {
            let lost = key.lacks(value).expect("it is lost");
            assert!(lost.contains(says), "{lost}");
        }
    }

    #[test]
    fn a_value_is_known_by_all_of_its_bytes() {
        for number in [0, 1, 0xabc, u64::MAX] {
            let value = value_of(number);
            assert_eq!((value.len(), number_of(&value)), (VALUE_BYTES, Some(number)));
            assert_eq!(number_of(&value[..VALUE_BYTES - 1]), None);
        }
    }

    /// The story: a write with an unknown outcome was read back, and was gone at the next look. That was taken
    /// for a write that had not been applied.
    #[test]
    fn a_write_of_unknown_outcome_that_was_read_once_may_not_vanish() {
        let mut key = told(Some(7), Some(8));
        assert_eq!(key.compared(Some(value_of(7))), None, "it may be applied later");
        assert_eq!(key.compared(Some(value_of(8))), None);
        let lost = key.compared(Some(value_of(7))).expect("it is lost");
        assert!(lost.contains("write 8 was acknowledged, and write 7 is there"), "{lost}");
        assert!(key.compared(None).is_some());
    }
}
