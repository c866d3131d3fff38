//! Requests to the keys: applying entries and reading.

use crate::error::{Error, Result};
use crate::state::{Engine, State, View};
use crate::types::{Change, GroupId, KeyEntry, LogId, SharedImage, Transition};
use bytes::Bytes;

/// How often a read is retried because its key changed meanwhile.
const READ_ATTEMPTS: usize = 8;

impl Engine {
    /// The highest position that this node is known to have applied before its restart. Until the
    /// log is re-applied up to here, the key space is older than what the node served before.
    pub fn applied_before_restart(&self, group: GroupId) -> Option<LogId> {
        self.shared.state.lock().groups.get(&group).and_then(|g| g.applied_before)
    }

    /// Applies entries in order. `image` is the rest of the state machine after the last of them.
    /// All changes become visible at once. Values are linked, not copied.
    ///
    /// # Errors
    /// `Invalid` for an entry that is already applied, that changes keys and is not in the log, or
    /// that puts one of its values twice. Nothing is applied then.
    pub fn apply(
        &self,
        group: GroupId,
        transitions: Vec<Transition>,
        image: SharedImage,
    ) -> Result<()> {
        let mut state = self.shared.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let State { groups, space, .. } = &mut *state;
        let group = groups.entry(group).or_default();
        let mut last = group.applied.map(|a| a.index);
        for transition in &transitions {
            let id = transition.applied;
            let entry = group.log.get(id.index).filter(|e| e.id == id);
            if entry.is_none() && !transition.changes.is_empty() {
                return Err(Error::Invalid(format!("entry {id} is applied but not in the log")));
            }
            if last.is_some_and(|last| id.index <= last) {
                return Err(Error::Invalid(format!("entry {id} is applied after entry {last:?}")));
            }
            last = Some(id.index);
            let values = entry.map_or(0, |entry| entry.values.len());
            if !links_each_value_once(&transition.changes, values) {
                return Err(Error::Invalid(format!(
                    "entry {id} has {values} values, and a change names another or one twice"
                )));
            }
        }
        let waited = !group.is_reapplied();
        for transition in transitions {
            let version = transition.applied;
            let logged = group.log.get(version.index).cloned();
            for change in transition.changes {
                let old = match &change {
                    Change::Put { key, value } => {
                        let value =
                            logged.as_ref().and_then(|entry| entry.values.get(*value)).cloned();
                        let Some(value) = value else {
                            continue;
                        };
                        space.link(&value);
                        group.log.count_link(version, value.len, true);
                        group.keys.insert(key, KeyEntry { version, value })
                    }
                    Change::Delete { key } => group.remove_key(key),
                };
                if let Some(old) = old {
                    group.log.count_link(old.version, old.value.len, false);
                    space.unlink(&old.value);
                }
            }
            group.applied = Some(version);
        }
        group.image = Some(image);
        if waited && group.is_reapplied() {
            // A checkpoint may have waited for it.
            self.shared.signals.writer.notify_one();
        }
        Ok(())
    }

    /// The last applied position.
    pub fn applied(&self, group: GroupId) -> Option<LogId> {
        self.shared.state.lock().groups.get(&group).and_then(|g| g.applied)
    }

    /// A key's state, without its value.
    pub fn lookup(&self, group: GroupId, key: &[u8]) -> Option<KeyEntry> {
        self.shared.state.lock().groups.get(&group)?.keys.get(key)
    }

    /// A key's state and value, checked.
    ///
    /// # Errors
    /// `Corrupt` if the value's bytes do not match the record that names it; `Io`.
    pub async fn get(&self, group: GroupId, key: &[u8]) -> Result<Option<(KeyEntry, Bytes)>> {
        let mut attempt = 0;
        loop {
            let Some(entry) = self.lookup(group, key) else {
                return Ok(None);
            };
            match self.shared.read_of_key(&entry).await {
                Ok(value) => return Ok(Some((entry, value))),
                // The key was overwritten meanwhile, so its extent may belong to another value now.
                Err(_)
                    if attempt < READ_ATTEMPTS
                        && self.lookup(group, key).as_ref() != Some(&entry) =>
                {
                    attempt += 1
                }
                Err(error) => return Err(self.shared.counted(error)),
            }
        }
    }

    /// A consistent view of a group, in O(1). While it lives, none of its extents is reused.
    pub fn view(&self, group: GroupId) -> View {
        View::new(&self.shared, group)
    }
}

/// Whether the changes put none but these values, and each at most once: the space map counts a
/// value's references in few bits.
fn links_each_value_once(changes: &[Change], values: usize) -> bool {
    let mut put = vec![false; values];
    changes.iter().all(|change| match change {
        Change::Put { value, .. } => {
            put.get_mut(*value).is_some_and(|put| !std::mem::replace(put, true))
        }
        Change::Delete { .. } => true,
    })
}
