//! The state of a cluster at one log index, for somebody who saves it.

use std::time::Duration;

use bytes::Bytes;
use tonic::{Response, Streaming};

use crate::error::Why;
use crate::failure::Failure;
use crate::node::Stub;
use crate::operator::Operator;
use crate::proto::{self, backup_part};
use crate::shown::of_node;
use crate::{Error, convert};

/// How long one stream may take.
const STREAM: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long the next part may take.
const PART: Duration = Duration::from_secs(60);

/// Values that the caller has: the cluster leaves them out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldValues {
    /// Written by an entry of this term and index, or by an earlier one.
    pub through: (u64, u64),
    /// Of keys up to this one; `None`: of all keys.
    pub through_key: Option<Bytes>,
}

/// Which state it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateHead {
    /// The cluster's name.
    pub cluster: String,
    /// Its generation.
    pub generation: u32,
    /// Its version: no earlier release runs in it.
    pub cluster_version: u32,
    /// The term of the last entry whose changes are in the state.
    pub term: u64,
    /// The index of that entry.
    pub index: u64,
    /// How many keys follow.
    pub keys: u64,
    /// The release of the member that sends it.
    pub release: String,
}

/// A key of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateItem {
    /// The key.
    pub key: Bytes,
    /// The term of the entry that wrote it.
    pub term: u64,
    /// The index of that entry: the version.
    pub index: u64,
    /// Bytes of the value.
    pub length: u32,
    /// XXH3-128 of the value.
    pub hash: u128,
    /// The value; `None` where the caller has it.
    pub value: Option<Bytes>,
}

/// The keys of a state, in byte order. Take them steadily: the member keeps what is deleted meanwhile,
/// and ends the stream if nothing is taken for a minute.
#[derive(Debug)]
pub struct State {
    endpoint: String,
    parts: Streaming<proto::BackupPart>,
    head: StateHead,
    received: u64,
    ended: bool,
}

impl Operator {
    /// Asks the member at `endpoint` for the state, without the values that are `held`. It has
    /// everything that was acknowledged before the call.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer, or does not send what it should.
    /// [`Error::Refused`], with the reason, if it sends its state to others.
    pub async fn state(&self, endpoint: &str, held: &[HeldValues]) -> Result<State, Error> {
        let held = held.iter().map(|held| proto::HeldValues {
            through_term: held.through.0,
            through_index: held.through.1,
            through_key: held.through_key.clone().unwrap_or_default(),
        });
        let request = proto::BackupRequest { held: held.collect() };
        let call = |mut stub: Stub, _: Duration| async move {
            let request = stub.request(request, STREAM);
            let mut parts = stub.operator.backup(request).await.map(Response::into_inner)?;
            Ok((parts.message().await?, parts))
        };
        let limit = self.client().pool.options.attempt_timeout;
        let (first, parts) = self.client().ask_one(endpoint, limit, call).await?;
        let Some(backup_part::Kind::Head(head)) = first.and_then(|part| part.kind) else {
            return Err(Error::unavailable(endpoint, "it sent a state without a beginning"));
        };
        let head = StateHead {
            cluster: of_node(&head.cluster),
            generation: head.generation,
            cluster_version: head.cluster_version,
            term: head.term,
            index: head.index,
            keys: head.keys,
            release: of_node(&head.server_version),
        };
        Ok(State { endpoint: endpoint.to_owned(), parts, head, received: 0, ended: false })
    }
}

impl State {
    /// Which state it is.
    pub fn head(&self) -> &StateHead {
        &self.head
    }

    /// The next keys; `None` once all were received.
    ///
    /// # Errors
    /// [`Error::Unavailable`], if the stream ends before, or says what is no state;
    /// [`Error::ValueUnreadable`], if the member cannot read a value.
    pub async fn next(&mut self) -> Result<Option<Vec<StateItem>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let failed = |why: Why| Error::unavailable(&self.endpoint, why);
        let late = |_| failed(format!("it sent nothing for {} s", PART.as_secs()).into());
        let part = tokio::time::timeout(PART, self.parts.message()).await.map_err(late)?;
        let part = part.map_err(|status| match Failure::of(&status) {
            Failure::Unreadable(message) => Error::ValueUnreadable { key: Bytes::new(), message },
            _ => failed(convert::why(&status)),
        })?;
        let Some(part) = part else {
            return Err(failed("it stopped before all of the state was sent".into()));
        };
        match part.kind {
            Some(backup_part::Kind::Items(proto::BackupItems { items })) => {
                self.received += items.len() as u64;
                let items: Option<Vec<StateItem>> = items.into_iter().map(state_item).collect();
                items.map(Some).ok_or_else(|| failed("it sent a hash of another length".into()))
            }
            Some(backup_part::Kind::End(end)) if end.keys == self.received => {
                self.ended = true;
                Ok(None)
            }
            _ => Err(failed(format!("it sent {} keys and then no key", self.received).into())),
        }
    }
}

fn state_item(item: proto::BackupItem) -> Option<StateItem> {
    let hash = <[u8; 16]>::try_from(&item.hash[..]).ok().map(u128::from_le_bytes)?;
    let proto::BackupItem { key, term, index, length, value, .. } = item;
    Some(StateItem { key, term, index, length, hash, value })
}
