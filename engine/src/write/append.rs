//! Preparing entries for the log: allocating space and assigning journal order under the lock.

use crate::codec::{VARINT_BYTES_MAX, hash};
use crate::error::{Error, Result};
use crate::group::LogEntry;
use crate::journal::{MAX_INLINE_BODY, body_bytes, encode_body};
use crate::layout::most_blocks;
use crate::space::SpaceMap;
use crate::state::{Engine, Op, Pending, State};
use crate::types::{GroupId, LogId, NewEntry, Value, ValueRef};
use bytes::Bytes;
use std::sync::Arc;

/// The longest meta, in bytes.
const MAX_META_BYTES: usize = 1 << 20;
/// The approximate limit for one operation in the queue, so that the queue's bounds are effective.
const BATCH_RECORD_BYTES: usize = 32 << 10;
const BATCH_VALUE_BYTES: u64 = 1 << 20;
/// The most bytes of a record beside meta and references.
const RECORD_OVERHEAD: u64 = 48;

/// An entry whose size is checked.
struct Prepared {
    id: LogId,
    meta: Bytes,
    values: Vec<Value>,
}

impl Prepared {
    fn new(entry: NewEntry) -> Result<Prepared> {
        let NewEntry { id, meta, values } = entry;
        let oversized = values.iter().any(|v| u32::try_from(v.bytes().len()).is_err());
        if meta.len() > MAX_META_BYTES || values.len() > usize::from(u16::MAX) || oversized {
            return Err(Error::Invalid(format!(
                "entry {id} has {} bytes of meta and {} values: at most {MAX_META_BYTES} bytes, {} values of 4 GiB",
                meta.len(),
                values.len(),
                u16::MAX
            )));
        }
        // A slice of a larger buffer would keep all of it in memory while the log keeps the entry.
        Ok(Prepared { id, meta: Bytes::copy_from_slice(&meta), values })
    }

    fn record_bytes(&self) -> usize {
        let lengths = self.values.iter().map(|value| value.bytes().len() as u64);
        let refs = lengths.map(ValueRef::encoded_bytes_max);
        (RECORD_OVERHEAD + self.meta.len() as u64 + refs.sum::<u64>()) as usize
    }

    fn value_bytes(&self) -> u64 {
        self.values.iter().map(|value| value.bytes().len() as u64).sum()
    }
}

impl Engine {
    /// The most blocks of the data area that entries take which are appended together, given by the
    /// lengths of their values and of their metas.
    pub fn blocks_for<V: IntoIterator<Item = u64>>(
        entries: impl IntoIterator<Item = (V, usize)>,
    ) -> u64 {
        let mut lengths = Vec::new();
        let (mut operations, mut records, mut bytes) = (1, 0, 0u64);
        for (values, meta_len) in entries {
            if records >= BATCH_RECORD_BYTES as u64 || bytes >= BATCH_VALUE_BYTES {
                (operations, records, bytes) = (operations + 1, 0, 0);
            }
            let before = lengths.len();
            lengths.extend(values);
            let values = lengths.get(before..).unwrap_or_default();
            bytes = values.iter().fold(bytes, |sum, len| sum.saturating_add(*len));
            let refs = values.iter().map(|len| ValueRef::encoded_bytes_max(*len)).sum::<u64>();
            records += RECORD_OVERHEAD + refs + meta_len as u64;
            let body = VARINT_BYTES_MAX as u64 + refs + meta_len as u64;
            lengths.extend((body > MAX_INLINE_BODY as u64).then_some(body));
        }
        // Each operation is in one group commit.
        most_blocks(lengths, operations)
    }
}

/// The entries of one operation.
#[derive(Default)]
pub(crate) struct PreparedAppend {
    entries: Vec<Prepared>,
    pub record_bytes: usize,
    pub value_bytes: u64,
}

impl PreparedAppend {
    /// Takes entries for one operation of bounded size.
    pub(crate) fn prepare(entries: &mut impl Iterator<Item = NewEntry>) -> Result<PreparedAppend> {
        let mut batch = PreparedAppend::default();
        while batch.record_bytes < BATCH_RECORD_BYTES
            && batch.value_bytes < BATCH_VALUE_BYTES
            && let Some(entry) = entries.next()
        {
            let entry = Prepared::new(entry)?;
            batch.record_bytes += entry.record_bytes();
            batch.value_bytes += entry.value_bytes();
            batch.entries.push(entry);
        }
        Ok(batch)
    }

    /// Allocates an extent for every value and makes the entries readable. All or nothing.
    pub(crate) fn insert(self, state: &mut State, group: GroupId, cache_limit: u64) -> Result<Op> {
        self.check_order(state, group)?;
        let mut placed: Vec<Pending> = Vec::with_capacity(self.entries.len());
        for entry in self.entries {
            match allocate_extents(&mut state.space, entry) {
                Ok(pending) => placed.push(pending),
                Err(error) => {
                    let extents = placed.iter().flat_map(|pending| pending.entry.extents());
                    extents.for_each(|at| state.space.unlink(at));
                    return Err(error);
                }
            }
        }
        let log = &mut state.groups.entry(group).or_default().log;
        for pending in &placed {
            let chunks = pending.chunks().map(|(at, bytes)| (at.offset(), bytes.clone()));
            state.unwritten.extend(chunks);
            log.push(pending.entry.clone(), Some(pending.values.clone()), cache_limit);
        }
        Ok(Op::Append { group, entries: placed })
    }

    fn check_order(&self, state: &State, group: GroupId) -> Result<()> {
        let mut due = state.groups.get(&group).and_then(|g| g.log.next_index());
        for entry in &self.entries {
            if let Some(next) = due.filter(|next| *next != entry.id.index) {
                return Err(Error::Invalid(format!(
                    "entry {} does not follow the log: index {next} is due",
                    entry.id
                )));
            }
            due = Some(entry.id.index + 1);
        }
        Ok(())
    }
}

/// Allocates the extents of an entry: all or none.
fn allocate_extents(space: &mut SpaceMap, entry: Prepared) -> Result<Pending> {
    let Prepared { id, meta, values } = entry;
    let mut refs: Vec<ValueRef> = Vec::with_capacity(values.len());
    let mut allocate = |refs: &[ValueRef], len: usize, hash| {
        space.allocate(len as u32, hash).ok_or_else(|| {
            refs.iter().for_each(|at| space.unlink(at));
            space.full(len as u64)
        })
    };
    for value in &values {
        refs.push(allocate(&refs, value.bytes().len(), value.hash())?);
    }
    let spills = body_bytes(&refs, &meta) > MAX_INLINE_BODY;
    let body = spills.then(|| Bytes::from(encode_body(&refs, &meta)));
    let spilled = body.as_ref().map(|body| allocate(&refs, body.len(), hash(body))).transpose()?;
    let entry = Arc::new(LogEntry { id, meta, values: refs.into(), spilled });
    let values = values.into_iter().map(|value| value.into_parts().0).collect();
    Ok(Pending { entry, values, body })
}
