//! Preparing entries for the log: hashing outside the lock, allocating space and assigning journal
//! order inside it.

use crate::codec::hash;
use crate::error::{Error, Result};
use crate::group::LogEntry;
use crate::journal::{Body, encode_body};
use crate::state::{Op, Pending, State};
use crate::types::{GroupId, LogId, NewEntry, ValueRef};
use bytes::Bytes;
use std::collections::VecDeque;
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

/// Entries cut into operations of bounded size.
pub(crate) struct PreparedAppends {
    rest: VecDeque<PreparedAppend>,
}

/// The entries of one operation.
pub(crate) struct PreparedAppend {
    entries: Vec<Prepared>,
    pub record_bytes: usize,
    pub value_bytes: u64,
}

impl PreparedAppends {
    pub(crate) fn prepare(entries: Vec<NewEntry>) -> Result<PreparedAppends> {
        let mut rest: VecDeque<PreparedAppend> = VecDeque::new();
        rest.push_back(PreparedAppend {
            entries: Vec::with_capacity(entries.len()),
            record_bytes: 0,
            value_bytes: 0,
        });
        for entry in entries {
            let entry = Prepared::new(entry)?;
            if rest.back().is_none_or(|b| {
                b.record_bytes >= BATCH_RECORD_BYTES || b.value_bytes >= BATCH_VALUE_BYTES
            }) {
                rest.push_back(PreparedAppend {
                    entries: Vec::new(),
                    record_bytes: 0,
                    value_bytes: 0,
                });
            }
            if let Some(batch) = rest.back_mut() {
                batch.record_bytes += entry.record_bytes();
                batch.value_bytes += entry.value_bytes();
                batch.entries.push(entry);
            }
        }
        Ok(PreparedAppends { rest })
    }

    pub(crate) fn next(&mut self) -> Option<PreparedAppend> {
        self.rest.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

impl PreparedAppend {
    /// Allocates an extent for every value and makes the entries readable. All or nothing.
    pub(crate) fn insert(self, state: &mut State, group: GroupId, cache_limit: u64) -> Result<Op> {
        self.check_order(state, group)?;
        let mut placed: Vec<Pending> = Vec::with_capacity(self.entries.len());
        for entry in self.entries {
            match allocate_extents(state, entry) {
                Ok(pending) => placed.push(pending),
                Err(error) => {
                    for value in placed.iter().flat_map(|p| p.entry.extents()) {
                        state.space.unlink(value);
                    }
                    return Err(error);
                }
            }
        }
        let log = &mut state.groups.entry(group).or_default().log;
        for pending in &placed {
            let offsets = pending.entry.values.iter().map(|v| v.offset);
            let values = offsets.zip(pending.values.iter().cloned()).filter(|(_, v)| !v.is_empty());
            state.unwritten.extend(values);
            state
                .unwritten
                .extend(pending.entry.spilled.map(|at| at.offset).zip(pending.body.clone()));
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

fn allocate_extents(state: &mut State, entry: Prepared) -> Result<Pending> {
    let Prepared { id, meta, values, hashes } = entry;
    let mut refs: Vec<ValueRef> = Vec::with_capacity(values.len());
    for (value, hash) in values.iter().zip(hashes) {
        match allocate(state, value.len() as u32, hash) {
            Ok(at) => refs.push(at),
            Err(error) => {
                refs.iter().for_each(|at| state.space.unlink(at));
                return Err(error);
            }
        }
    }
    let body = encode_body(&refs, &meta);
    let (spilled, body) = if Body::fits_inline(body.len()) {
        (None, None)
    } else {
        match allocate(state, body.len() as u32, hash(&body)) {
            Ok(at) => (Some(at), Some(Bytes::from(body))),
            Err(error) => {
                refs.iter().for_each(|at| state.space.unlink(at));
                return Err(error);
            }
        }
    };
    let entry = Arc::new(LogEntry { id, meta, values: refs.into(), spilled });
    Ok(Pending { entry, values, body })
}

fn allocate(state: &mut State, len: u32, hash: u128) -> Result<ValueRef> {
    match state.space.allocate(len) {
        Some(offset) => Ok(ValueRef { offset, len, hash }),
        None => Err(Error::Full {
            needed: u64::from(len),
            free: state.space.free_bytes(),
            capacity: state.space.capacity_bytes(),
        }),
    }
}
