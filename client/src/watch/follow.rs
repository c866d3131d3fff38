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
            match following.step(&self.client, &self.range).await {
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
        let options = if self.range == Range::prefix(start.clone()) {
            ListOptions::prefix(start.clone())
        } else {
            // A list begins behind a key.
            if !start.is_empty() {
                listed.extend(self.client.get(start.clone()).await?);
            }
            let end = self.range.end().cloned().unwrap_or_default();
            ListOptions::prefix(common(start, &end)).start_after(start.clone()).end(end)
        };
        let began = watch.position();
        Ok(Following {
            watch,
            began,
            listed,
            pages: Some(self.client.pages(options)),
            newer: BTreeMap::new(),
            until: None,
            told: began,
        })
    }
}

impl Following {
    /// The next event, if this step has one.
    async fn step(&mut self, client: &Client, range: &Range) -> Result<Option<Event>, Error> {
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
                    // A key of the range, which the caller may read. No page was read behind this read.
                    let start = Some(range.start().clone()).filter(|start| !start.is_empty());
                    let key = start.unwrap_or(Bytes::from_static(&[0]));
                    self.until = Some(client.versions([key]).await?.position);
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

/// What all keys between these begin with. No end: nothing.
fn common(start: &Bytes, end: &Bytes) -> Bytes {
    let count = start.iter().zip(end).take_while(|(of_start, of_end)| of_start == of_end).count();
    start.slice(..count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_range_begin_with_what_its_ends_have_in_common() {
        for (start, end, expected) in [
            ("app/a", "app/b", "app/"),
            ("app/", "app/b", "app/"),
            ("a", "b", ""),
            ("a", "", ""),
            ("", "b", ""),
        ] {
            assert_eq!(common(&start.into(), &end.into()), expected, "{start}..{end}");
        }
    }
}
