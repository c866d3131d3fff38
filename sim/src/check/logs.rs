//! In the whole cluster a log id names one content, and a committed index has one log id.

use cairn_clients::Violation;
use cairn_engine::LogId;
use std::collections::BTreeMap;

/// The property's name.
pub const NAME: &str = "log id names one content";

/// Everything seen in the logs of all nodes at all times.
#[derive(Debug, Default)]
pub struct Logs {
    content: BTreeMap<LogId, (u128, u16)>,
    committed: BTreeMap<u64, (LogId, u16)>,
    /// The hashes of the values that an entry carries.
    values: BTreeMap<LogId, Vec<u128>>,
}

impl Logs {
    /// A node's log has this entry.
    pub fn saw(&mut self, slot: u16, id: LogId, content: u128) -> Option<Violation> {
        let (first, by) = *self.content.entry(id).or_insert((content, slot));
        (first != content).then(|| {
            Violation::new(
                NAME,
                format!("log id {id} has one content on node {by}, another on node {slot}"),
            )
        })
    }

    /// A node has applied this entry, so it is committed.
    pub fn saw_committed(&mut self, slot: u16, id: LogId) -> Option<Violation> {
        let (first, by) = *self.committed.entry(id.index).or_insert((id, slot));
        (first != id).then(|| {
            Violation::new(
                NAME,
                format!("index {} is {first} on node {by} and {id} on node {slot}", id.index),
            )
        })
    }

    /// A client received this log id as the answer to its write.
    pub fn acknowledged(&self, id: LogId) -> Option<Violation> {
        let (found, by) = *self.committed.get(&id.index)?;
        (found != id).then(|| {
            Violation::new(
                NAME,
                format!("a write was acknowledged as {id}, and node {by} has {found} there"),
            )
        })
    }

    /// An entry carries values with these hashes.
    pub fn saw_values(&mut self, id: LogId, hashes: impl Iterator<Item = u128>) {
        self.values.entry(id).or_insert_with(|| hashes.collect());
    }

    /// A state that a member sent, or a watch, as `whose` says, has a version of this entry. It has a value of this
    /// hash there, if it tells values.
    pub fn sent(&self, whose: &str, id: LogId, hash: Option<u128>) -> Option<Violation> {
        if let Some((found, by)) = self.committed.get(&id.index).filter(|(found, _)| *found != id) {
            let detail = format!("{whose} has a version of {id}, and node {by} has {found} there");
            return Some(Violation::new(NAME, detail));
        }
        let (values, hash) = self.values.get(&id).zip(hash)?;
        (!values.contains(&hash)).then(|| {
            let detail = format!("{whose} has a value of {id} that this entry does not carry");
            Violation::new(NAME, detail)
        })
    }

    /// Entries seen.
    pub fn entries(&self) -> usize {
        self.content.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_content_and_a_second_id_are_reported() {
        let id = |term, index| LogId { term, index };
        let mut logs = Logs::default();
        assert_eq!(logs.saw(1, id(1, 4), 77), None);
        assert_eq!(logs.saw(2, id(1, 4), 77), None);
        assert!(logs.saw(3, id(1, 4), 78).is_some());
        assert_eq!(logs.saw_committed(1, id(1, 4)), None);
        assert!(logs.saw_committed(2, id(2, 4)).is_some());
        assert_eq!(logs.acknowledged(id(1, 4)), None);
        assert!(logs.acknowledged(id(2, 4)).is_some());
        assert_eq!(logs.acknowledged(id(2, 9)), None, "no node has committed that index");
    }

    #[test]
    fn a_value_of_a_state_or_a_watch_is_one_that_its_entry_carries() {
        let id = |term, index| LogId { term, index };
        let mut logs = Logs::default();
        assert_eq!(logs.sent("a state", id(1, 4), Some(7)), None, "nobody saw the entry");
        assert_eq!(logs.saw_committed(1, id(1, 4)), None);
        logs.saw_values(id(1, 4), [6, 7].into_iter());
        assert_eq!(logs.sent("a state", id(1, 4), Some(7)), None);
        assert_eq!(logs.sent("a watch", id(1, 4), None), None, "it tells no values");
        let wrong = logs.sent("a watch", id(1, 4), Some(8));
        assert!(wrong.is_some_and(|wrong| wrong.detail.contains("a watch")), "no such value");
        assert!(logs.sent("a state", id(2, 4), Some(7)).is_some(), "another entry is there");
        assert!(logs.sent("a watch", id(2, 4), None).is_some(), "another entry is there");
    }
}
