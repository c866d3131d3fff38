//! Watches: what is changed in a range, each change once and in order.
//!
//! What holds here: a watch goes on over nodes that end, break off or fall silent ([`keeper`]). It ends only with an error that
//! no other node could avoid, and keeps its position then. A user who does not read costs a bounded inbox, and holds up no
//! other watch.

mod follow;
mod keeper;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::attempts::Attempts;
use crate::pool::Target;
use crate::range::Range;
use crate::spans;
use crate::types::{Change, Position};
use crate::watch_stream::inbox::Inbox;
use crate::{Client, Error};
use keeper::Keeper;

pub use follow::Event;

/// Which changes to watch.
#[derive(Clone, Debug)]
#[must_use = "a watch begins with `begin`"]
pub struct WatchOptions {
    client: Client,
    range: Range,
    after: Option<Position>,
    keys_only: bool,
}

/// What is changed in a range, each change once and in order. Dropped, it ends.
///
/// It goes on by itself over a leader's death, the restart of a node and broken connections, and waits as long as no node can
/// tell changes. While its user does not read, up to 4,096 changes or 4 MiB wait here; then it is ended at the node, and begins
/// again at its position once they were read.
pub struct Watch {
    inbox: Arc<Inbox>,
    keeper: JoinHandle<()>,
}

impl Client {
    /// Watches the keys of a range: every change from now on, or behind a position ([`WatchOptions::from`]).
    ///
    /// Any member that is up to date tells the changes; all watches of this client at one node share a stream. What was
    /// changed is kept for a bounded time and in bounded space: one who comes too late is told so ([`Error::Compacted`]).
    ///
    /// ```no_run
    /// use cairn_client::{Client, Error, Range};
    ///
    /// # async fn example(client: Client) -> Result<(), Error> {
    /// let mut watch = client.watch(Range::prefix("orders/")).begin().await?;
    /// loop {
    ///     let change = watch.next().await?;
    ///     println!("{:?} is {:?} at version {}", change.key, change.value, change.version);
    ///     // Text such as `3.17`, for another process to go on from.
    ///     let position = watch.position().to_string();
    /// #   let _ = position;
    /// }
    /// # }
    /// ```
    pub fn watch(&self, range: impl Into<Range>) -> WatchOptions {
        WatchOptions { client: self.clone(), range: range.into(), after: None, keys_only: false }
    }
}

impl WatchOptions {
    /// Tells what was changed behind this entry: the position of an earlier watch, or of [`Many`](crate::Many). The
    /// term and the version of a write are one, too. With a term of 0 the index alone counts, which is no position in a cluster
    /// that had an unsafe recovery. Default: behind everything that was acknowledged before the watch begins.
    pub fn from(mut self, position: Position) -> Self {
        self.after = Some(position);
        self
    }

    /// Leaves the values out.
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    /// Begins the watch. Returns once a node has begun it: [`Watch::position`] says behind which entry. May be cancelled.
    ///
    /// # Errors
    /// [`Error::Compacted`] if no node that was reached keeps the changes behind the position any more, and
    /// [`Error::HistoryDiscarded`] if they were discarded; [`Error::PermissionDenied`] without the right to read the whole
    /// range; [`Error::InvalidRequest`] if no key can be in it, [`Error::RequestTooLarge`] if its ends are longer than a
    /// request; [`Error::Unsupported`] if every member runs an earlier release; as [`Client::get`] if none could begin it before
    /// the client's deadline. Later the deadline does not count.
    pub async fn begin(self) -> Result<Watch, Error> {
        let WatchOptions { client, range, after, keys_only } = self;
        let range = range.to_proto()?;
        let inbox = Arc::new(Inbox::new(range.clone(), keys_only, after));
        let keeper = Keeper {
            pool: client.pool.clone(),
            inbox: inbox.clone(),
            range,
            keys_only,
            has_begun: false,
        };
        let mut attempts = Attempts::new(Target::Any, client.deadline).without_effect();
        let begun = {
            let work = pin!(keeper.begin(&mut attempts));
            spans::within(spans::watch(keys_only), work, |_| Some(inbox.position().index)).await?
        };
        let keeper = tokio::spawn(keeper.keep(begun));
        Ok(Watch { inbox, keeper })
    }
}

impl Watch {
    /// The next change. Waits until there is one. May be cancelled; nothing is lost.
    ///
    /// # Errors
    /// [`Error::Compacted`] or [`Error::HistoryDiscarded`]: what follows [`Watch::position`] is gone. Watch anew, then list
    /// the keys. [`Error::PermissionDenied`]: the right to read the range was taken away. [`Error::ValueUnreadable`]: no
    /// node that was reached has the next value intact. [`Error::ClusterMismatch`]: the nodes are of another cluster now, as after a
    /// restore. [`Error::Unavailable`]: a node told what no node may tell, and `last_error` begins with `the node told`. After an
    /// error every call returns it.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            if let Some(next) = self.inbox.next() {
                return next;
            }
            self.inbox.arrived().await;
        }
    }

    /// Every change up to this entry was returned by [`Watch::next`]. It moves on without changes, too. As text, in this or
    /// another process, a watch of the same range goes on from it ([`WatchOptions::from`]).
    ///
    /// It is behind an entry once the last of its changes was returned ([`Change::last_of_version`]).
    pub fn position(&self) -> Position {
        self.inbox.position()
    }

    /// Waits until the position moves on without a change, or [`Watch::next`] would return at once. Returns the position. For a
    /// consumer who keeps it, or who waits until everything up to an entry was seen. May be cancelled.
    pub async fn progressed(&mut self) -> Position {
        let before = self.position();
        loop {
            let position = self.position();
            if position != before || self.inbox.is_ready() {
                return position;
            }
            self.inbox.arrived().await;
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("position", &self.position()).finish_non_exhaustive()
    }
}

impl Drop for Watch {
    /// The keeper has what ends it at the node.
    fn drop(&mut self) {
        self.keeper.abort();
    }
}
