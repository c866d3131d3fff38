//! The state of the cluster that is read, at one log index, as for an export.
//!
//! What holds here: each value has the hash that the cluster stores of it. Keys that do not begin with the
//! prefix are left out.

use super::pass::Entry;
use crate::cli::bytes_text::escape;
use crate::cli::export::below;
use crate::cli::output::Output;
use crate::cli::senders::{may_ask_another, senders};
use anyhow::Context;
use bytes::Bytes;
use cairn_backup::Item;
use cairn_client::{Client, HeldValues, State, StateHead, StateItem};
use serde_json::json;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long members are asked again that send their state to others: longer than one keeps a stream from which
/// nothing is taken.
const REFUSED_LIMIT: Duration = Duration::from_secs(75);
const REFUSED_POLL: Duration = Duration::from_secs(1);
/// All values.
const ALL: Entry = (u64::MAX, u64::MAX);

/// Which values are sent. Keys are sent always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    All,
    /// Of keys that an entry behind this one wrote.
    Behind(Entry),
    None,
}

/// What is read.
pub(super) struct Source {
    pub(super) client: Client,
    pub(super) prefix: Vec<u8>,
}

/// A state that is being read.
pub(super) struct Reading {
    endpoint: String,
    state: State,
    prefix: Vec<u8>,
    ended: bool,
}

impl Source {
    /// The state of the first member that begins to send it. Each sends few at a time, and a backup or an
    /// earlier pass may be about to end: members that refuse are asked again for a while.
    pub(super) async fn read(&self, values: Values, output: &Output) -> anyhow::Result<Reading> {
        let (began, held) = (Instant::now(), held(&self.prefix, values));
        let mut is_told = false;
        loop {
            let error = match self.of_one(&held, output).await {
                Ok(reading) => return Ok(reading),
                Err(error) => error,
            };
            if !is_refused(&error) || began.elapsed() >= REFUSED_LIMIT {
                return Err(error);
            }
            if !is_told {
                output.note(
                    || json!({ "not_sent": format!("{error:#}"), "asking": "again" }),
                    || format!("no member sends its state now ({error:#}); asking again"),
                );
                is_told = true;
            }
            sleep(REFUSED_POLL).await;
        }
    }

    /// The same, with each member asked once.
    async fn of_one(&self, held: &[HeldValues], output: &Output) -> anyhow::Result<Reading> {
        let mut members = senders(&self.client).await.context("--from")?.into_iter();
        let (mut endpoint, _) = members.next().context("no node to ask")?;
        loop {
            let error = match self.client.operator().state(&endpoint, held).await {
                Ok(state) => {
                    let prefix = self.prefix.clone();
                    return Ok(Reading { endpoint, state, prefix, ended: false });
                }
                Err(error) => error,
            };
            if error.is_denied() {
                let way_out =
                    "--from: a copy needs the roles `operator` and `read` of all keys there";
                return Err(anyhow::Error::new(error).context(way_out));
            }
            let Some((other, _)) = members.next().filter(|_| may_ask_another(&error)) else {
                return Err(anyhow::Error::new(error).context("--from"));
            };
            output.note(
                || json!({ "not_sent_by": endpoint, "why": error.to_string(), "asking": other }),
                || format!("{endpoint} does not send its state ({error}); asking {other}"),
            );
            endpoint = other;
        }
    }
}

/// Whether the last member that was asked sends its state to others.
fn is_refused(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(cairn_client::Error::Refused { .. }))
}

/// What the cluster leaves out.
fn held(prefix: &[u8], values: Values) -> Vec<HeldValues> {
    let of_all = |through| HeldValues { through, through_key: None };
    let before = below(prefix).map(|key| HeldValues { through: ALL, through_key: Some(key) });
    let others = match values {
        Values::All => None,
        Values::Behind(entry) => Some(of_all(entry)),
        Values::None => Some(of_all(ALL)),
    };
    before.into_iter().chain(others).collect()
}

impl Reading {
    /// Which state it is.
    pub(super) fn head(&self) -> &StateHead {
        self.state.head()
    }

    /// The next keys with the prefix; `None` behind the last one.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<StateItem>>> {
        while !self.ended {
            let Some(mut items) = self.state.next().await? else {
                self.ended = true;
                break;
            };
            // Keys come in order. Nothing behind the prefix is waited for.
            self.ended = items.last().is_some_and(|last| is_behind(&last.key, &self.prefix));
            items.retain(|item| item.key.starts_with(&self.prefix));
            if !items.is_empty() {
                return Ok(Some(items));
            }
        }
        Ok(None)
    }

    /// The value of a key of this state.
    ///
    /// # Errors
    /// If it was not sent, or has not the hash of the cluster.
    pub(super) fn value(&self, item: StateItem) -> anyhow::Result<Bytes> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_before_the_prefix_and_those_that_are_there_are_left_out() {
        assert!(held(b"", Values::All).is_empty());
        assert_eq!(held(b"", Values::None), [HeldValues { through: ALL, through_key: None }]);
        let both = held(b"b", Values::Behind((3, 7)));
        let [before, others] = both.as_slice() else { panic!("{both:?}") };
        assert_eq!(before.through, ALL);
        let through = before.through_key.as_ref().expect("a key");
        assert!(through.starts_with(b"a") && through[..] < b"b"[..]);
        assert_eq!(*others, HeldValues { through: (3, 7), through_key: None });
    }

    #[test]
    fn members_that_refuse_are_asked_again_and_others_are_not() {
        let of =
            |error: cairn_client::Error| is_refused(&anyhow::Error::new(error).context("--from"));
        assert!(of(cairn_client::Error::Refused { message: "to two others".into() }));
        assert!(!of(cairn_client::Error::NoLeader { tried: Vec::new() }));
        assert!(!is_refused(&anyhow::anyhow!("something else")));
    }

    #[test]
    fn nothing_is_read_behind_the_prefix() {
        for (key, expected) in
            [("a", false), ("b", false), ("b/z", false), ("c", true), ("b0", true)]
        {
            assert_eq!(is_behind(key.as_bytes(), b"b/"), expected, "{key}");
        }
        assert!(!is_behind(b"anything", b""));
    }
}
