//! Preparing entries for the log: hashing outside the lock, allocating space and assigning journal
//! order inside it.

use crate::codec::hash;
use crate::error::{Error, Result};
use crate::group::LogEntry;
use crate::journal::{MAX_INLINE_BODY, encode_body};
use crate::space::SpaceMap;
use crate::state::{Op, Pending, State};
use crate::types::{GroupId, LogId, NewEntry, ValueRef};
use bytes::Bytes;
use std::sync::Arc;

/// The longest meta, in bytes.
const MAX_META_BYTES: usize = 1 << 20;
/// The approximate limit for one operation in the queue, so that the queue's bounds are effective.
const BATCH_RECORD_BYTES: usize = 32 << 10;
const BATCH_VALUE_BYTES: u64 = 4 << 20;
/// Bytes of a record beside meta and values.
const RECORD_OVERHEAD: usize = 32;

/// An entry whose values are hashed.
struct Prepared {
    id: LogId,
    meta: Bytes,
    values: Arc<[Bytes]>,
    hashes: Vec<u128>,
}

impl Prepared {
    fn new(entry: NewEntry) -> Result<Prepared> {
        let NewEntry { id, meta, values } = entry;
        let oversized = values.iter().any(|v| u32::try_from(v.len()).is_err());
        if meta.len() > MAX_META_BYTES || values.len() > usize::from(u16::MAX) || oversized {
            return Err(Error::Invalid(format!(
                "entry {id} has {} bytes of meta and {} values: at most {MAX_META_BYTES} bytes, {} values of 4 GiB",
                meta.len(),
                values.len(),
                u16::MAX
            )));
        }
        let hashes = values.iter().map(|v| hash(v)).collect();
        // A slice of a larger buffer would keep all of it in memory while the log keeps the entry.
        Ok(Prepared { id, meta: Bytes::copy_from_slice(&meta), values: values.into(), hashes })
    }

    fn record_bytes(&self) -> usize {
        RECORD_OVERHEAD + self.meta.len() + self.values.len() * 28
    }

    fn value_bytes(&self) -> u64 {
        self.values.iter().map(|v| v.len() as u64).sum()
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
    /// Cuts entries into operations of bounded size, at least one.
    pub(crate) fn prepare(entries: Vec<NewEntry>) -> Result<Vec<PreparedAppend>> {
        let mut batches = Vec::new();
        let mut batch =
            PreparedAppend { entries: Vec::with_capacity(entries.len()), ..Default::default() };
        for entry in entries {
            if batch.record_bytes >= BATCH_RECORD_BYTES || batch.value_bytes >= BATCH_VALUE_BYTES {
                batches.push(std::mem::take(&mut batch));
            }
            let entry = Prepared::new(entry)?;
            batch.record_bytes += entry.record_bytes();
            batch.value_bytes += entry.value_bytes();
            batch.entries.push(entry);
        }
        batches.push(batch);
        Ok(batches)
    }

    /// Allocates an extent for every value and makes the entries readable. All or nothing.
    pub(crate) fn insert(self, state: &mut State, group: GroupId, cache_limit: u64) -> Result<Op> {
        self.check_order(state, group)?;
        let mut extents = Vec::new();
        let placed = self.entries.into_iter();
        let placed = placed.map(|entry| allocate_extents(&mut state.space, entry, &mut extents));
        let placed: Vec<Pending> = placed
            .collect::<Result<_>>()
            .inspect_err(|_| extents.iter().for_each(|at| state.space.unlink(at)))?;
        let log = &mut state.groups.entry(group).or_default().log;
        for pending in &placed {
            state.unwritten.extend(pending.chunks());
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

/// Adds every extent that it allocates to `extents`.
fn allocate_extents(
    space: &mut SpaceMap,
    entry: Prepared,
    extents: &mut Vec<ValueRef>,
) -> Result<Pending> {
    let Prepared { id, meta, values, hashes } = entry;
    let mut allocate = |len: usize, hash| {
        let offset = space.allocate(len as u32).ok_or_else(|| space.full(len as u64))?;
        let at = ValueRef { offset, len: len as u32, hash };
        extents.push(at);
        Ok(at)
    };
    let sized = values.iter().zip(hashes);
    let refs: Box<[ValueRef]> =
        sized.map(|(value, hash)| allocate(value.len(), hash)).collect::<Result<_>>()?;
    let body = Bytes::from(encode_body(&refs, &meta));
    let body = Some(body).filter(|body| body.len() > MAX_INLINE_BODY);
    let spilled = body.as_ref().map(|body| allocate(body.len(), hash(body))).transpose()?;
    let entry = Arc::new(LogEntry { id, meta, values: refs, spilled });
    Ok(Pending { entry, values, body })
}
