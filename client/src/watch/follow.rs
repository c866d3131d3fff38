//! A range as a list, and then as it changes.
//!
//! What holds here: the watch begins before the list, so nothing falls between them. A change that the list has already is left
//! out, as far as [`MOST_NEWER`] goes. Behind a linearizable read that came after the list, what was told is the state of
//! the range at the watch's position. Where history is gone, all of it begins anew, and says so first.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, stream};

use super::Watch;
use crate::error::ErrorKind;
use crate::list::{ListOptions, Pages};
use crate::range::Range;
use crate::types::{Change, KeyValue, Position, Version};
use crate::{Client, Error};

/// Of so many listed keys that were written while the list was made, the version is kept until the watch has come as far.
const MOST_NEWER: usize = 1 << 16;

/// What [`Client::list_and_watch`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A key that is there, with its value.
    Listed(KeyValue),
    /// What was told so far is the state of the range at this entry. Before the first of these it is none that the cluster had:
    /// the list takes a while, and a key that it does not have may still be told as put and deleted.
    Live(Position),
    /// A change, in order.
    Changed(Change),
    /// Nothing else of the range was changed up to here.
    Progress(Position),
    /// Changes are gone, as after a long pause of the consumer. Forget what was told: a new list follows.
    Reset,
}

impl Client {
    /// All keys of a range, and then every change, for ever. Where the cluster does not keep the changes any more that come
    /// next, it tells [`Event::Reset`] and lists anew. The stream ends after its first error.
    ///
    /// The list and its changes are linearizable, whatever [`Client::with_max_staleness`] says.
    ///
    /// ```no_run
    /// use std::collections::BTreeMap;
    ///
    /// use cairn_client::{Client, Error, Event, Range};
    /// use futures::TryStreamExt;
    ///
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let mut cache = BTreeMap::new();
    /// let mut events = client.list_and_watch(Range::prefix("config/"));
    /// while let Some(event) = events.try_next().await? {
    ///     match event {
    ///         Event::Listed(item) => drop(cache.insert(item.key, item.value)),
    ///         Event::Changed(change) => match change.value {
    ///             Some(value) => drop(cache.insert(change.key, value)),
    ///             None => drop(cache.remove(&change.key)),
    ///         },
    ///         Event::Live(position) => println!("the cache is the state at {position}"),
    ///         Event::Reset => cache.clear(),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn list_and_watch<R: Into<Range>>(
        &self,
        range: R,
    ) -> impl Stream<Item = Result<Event, Error>> + Send + Unpin + use<R> {
        let client = self.with_max_staleness(Duration::ZERO);
        let follower = Follower { client, range: range.into(), following: None };
        Box::pin(stream::unfold(Some(follower), |follower| async move {
            let mut follower = follower?;
            match follower.next().await {
                Ok(event) => Some((Ok(event), Some(follower))),
                Err(error) => Some((Err(error), None)),
            }
        }))
    }
}

struct Follower {
    client: Client,
    range: Range,
    /// `None`: it begins anew.
    following: Option<Following>,
}

/// A watch, and what of the list before it is not told yet.
struct Following {
    watch: Watch,
    /// Where the watch began.
    began: Position,
    /// Items of the list that come next.
    listed: VecDeque<KeyValue>,
    /// `None` behind the last page.
    pages: Option<Pages>,
    /// A key that the caller may read, whether it is there or not.
    readable: Bytes,
    /// Versions of listed keys that are behind the begin of the watch.
    newer: BTreeMap<Bytes, Version>,
    /// The list has no change behind this entry; `None`: it is not known yet, or the watch is behind it.
    until: Option<Position>,
    /// The position that was told last, or has been told by its change.
    told: Position,
}

impl Follower {
    async fn next(&mut self) -> Result<Event, Error> {
        loop {
            let Some(following) = &mut self.following else {
                self.following = Some(self.begin().await?);
                continue;
            };
            match following.step(&self.client).await {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::HistoryGone => {
                    self.following = None;
                    return Ok(Event::Reset);
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn begin(&self) -> Result<Following, Error> {
        let watch = self.client.watch(self.range.clone()).begin().await?;
        let (start, mut listed) = (self.range.start(), VecDeque::new());
        let mut readable = start.clone();
        let options = if self.range == Range::prefix(start.clone()) {
            ListOptions::prefix(start.clone())
        } else {
            // A list begins behind a key.
            if !start.is_empty() {
                match self.client.get(start.clone()).await {
                    Ok(item) => listed.extend(item),
                    // Just behind the longest key is no key. What is behind that is behind as much of it as a key can have.
                    Err(Error::InvalidKey { limit, actual }) if (1..actual).contains(&limit) => {
                        readable.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
                    }
                    Err(error) => return Err(error),
                }
            }
            let end = self.range.end().cloned().unwrap_or_default();
            ListOptions::prefix(prefix_of(&self.range)).start_after(readable.clone()).end(end)
        };
        if readable.is_empty() {
            readable = Bytes::from_static(&[0]);
        }
        let began = watch.position();
        Ok(Following {
            watch,
            began,
            listed,
            pages: Some(self.client.pages(options)),
            readable,
            newer: BTreeMap::new(),
            until: None,
            told: began,
        })
    }
}

impl Following {
    /// The next event, if this step has one.
    async fn step(&mut self, client: &Client) -> Result<Option<Event>, Error> {
        if let Some(item) = self.listed.pop_front() {
            if item.version.0 > self.began.index && self.newer.len() < MOST_NEWER {
                self.newer.insert(item.key.clone(), item.version);
            }
            return Ok(Some(Event::Listed(item)));
        }
        if let Some(pages) = &mut self.pages {
            match pages.next().await? {
                Some(page) => self.listed.extend(page.items),
                None => {
                    // No page was read behind this read.
                    let many = client.versions([self.readable.clone()]).await?;
                    self.until = Some(many.position);
                    self.pages = None;
                }
            }
            return Ok(None);
        }
        let position = self.watch.position();
        if let Some(until) = self.until
            && position.index >= until.index
        {
            (self.until, self.told) = (None, position);
            self.newer.clear();
            return Ok(Some(Event::Live(position)));
        }
        if let Some(change) = self.watch.inbox.next() {
            let change = change?;
            self.told = self.watch.position();
            let listed = self.newer.get(&change.key);
            let is_listed = listed.is_some_and(|listed| change.version <= *listed);
            return Ok((!is_listed).then_some(Event::Changed(change)));
        }
        if self.until.is_none() && position != self.told {
            self.told = position;
            return Ok(Some(Event::Progress(position)));
        }
        self.watch.inbox.arrived().await;
        Ok(None)
    }
}

/// The longest prefix that all keys of the range can be taken to begin with. A role of a prefix that allows the watch allows a
/// list of this one. The story: the list had what start and end have in common, which is `a/` of `a/1x` and `a/2`, and a role of
/// `a/1` has all keys between these.
fn prefix_of(range: &Range) -> Bytes {
    let has_all = |prefix: &Bytes| match (Range::prefix(prefix.clone()).end(), range.end()) {
        (None, _) => true,
        (Some(behind), Some(end)) => behind >= end,
        (Some(_), None) => false,
    };
    let start = range.start();
    let mut prefixes = (0..=start.len()).rev().map(|count| start.slice(..count));
    prefixes.find(has_all).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_a_range_is_the_longest_one_that_has_all_of_its_keys() {
        for (range, expected) in [
            (Range::from("a/1x".."a/2"), "a/1"),
            (Range::from("a/1".."a/3"), "a/"),
            (Range::from("app/a".."app/b"), "app/a"),
            (Range::from("app/".."app/b"), "app/"),
            (Range::from("a".."b"), "a"),
            (Range::from("a".."c"), ""),
            (Range::from("a"..), ""),
            (Range::from(.."b"), ""),
            (Range::all(), ""),
        ] {
            assert_eq!(prefix_of(&range), expected, "{range:?}");
        }
        let last = Bytes::from_static(&[0xff, 0xff, 7]);
        assert_eq!(prefix_of(&Range::from(last.clone()..)), last.slice(..2));
    }
}
