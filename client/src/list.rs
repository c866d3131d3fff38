//! Lists of keys, in pages.

use std::pin::pin;

use bytes::Bytes;
use futures::{Stream, TryStreamExt, stream};

use crate::node::Stub;
use crate::spans;
use crate::types::KeyValue;
use crate::{Client, Error, convert, proto};

/// The largest page to ask for, in bytes: well below the largest message that either side accepts.
const MAX_PAGE_BYTES: u64 = 32 << 20;

/// Which keys to list, and how much of each.
///
/// ```
/// use cairn_client::ListOptions;
/// let newest = ListOptions::prefix("logs/").reverse().limit(10).keys_only();
/// # assert!(newest.reverse);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListOptions {
    /// Only keys that begin with this; empty: all.
    pub prefix: Bytes,
    /// Only keys after this one in the direction of the list, without the key itself; empty: from
    /// the beginning.
    pub start_after: Bytes,
    /// Only keys before this one, in whichever direction; empty: to the last one.
    pub end: Bytes,
    /// The most items in a page; 0: the server's default, 1000.
    pub limit: u32,
    /// The most bytes of keys and values in a page, but always at least one item; 0: the server's
    /// default, 1 MiB. Values over 32 MiB count as 32 MiB.
    pub max_bytes: u64,
    /// From the last key to the first.
    pub reverse: bool,
    /// Leave the values out.
    pub keys_only: bool,
    /// Answer from the applied state of the node that is asked, however old. Default: linearizable, or as
    /// [`Client::with_max_staleness`] says.
    pub stale: bool,
}

impl ListOptions {
    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        ListOptions { prefix: prefix.into(), ..ListOptions::default() }
    }

    /// Begins after this key.
    pub fn start_after(mut self, key: impl Into<Bytes>) -> Self {
        self.start_after = key.into();
        self
    }

    /// Only keys before this one, in whichever direction.
    pub fn end(mut self, key: impl Into<Bytes>) -> Self {
        self.end = key.into();
        self
    }

    /// At most this many items in a page.
    pub fn limit(mut self, items: u32) -> Self {
        self.limit = items;
        self
    }

    /// At most this many bytes in a page, but always at least one item.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// From the last key to the first.
    pub fn reverse(mut self) -> Self {
        self.reverse = true;
        self
    }

    /// Leaves the values out.
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    /// From any node, however old its state.
    pub fn stale(mut self) -> Self {
        self.stale = true;
        self
    }

    /// Whether a page that ends with this key has got any further.
    fn advances_to(&self, last: &Bytes) -> bool {
        let from = &self.start_after;
        from.is_empty() || if self.reverse { last < from } else { last > from }
    }

    /// Where the list begins. In reverse that is the end, if that is nearer: a node of an earlier release
    /// does not know an end.
    fn begins_after(&self) -> &Bytes {
        let nearer =
            !self.end.is_empty() && (self.start_after.is_empty() || self.end < self.start_after);
        if self.reverse && nearer { &self.end } else { &self.start_after }
    }

    /// The items without those behind the end, which a node of an earlier release sends; and whether there
    /// were any.
    fn cut(&self, mut items: Vec<proto::KeyValue>) -> (Vec<proto::KeyValue>, bool) {
        let is_behind = |item: &proto::KeyValue| !self.end.is_empty() && item.key >= self.end;
        let behind = items.iter().position(is_behind).filter(|_| !self.reverse);
        items.truncate(behind.unwrap_or(items.len()));
        (items, behind.is_some())
    }

    fn to_proto(&self, max_stale_ms: u64) -> proto::ListRequest {
        proto::ListRequest {
            prefix: self.prefix.clone(),
            start_after: self.begins_after().clone(),
            end: self.end.clone(),
            limit: self.limit,
            max_bytes: self.max_bytes.min(MAX_PAGE_BYTES),
            reverse: self.reverse,
            keys_only: self.keys_only,
            stale: self.stale,
            max_stale_ms,
        }
    }
}

/// One page of a list: a point-in-time view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The items, in the list's direction.
    pub items: Vec<KeyValue>,
    /// Whether more items follow; continue with `start_after` the last item's key.
    pub more: bool,
}

/// The pages of a list, one after another. Each page is its own point-in-time view.
#[derive(Clone, Debug)]
pub struct Pages {
    client: Client,
    /// `None` after the last page.
    next: Option<ListOptions>,
}

impl Client {
    /// One page of keys in byte order.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn list(&self, options: ListOptions) -> Result<Page, Error> {
        let call =
            |mut stub: Stub, request, timeout| async move { stub.list(request, timeout).await };
        let (target, max_stale_ms) = self.freshness(options.stale);
        let work = pin!(self.read(target, || options.to_proto(max_stale_ms), call));
        let response = spans::within(spans::list(options.stale), work, |_| None).await?;
        let (items, ended) = options.cut(response.items);
        Ok(Page {
            items: items.into_iter().map(convert::key_value).collect(),
            more: response.more && !ended,
        })
    }

    /// All pages of a list; `limit` and `max_bytes` apply to each page.
    pub fn pages(&self, options: ListOptions) -> Pages {
        Pages { client: self.clone(), next: Some(options) }
    }

    /// All items of a list, as a stream that asks for pages when it needs them; `limit` and
    /// `max_bytes` apply to each page. The stream ends after its first error.
    pub fn list_all(
        &self,
        options: ListOptions,
    ) -> impl Stream<Item = Result<KeyValue, Error>> + Send + Unpin + use<> {
        let pages = stream::try_unfold(self.pages(options), |mut pages| async move {
            let page = pages.next().await?;
            Ok::<_, Error>(page.map(|page| (stream::iter(page.items.into_iter().map(Ok)), pages)))
        });
        Box::pin(pages.try_flatten())
    }
}

impl Pages {
    /// The next page, `None` after the last one. After an error, the next call asks for the same
    /// page.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn next(&mut self) -> Result<Option<Page>, Error> {
        let Some(options) = &self.next else {
            return Ok(None);
        };
        let page = self.client.list(options.clone()).await?;
        let last = page.items.last().map(|item| item.key.clone());
        if page.more && !last.as_ref().is_some_and(|last| options.advances_to(last)) {
            let why = "the server says that the list goes on, and its page does not".to_owned();
            return Err(Error::InvalidRequest(why));
        }
        let last = last.filter(|_| page.more);
        self.next = self.next.take().zip(last).map(|(options, last)| options.start_after(last));
        Ok(Some(page))
    }
}
