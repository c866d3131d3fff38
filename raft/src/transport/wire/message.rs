//! Messages, apart from their values, and which method takes and answers which.

use crate::core::error::Malformed;
use crate::core::proto;
use crate::core::repeated::{self, Repeated};
use bytes::Bytes;
use std::marker::PhantomData;

/// A method, with its request and its answer.
pub(crate) struct Method<Q, A> {
    number: u8,
    of: PhantomData<fn(Q) -> A>,
}

impl<Q, A> Method<Q, A> {
    pub(crate) fn number(self) -> u8 {
        self.number
    }
}

impl<Q, A> Clone for Method<Q, A> {
    fn clone(&self) -> Method<Q, A> {
        *self
    }
}

impl<Q, A> Copy for Method<Q, A> {}

/// The methods. A number means the same for ever.
pub(crate) mod methods {
    use super::*;
    use crate::core::proto::*;

    macro_rules! methods {
        ($($(#[$doc:meta])* $name:ident = $number:literal: $request:ident => $answer:ident,)+) => {
        $(
            $(#[$doc])*
            pub(crate) const $name: Method<$request, $answer> =
                Method { number: $number, of: PhantomData };
        )+

        /// Each method's number and name.
        pub(crate) const NAMES: &[(u8, &str)] = &[$(($number, stringify!($name))),+];
        };
    }

    methods! {
        /// The receiver's identity, and whether its log was ever used. Answered before the cluster is
        /// formed, too.
        HELLO = 1: HelloRequest => HelloResponse,
        /// Entries and heartbeats, answered in order. The stream ends at the first answer that is not a
        /// match.
        APPEND = 2: AppendRequest => AppendResponse,
        /// A single append, for heartbeats.
        APPEND_ONE = 3: AppendRequest => AppendResponse,
        VOTE = 4: VoteRequest => VoteResponse,
        /// Whether the receiver would grant its vote. Changes nothing there.
        PRE_VOTE = 5: VoteRequest => VoteResponse,
        /// How much of a snapshot the receiver holds, so that a broken transfer resumes where it stopped.
        SNAPSHOT_OFFSET = 6: SnapshotOffsetRequest => SnapshotOffsetResponse,
        /// One chunk of a snapshot, in key order.
        SNAPSHOT_CHUNK = 7: SnapshotChunkRequest => SnapshotChunkResponse,
        /// Installs a snapshot whose chunks have all arrived.
        SNAPSHOT_FINISH = 8: SnapshotFinishRequest => SnapshotFinishResponse,
        /// The leader asks a follower to campaign at once.
        TRANSFER_LEADER = 9: TransferLeaderRequest => TransferLeaderResponse,
        /// A member that may have lost the tail of its log asks the leader to let its log revert once, and
        /// to log a record of its boot epoch. When it has applied that record, its recovery is complete.
        RECOVER = 10: RecoverRequest => RecoverResponse,
        /// A joining node asks the leader to add it. It repeats the request until it votes.
        JOIN = 11: JoinRequest => JoinResponse,
        /// The bytes of a value that is damaged at the sender: exactly the value that this entry wrote and
        /// that has this hash, from the key space or the log. Answered in any member state.
        FETCH_VALUE = 12: FetchValueRequest => FetchValueResponse,
        /// Which members may be stopped now. Leader only; answered after a quorum has confirmed that it
        /// leads.
        SAFE_TO_STOP = 13: SafeToStopRequest => SafeToStopResponse,
        /// Up to which entry a linearizable read must wait. Leader only; answered after a quorum has
        /// confirmed that it leads.
        READ_INDEX = 14: ReadIndexRequest => ReadIndexResponse,
    }
}

/// A message whose values travel beside it.
pub(crate) trait Message: prost::Message + Default + Send + 'static {
    /// Its repeated fields, also those of messages in it; none of numbers, which take no more decoded.
    const REPEATED: &'static [Repeated] = &[];
    /// What its elements may take decoded.
    const ELEMENT_BYTES: usize = 1 << 20;

    /// Where its values are, in a fixed order.
    fn values(&mut self) -> impl Iterator<Item = &mut Bytes> {
        std::iter::empty()
    }
}

macro_rules! without_values {
    ($($message:ident)+) => {$(
        impl Message for proto::$message {}
    )+};
}

without_values! {
    HelloRequest AppendResponse VoteRequest VoteResponse SnapshotOffsetResponse
    SnapshotFinishResponse TransferLeaderRequest TransferLeaderResponse RecoverRequest
    RecoverResponse JoinRequest JoinResponse FetchValueRequest SafeToStopRequest
    ReadIndexRequest ReadIndexResponse
}

macro_rules! with_elements {
    ($($message:ident: $repeated:expr,)+) => {$(
        impl Message for proto::$message {
            const REPEATED: &'static [Repeated] = $repeated;
        }
    )+};
}

with_elements! {
    HelloResponse: &[Repeated::of::<proto::Contact>(7, &[])],
    SnapshotOffsetRequest: &[Repeated::one(3, repeated::SNAPSHOT_META)],
    SnapshotChunkResponse: &[Repeated::of::<Bytes>(4, &[])],
    SnapshotFinishRequest: &[Repeated::one(3, repeated::SNAPSHOT_META)],
    SafeToStopResponse: &[Repeated::of::<proto::StopVerdict>(2, &[Repeated::of::<String>(2, &[])])],
}

impl Message for proto::AppendRequest {
    const REPEATED: &'static [Repeated] = repeated::ENTRIES;
    /// It has at most 512 entries of 1,024 values each.
    const ELEMENT_BYTES: usize = 20 << 20;

    fn values(&mut self) -> impl Iterator<Item = &mut Bytes> {
        self.entries.iter_mut().flat_map(|entry| &mut entry.values)
    }
}

impl Message for proto::SnapshotChunkRequest {
    const REPEATED: &'static [Repeated] = &[Repeated::of::<proto::SnapshotItem>(5, &[])];
    /// It has at most 16,384 keys.
    const ELEMENT_BYTES: usize = 3 << 20;

    fn values(&mut self) -> impl Iterator<Item = &mut Bytes> {
        self.items.iter_mut().filter_map(|item| item.value.as_mut())
    }
}

impl Message for proto::FetchValueResponse {
    fn values(&mut self) -> impl Iterator<Item = &mut Bytes> {
        std::iter::once(&mut self.value)
    }
}

/// A message as it travels: encoded with empty places for its values, and these.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    pub(super) message: Bytes,
    pub(super) values: Vec<Bytes>,
}

impl Packed {
    pub(crate) fn of<M: Message>(mut message: M) -> Packed {
        let values = message.values().map(std::mem::take).collect();
        Packed { message: message.encode_to_vec().into(), values }
    }

    /// The message, if it is one of this kind with as many values as it has places.
    pub(super) fn read<M: Message>(self) -> Result<M, Malformed> {
        repeated::check(&self.message, M::REPEATED, M::ELEMENT_BYTES)?;
        let mut message =
            M::decode(self.message).map_err(|_| Malformed("a message of another kind"))?;
        let mut values = self.values.into_iter();
        for place in message.values() {
            let value = values.next().filter(|_| place.is_empty());
            *place = value.ok_or(Malformed("a message without its values"))?;
        }
        match values.next() {
            None => Ok(message),
            Some(_) => Err(Malformed("values without a message")),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.message.len() + self.values.iter().map(Bytes::len).sum::<usize>()
    }
}
