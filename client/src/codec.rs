//! The codec of the generated stubs: protobuf with two additions.
//!
//! What holds here: an answer is encoded into one buffer of exactly its length. A request that
//! would take much more memory decoded than encoded is refused before it is decoded, and so is a part of a scan.

mod scan;

use crate::proto::error_detail::Reason;
use crate::proto::{self, ErrorDetail};
use bytes::{Buf, Bytes};
use prost::Message;
use real_tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use real_tonic::{Code, Status};
use std::marker::PhantomData;

/// Most operations of one message, over all its calls. An empty operation has two encoded bytes,
/// and takes a hundred times as much memory when decoded.
const MOST_OPERATIONS: usize = 32_768;
/// Most keys of one request. Those of all calls of a message are as many as operations at most.
const MOST_KEYS: usize = 1024;
/// Most earlier backups that a backup is beside.
const MOST_HELD: usize = 16;
/// Most calls of one message. A client sends up to 128.
const MOST_CALLS: usize = 1024;

/// Most parts and changes of one message to watches. A node sends a mebibyte at most, or one change, and a change takes
/// nine bytes at least.
const MOST_CHANGES: usize = 1 << 17;

/// The buffers that each call begins with, for messages in and out, and the bytes of answers that
/// are sent together. Messages that are longer get what they need.
const BUFFER_BYTES: usize = 1 << 10;
const SENT_TOGETHER_BYTES: usize = 32 << 10;

/// A value that is shorter than this part of its message gets memory of its own.
const OWN_PART: usize = 4;

/// Numbers of the fields that may be repeated.
const WRITE_OPERATIONS: u64 = 2;
const MULTIPLEX_CALLS: u64 = 1;
const CALL_WRITE: u64 = 3;
const CALL_GET_MANY: u64 = 5;
const GET_MANY_KEYS: u64 = 1;
const BACKUP_HELD: u64 = 1;
const WATCH_PARTS: u64 = 1;
const PART_CHANGES: u64 = 3;
const CHANGES_CHANGES: u64 = 1;

/// A message that is checked before it is decoded, since it could take too much memory.
pub trait Bounded {
    /// Checks the encoded message.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, with the limit that the message exceeds.
    fn check(_encoded: &[u8]) -> Result<(), Status> {
        Ok(())
    }

    /// Gives short values memory of their own, after a message of so many bytes was decoded. A value
    /// is a part of the message's memory, and the log keeps it: a byte in a message of megabytes
    /// would keep all of them.
    fn own_short_values(&mut self, _encoded_bytes: usize) {}
}

macro_rules! bounded_by_their_length {
    ($($message:ident),*) => { $(impl Bounded for proto::$message {})* };
}
bounded_by_their_length!(HelloRequest, GetRequest, ListRequest, ScanRequest);
bounded_by_their_length!(StatusRequest, ScrubRequest, UnsafeRecoveryRequest);
bounded_by_their_length!(ChangeMembersRequest, SetModeRequest, MoveLeaderRequest, DrainRequest);
bounded_by_their_length!(FinishUpgradeRequest, FinishUpgradeResponse);
bounded_by_their_length!(SafeToStopRequest, SafeToStopResponse);
// A client chose the server whose answers it decodes.
bounded_by_their_length!(HelloResponse, WriteResponse, GetResponse, GetManyResponse, ListResponse);
bounded_by_their_length!(MultiplexResponse, StatusResponse, ScrubResponse, UnsafeRecoveryResponse);
bounded_by_their_length!(ChangeMembersResponse, SetModeResponse, MoveLeaderResponse, DrainResponse);
bounded_by_their_length!(BackupPart);
// A watch begins or ends: there is one of either.
bounded_by_their_length!(WatchRequest);

impl Bounded for proto::BackupRequest {
    fn check(encoded: &[u8]) -> Result<(), Status> {
        let mut held = 0;
        fields(encoded, |field, _| held += usize::from(field == BACKUP_HELD));
        match held <= MOST_HELD {
            true => Ok(()),
            false => Err(too_many("earlier backups", held, MOST_HELD)),
        }
    }
}

impl Bounded for proto::GetManyRequest {
    fn check(encoded: &[u8]) -> Result<(), Status> {
        let mut counted = Counted::default();
        counted.get_many(encoded);
        match counted.keys <= MOST_KEYS {
            true => Ok(()),
            false => Err(too_many("keys", counted.keys, MOST_KEYS)),
        }
    }
}

impl Bounded for proto::WriteRequest {
    fn check(encoded: &[u8]) -> Result<(), Status> {
        let mut counted = Counted::default();
        counted.write(encoded);
        counted.judge()
    }

    fn own_short_values(&mut self, encoded_bytes: usize) {
        for operation in &mut self.operations {
            if let Some(proto::operation::Kind::Put(put)) = &mut operation.kind
                && put.value.len() < encoded_bytes / OWN_PART
            {
                put.value = Bytes::copy_from_slice(&put.value);
            }
        }
    }
}

impl Bounded for proto::MultiplexRequest {
    fn check(encoded: &[u8]) -> Result<(), Status> {
        let mut counted = Counted::default();
        counted.multiplex(encoded);
        counted.judge()
    }

    fn own_short_values(&mut self, encoded_bytes: usize) {
        for call in &mut self.calls {
            if let Some(proto::call::Kind::Write(write)) = &mut call.kind {
                write.own_short_values(encoded_bytes);
            }
        }
    }
}

/// The client cannot know that it speaks with a node.
impl Bounded for proto::WatchResponse {
    fn check(encoded: &[u8]) -> Result<(), Status> {
        let mut changes = 0;
        fields(encoded, |field, part| {
            if field == WATCH_PARTS {
                changes += 1;
                fields(part, |field, kind| {
                    if field == PART_CHANGES {
                        fields(kind, |field, _| changes += usize::from(field == CHANGES_CHANGES));
                    }
                });
            }
        });
        match changes <= MOST_CHANGES {
            true => Ok(()),
            false => Err(too_many("changes", changes, MOST_CHANGES)),
        }
    }

    /// A change waits until its user reads it, and a message is for many watches.
    fn own_short_values(&mut self, encoded_bytes: usize) {
        for part in &mut self.parts {
            let Some(proto::watch_part::Kind::Changes(changes)) = &mut part.kind else { continue };
            for change in &mut changes.changes {
                for bytes in [&mut change.key, &mut change.value] {
                    if bytes.len() < encoded_bytes / OWN_PART {
                        *bytes = Bytes::copy_from_slice(bytes);
                    }
                }
            }
        }
    }
}

impl proto::WriteRequest {
    /// Memory that its operations take beside the bytes of the message.
    pub fn decoded_bytes(&self) -> usize {
        self.operations.capacity() * size_of::<proto::Operation>()
    }
}

impl proto::GetManyRequest {
    /// Memory that its keys take beside the bytes of the message.
    pub fn decoded_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<Bytes>()
    }
}

impl proto::MultiplexRequest {
    /// Memory that its calls take beside the bytes of the message.
    pub fn decoded_bytes(&self) -> usize {
        let parts = self.calls.iter().map(|call| match &call.kind {
            Some(proto::call::Kind::Write(write)) => write.decoded_bytes(),
            Some(proto::call::Kind::GetMany(get)) => get.decoded_bytes(),
            Some(proto::call::Kind::Get(_)) | None => 0,
        });
        self.calls.capacity() * size_of::<proto::Call>() + parts.sum::<usize>()
    }
}

#[derive(Default)]
struct Counted {
    calls: usize,
    operations: usize,
    keys: usize,
}

impl Counted {
    fn write(&mut self, encoded: &[u8]) {
        fields(encoded, |field, _| self.operations += usize::from(field == WRITE_OPERATIONS));
    }

    fn get_many(&mut self, encoded: &[u8]) {
        fields(encoded, |field, _| self.keys += usize::from(field == GET_MANY_KEYS));
    }

    fn multiplex(&mut self, encoded: &[u8]) {
        fields(encoded, |field, call| {
            if field == MULTIPLEX_CALLS {
                self.calls += 1;
                fields(call, |field, kind| match field {
                    CALL_WRITE => self.write(kind),
                    CALL_GET_MANY => self.get_many(kind),
                    _ => {}
                });
            }
        });
    }

    fn judge(&self) -> Result<(), Status> {
        let over = [
            ("operations", self.operations, MOST_OPERATIONS),
            ("keys", self.keys, MOST_OPERATIONS),
            ("calls", self.calls, MOST_CALLS),
        ];
        match over.into_iter().find(|(_, count, most)| count > most) {
            None => Ok(()),
            Some((what, count, most)) => Err(too_many(what, count, most)),
        }
    }
}

fn too_many(what: &str, count: usize, most: usize) -> Status {
    let (limit, actual) = (most as u64, count as u64);
    let reason = Reason::RequestTooLarge.into();
    let detail = ErrorDetail { reason, limit, actual, ..ErrorDetail::default() };
    let message =
        format!("the message has {count} {what}; at most {most} are decoded, send it in parts");
    detail.into_status(Code::InvalidArgument, message)
}

/// Calls `visit` with the number and content of each length-delimited field. Stops at bytes that
/// are not a message; the decoder then fails there too and reports it.
fn fields(mut encoded: &[u8], mut visit: impl FnMut(u64, &[u8])) {
    while encoded.has_remaining() {
        let Some(key) = varint(&mut encoded) else { return };
        let skipped = match key & 7 {
            0 => varint(&mut encoded).map(drop),
            1 => skip(&mut encoded, 8).map(drop),
            2 => varint(&mut encoded)
                .and_then(|length| skip(&mut encoded, length))
                .map(|content| visit(key >> 3, content)),
            // The content of a group is counted as if it were outside the group, which counts too
            // much rather than too little.
            3 | 4 => Some(()),
            5 => skip(&mut encoded, 4).map(drop),
            _ => None,
        };
        if skipped.is_none() {
            return;
        }
    }
}

fn varint(encoded: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(encoded).ok()
}

fn skip<'a>(encoded: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (content, rest) = encoded.split_at_checked(usize::try_from(length).ok()?)?;
    *encoded = rest;
    Some(content)
}

/// Encodes `T` and decodes `U`.
#[derive(Default)]
pub struct KvCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Codec for KvCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Bounded + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = KvEncoder<T>;
    type Decoder = KvDecoder<U>;

    fn encoder(&mut self) -> KvEncoder<T> {
        KvEncoder(PhantomData)
    }

    fn decoder(&mut self) -> KvDecoder<U> {
        KvDecoder(PhantomData)
    }
}

/// Encodes `T`.
pub struct KvEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for KvEncoder<T> {
    type Item = T;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, SENT_TOGETHER_BYTES)
    }

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // A buffer that grows in steps ends up to twice as long as its content, and it is kept
        // until it is sent.
        buffer.reserve(item.encoded_len());
        item.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

/// Decodes `U`.
pub struct KvDecoder<U>(PhantomData<U>);

impl<U: Message + Bounded + Default> Decoder for KvDecoder<U> {
    type Item = U;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, SENT_TOGETHER_BYTES)
    }

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The message is in one piece. If it were not, the check would see only its first piece.
        U::check(buffer.chunk())?;
        let encoded_bytes = buffer.remaining();
        let mut message = U::decode(buffer).map_err(|error| Status::internal(error.to_string()))?;
        message.own_short_values(encoded_bytes);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::put;
    use crate::proto::{
        Call, GetManyRequest, GetRequest, MultiplexRequest, Operation, Session, WriteRequest, call,
    };
    use crate::proto::{Change, WatchChanges, WatchPart, WatchResponse, watch_part};
    use crate::types::Condition;

    fn write(operations: usize) -> WriteRequest {
        let session =
            Some(Session { client_id: vec![1; 16].into(), sequence: 7, ..Session::default() });
        WriteRequest { session, operations: vec![Operation::default(); operations], synced: true }
    }

    fn multiplex(writes: impl IntoIterator<Item = WriteRequest>) -> MultiplexRequest {
        let calls = writes.into_iter().map(|write| Call {
            id: 1,
            timeout_ms: 9,
            kind: Some(call::Kind::Write(write)),
        });
        MultiplexRequest { calls: calls.collect(), generation: Some(7) }
    }

    fn judged<M: Message + Bounded>(message: &M) -> Option<Code> {
        M::check(&message.encode_to_vec()).err().map(|status| status.code())
    }

    /// The story: a put of one byte with five megabytes of an unknown field stayed in the log's cache
    /// with all of them, and was counted as one byte.
    #[test]
    fn a_short_value_does_not_keep_its_message_in_memory() {
        let padding = [&[0xa2, 0x06, 0x80, 0x20][..], &[1; 4096]].concat();
        for (length, keeps) in [(1, false), (1000, false), (5000, true)] {
            let mut request = write(0);
            request.operations.push(put("k".into(), vec![7; length].into(), Condition::None));
            let mut encoded = multiplex([request]).encode_to_vec();
            encoded.extend(&padding);
            let encoded = Bytes::from(encoded);
            let memory = encoded.as_ptr_range();
            let mut decoded = MultiplexRequest::decode(encoded.clone()).unwrap();
            decoded.own_short_values(encoded.len());
            let Some(call::Kind::Write(write)) = &decoded.calls[0].kind else { panic!() };
            let Some(proto::operation::Kind::Put(put)) = &write.operations[0].kind else {
                panic!()
            };
            assert_eq!(put.value, vec![7; length]);
            assert_eq!(memory.contains(&put.value.as_ptr()), keeps, "{length} bytes");
        }
    }

    /// The story: a request of 5 MB took 210 MB when it was decoded, before its operations could be
    /// counted.
    #[test]
    fn a_request_of_millions_of_empty_operations_is_refused_before_it_is_decoded() {
        let millions = write(2_600_000);
        assert_eq!(judged(&millions), Some(Code::InvalidArgument));
        assert_eq!(
            judged(&multiplex([millions])),
            Some(Code::InvalidArgument),
            "nor in a multiplexed stream"
        );
        assert_eq!(
            judged(&multiplex((0..64).map(|_| write(1024)))),
            Some(Code::InvalidArgument),
            "nor spread"
        );
        assert_eq!(judged(&multiplex((0..10_000).map(|_| write(0)))), Some(Code::InvalidArgument));
    }

    fn get_many(keys: usize) -> GetManyRequest {
        GetManyRequest { keys: vec![Bytes::new(); keys], ..GetManyRequest::default() }
    }

    /// A call of many keys.
    fn many(keys: impl IntoIterator<Item = GetManyRequest>) -> MultiplexRequest {
        let call = |get| Call { id: 2, timeout_ms: 0, kind: Some(call::Kind::GetMany(get)) };
        MultiplexRequest { calls: keys.into_iter().map(call).collect(), generation: Some(7) }
    }

    #[test]
    fn a_request_of_more_keys_than_a_node_answers_is_refused_before_it_is_decoded() {
        assert_eq!(judged(&get_many(MOST_KEYS)), None);
        assert_eq!(judged(&get_many(MOST_KEYS + 1)), Some(Code::InvalidArgument));
        assert_eq!(judged(&many((0..32).map(|_| get_many(MOST_KEYS)))), None);
        let spread = many((0..33).map(|_| get_many(MOST_KEYS)));
        assert_eq!(judged(&spread), Some(Code::InvalidArgument), "nor spread");
    }

    fn changes(parts: usize, each: usize) -> WatchResponse {
        let changes = vec![Change::default(); each];
        let changes = WatchChanges { changes, through: None };
        let kind = Some(watch_part::Kind::Changes(changes));
        WatchResponse { parts: vec![WatchPart { id: 1, kind }; parts], through: None }
    }

    #[test]
    fn an_answer_of_millions_of_empty_changes_is_refused_before_it_is_decoded() {
        assert_eq!(judged(&changes(1, MOST_CHANGES - 1)), None);
        assert_eq!(judged(&changes(1, MOST_CHANGES)), Some(Code::InvalidArgument));
        assert_eq!(judged(&changes(1024, 128)), Some(Code::InvalidArgument), "nor spread");
        assert_eq!(judged(&changes(MOST_CHANGES + 1, 0)), Some(Code::InvalidArgument));
    }

    /// The story: of a message of a megabyte a watch keeps one key of five bytes, until its user reads it.
    #[test]
    fn a_change_that_waits_does_not_keep_the_message_for_all_watches_in_memory() {
        let mut message = changes(1, 1);
        let large = Change { key: "b".into(), value: vec![7; 5000].into(), ..Change::default() };
        if let Some(watch_part::Kind::Changes(told)) = &mut message.parts[0].kind {
            told.changes[0] = Change { key: "a".into(), value: "1".into(), ..Change::default() };
            told.changes.push(large);
        }
        let encoded = Bytes::from(message.encode_to_vec());
        let memory = encoded.as_ptr_range();
        let mut decoded = WatchResponse::decode(encoded.clone()).unwrap();
        decoded.own_short_values(encoded.len());
        assert_eq!(decoded, message);
        let Some(watch_part::Kind::Changes(told)) = &decoded.parts[0].kind else { panic!() };
        let kept = |bytes: &Bytes| memory.contains(&bytes.as_ptr());
        let [small, large] = told.changes.as_slice() else { panic!() };
        assert!(!kept(&small.key) && !kept(&small.value) && !kept(&large.key));
        assert!(kept(&large.value), "it is most of the message");
    }

    #[test]
    fn usual_requests_pass() {
        let mut usual = write(0);
        usual.operations = (0..1024)
            .map(|n: u32| {
                put(n.to_be_bytes().to_vec().into(), vec![2; 99].into(), Condition::Absent)
            })
            .collect();
        assert_eq!(judged(&usual), None);
        assert_eq!(judged(&multiplex(vec![usual; 16])), None);
        let get = GetRequest { key: vec![2 << 3 | 2; 99].into(), ..GetRequest::default() };
        let gets =
            (0..128).map(|id| Call { id, timeout_ms: 0, kind: Some(call::Kind::Get(get.clone())) });
        assert_eq!(judged(&MultiplexRequest { calls: gets.collect(), generation: None }), None);
        assert_eq!(judged(&WriteRequest::default()), None);
    }

    #[test]
    fn bytes_that_are_not_a_message_are_left_to_the_decoder() {
        for bytes in [
            &[0xff; 11][..],
            &[0x12, 0xff, 0xff, 0xff, 0x7f],
            &[0x0f],
            &[0x12],
            &[0x09, 1],
            &[0x13, 0x14],
        ] {
            assert!(
                WriteRequest::check(bytes).is_ok() && MultiplexRequest::check(bytes).is_ok(),
                "{bytes:?}"
            );
        }
    }

    /// Counting allocates nothing but the error at bytes that are not a message.
    const PROST_ERROR: usize = 256;

    fn decode<M: Message + Default>(bytes: &[u8]) -> Option<M> {
        cairn_fuzz::within(256 * bytes.len() + 4096, || M::decode(bytes).ok())
    }

    fn example() -> WriteRequest {
        let mut write = write(1);
        write.operations.push(put("k".into(), "v".into(), Condition::Exists));
        write
    }

    #[test]
    fn any_bytes_hold_no_more_operations_than_were_counted() {
        cairn_fuzz::target!("write" => example().encode_to_vec()).for_each(|bytes| {
            let mut counted = Counted::default();
            cairn_fuzz::within(PROST_ERROR, || counted.write(bytes));
            let operations =
                decode::<WriteRequest>(bytes).map_or(0, |write| write.operations.len());
            assert!(counted.operations >= operations);
            assert_eq!(WriteRequest::check(bytes).is_ok(), counted.judge().is_ok());
        });
    }

    #[test]
    fn any_bytes_hold_no_more_calls_and_operations_than_were_counted() {
        let mut message = multiplex([example(), write(2)]);
        let get = call::Kind::Get(GetRequest { key: "k".into(), ..GetRequest::default() });
        message.calls.push(Call { id: 2, timeout_ms: 0, kind: Some(get) });
        let keys = vec!["a".into(), "b".into()];
        let many = many([GetManyRequest { keys, max_stale_ms: 9, version_only: false }]);
        cairn_fuzz::target!(
            "calls" => message.encode_to_vec(),
            "many" => many.encode_to_vec(),
        )
        .for_each(|bytes| {
            let mut counted = Counted::default();
            cairn_fuzz::within(PROST_ERROR, || counted.multiplex(bytes));
            let calls = decode::<MultiplexRequest>(bytes).map_or(vec![], |message| message.calls);
            let operations = calls.iter().map(|call| match &call.kind {
                Some(call::Kind::Write(write)) => write.operations.len(),
                _ => 0,
            });
            let keys = calls.iter().map(|call| match &call.kind {
                Some(call::Kind::GetMany(get)) => get.keys.len(),
                _ => 0,
            });
            assert!(counted.operations >= operations.sum() && counted.calls >= calls.len());
            assert!(counted.keys >= keys.sum());
        });
    }
}
