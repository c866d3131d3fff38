//! Applying an entry to the state: conditions, results, changes.
//!
//! What holds here: an entry sees the state after the entries before it, though a batch of entries
//! reaches the engine at once; all operations of a command see the state before the command.

use super::identities::{add_dropped, behind, log_boot};
use super::image::Image;
use super::recoveries::UnsafeRecoveries;
use super::sessions::SessionCheck;
use crate::core::codec::{LogRecord, StoredCommand, StoredKind};
use crate::core::command::{OperationResult, Version, WriteOutcome};
use crate::core::error::Malformed;
use crate::core::ids::{GROUP, NodeId};
use crate::core::types::{Answer, Entry, RaftLogId, StoredMembership, engine_log_id};
use crate::storage::history::{Effect, UNCHANGED};
use crate::storage::mode_in_force::{allows_replicated, too_few};
use bytes::Bytes;
use cairn_engine::{Change, Engine, LogId, Mode, Transition};
use std::collections::HashMap;
use std::sync::Arc;

/// Which keys exist, with which version: the engine, or a stand-in for tests.
pub(super) trait Keys {
    fn version(&self, key: &[u8]) -> Option<Version>;
}

impl Keys for Engine {
    fn version(&self, key: &[u8]) -> Option<Version> {
        self.lookup(GROUP, key).map(|entry| entry.version.index)
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

    /// Applies the next entry.
    pub(super) fn apply(&mut self, entry: Entry) -> Result<Answer, Malformed> {
        let id = engine_log_id(&entry.log_id);
        if self.image.lists_recoveries() {
            self.image.recovery_records.applies(self.applied, id);
        }
        self.applied = Some(id);
        let (changed, answer) = match LogRecord::of(entry.payload)? {
            LogRecord::Command(command) => self.command(id, command),
            record => {
                self.record(entry.log_id, record);
                (Changed::default(), Answer::Nothing)
            }
        };
        let Changed { changes, effect } = changed;
        self.transitions.push(Transition { applied: id, changes });
        self.effects.push((id, effect));
        Ok(answer)
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
        let mut applied = true;
        let results: Vec<OperationResult> = command
            .operations
            .iter()
            .map(|operation| {
                let version = self.version(&operation.key);
                let condition_held = operation.condition.holds(version);
                applied &= condition_held;
                OperationResult {
                    condition_held,
                    existed: version.is_some(),
                    version: version.unwrap_or(0),
                }
            })
            .collect();
        let recorded = WriteOutcome { log_id: id, applied, results };
        if !applied {
            return (Changed::default(), recorded);
        }
        let operations = command.operations.iter().zip(&recorded.results);
        let effect = Effect::of(operations.map(|(operation, found)| match operation.kind {
            StoredKind::Check => UNCHANGED,
            StoredKind::Delete if !found.existed => UNCHANGED,
            StoredKind::Put | StoredKind::Delete => found.version,
        }));
        let mut changes = Vec::with_capacity(command.operations.len());
        let mut value = 0;
        for operation in command.operations {
            let (change, version) = match operation.kind {
                StoredKind::Check => continue,
                StoredKind::Put => {
                    value += 1;
                    (Change::Put { key: operation.key.clone(), value: value - 1 }, Some(id.index))
                }
                StoredKind::Delete => (Change::Delete { key: operation.key.clone() }, None),
            };
            self.changed.insert(operation.key, version);
            changes.push(change);
        }
        (Changed { changes, effect }, recorded)
    }
}

#[cfg(test)]
mod tests;
