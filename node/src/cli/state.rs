//! A state that a member sends, at one log index: its keys with a prefix, and their values.
//!
//! What holds here: each value has the hash that the cluster stores of it. Keys that do not begin with the
//! prefix are left out, their values are not sent, and nothing behind the prefix is waited for.

use super::bytes_text::escape;
use anyhow::Context;
use bytes::Bytes;
use cairn_backup::Item;
use cairn_client::{HeldValues, State, StateHead, StateItem};
use cairn_node::config::KEY_BYTES_MAX;

/// A state that is being read.
pub(crate) struct Reading {
    endpoint: String,
    state: State,
    prefix: Vec<u8>,
    received: u64,
    ended: bool,
}

impl Reading {
    /// Of the member at `endpoint`.
    pub(crate) fn new(endpoint: &str, state: State, prefix: &[u8]) -> Reading {
        let (endpoint, prefix) = (endpoint.to_owned(), prefix.to_vec());
        Reading { endpoint, state, prefix, received: 0, ended: false }
    }

    /// Which state it is.
    pub(crate) fn head(&self) -> &StateHead {
        self.state.head()
    }

    /// How many keys came, also of those without the prefix.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The next keys with the prefix, maybe none; `None` behind the last one.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Vec<StateItem>>> {
        if self.ended {
            return Ok(None);
        }
        let Some(mut items) = self.state.next().await? else { return Ok(None) };
        self.received += items.len() as u64;
        // Keys come in order.
        self.ended = items.last().is_some_and(|last| is_behind(&last.key, &self.prefix));
        items.retain(|item| item.key.starts_with(&self.prefix));
        Ok(Some(items))
    }

    /// The value of a key of this state.
    ///
    /// # Errors
    /// If it was not sent, or has not the hash of the cluster.
    pub(crate) fn value(&self, item: StateItem) -> anyhow::Result<Bytes> {
        let StateItem { key, term, index, length, hash, value, .. } = item;
        let item = Item { key, term, index, length, hash, value };
        let intact = item.is_intact();
        item.value.filter(|_| intact).with_context(|| {
            let (endpoint, key) = (&self.endpoint, escape(&item.key));
            format!("{endpoint} sent a value of key `{key}` that does not have its hash")
        })
    }
}

/// Whether no key from this one on has the prefix.
fn is_behind(key: &[u8], prefix: &[u8]) -> bool {
    key > prefix && !key.starts_with(prefix)
}

/// What a member leaves out for a reader of this prefix: the values before it.
pub(crate) fn held_before(prefix: &[u8]) -> Option<HeldValues> {
    let through = (u64::MAX, u64::MAX);
    below(prefix).map(|key| HeldValues { through, through_key: Some(key) })
}

/// The greatest key below all keys with this prefix; `None` if there is none.
pub(crate) fn below(prefix: &[u8]) -> Option<Bytes> {
    let (last, head) = prefix.split_last()?;
    let mut key = head.to_vec();
    if let Some(lower) = last.checked_sub(1) {
        key.push(lower);
        let longest = usize::try_from(KEY_BYTES_MAX).unwrap_or(usize::MAX);
        key.resize(longest.max(key.len()), 0xff);
    }
    (!key.is_empty()).then(|| key.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_behind_the_prefix() {
        for (key, expected) in
            [("a", false), ("b", false), ("b/z", false), ("c", true), ("b0", true)]
        {
            assert_eq!(is_behind(key.as_bytes(), b"b/"), expected, "{key}");
        }
        assert!(!is_behind(b"anything", b""));
    }

    #[test]
    fn the_greatest_key_below_a_prefix_is_above_all_others_below_it() {
        let text = |prefix: &[u8]| below(prefix).map(|key| key.to_vec());
        assert_eq!((text(b""), text(b"\0"), text(b"a\0")), (None, None, Some(b"a".to_vec())));
        let found = text(b"ab").expect("there is one");
        assert_eq!(found.len() as u64, KEY_BYTES_MAX);
        assert!(found[..] < b"ab"[..] && found.starts_with(b"aa\xff"));
        assert!(found[..] > b"aa\xff\xff"[..] && found[..] > b"a"[..]);
    }
}
