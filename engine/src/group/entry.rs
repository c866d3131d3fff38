//! An entry of the log in memory.

use crate::codec::{VARINT_BYTES_MAX, varint_bytes};
use crate::journal::{Body, body_bytes, decode_body, encode_body};
use crate::types::LogId;
use crate::value_ref::ValueRef;
use bytes::Bytes;

/// An entry's record in memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    pub id: LogId,
    pub meta: Bytes,
    pub values: Box<[ValueRef]>,
    /// Where the body is, if it was too long for its journal record.
    pub spilled: Option<ValueRef>,
}

impl LogEntry {
    /// The body as the journal and checkpoints hold it.
    pub(crate) fn body(&self) -> Body {
        match &self.spilled {
            Some(at) => Body::Spilled(at.clone()),
            None => Body::Inline(encode_body(&self.values, &self.meta).into()),
        }
    }

    /// The entry of an inline body; `None` if the body cannot be read.
    pub(crate) fn from_body(id: LogId, body: &[u8], spilled: Option<ValueRef>) -> Option<LogEntry> {
        let (values, meta) = decode_body(body)?;
        Some(LogEntry { id, meta, values, spilled })
    }

    /// Every extent that the entry refers to.
    pub(crate) fn extents(&self) -> impl Iterator<Item = &ValueRef> {
        self.values.iter().chain(self.spilled.as_ref())
    }

    /// Bytes of its extents.
    pub(super) fn extent_bytes(&self) -> u64 {
        self.extents().map(|at| u64::from(at.len)).sum()
    }

    /// Bytes that a checkpoint needs for it.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        let body = body_bytes(&self.values, &self.meta);
        let spilled = 1 + self.spilled.as_ref().map_or(0, ValueRef::encoded_bytes);
        let position = varint_bytes(self.id.term) + varint_bytes(self.id.index);
        (position + spilled + varint_bytes(body as u64) + body) as u64
    }

    /// The same entry with the value at `from` moved to `to`. `None` if none is there.
    pub(crate) fn with_moved(&self, from: &ValueRef, to: &ValueRef) -> Option<LogEntry> {
        let mut values = self.values.clone();
        *values.iter_mut().find(|value| *value == from)? = to.clone();
        let (id, meta, spilled) = (self.id, self.meta.clone(), self.spilled.clone());
        Some(LogEntry { id, meta, values, spilled })
    }

    /// Bytes of its values and meta.
    pub(crate) fn bytes(&self) -> u64 {
        self.meta.len() as u64 + self.values.iter().map(|v| u64::from(v.len)).sum::<u64>()
    }
}

/// The most bytes that a checkpoint needs for an entry with values of these lengths and such a
/// meta, wherever its values lie.
pub(crate) fn checkpoint_bytes_max(lengths: impl IntoIterator<Item = u64>, meta_len: usize) -> u64 {
    let (mut count, mut refs) = (0, 0u64);
    for len in lengths {
        count += 1;
        refs = refs.saturating_add(ValueRef::encoded_bytes_max(len));
    }
    let body = refs.saturating_add((varint_bytes(count) + meta_len) as u64);
    let spilled = 1 + ValueRef::encoded_bytes_max(body);
    let position = 2 * VARINT_BYTES_MAX as u64;
    body.saturating_add(spilled + position + varint_bytes(body) as u64)
}
