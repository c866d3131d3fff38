//! What a copy would meet, before anything is written: keys that the target does not take, and keys that it
//! has with another value.
//!
//! What holds here: no value of the source is sent for this, since the cluster stores a hash of each. The target is asked
//! for keys and values once all keys were taken: the source ends a stream from which nothing is taken for a while. Of the
//! target's keys between two of the source at most one page is read. In memory are one page of the target's keys,
//! [`READS`] of its values, and, for the comparison, the keys of the source up to a bound. If they are more, the target is
//! asked in between, and only those that both have are remembered.

use super::pass::{KNOWN_BYTES_MAX, remembered_bytes};
use super::source::{Source, Values};
use crate::cli::bulk_write::READS;
use crate::cli::bytes_text::escape;
use crate::cli::exit::{StateError, UsageError};
use crate::cli::output::Output;
use crate::cli::state::{Reading, below};
use bytes::Bytes;
use cairn_backup::Item;
use cairn_client::{Client, Error, KeyValue, Limits, ListOptions, StateItem};
use futures::future::try_join_all;

/// So many keys are named; all are counted.
const NAMED: usize = 10;
/// The most of a key that is shown, in bytes.
const KEY_SHOWN: usize = 64;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) keys: u64,
    /// Bytes of all these keys.
    pub(super) key_bytes: u64,
    /// Bytes of their values.
    pub(super) value_bytes: u64,
    /// Keys that the target has with the same value, and with another one. 0 if nothing was compared.
    pub(super) same: u64,
    pub(super) other: u64,
    /// Keys that the target does not take, each with the reason.
    refused: u64,
    named: Vec<String>,
    other_named: Vec<String>,
}

/// Goes through the keys of the source. With `compare` it looks at the target's values too.
pub(super) async fn plan(
    source: &Source,
    target: &Client,
    compare: bool,
    output: &Output,
) -> anyhow::Result<Plan> {
    let limits = target.limits().await?;
    let mut reading: Reading = source.read(Values::None, output).await?;
    let mut there = Cursor { target, prefix: &source.prefix, ahead: Vec::new(), ended: false };
    let (mut plan, mut both) = (Plan::default(), Both::new(KNOWN_BYTES_MAX));
    while let Some(items) = reading.next().await? {
        for item in items {
            plan.add(&item, limits);
            if compare && !both.add(&item.key, item.length, item.hash) {
                both.look(async |key| there.has(key).await).await?;
                both.fits()?;
            }
        }
    }
    drop(reading);
    both.look(async |key| there.has(key).await).await?;
    for some in both.keys.chunks(READS) {
        let mut asked = Vec::new();
        for of_source in some {
            asked.push(is_same(target, of_source));
        }
        for (of_source, same) in some.iter().zip(try_join_all(asked).await?) {
            plan.compared(&of_source.key, same);
        }
    }
    Ok(plan)
}

/// A key of the source, with what that says of its value.
struct OfSource {
    key: Bytes,
    length: u32,
    hash: u128,
}

impl OfSource {
    /// What it takes in memory, about.
    fn bytes(&self) -> u64 {
        remembered_bytes(1, self.key.len() as u64)
    }
}

/// The keys that both have, and behind them those of the source that were not looked for at the target yet.
struct Both {
    keys: Vec<OfSource>,
    /// The target has so many of them, the first ones.
    found: usize,
    bytes: u64,
    bytes_max: u64,
}

impl Both {
    fn new(bytes_max: u64) -> Both {
        Both { keys: Vec::new(), found: 0, bytes: 0, bytes_max }
    }

    /// Remembers a key of the source. They come in order. Returns whether there is space for more.
    fn add(&mut self, key: &[u8], length: u32, hash: u128) -> bool {
        // A key of a message keeps all of the message.
        let of_source = OfSource { key: Bytes::copy_from_slice(key), length, hash };
        self.bytes = self.bytes.saturating_add(of_source.bytes());
        self.keys.push(of_source);
        self.bytes <= self.bytes_max
    }

    /// Looks for the keys that were not looked for yet, in order, and forgets those that the target does not have.
    ///
    /// The story: each key was looked for as it came. Of a distant target with many keys that took more than a minute, and the source
    /// ended its stream each time.
    async fn look(
        &mut self,
        mut has: impl AsyncFnMut(&[u8]) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        for at in self.found..self.keys.len() {
            let Some(of_source) = self.keys.get(at) else { break };
            if has(&of_source.key[..]).await? {
                // What this moves behind is to be forgotten.
                self.keys.swap(self.found, at);
                self.found += 1;
            } else {
                self.bytes = self.bytes.saturating_sub(of_source.bytes());
            }
        }
        self.keys.truncate(self.found);
        Ok(())
    }

    /// Whether what the target has is not too much to remember.
    ///
    /// # Errors
    /// A [`UsageError`] if it is.
    fn fits(&self) -> Result<(), UsageError> {
        match self.bytes > self.bytes_max {
            false => Ok(()),
            true => Err(UsageError(format!(
                "{} keys exist on both sides, too many to remember until they are compared, and nothing was written: copy parts of \
                 them with --prefix, or say with --keep or --replace what becomes of them",
                self.found
            ))),
        }
    }
}

/// `None`: the target does not have the key any more.
async fn is_same(target: &Client, of_source: &OfSource) -> Result<Option<bool>, Error> {
    let there = target.get(of_source.key.clone()).await?;
    Ok(there.map(|there| has_hash(of_source, there)))
}

/// Whether the target's value is the one of which the source has the hash.
fn has_hash(of_source: &OfSource, there: KeyValue) -> bool {
    let OfSource { length, hash, .. } = *of_source;
    let KeyValue { key, value, version } = there;
    // Whose entry wrote it is not compared.
    Item { key, term: 0, index: version.0, length, hash, value: Some(value) }.is_intact()
}

impl Plan {
    fn add(&mut self, item: &StateItem, limits: Limits) {
        self.keys += 1;
        self.key_bytes = self.key_bytes.saturating_add(item.key.len() as u64);
        self.value_bytes = self.value_bytes.saturating_add(item.length.into());
        if let Some(why) = refused(item, limits) {
            self.refused += 1;
            name(&mut self.named, || format!("`{}`: {why}", shown(&item.key)));
        }
    }

    fn compared(&mut self, key: &[u8], same: Option<bool>) {
        match same {
            None => {}
            Some(true) => self.same += 1,
            Some(false) => {
                self.other += 1;
                name(&mut self.other_named, || format!("`{}`", shown(key)));
            }
        }
    }

    /// Nothing, if the target takes all of the keys.
    ///
    /// # Errors
    /// A [`UsageError`] that names the first ones that it does not take.
    pub(super) fn is_taken(&self) -> Result<(), UsageError> {
        match self.refused {
            0 => Ok(()),
            refused => Err(UsageError(format!(
                "--to does not take {refused} of {} keys, and nothing was written: {}{}; raise its limits.max_key_bytes, \
                 limits.max_value_bytes or limits.max_request_bytes, or copy others with --prefix",
                self.keys,
                self.named.join(", "),
                more(refused, &self.named)
            ))),
        }
    }

    /// Nothing, if no key has another value at the target.
    ///
    /// # Errors
    /// A [`StateError`] that names the first ones that have.
    pub(super) fn replaces_nothing(&self) -> Result<(), StateError> {
        match self.other {
            0 => Ok(()),
            other => Err(StateError(format!(
                "{other} of {} keys exist at --to with another value ({}{}), and nothing was written; --keep leaves them as they \
                 are, --replace replaces their values",
                self.keys,
                self.other_named.join(", "),
                more(other, &self.other_named)
            ))),
        }
    }
}

fn name(named: &mut Vec<String>, text: impl FnOnce() -> String) {
    if named.len() < NAMED {
        named.push(text());
    }
}

fn more(count: u64, named: &[String]) -> &'static str {
    if count > named.len() as u64 { ", …" } else { "" }
}

fn shown(key: &[u8]) -> String {
    escape(key.get(..KEY_SHOWN).unwrap_or(key))
}

/// Why the target does not take a key.
fn refused(item: &StateItem, limits: Limits) -> Option<String> {
    let (key, value) = (item.key.len() as u64, u64::from(item.length));
    let over = |what: &str, actual: u64, limit: u32| {
        let limit = u64::from(limit);
        (actual > limit).then(|| format!("{what} has {actual} bytes, the limit is {limit}"))
    };
    over("the key", key, limits.max_key_bytes)
        .or_else(|| over("its value", value, limits.max_value_bytes))
        .or_else(|| over("the key with its value", key + value, limits.max_request_bytes))
}

/// The keys of the target, in order.
struct Cursor<'a> {
    target: &'a Client,
    prefix: &'a [u8],
    /// The keys of a page that are not before the one that was asked for last, the last one first.
    ahead: Vec<KeyValue>,
    /// There are no keys behind these.
    ended: bool,
}

impl Cursor<'_> {
    /// Whether there is such a key. Keys are asked for in order.
    async fn has(&mut self, key: &[u8]) -> Result<bool, Error> {
        if let Some(has) = next_is(&mut self.ahead, key) {
            return Ok(has);
        }
        if self.ended {
            return Ok(false);
        }
        let mut pages = self.target.pages(from(self.prefix, key));
        while let Some(mut page) = pages.next().await? {
            self.ended = !page.more;
            page.items.reverse();
            self.ahead = page.items;
            if let Some(has) = next_is(&mut self.ahead, key) {
                return Ok(has);
            }
        }
        Ok(false)
    }
}

/// The keys from this one on.
///
/// The story: all keys of a target that had many between two of the source's were read, and the source ended its
/// stream meanwhile.
fn from(prefix: &[u8], key: &[u8]) -> ListOptions {
    let options = ListOptions::prefix(prefix.to_vec()).keys_only();
    match below(key) {
        Some(below) => options.start_after(below),
        None => options,
    }
}

/// Takes the keys before this one away, and says whether it is there; `None`: the page ends before it.
fn next_is(ahead: &mut Vec<KeyValue>, key: &[u8]) -> Option<bool> {
    while ahead.pop_if(|next| &next.key[..] < key).is_some() {}
    ahead.last().map(|next| &next.key[..] == key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::Version;

    fn item(key: &str) -> KeyValue {
        KeyValue { key: key.to_owned().into(), value: "v".into(), version: Version(1) }
    }

    #[test]
    fn keys_that_both_have_are_found_in_one_walk() {
        let mut ahead = ["k", "g", "c", "a"].map(item).to_vec();
        let mut has = |key: &str| next_is(&mut ahead, key.as_bytes());
        assert_eq!(has("a"), Some(true));
        assert_eq!(has("b"), Some(false));
        assert_eq!(has("g"), Some(true));
        assert_eq!(has("k"), Some(true));
        assert_eq!(has("l"), None);
    }

    #[test]
    fn a_page_of_the_target_begins_at_the_key_that_is_asked_for() {
        for key in [&b"k/b"[..], b"k/", b"k/b\0", b"k/\0\0", b"k/\xff"] {
            let options = from(b"k/", key);
            assert!(options.keys_only && options.prefix == b"k/"[..]);
            assert!(options.start_after[..] < *key, "{}", key.escape_ascii());
            // The next key is not before the one that is asked for, or is too long to be one.
            let mut next = options.start_after.to_vec();
            next.push(0);
            let is_too_long = next.len() as u64 > cairn_node::config::KEY_BYTES_MAX;
            assert!(is_too_long || next[..] >= *key, "{}", key.escape_ascii());
        }
        assert!(from(b"", b"\0").start_after.is_empty(), "from the beginning");
    }

    /// The story: the keys were compared while the source waited, which ended its stream after a minute. Later they were only looked for
    /// while it waited, and it ended the stream of a copy to a distant target.
    #[tokio::test]
    async fn keys_are_looked_for_and_compared_later_and_remembered_up_to_a_bound() {
        let mut both = Both::new(remembered_bytes(3, 3));
        let mut asked = Vec::new();
        for (key, hash) in [(b"a", 7), (b"b", 8), (b"c", 9)] {
            assert!(both.add(key, 1, hash), "it fits, and nobody asks the target");
        }
        assert!(!both.add(b"d", 1, 10), "one too many");
        let mut look = async |key: &[u8]| {
            asked.push(key.to_vec());
            Ok::<_, Error>(key != b"a" && key != b"c")
        };
        both.look(&mut look).await.expect("an answer");
        both.fits().expect("two of four");
        assert_eq!(both.keys.iter().map(|one| one.hash).collect::<Vec<_>>(), [8, 10]);
        assert!(both.add(b"e", 1, 11) && !both.add(b"f", 1, 12));
        both.look(&mut look).await.expect("an answer");
        let error = both.fits().expect_err("too many").to_string();
        assert!(error.contains("4 keys exist on both sides"), "{error}");
        assert!(error.contains("--prefix") && error.contains("--replace"), "{error}");
        assert_eq!(asked, [b"a", b"b", b"c", b"d", b"e", b"f"], "each is looked for once");
        assert_eq!(both.keys.iter().map(|one| one.hash).collect::<Vec<_>>(), [8, 10, 11, 12]);
    }

    #[test]
    fn what_is_in_the_way_is_counted_and_named_and_the_way_out_is_said() {
        let mut plan = Plan { keys: 20, ..Plan::default() };
        assert!(plan.is_taken().is_ok() && plan.replaces_nothing().is_ok());
        for number in 0..12 {
            plan.other += 1;
            plan.refused += 1;
            name(&mut plan.named, || format!("`{number}`: too long"));
            name(&mut plan.other_named, || format!("`{number}`"));
        }
        let taken = plan.is_taken().expect_err("too long").to_string();
        assert!(taken.contains("12 of 20 keys") && taken.contains("`9`: too long, …"), "{taken}");
        assert!(taken.contains("limits.max_value_bytes"), "{taken}");
        let replaced = plan.replaces_nothing().expect_err("another value").to_string();
        assert!(replaced.contains("`9`, …") && replaced.contains("--replace"), "{replaced}");
        assert!(!shown(&[b'k'; 2000]).contains(&"k".repeat(KEY_SHOWN + 1)));
    }
}
