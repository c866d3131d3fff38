//! The state of the cluster that is read, at one log index, as for an export.
//!
//! What holds here: values that the target has are not sent. A member that sends its state to others is asked again
//! for a while.

use super::pass::Entry;
use crate::cli::exit::in_full;
use crate::cli::output::Output;
use crate::cli::senders::{may_ask_another, note_not_sent, senders};
use crate::cli::state::{Reading, held_before};
use anyhow::Context;
use cairn_client::{Client, HeldValues};
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

/// Why no member sends its state.
struct NotSent {
    why: anyhow::Error,
    /// One of them sends its state to others, and may send it here soon.
    is_refused: bool,
}

impl Source {
    /// The state of the first member that begins to send it. Each sends few at a time, and a backup or an
    /// earlier pass may be about to end: if one of them refuses, all are asked again for a while.
    pub(super) async fn read(&self, values: Values, output: &Output) -> anyhow::Result<Reading> {
        let (began, held) = (Instant::now(), held(&self.prefix, values));
        let mut is_told = false;
        loop {
            let NotSent { why, is_refused } = match self.of_one(&held, output).await {
                Ok(reading) => return Ok(reading),
                Err(not_sent) => not_sent,
            };
            if !is_refused || began.elapsed() >= REFUSED_LIMIT {
                return Err(why);
            }
            if !is_told {
                let why = in_full(&why);
                output.note(
                    || json!({ "not_sent": why, "asking": "again" }),
                    || format!("no member sends its state now ({why}); asking again"),
                );
                is_told = true;
            }
            sleep(REFUSED_POLL).await;
        }
    }

    /// The same, with each member asked once.
    async fn of_one(&self, held: &[HeldValues], output: &Output) -> Result<Reading, NotSent> {
        let members = senders(&self.client).await.context("--from");
        let mut members = members.map_err(NotSent::other)?.into_iter();
        let mut errors = Vec::new();
        let Some((mut endpoint, _)) = members.next() else { return Err(NotSent::by(errors)) };
        loop {
            let error = match self.client.operator().state(&endpoint, held).await {
                Ok(state) => {
                    return Ok(Reading::new(&endpoint, state, &self.prefix));
                }
                Err(error) => error,
            };
            if error.is_denied() {
                let way_out =
                    "--from: a copy needs the roles `operator` and `read` of all keys there";
                return Err(NotSent::other(anyhow::Error::new(error).context(way_out)));
            }
            let Some((other, _)) = members.next().filter(|_| may_ask_another(&error)) else {
                errors.push(error);
                return Err(NotSent::by(errors));
            };
            note_not_sent(output, &endpoint, &error.to_string(), &other);
            errors.push(error);
            endpoint = other;
        }
    }
}

impl NotSent {
    /// By what all members said that were asked, of which the last one is told.
    ///
    /// The story: one member sent its state to others, the next one was down, and the copy ended at once, since
    /// only the last answer was looked at.
    fn by(mut errors: Vec<cairn_client::Error>) -> NotSent {
        let is_refused =
            errors.iter().any(|error| matches!(error, cairn_client::Error::Refused { .. }));
        let why = errors.pop().map(anyhow::Error::new);
        let why = why.unwrap_or_else(|| anyhow::anyhow!("no node to ask"));
        NotSent { why: why.context("--from"), is_refused }
    }

    /// What lasts.
    fn other(why: anyhow::Error) -> NotSent {
        NotSent { why, is_refused: false }
    }
}

/// What the cluster leaves out.
fn held(prefix: &[u8], values: Values) -> Vec<HeldValues> {
    let of_all = |through| HeldValues { through, through_key: None };
    let others = match values {
        Values::All => None,
        Values::Behind(entry) => Some(of_all(entry)),
        Values::None => Some(of_all(ALL)),
    };
    held_before(prefix).into_iter().chain(others).collect()
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
    fn members_are_asked_again_if_any_of_them_refuses() {
        use cairn_client::Error;
        let refused = || Error::Refused { message: "to two others".into() };
        let down = || Error::NoLeader { tried: Vec::new() };
        for (errors, is_refused) in [
            (vec![refused()], true),
            (vec![refused(), down()], true),
            (vec![down(), refused()], true),
            (vec![down(), down()], false),
            (Vec::new(), false),
        ] {
            let last = errors.last().map_or("no node to ask".to_owned(), Error::to_string);
            let not_sent = NotSent::by(errors);
            assert_eq!(not_sent.is_refused, is_refused, "{:#}", not_sent.why);
            assert_eq!(format!("{:#}", not_sent.why), format!("--from: {last}"));
        }
        assert!(!NotSent::other(anyhow::anyhow!("something else")).is_refused);
    }
}
