//! Applying an entry to the state: conditions, results, changes.
//!
//! What holds here: an entry sees the state after the entries before it, though a batch of entries
//! reaches the engine at once; all operations of a command see the state before the command. A range of
//! keys is read from the engine alone, since what the batch changed has no order: a command with a range
//! begins a batch ([`ApplyBatch::has_to_end_before`]). How entries are cut into batches changes no state,
//! so members need not agree on it.

use super::identities::{add_dropped, behind, log_boot};
use super::image::Image;
use super::recoveries::UnsafeRecoveries;
use super::sessions::SessionCheck;
use crate::core::codec::{LogRecord, StoredCommand, StoredKind, StoredOperation, StoredRange};
use crate::core::command::{OperationResult, Version, WriteOutcome};
use crate::core::ids::{GROUP, NodeId};
use crate::core::types::{Answer, RaftLogId, StoredMembership, engine_log_id};
use crate::storage::history::{Effect, UNCHANGED};
use crate::storage::mode_in_force::{allows_replicated, too_few};
use bytes::Bytes;
use cairn_engine::{Change, Engine, LogId, Mode, Transition};
use std::collections::HashMap;
use std::sync::Arc;

/// Which keys exist, with which version: the engine, or a stand-in for tests.
pub(super) trait Keys {
    fn version(&self, key: &[u8]) -> Option<Version>;

    /// The first keys from `start` on and before `end`, `most` at most, in order, with their versions. An
    /// empty `end` is behind every key.
    fn range(&self, start: &[u8], end: &[u8], most: usize) -> Vec<(Bytes, Version)>;
}

impl Keys for Engine {
    fn version(&self, key: &[u8]) -> Option<Version> {
        self.lookup(GROUP, key).map(|entry| entry.version.index)
    }

    fn range(&self, start: &[u8], end: &[u8], most: usize) -> Vec<(Bytes, Version)> {
        let view = self.view(GROUP);
        // One buffer for all keys. Thousands of small ones would cost more than the keys have bytes, and the
        // history keeps them.
        let mut keys = Vec::new();
        let found: Vec<(usize, Version)> = view
            .entries_between(start, end)
            .take(most)
            .map(|(key, entry)| {
                keys.extend_from_slice(key);
                (key.len(), entry.version.index)
            })
            .collect();
        let mut keys = Bytes::from(keys.into_boxed_slice());
        found.into_iter().map(|(bytes, version)| (keys.split_to(bytes), version)).collect()
    }
}

/// Entries applied together: their effects, collected for one call of the engine.
pub(super) struct ApplyBatch<'k, K> {
    keys: &'k K,
    /// What earlier entries of the batch did to keys.
    changed: HashMap<Bytes, Option<Version>>,
    image: Image,
    /// The last applied entry.
    applied: Option<LogId>,
    transitions: Vec<Transition>,
    /// What each entry changed, for the history.
    effects: Vec<(LogId, Effect)>,
}

/// What an entry does to keys, and what the history keeps of it.
#[derive(Default)]
struct Changed {
    changes: Vec<Change>,
    effect: Effect,
}

impl<'k, K: Keys> ApplyBatch<'k, K> {
    /// `image` is the state after the entry `applied`.
    pub(super) fn new(
        keys: &'k K,
        image: Image,
        applied: Option<LogId>,
        capacity: usize,
    ) -> ApplyBatch<'k, K> {
        ApplyBatch {
            keys,
            changed: HashMap::with_capacity(capacity),
            image,
            applied,
            transitions: Vec::with_capacity(capacity),
            effects: Vec::with_capacity(capacity),
        }
    }

    /// What each entry since the last call changed, for the history.
    pub(super) fn take_effects(&mut self) -> Vec<(LogId, Effect)> {
        std::mem::take(&mut self.effects)
    }

    /// The effects, and the image after the last entry.
    pub(super) fn finish(self) -> (Vec<Transition>, Image) {
        (self.transitions, self.image)
    }

    /// Whether the engine must have the entries of this batch before the next one is applied.
    pub(super) fn has_to_end_before(&self, next: &LogRecord) -> bool {
        let reads_range = matches!(next, LogRecord::Command(command) if command.reads_range());
        reads_range && !self.transitions.is_empty()
    }

    /// Applies the next entry, which holds this record.
    pub(super) fn apply(&mut self, log_id: RaftLogId, record: LogRecord) -> Answer {
        let id = engine_log_id(&log_id);
        if self.image.lists_recoveries() {
            self.image.recovery_records.applies(self.applied, id);
        }
        self.applied = Some(id);
        let (changed, answer) = match record {
            LogRecord::Command(command) => self.command(id, command),
            record => {
                self.record(log_id, record);
                (Changed::default(), Answer::Nothing)
            }
        };
        let Changed { changes, effect } = changed;
        self.transitions.push(Transition { applied: id, changes });
        self.effects.push((id, effect));
        answer
    }

    /// Applies what the members themselves logged. It changes the image, and no key.
    fn record(&mut self, log_id: RaftLogId, record: LogRecord) {
        let id = engine_log_id(&log_id);
        let image = &mut self.image;
        match record {
            LogRecord::Blank | LogRecord::Command(_) => {}
            LogRecord::Membership(membership) => {
                add_dropped(&mut image.removed, image.membership.membership(), &membership);
                if image.mode == Some(Mode::Replicated) && too_few(&membership) {
                    (image.mode, image.mode_index) = (Some(Mode::Sync), id.index);
                }
                image.membership = Arc::new(StoredMembership::new(Some(log_id), membership));
            }
            LogRecord::UnsafeRecovery(_) => {
                // An unsafe recovery elects a leader for one term; each member that used the grant
                // may ask for a record.
                let known = image.unsafe_recoveries;
                if id.term != known.last_term {
                    if image.lists_recoveries() {
                        image.recovery_records.add(known, id);
                    }
                    image.unsafe_recoveries = UnsafeRecoveries {
                        count: known.count + 1,
                        last_index: id.index,
                        last_term: id.term,
                    };
                }
            }
            LogRecord::Boot(member, boot) => {
                let membership = image.membership.membership();
                let is_member = |id: NodeId| membership.get_node(&id).is_some();
                log_boot(&mut image.boot_epochs, member, boot, is_member);
            }
            LogRecord::Mode(mode) => {
                if mode != Mode::Replicated || allows_replicated(image.membership.membership()) {
                    (image.mode, image.mode_index) = (Some(mode), id.index);
                }
            }
            LogRecord::Version(version) => {
                // A member may have been added, or may have gone back to an older release, since the
                // leader looked.
                let membership = image.membership.membership();
                if behind(&image.boot_epochs, membership, version).is_empty() {
                    image.version = image.version.max(version);
                }
            }
        }
    }

    fn command(&mut self, id: LogId, command: StoredCommand) -> (Changed, Answer) {
        let Some(stored) = command.session else {
            let (changed, recorded) = self.run(id, command);
            return (changed, Answer::Outcome(recorded));
        };
        match self.image.sessions.check(id.index, &stored) {
            SessionCheck::Expired => (Changed::default(), Answer::SessionExpired),
            SessionCheck::Repeated(recorded) => {
                (Changed::default(), Answer::Outcome(recorded.as_ref().clone()))
            }
            SessionCheck::New => {
                let (changed, recorded) = self.run(id, command);
                let answer = Answer::Outcome(recorded.clone());
                self.image.sessions.record(&stored, Arc::new(recorded));
                (changed, answer)
            }
        }
    }

    fn version(&self, key: &Bytes) -> Option<Version> {
        match self.changed.get(key) {
            Some(version) => *version,
            None => self.keys.version(key),
        }
    }

    fn run(&mut self, id: LogId, command: StoredCommand) -> (Changed, WriteOutcome) {
        let mut ranges = Vec::new();
        let results = command.operations.iter().map(|operation| match &operation.kind {
            StoredKind::DeleteRange(range) => {
                let (keys, result) = self.range(&operation.key, range);
                ranges.push(keys);
                result
            }
            _ => self.condition(operation),
        });
        let mut results: Vec<OperationResult> = results.collect();
        let applied = results.iter().all(|result| result.condition_held);
        if !applied {
            results.iter_mut().for_each(|result| result.deleted = 0);
            return (Changed::default(), WriteOutcome { log_id: id, applied, results });
        }
        let effect = effect_of(&command.operations, &results, &ranges);
        let mut changes = Vec::with_capacity(command.operations.len());
        let (mut value, mut ranges) = (0, ranges.into_iter());
        for StoredOperation { kind, key, .. } in command.operations {
            match kind {
                StoredKind::Check => {}
                StoredKind::Put => {
                    self.changed.insert(key.clone(), Some(id.index));
                    changes.push(Change::Put { key, value });
                    value += 1;
                }
                StoredKind::Delete => {
                    self.changed.insert(key.clone(), None);
                    changes.push(Change::Delete { key });
                }
                StoredKind::DeleteRange(_) => {
                    for (key, _) in ranges.next().into_iter().flatten() {
                        self.changed.insert(key.clone(), None);
                        changes.push(Change::Delete { key });
                    }
                }
            }
        }
        (Changed { changes, effect }, WriteOutcome { log_id: id, applied, results })
    }

    /// Whether the condition of an operation on one key holds.
    fn condition(&self, operation: &StoredOperation) -> OperationResult {
        let version = self.version(&operation.key);
        OperationResult {
            condition_held: operation.condition.holds(version),
            existed: version.is_some(),
            version: version.unwrap_or(0),
            ..OperationResult::default()
        }
    }

    /// The keys that the deletion of a range deletes, if its command is applied, with their versions.
    fn range(
        &self,
        start: &Bytes,
        range: &StoredRange<Bytes>,
    ) -> (Vec<(Bytes, Version)>, OperationResult) {
        assert!(self.transitions.is_empty(), "the engine has everything before the range");
        let most = usize::try_from(range.most).unwrap_or(usize::MAX);
        let mut keys = self.keys.range(start, &range.end, most.saturating_add(1));
        let more = keys.len() > most;
        keys.truncate(most);
        let result = OperationResult {
            condition_held: !(more && range.whole),
            deleted: u32::try_from(keys.len()).unwrap_or(u32::MAX),
            more,
            ..OperationResult::default()
        };
        (keys, result)
    }
}

/// What the history keeps of a command that is applied. `ranges` are the keys of the ranges that it deletes,
/// beside which there are only checks.
fn effect_of(
    operations: &[StoredOperation],
    results: &[OperationResult],
    ranges: &[Vec<(Bytes, Version)>],
) -> Effect {
    if !ranges.is_empty() {
        return Effect::of_range(ranges.concat());
    }
    let operations = operations.iter().zip(results);
    Effect::of(operations.map(|(operation, found)| match operation.kind {
        StoredKind::Check | StoredKind::DeleteRange(_) => UNCHANGED,
        StoredKind::Delete if !found.existed => UNCHANGED,
        StoredKind::Put | StoredKind::Delete => found.version,
    }))
}

#[cfg(test)]
mod tests;
