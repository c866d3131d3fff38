//! Applying an entry to the state: conditions, results, changes.
//!
//! What holds here: an entry sees the state after the entries before it, though a batch of entries
//! reaches the engine at once; all operations of a command see the state before the command.

use super::identities::{add_dropped, behind, log_boot};
use super::image::{Image, UnsafeRecoveries};
use super::sessions::SessionCheck;
use crate::core::codec::{self, StoredCommand, StoredKind};
use crate::core::command::{OperationResult, Version, WriteOutcome};
use crate::core::error::Malformed;
use crate::core::ids::{GROUP, NodeId};
use crate::core::types::{Answer, Entry, Payload, StoredMembership, engine_log_id};
use crate::storage::modes::{allows_replicated, too_few};
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
    transitions: Vec<Transition>,
}

impl<'k, K: Keys> ApplyBatch<'k, K> {
    pub(super) fn new(keys: &'k K, image: Image, capacity: usize) -> ApplyBatch<'k, K> {
        ApplyBatch {
            keys,
            changed: HashMap::with_capacity(capacity),
            image,
            transitions: Vec::with_capacity(capacity),
        }
    }

    /// The effects, and the image after the last entry.
    pub(super) fn finish(self) -> (Vec<Transition>, Image) {
        (self.transitions, self.image)
    }

    /// Applies the next entry.
    pub(super) fn apply(&mut self, entry: Entry) -> Result<Answer, Malformed> {
        let id = engine_log_id(&entry.log_id);
        let (changes, answer) = match entry.payload {
            Payload::Blank => (Vec::new(), Answer::Nothing),
            Payload::Membership(membership) => {
                let before = self.image.membership.membership();
                add_dropped(&mut self.image.removed, before, &membership);
                if self.image.mode == Some(Mode::Replicated) && too_few(&membership) {
                    (self.image.mode, self.image.mode_index) = (Some(Mode::Sync), id.index);
                }
                self.image.membership =
                    Arc::new(StoredMembership::new(Some(entry.log_id), membership));
                (Vec::new(), Answer::Nothing)
            }
            Payload::Normal(proposal) if codec::is_unsafe_recovery(&proposal.meta) => {
                // An unsafe recovery elects a leader for one term; each member that used the grant
                // may ask for a record.
                let UnsafeRecoveries { count, last_term, .. } = self.image.unsafe_recoveries;
                if id.term != last_term {
                    self.image.unsafe_recoveries = UnsafeRecoveries {
                        count: count + 1,
                        last_index: id.index,
                        last_term: id.term,
                    };
                }
                (Vec::new(), Answer::Nothing)
            }
            Payload::Normal(proposal) => {
                if let Some((member, boot)) = codec::decode_boot(&proposal.meta) {
                    let membership = self.image.membership.membership();
                    let is_member = |id: NodeId| membership.get_node(&id).is_some();
                    log_boot(&mut self.image.boot_epochs, member, boot, is_member);
                    (Vec::new(), Answer::Nothing)
                } else if let Some(mode) = codec::decode_mode(&proposal.meta) {
                    let membership = self.image.membership.membership();
                    if mode != Mode::Replicated || allows_replicated(membership) {
                        (self.image.mode, self.image.mode_index) = (Some(mode), id.index);
                    }
                    (Vec::new(), Answer::Nothing)
                } else if let Some(version) = codec::decode_version(&proposal.meta) {
                    // A member may have been added, or may have gone back to an older release, since
                    // the leader looked.
                    let membership = self.image.membership.membership();
                    if behind(&self.image.boot_epochs, membership, version).is_empty() {
                        self.image.version = self.image.version.max(version);
                    }
                    (Vec::new(), Answer::Nothing)
                } else {
                    self.command(id, &proposal.meta)?
                }
            }
        };
        self.transitions.push(Transition { applied: id, changes });
        Ok(answer)
    }

    fn command(&mut self, id: LogId, meta: &Bytes) -> Result<(Vec<Change>, Answer), Malformed> {
        let command = codec::decode_command(meta)?;
        let Some(stored) = command.session else {
            let (changes, recorded) = self.run(id, command);
            return Ok((changes, Answer::Outcome(recorded)));
        };
        match self.image.sessions.check(id.index, &stored) {
            SessionCheck::Expired => Ok((Vec::new(), Answer::SessionExpired)),
            SessionCheck::Repeated(recorded) => {
                Ok((Vec::new(), Answer::Outcome(recorded.as_ref().clone())))
            }
            SessionCheck::New => {
                let (changes, recorded) = self.run(id, command);
                let answer = Answer::Outcome(recorded.clone());
                self.image.sessions.record(&stored, Arc::new(recorded));
                Ok((changes, answer))
            }
        }
    }

    fn version(&self, key: &Bytes) -> Option<Version> {
        match self.changed.get(key) {
            Some(version) => *version,
            None => self.keys.version(key),
        }
    }

    fn run(&mut self, id: LogId, command: StoredCommand) -> (Vec<Change>, WriteOutcome) {
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
            return (Vec::new(), recorded);
        }
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
        (changes, recorded)
    }
}

#[cfg(test)]
mod tests;
