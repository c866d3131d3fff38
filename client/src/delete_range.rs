//! Deleting a range of keys, in one entry of the log or page by page.
//!
//! What holds here: a page deletes the first keys of what is left, so the same range is asked for again until
//! nothing is left. Each page is a write of its own, with a number of its session: a retry of one deletes
//! nothing more.

use crate::range::Range;
use crate::types::{RangeDeleted, Version};
use crate::{Client, Error, convert};

impl Client {
    /// Deletes all keys of a range, and returns how many there were. It goes page by page, in entries of up
    /// to 4096 keys, each with the deadline of a request, until one finds that nothing is left. What others
    /// put into the range meanwhile is deleted or not.
    ///
    /// ```no_run
    /// # async fn example(client: cairn_client::Client) -> Result<(), cairn_client::Error> {
    /// use cairn_client::Range;
    /// let expired = client.delete_range(Range::prefix("sessions/2025/")).await?;
    /// let old = client.delete_range("logs/000".."logs/500").await?;
    /// println!("{expired} and {old} keys");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`], and [`Error::InvalidRequest`] if no key can be in the range;
    /// [`Error::Refused`] while the cluster's version is below 3, [`Error::InvalidRequest`] from a leader of an earlier release. Some keys may be gone then: call it
    /// again.
    pub async fn delete_range(&self, range: impl Into<Range>) -> Result<u64, Error> {
        let range = range.into();
        let mut deleted = 0;
        loop {
            let page = self.deleted(&range, 0, false).await?;
            deleted += u64::from(page.deleted);
            match page.more {
                false => return Ok(deleted),
                true if page.deleted == 0 => {
                    let why = "the server says that keys of the range are left, and deleted none";
                    return Err(Error::InvalidRequest(why.to_owned()));
                }
                true => {}
            }
        }
    }

    /// Deletes the first `most` keys of a range, 1 to 4096, in one entry: for a caller who pauses between
    /// pages. [`RangeDeleted::more`] says whether keys are left.
    ///
    /// # Errors
    /// As [`Client::delete_range`]; no key is gone then, but for [`Error::OutcomeUnknown`].
    pub async fn delete_range_page(
        &self,
        range: impl Into<Range>,
        most: u32,
    ) -> Result<RangeDeleted, Error> {
        self.deleted(&range.into(), at_least_one(most)?, false).await
    }

    /// Deletes all keys of a range in one entry, or none of them. It may have 4096.
    ///
    /// # Errors
    /// [`Error::RangeTooLarge`] if it has more; else as [`Client::delete_range_page`].
    pub async fn delete_range_whole(&self, range: impl Into<Range>) -> Result<RangeDeleted, Error> {
        self.deleted(&range.into(), 0, true).await
    }

    /// Deletes all keys of a range in one entry, or none of them. It may have `most`, 1 to 4096.
    ///
    /// # Errors
    /// As [`Client::delete_range_whole`].
    pub async fn delete_range_within(
        &self,
        range: impl Into<Range>,
        most: u32,
    ) -> Result<RangeDeleted, Error> {
        self.deleted(&range.into(), at_least_one(most)?, true).await
    }

    /// One entry. `most` is 0 for as many keys as the servers delete at once.
    async fn deleted(&self, range: &Range, most: u32, whole: bool) -> Result<RangeDeleted, Error> {
        let operation = convert::delete_range(range.to_proto()?, most, whole);
        match self.write(vec![operation]).await {
            Ok(response) => {
                let result = response.results.first().copied().unwrap_or_default();
                Ok(RangeDeleted {
                    version: Version(response.index),
                    term: response.term,
                    deleted: result.deleted,
                    more: result.more,
                })
            }
            // It has no other condition.
            Err(Error::ConditionFailed { at, .. }) => Err(Error::RangeTooLarge { at }),
            Err(error) => Err(error),
        }
    }
}

/// In the protocol, 0 keys are as many as the servers delete at once.
fn at_least_one(most: u32) -> Result<u32, Error> {
    match most {
        0 => Err(Error::InvalidRequest(
            "0 keys of a range are no page; ask for 1 to 4096".to_owned(),
        )),
        most => Ok(most),
    }
}
