//! What a name may do, and how the configuration writes it: words with spaces between them.
//!
//! | word | allows |
//! |---|---|
//! | `read`, `read:PREFIX` | gets, lists, scans and checks of all keys, or of those with the prefix |
//! | `write`, `write:PREFIX` | puts and deletes of them, of ranges of them too, and reads |
//! | `operator` | every call of the operator's service; no keys |
//!
//! In a prefix, `%` and two hexadecimal digits stand for a byte.

use bytes::Bytes;
use cairn_engine::prefix_end;
use std::fmt;

/// Words of one name. Each is compared with every key of a request.
pub(crate) const MOST_ROLES: usize = 64;

/// The keys that begin with a prefix: those from it until before `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Prefix {
    bytes: Vec<u8>,
    /// `None`: to the last key.
    end: Option<Bytes>,
}

impl Prefix {
    fn of(bytes: Vec<u8>) -> Prefix {
        Prefix { end: prefix_end(&bytes), bytes }
    }

    /// Whether all keys that begin with `start` are among them.
    fn has(&self, start: &[u8]) -> bool {
        start.starts_with(&self.bytes)
    }

    /// Whether all keys from `start` until before `end` are; `None`: to the last key.
    fn has_range(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        let ends_within = |own: &Bytes| end.is_some_and(|end| end <= &own[..]);
        self.has(start) && self.end.as_ref().is_none_or(ends_within)
    }
}

/// The roles of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Prefixes whose keys it may read.
    read: Vec<Prefix>,
    /// Prefixes whose keys it may read and write.
    write: Vec<Prefix>,
    operator: bool,
}

impl Roles {
    /// Reads the words of one name.
    ///
    /// # Errors
    /// A sentence that says what was expected.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Roles, String> {
        let mut roles = Roles::default();
        // A token may stand in place of roles: errors do not show what is there.
        for (number, word) in (1_usize..).zip(words) {
            if roles.count() == MOST_ROLES {
                return Err(format!("expected at most {MOST_ROLES} roles"));
            }
            let (role, prefix) = word.split_once(':').unwrap_or((word, ""));
            let prefixes = match role {
                "read" => &mut roles.read,
                "write" => &mut roles.write,
                "operator" if role == word => {
                    roles.operator = true;
                    continue;
                }
                _ => {
                    return Err(format!(
                        "role {number}: expected read, read:PREFIX, write, write:PREFIX or operator, with spaces between them"
                    ));
                }
            };
            if role != word && prefix.is_empty() {
                return Err(format!(
                    "role {number}: expected a prefix after `:`, or `{role}` alone for all keys"
                ));
            }
            let bytes = unescaped(prefix).ok_or_else(|| {
                format!("role {number}: expected two hexadecimal digits after each % of a prefix")
            })?;
            prefixes.push(Prefix::of(bytes));
        }
        Ok(roles)
    }

    /// All of them, for all keys.
    pub(super) fn all() -> Roles {
        Roles { read: Vec::new(), write: vec![Prefix::of(Vec::new())], operator: true }
    }

    fn count(&self) -> usize {
        self.read.len() + self.write.len() + usize::from(self.operator)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Whether it may read all keys that begin with `start`.
    pub(super) fn reads(&self, start: &[u8]) -> bool {
        self.read.iter().any(|prefix| prefix.has(start)) || self.writes(start)
    }

    /// Whether it may read all keys from `start` until before `end`; `None`: to the last key. Two prefixes
    /// that meet allow no range over both.
    pub(super) fn reads_range(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        self.read.iter().chain(&self.write).any(|prefix| prefix.has_range(start, end))
    }

    /// Whether it may write all keys that begin with `start`.
    pub(super) fn writes(&self, start: &[u8]) -> bool {
        self.write.iter().any(|prefix| prefix.has(start))
    }

    /// Whether it may write all keys of a range, as [`Roles::reads_range`].
    pub(super) fn writes_range(&self, start: &[u8], end: Option<&[u8]>) -> bool {
        self.write.iter().any(|prefix| prefix.has_range(start, end))
    }

    /// Whether it may write some keys.
    pub(super) fn writes_any(&self) -> bool {
        !self.write.is_empty()
    }

    /// Whether it may call the operator's service.
    pub(super) fn operates(&self) -> bool {
        self.operator
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (role, prefixes) in [("read", &self.read), ("write", &self.write)] {
            for prefix in prefixes {
                write!(f, "{between}{role}")?;
                between = " ";
                if !prefix.bytes.is_empty() {
                    write!(f, ":{}", escaped(&prefix.bytes))?;
                }
            }
        }
        if self.operator {
            write!(f, "{between}operator")?;
        }
        Ok(())
    }
}

/// Bytes as a prefix is written. What could end a word or a list of entries is escaped.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let one = |byte: &u8| match byte {
        b'%' | b',' | b'=' | b'"' | b'\'' | b'\\' => format!("%{byte:02x}"),
        0x21..=0x7e => char::from(*byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    bytes.iter().map(one).collect()
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or("").as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(text: &str) -> Result<Roles, String> {
        Roles::parse(text.split_whitespace())
    }

    #[test]
    fn roles_are_read_as_they_are_written() {
        for text in ["read", "write", "operator", "read:a/ read:b write:c%20%ff operator", ""] {
            assert_eq!(roles(text).map(|roles| roles.to_string()), Ok(text.to_string()));
        }
        for bad in ["reads", "read:", "write:", "operator:x", "write:%", "write:%g0", "write:%+1"] {
            assert!(roles(bad).is_err(), "{bad}");
        }
        let many = "read:a ".repeat(MOST_ROLES + 1);
        assert!(roles(&many).is_err_and(|reason| reason.contains("at most 64")));
    }

    #[test]
    fn write_implies_read_of_the_same_prefix_and_nothing_else_is_implied() {
        let writer = roles("write:app/").expect("roles");
        assert!(writer.writes(b"app/1") && writer.reads(b"app/") && writer.writes_any());
        for outside in [&b"ap"[..], b"app", b"apq/1", b"", b"other"] {
            assert!(!writer.reads(outside) && !writer.writes(outside), "{outside:?}");
        }
        let reader = roles("read").expect("roles");
        assert!(reader.reads(b"") && !reader.writes(b"k") && !reader.writes_any());
        let operator = roles("operator").expect("roles");
        assert!(operator.operates() && !operator.reads(b"k") && !operator.writes_any());
        assert!(!writer.operates() && !reader.operates());
    }

    #[test]
    fn a_prefix_allows_a_range_that_neither_begins_before_it_nor_ends_behind_its_keys() {
        let roles = roles("read:app/ write:app0 read:z%ff").expect("roles");
        type Case<'a> = (&'a [u8], Option<&'a [u8]>, bool);
        let cases: [Case<'_>; 13] = [
            (b"app/", Some(b"app0"), true),
            (b"app/1", Some(b"app/2"), true),
            (b"app/1", Some(b"app0"), true),
            (b"app/", Some(b"app/"), true),
            (b"app/", Some(b"app0\0"), false),
            (b"app/", Some(b"app1"), false),
            (b"app/", None, false),
            (b"app", Some(b"app0"), false),
            (b"", Some(b"app/1"), false),
            (b"app0", Some(b"app1"), true),
            (b"z\xff", Some(b"{"), true),
            (b"z\xff", Some(b"{\0"), false),
            (b"z\xff\xff", None, false),
        ];
        let writer = Roles::parse(["write:app/", "write:app0", "write:z%ff"]).expect("roles");
        for (start, end, allowed) in cases {
            assert_eq!(roles.reads_range(start, end), allowed, "{start:?} to {end:?}");
            assert_eq!(writer.writes_range(start, end), allowed, "{start:?} to {end:?}");
        }
        let all = Roles::parse(["read"]).expect("roles");
        assert!(all.reads_range(b"", None) && all.reads_range(b"a", Some(b"b")));
        let last = Roles::parse(["read:%ff"]).expect("roles");
        assert!(last.reads_range(b"\xff\x01", None) && !last.reads_range(b"\xfe", None));
        let all = Roles::parse(["write"]).expect("roles");
        assert!(all.writes_range(b"", None) && all.writes_range(b"a", Some(b"b")));
        assert!(all.reads_range(b"", None), "who may write may read");
        let reader = Roles::parse(["read", "operator"]).expect("roles");
        assert!(!reader.writes_range(b"a", Some(b"b")));
    }
}
