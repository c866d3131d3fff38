//! An entry's `meta` bytes: everything of an entry but its id and its values.
//!
//! | bytes | blank | command | membership | unsafe recovery | boot epoch | mode | version |
//! |---|---|---|---|---|---|---|---|
//! | 1 | 0 | 1 | 2 | 3 | 4 | 5 | 6 |
//! | 1 | | 1 with a session + 2 if to be synced before it is acknowledged | | | | 1 `device`, 2 `replicated`, 3 `sync` | |
//! | 16, then four varints | | client id; sequence, lowest pending, base index, session bound (with a session) | | | | |
//! | varint | | number of operations | | | | |
//! | per operation | | kind + 4 × condition; which one (kind 3); varint key length; key; varint version (condition 3); the rest (kind 3) | | | | |
//! | rest | | | protobuf `Membership` | node id (8, little-endian) | node id, boot epoch, boot nonce, version (8 each, little-endian); release | | the cluster's version (8, little-endian) |
//!
//! Varints are LEB128. Operation kinds: 0 put, 1 delete, 2 check, 3 one of those that a cluster has from
//! version 3 on, of which the next byte tells which one. Conditions: 0 none, 1 absent, 2
//! exists, 3 version. A put's value is the entry's next value. A boot epoch that a release before
//! versions logged has none; a release is there from version 4 of the cluster on.
//!
//! | which one | operation | key | the rest |
//! |---|---|---|---|
//! | 1 | delete range | where it begins; may be empty | varint length, where it ends; varint most; whole (1 byte, 0 or 1) |
//!
//! What holds here: decoding refuses bytes that encoding cannot have produced, and never panics. A build
//! of version 2 refuses kind 3.

mod varint;

use super::boot::Boot;
use super::command::{Command, Condition, Operation, RANGE_KEYS_MAX, Session};
use super::error::Malformed;
use super::ids::NodeId;
use super::types::{Membership, Payload, Proposal};
use super::version::{Feature, RELEASE_BYTES_MAX, UNREADABLE_ENTRY};
use super::{convert, proto};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use cairn_engine::{BootEpoch, Mode, Value};
use prost::Message;
use varint::{put_varint, take_bytes, take_u8, take_varint};

/// The engine's limit on values in an entry.
const MAX_VALUES: usize = u16::MAX as usize;
/// The engine's limit on an entry's meta.
pub(crate) const MAX_META_BYTES: usize = 1 << 20;

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;
const UNSAFE_RECOVERY: u8 = 3;
const EPOCH: u8 = 4;
const MODE: u8 = 5;
const CLUSTER_VERSION: u8 = 6;

const SESSION: u8 = 1;
const SYNCED: u8 = 2;

const PUT: u8 = 0;
const DELETE: u8 = 1;
const CHECK: u8 = 2;
const NAMED: u8 = 3;

/// The byte behind kind 3.
const DELETE_RANGE: u8 = 1;

const NONE: u8 = 0;
const ABSENT: u8 = 1;
const EXISTS: u8 = 2;
const VERSION: u8 = 3;

/// What an entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogRecord {
    /// Nothing: a leader's first entry.
    Blank,
    /// A client's command.
    Command(StoredCommand),
    Membership(Membership),
    /// An operator let this member lead, and so discarded what no member held any more.
    UnsafeRecovery(NodeId),
    /// A member began this boot.
    Boot(NodeId, Boot),
    /// The least that an acknowledgement means from now on.
    Mode(Mode),
    /// The cluster's version from now on, if every member runs it.
    Version(u32),
}

impl LogRecord {
    /// What openraft hands over to be applied.
    ///
    /// # Errors
    /// The bytes are none that encoding produces, or of a later release.
    pub(crate) fn of(payload: Payload) -> Result<LogRecord, Malformed> {
        match payload {
            Payload::Blank => Ok(LogRecord::Blank),
            Payload::Membership(membership) => Ok(LogRecord::Membership(membership)),
            Payload::Normal(proposal) => LogRecord::decode(&proposal.meta),
        }
    }

    /// What an entry's meta says.
    ///
    /// # Errors
    /// As [`LogRecord::of`].
    pub(crate) fn decode(meta: &Bytes) -> Result<LogRecord, Malformed> {
        match LogRecord::of_members(meta)? {
            Some(record) => Ok(record),
            None => decode_command(meta).map(LogRecord::Command),
        }
    }

    /// What the members themselves logged; `None` for a client's command, which is not parsed.
    ///
    /// # Errors
    /// As [`LogRecord::of`].
    pub(crate) fn of_members(meta: &[u8]) -> Result<Option<LogRecord>, Malformed> {
        let (kind, rest) = meta.split_first().ok_or(Malformed(UNREADABLE_ENTRY))?;
        let record = match *kind {
            COMMAND => return Ok(None),
            BLANK => rest.is_empty().then_some(LogRecord::Blank),
            MEMBERSHIP => {
                let message =
                    proto::Membership::decode(rest).map_err(|_| Malformed("no membership"))?;
                Some(LogRecord::Membership(convert::membership_from_proto(message)?))
            }
            UNSAFE_RECOVERY => {
                number(rest).map(|member| LogRecord::UnsafeRecovery(NodeId::from_u64(member)))
            }
            EPOCH => decode_boot(rest),
            MODE => match rest {
                [mode] => mode_from_number(u32::from(*mode)).map(LogRecord::Mode),
                _ => None,
            },
            CLUSTER_VERSION => {
                number(rest).and_then(|version| u32::try_from(version).ok()).map(LogRecord::Version)
            }
            _ => None,
        };
        record.map(Some).ok_or(Malformed(UNREADABLE_ENTRY))
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().map(u64::from_le_bytes).ok()
}

/// A release before versions logged neither version nor release.
fn decode_boot(mut rest: &[u8]) -> Option<LogRecord> {
    let mut number = || rest.try_get_u64_le().ok();
    let member = NodeId::from_u64(number()?);
    let epoch = BootEpoch { number: number()?, nonce: number()? };
    let version = match rest.is_empty() {
        true => 0,
        false => u32::try_from(rest.try_get_u64_le().ok()?).ok()?,
    };
    let release = std::str::from_utf8(rest).ok()?;
    let readable = release.is_empty() || Feature::Releases.is_known();
    let boot = Boot { epoch, version, release: release.into() };
    (readable && release.len() <= RELEASE_BYTES_MAX).then_some(LogRecord::Boot(member, boot))
}

/// A command as the state machine applies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredCommand {
    pub(crate) session: Option<StoredSession>,
    pub(crate) operations: Vec<StoredOperation>,
}

/// A command's session and the bound of the session table. The bound travels with the command,
/// since every replica must evict the same sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredSession {
    pub(crate) session: Session,
    pub(crate) max_sessions: u64,
}

/// An operation whose value, if any, is the entry's next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredOperation {
    pub(crate) kind: StoredKind,
    /// For a range, where it begins.
    pub(crate) key: Bytes,
    pub(crate) condition: Condition,
}

/// What an operation does. A range is boxed, since hardly an operation has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredKind<R = Box<StoredRange<Bytes>>> {
    Put,
    Delete,
    Check,
    DeleteRange(R),
}

/// The range that an operation deletes, without where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredRange<B> {
    pub(crate) end: B,
    pub(crate) most: u32,
    pub(crate) whole: bool,
}

impl<R> StoredKind<R> {
    fn with_range<S>(self, range: impl FnOnce(R) -> S) -> StoredKind<S> {
        match self {
            StoredKind::Put => StoredKind::Put,
            StoredKind::Delete => StoredKind::Delete,
            StoredKind::Check => StoredKind::Check,
            StoredKind::DeleteRange(found) => StoredKind::DeleteRange(range(found)),
        }
    }
}

impl StoredCommand {
    /// Whether applying it reads a range of keys, and not only single ones.
    pub(crate) fn reads_range(&self) -> bool {
        let is_range =
            |operation: &StoredOperation| matches!(operation.kind, StoredKind::DeleteRange(_));
        self.operations.iter().any(is_range)
    }
}

/// A command in the form in which it is stored and sent.
pub(crate) fn encode_command(command: Command, max_sessions: usize) -> Proposal {
    let bytes =
        |operation: &Operation| operation.key().len() + operation.end().map_or(0, Bytes::len);
    let keys: usize = command.operations.iter().map(|operation| bytes(operation) + 16).sum();
    let mut meta = BytesMut::with_capacity(64 + keys);
    meta.put_u8(COMMAND);
    let synced = if command.synced { SYNCED } else { 0 };
    match command.session {
        None => meta.put_u8(synced),
        Some(session) => {
            meta.put_u8(SESSION | synced);
            meta.put_u128(session.client_id);
            put_varint(&mut meta, session.sequence);
            put_varint(&mut meta, session.lowest_pending);
            put_varint(&mut meta, session.base_index);
            put_varint(&mut meta, max_sessions as u64);
        }
    }
    put_varint(&mut meta, command.operations.len() as u64);
    let mut values = Vec::with_capacity(command.operations.len());
    for operation in command.operations {
        match operation {
            Operation::Put { key, value, condition } => {
                values.push(value);
                put_operation(&mut meta, PUT, None, &key, condition);
            }
            Operation::Delete { key, condition } => {
                put_operation(&mut meta, DELETE, None, &key, condition);
            }
            Operation::Check { key, condition } => {
                put_operation(&mut meta, CHECK, None, &key, condition);
            }
            Operation::DeleteRange { start, end, most, whole } => {
                put_operation(&mut meta, NAMED, Some(DELETE_RANGE), &start, Condition::None);
                put_varint(&mut meta, end.len() as u64);
                meta.put_slice(&end);
                put_varint(&mut meta, u64::from(most));
                meta.put_u8(u8::from(whole));
            }
        }
    }
    Proposal { meta: meta.freeze(), values }
}

/// What every operation begins with. `name` is the byte behind kind 3.
fn put_operation(
    meta: &mut BytesMut,
    kind: u8,
    name: Option<u8>,
    key: &[u8],
    condition: Condition,
) {
    let (tag, version) = match condition {
        Condition::None => (NONE, None),
        Condition::Absent => (ABSENT, None),
        Condition::Exists => (EXISTS, None),
        Condition::Version(version) => (VERSION, Some(version)),
    };
    meta.put_u8(kind | (tag << 2));
    if let Some(name) = name {
        meta.put_u8(name);
    }
    put_varint(meta, key.len() as u64);
    meta.put_slice(key);
    if let Some(version) = version {
        put_varint(meta, version);
    }
}

/// The unsafe-recovery record: an operator let this member lead, and so discarded what no member
/// held any more.
pub(crate) fn encode_unsafe_recovery(member: NodeId) -> Proposal {
    record(UNSAFE_RECOVERY, &[member.as_u64()], "")
}

fn record(kind: u8, numbers: &[u64], text: &str) -> Proposal {
    let mut meta = BytesMut::with_capacity(1 + size_of_val(numbers) + text.len());
    meta.put_u8(kind);
    numbers.iter().for_each(|number| meta.put_u64_le(*number));
    meta.put_slice(text.as_bytes());
    Proposal { meta: meta.freeze(), values: Vec::new() }
}

/// The boot-epoch record: a member began this boot.
pub(crate) fn encode_boot(member: NodeId, boot: &Boot) -> Proposal {
    let Boot { epoch, version, release } = boot;
    let numbers = [member.as_u64(), epoch.number, epoch.nonce, u64::from(*version)];
    record(EPOCH, &numbers, release)
}

/// The version record: from now on the cluster's version is this one, if every member runs it.
pub(crate) fn encode_version(version: u32) -> Proposal {
    record(CLUSTER_VERSION, &[u64::from(version)], "")
}

/// The mode record: the least that an acknowledgement means from now on.
pub(crate) fn encode_mode(mode: Mode) -> Proposal {
    let meta = Bytes::copy_from_slice(&[MODE, mode_to_number(mode) as u8]);
    Proposal { meta, values: Vec::new() }
}

/// A mode as it is stored and sent.
pub(crate) fn mode_to_number(mode: Mode) -> u32 {
    match mode {
        Mode::Device => 1,
        Mode::Replicated => 2,
        Mode::Sync => 3,
    }
}

/// The mode that is stored as this number, if it is one.
pub(crate) fn mode_from_number(number: u32) -> Option<Mode> {
    [Mode::Device, Mode::Replicated, Mode::Sync]
        .into_iter()
        .find(|mode| mode_to_number(*mode) == number)
}

fn decode_command(meta: &Bytes) -> Result<StoredCommand, Malformed> {
    let mut operations = Vec::new();
    let session = parse_command(meta, |kind, key, condition| {
        let kind = kind.with_range(|StoredRange { end, most, whole }| {
            Box::new(StoredRange { end: meta.slice_ref(end), most, whole })
        });
        operations.push(StoredOperation { kind, key: meta.slice_ref(key), condition });
    })?;
    Ok(StoredCommand { session, operations })
}

/// Whether every replica must sync the entry before it acknowledges it.
pub(crate) fn is_synced(meta: &[u8]) -> bool {
    match meta {
        [COMMAND, flags, ..] => flags & SYNCED != 0,
        [kind, ..] => matches!(*kind, MEMBERSHIP | MODE | CLUSTER_VERSION),
        [] => false,
    }
}

/// Parses a command and calls `each` for every operation. Allocates nothing, so a false count costs
/// nothing.
fn parse_command<'m>(
    meta: &'m [u8],
    mut each: impl FnMut(StoredKind<StoredRange<&'m [u8]>>, &'m [u8], Condition),
) -> Result<Option<StoredSession>, Malformed> {
    let mut rest = meta;
    if take_u8(&mut rest)? != COMMAND {
        return Err(Malformed("no command"));
    }
    let session = match take_u8(&mut rest)? {
        0 | SYNCED => None,
        1 | 3 => {
            let client_id =
                rest.try_get_u128().map_err(|_| Malformed("a session without its client"))?;
            let session = Session {
                client_id,
                sequence: take_varint(&mut rest)?,
                lowest_pending: take_varint(&mut rest)?,
                base_index: take_varint(&mut rest)?,
            };
            Some(StoredSession { session, max_sessions: take_varint(&mut rest)? })
        }
        _ => return Err(Malformed("an unknown kind of session")),
    };
    for _ in 0..take_varint(&mut rest)? {
        let tag = take_u8(&mut rest)?;
        let name = match tag & 3 {
            NAMED => Some(take_u8(&mut rest)?),
            _ => None,
        };
        let key = take_bytes(&mut rest)?;
        let condition = match tag >> 2 {
            NONE => Condition::None,
            ABSENT => Condition::Absent,
            EXISTS => Condition::Exists,
            VERSION => Condition::Version(take_varint(&mut rest)?),
            _ => return Err(Malformed("an unknown condition")),
        };
        let kind = match (tag & 3, name) {
            (PUT, _) => StoredKind::Put,
            (DELETE, _) => StoredKind::Delete,
            (CHECK, _) => StoredKind::Check,
            (_, Some(DELETE_RANGE)) if condition == Condition::None => {
                StoredKind::DeleteRange(take_range(&mut rest)?)
            }
            (_, Some(DELETE_RANGE)) => return Err(Malformed("a range with a condition")),
            _ => return Err(Malformed("an unknown operation")),
        };
        each(kind, key, condition);
    }
    match rest.is_empty() {
        true => Ok(session),
        false => Err(Malformed("bytes after the last operation")),
    }
}

/// What the deletion of a range has behind the key.
fn take_range<'m>(rest: &mut &'m [u8]) -> Result<StoredRange<&'m [u8]>, Malformed> {
    let end = take_bytes(rest)?;
    let most = u32::try_from(take_varint(rest)?).ok();
    let most = most.filter(|most| (1..=RANGE_KEYS_MAX).contains(most));
    let most = most.ok_or(Malformed("a range of no keys or of too many"))?;
    let whole = match take_u8(rest)? {
        0 => false,
        1 => true,
        _ => return Err(Malformed("neither true nor false")),
    };
    Ok(StoredRange { end, most, whole })
}

/// An entry's payload as meta and values.
pub(crate) fn encode_payload(payload: Payload) -> (Bytes, Vec<Value>) {
    match payload {
        Payload::Blank => (Bytes::from_static(&[BLANK]), Vec::new()),
        Payload::Normal(proposal) => (proposal.meta, proposal.values),
        Payload::Membership(membership) => (encode_membership(&membership), Vec::new()),
    }
}

fn encode_membership(membership: &Membership) -> Bytes {
    let message = convert::membership_to_proto(membership);
    let mut meta = BytesMut::with_capacity(1 + message.encoded_len());
    meta.put_u8(MEMBERSHIP);
    meta.put_slice(&message.encode_to_vec());
    meta.freeze()
}

/// An entry's payload from meta and values. Does not check a command: that is done when it is
/// applied, or by [`validate`].
pub(crate) fn decode_payload(meta: Bytes, values: Vec<Value>) -> Result<Payload, Malformed> {
    match LogRecord::of_members(&meta)? {
        None => Ok(Payload::Normal(Proposal { meta, values })),
        Some(_) if !values.is_empty() => Err(Malformed("values without a command")),
        Some(LogRecord::Blank) => Ok(Payload::Blank),
        Some(LogRecord::Membership(membership)) => Ok(Payload::Membership(membership)),
        Some(_) => Ok(Payload::Normal(Proposal { meta, values })),
    }
}

/// Whether one command may have so many ranges and so many puts and deletes: so that what it does is bounded,
/// there is a range only beside checks.
pub(crate) fn fit_together(ranges: usize, changes: usize) -> bool {
    ranges == 0 || ranges == 1 && changes == 0
}

/// Whether the engine can keep such a key.
pub(crate) fn is_key(key: &[u8]) -> bool {
    !key.is_empty() && u16::try_from(key.len()).is_ok()
}

/// Whether a range may begin or end there.
fn is_bound(key: &[u8]) -> bool {
    u16::try_from(key.len()).is_ok()
}

/// As [`decode_payload`], and checks the command and counts its values: for entries from the
/// network.
pub(crate) fn validate(meta: Bytes, values: Vec<Value>) -> Result<Payload, Malformed> {
    if meta.len() > MAX_META_BYTES {
        return Err(Malformed("an entry larger than the bound"));
    }
    let payload = decode_payload(meta, values)?;
    if let Payload::Normal(proposal) = &payload
        && proposal.meta.first() == Some(&COMMAND)
    {
        let (mut puts, mut deletes, mut ranges, mut keys_fit) = (0, 0, 0, true);
        parse_command(&proposal.meta, |kind, key, _| {
            keys_fit &= match kind {
                StoredKind::Put | StoredKind::Delete | StoredKind::Check => is_key(key),
                StoredKind::DeleteRange(range) => is_bound(key) && is_bound(range.end),
            };
            match kind {
                StoredKind::Put => puts += 1,
                StoredKind::Delete => deletes += 1,
                StoredKind::Check => {}
                StoredKind::DeleteRange(_) => ranges += 1,
            }
        })?;
        if !keys_fit {
            return Err(Malformed("a key that is empty or too long"));
        }
        if !fit_together(ranges, puts + deletes) {
            return Err(Malformed("a range beside other changes"));
        }
        if puts != proposal.values.len() || puts > MAX_VALUES {
            return Err(Malformed("not as many values as puts, or too many"));
        }
    }
    Ok(payload)
}

#[cfg(test)]
mod tests;
