//! The check of a whole input, before anything of it is written.

use super::input::{Entry, Input, Read};
use crate::cli::bytes_text::escape;
use crate::cli::exit::UsageError;
use bytes::Bytes;
use cairn_client::{Limits, shown};
use sha2::{Digest, Sha256};
use std::collections::HashSet;

/// So much that is wrong is listed; all of it is counted.
const LISTED: usize = 10;
/// The longest text of one thing that is wrong, in bytes.
const WRONG_BYTES: usize = 240;
/// The most keys of an input that is not in order: 1 GB of memory for their hashes.
const UNORDERED_KEYS_MAX: usize = 20_000_000;

/// What the servers take at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of a key, of a value, and of all those of a request.
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) request: u64,
}

impl From<Limits> for Sizes {
    fn from(limits: Limits) -> Sizes {
        Sizes {
            key: limits.max_key_bytes.into(),
            value: limits.max_value_bytes.into(),
            request: limits.max_request_bytes.into(),
        }
    }
}

/// What an input has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) keys: u64,
    /// Its last line is cut, and is left out.
    pub(super) cut: Option<u64>,
}

/// Reads all of the input. With `partial` it need not end with the line that says how many keys it has.
///
/// # Errors
/// A [`UsageError`] with the first things that are wrong, and how many there are.
pub(super) fn check(input: &mut Input, sizes: Sizes, partial: bool) -> anyhow::Result<Checked> {
    let known = if input.may_repeat() { Known::Last(None) } else { Known::Apart };
    match pass(input, sizes, partial, known)? {
        Some(checked) => Ok(checked),
        // Of keys that are not in order the last one does not say whether one comes twice.
        None => Ok(pass(input, sizes, partial, Known::All(HashSet::new()))?.unwrap_or_default()),
    }
}

/// `None`: the keys are not in order, and what is known of them says nothing about that.
fn pass(
    input: &mut Input,
    sizes: Sizes,
    partial: bool,
    mut known: Known,
) -> anyhow::Result<Option<Checked>> {
    input.rewind()?;
    let (mut wrong, mut checked, mut said) = (Wrong::default(), Checked::default(), None);
    loop {
        match input.next()? {
            Read::Nothing => break,
            Read::End(_) if partial => {}
            Read::End(end) => said = said.or(Some(end.keys)),
            Read::Cut { line, .. } if partial => checked.cut = Some(line),
            Read::Cut { line, what } => {
                wrong.add(Some(line), &format!("{what}; it has no end, so the file was cut"));
            }
            Read::Bad { line, what } => wrong.add(line, &what),
            Read::Entry(entry) => {
                checked.keys += 1;
                if said.is_some() {
                    wrong.add(entry.line, "it stands behind the end of an export");
                }
                if let Some(what) = refused(sizes, &entry) {
                    wrong.add(entry.line, &what);
                }
                match known.add(&entry.key)? {
                    Order::New => {}
                    Order::Twice => wrong.add(entry.line, &twice(&entry.key)),
                    Order::Unknown => return Ok(None),
                }
            }
        }
    }
    if input.has_end() && !partial {
        match said {
            Some(keys) if keys == checked.keys || wrong.count > 0 => {}
            Some(keys) => {
                let what = format!("its end says {keys} keys, and it has {}", checked.keys);
                return Err(cut(input, &what));
            }
            None if wrong.count > 0 => {}
            None => return Err(cut(input, "it has no end such as {\"end\":{\"keys\":1}}")),
        }
    }
    match wrong.count {
        0 => Ok(Some(checked)),
        count => Err(UsageError(wrong.text(&input.name, count)).into()),
    }
}

fn cut(input: &Input, what: &str) -> anyhow::Error {
    let name = &input.name;
    UsageError(format!(
        "{name}: {what}: it was cut, or is no whole export, and nothing was written; --partial imports what is there"
    ))
    .into()
}

/// What the servers would refuse.
fn refused(sizes: Sizes, entry: &Entry) -> Option<String> {
    let (key, value) = (entry.key.len() as u64, entry.value.len() as u64);
    let named = || escape(entry.key.get(..32).unwrap_or(&entry.key));
    let over = |what: &str, actual: u64, limit: u64| {
        (actual > limit)
            .then(|| format!("key `{}`: {what} has {actual} bytes, the limit is {limit}", named()))
    };
    if key == 0 {
        return Some("the key is empty".to_owned());
    }
    over("it", key, sizes.key)
        .or_else(|| over("its value", value, sizes.value))
        .or_else(|| over("with its value it", key + value, sizes.request))
}

fn twice(key: &[u8]) -> String {
    format!("key `{}` stands in an earlier line too", escape(key))
}

/// The keys that were read.
enum Known {
    /// They are in order, and this is the last one.
    Last(Option<Bytes>),
    /// A hash of each.
    All(HashSet<[u8; 16]>),
    /// None comes twice.
    Apart,
}

/// Whether a key was read before.
enum Order {
    New,
    Twice,
    Unknown,
}

impl Known {
    fn add(&mut self, key: &Bytes) -> Result<Order, UsageError> {
        match self {
            Known::Apart => Ok(Order::New),
            Known::Last(last) => {
                let order = match last.as_ref() {
                    Some(last) if key == last => Order::Twice,
                    Some(last) if key < last => Order::Unknown,
                    _ => Order::New,
                };
                *last = Some(key.clone());
                Ok(order)
            }
            Known::All(hashes) => {
                let hash = Sha256::digest(key);
                let is_new = hash.first_chunk::<16>().is_none_or(|hash| hashes.insert(*hash));
                if hashes.len() > UNORDERED_KEYS_MAX {
                    let why = format!(
                        "more than {UNORDERED_KEYS_MAX} keys that are not in order: sort the lines by key, or import parts of them"
                    );
                    return Err(UsageError(why));
                }
                Ok(if is_new { Order::New } else { Order::Twice })
            }
        }
    }
}

/// What is wrong with an input.
#[derive(Default)]
struct Wrong {
    listed: Vec<String>,
    count: u64,
}

impl Wrong {
    fn add(&mut self, line: Option<u64>, what: &str) {
        self.count += 1;
        if self.listed.len() < LISTED {
            let line = line.map_or(String::new(), |line| format!("line {line}: "));
            self.listed.push(format!("{line}{}", shown::excerpt(what, WRONG_BYTES)));
        }
    }

    fn text(&self, name: &str, count: u64) -> String {
        let more = match count.saturating_sub(self.listed.len() as u64) {
            0 => String::new(),
            more => format!("\n  and {more} more"),
        };
        let listed = self.listed.join("\n  ");
        format!(
            "{name}: {count} of its entries cannot be imported, and nothing was written\n  {listed}{more}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> Sizes {
        Sizes { key: 8, value: 10, request: 16 }
    }

    fn lines(keys: &[&str]) -> String {
        keys.iter().map(|key| format!("{{\"key\":\"{key}\",\"value\":\"v\"}}\n")).collect()
    }

    fn checked(text: &str, partial: bool) -> Result<Checked, String> {
        check(&mut Input::of_text(text), sizes(), partial).map_err(|error| {
            assert!(error.is::<UsageError>(), "{error:#}");
            error.to_string()
        })
    }

    fn refused(text: &str, says: &[&str]) {
        let error = checked(text, false).expect_err("it is refused");
        for says in says {
            assert!(error.contains(says), "`{says}` is not in: {error}");
        }
    }

    #[test]
    fn a_whole_export_passes_in_any_order() {
        for keys in [&["a", "b", "c"], &["c", "a", "b"]] {
            let text = lines(keys) + "{\"end\":{\"keys\":3,\"index\":7}}\n";
            assert_eq!(checked(&text, false), Ok(Checked { keys: 3, cut: None }));
        }
        let empty = "{\"end\":{\"keys\":0}}\n";
        assert_eq!(checked(empty, false), Ok(Checked::default()));
    }

    #[test]
    fn a_cut_export_is_refused_and_its_part_is_taken_if_one_wants_that() {
        let whole = lines(&["a", "b", "c"]) + "{\"end\":{\"keys\":3,\"index\":7}}\n";
        for length in 0..whole.len() - 1 {
            let error = checked(&whole[..length], false).expect_err("it was cut");
            assert!(error.contains("was cut"), "{length}: {error}");
            let part = checked(&whole[..length], true).expect("it may be a part");
            assert_eq!(part.keys, whole[..length].matches("\"v\"}").count() as u64, "{length}");
        }
        let without_one = whole.replacen(&lines(&["b"]), "", 1);
        refused(&without_one, &["its end says 3 keys, and it has 2", "--partial"]);
        assert_eq!(checked(&without_one, true), Ok(Checked { keys: 2, cut: None }));
    }

    #[test]
    fn two_exports_one_behind_the_other_are_no_export() {
        let one = lines(&["a"]) + "{\"end\":{\"keys\":1}}\n";
        let two = one.clone() + &lines(&["b"]) + "{\"end\":{\"keys\":1}}\n";
        refused(&two, &["line 3: it stands behind the end"]);
        assert_eq!(checked(&two, true), Ok(Checked { keys: 2, cut: None }));
    }

    #[test]
    fn all_that_is_wrong_is_counted_and_the_first_is_listed_with_its_line() {
        let text = "{\"key\":\"a\"}\nnothing\n{\"key\":\"\",\"value\":\"\"}\n".to_owned()
            + "{\"key\":\"123456789\",\"value\":\"\"}\n{\"key\":\"b\",\"value\":\"12345678901\"}\n"
            + "{\"key\":\"1234567\",\"value\":\"1234567890\"}\n{\"end\":{\"keys\":6}}\n";
        refused(
            &text,
            &[
                "6 of its entries cannot be imported, and nothing was written",
                "line 1: neither `value`",
                "line 2: expected an object",
                "line 3: the key is empty",
                "line 4: key `123456789`: it has 9 bytes, the limit is 8",
                "line 5: key `b`: its value has 11 bytes, the limit is 10",
                "line 6: key `1234567`: with its value it has 17 bytes, the limit is 16",
            ],
        );
        refused(&"x\n".repeat(25), &["25 of its entries", "line 10: ", "and 15 more"]);
        let long = format!("{{\"{}\":1}}\n", "k".repeat(100_000));
        let error = checked(&long, false).expect_err("an unknown member");
        assert!(error.len() < 1000, "{} bytes", error.len());
    }

    #[test]
    fn a_key_that_comes_twice_is_found_in_order_and_out_of_order() {
        for keys in [&["a", "a", "b"], &["b", "a", "b"], &["a", "b", "a"]] {
            let text = lines(keys) + "{\"end\":{\"keys\":3}}\n";
            refused(&text, &["1 of its entries", "stands in an earlier line too"]);
        }
    }
}
