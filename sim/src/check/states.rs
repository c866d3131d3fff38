//! The state machine is deterministic: equal applied positions have equal states on every node and
//! at any time. While a process runs its applied position only grows.

use cairn_clients::Violation;
use cairn_engine::LogId;
use std::collections::BTreeMap;

/// The property's name.
pub const NAME: &str = "equal applied, equal state";

/// The states seen, by applied position.
#[derive(Debug, Default)]
pub struct States {
    by_applied: BTreeMap<LogId, (u128, u16)>,
    progress: BTreeMap<(u16, u32), LogId>,
}

impl States {
    /// A node's state after `applied`.
    pub fn saw(&mut self, slot: u16, applied: Option<LogId>, hash: u128) -> Option<Violation> {
        let (first, by) = *self.by_applied.entry(applied?).or_insert((hash, slot));
        (first != hash).then(|| {
            let at = applied.unwrap_or_default();
            Violation::new(
                NAME,
                format!("after {at} node {by} has state {first:032x}, node {slot} {hash:032x}"),
            )
        })
    }

    /// A node's applied position in its `run`-th process.
    pub fn saw_progress(
        &mut self,
        slot: u16,
        run: u32,
        applied: Option<LogId>,
    ) -> Option<Violation> {
        let before = self.progress.insert((slot, run), applied?)?;
        (applied < Some(before)).then(|| {
            Violation::new(
                "applied grows",
                format!("node {slot} went back from {before} to {applied:?}"),
            )
        })
    }

    /// Positions seen.
    pub fn positions(&self) -> usize {
        self.by_applied.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_states_and_impossible_positions_are_reported() {
        let at = |index| Some(LogId { term: 1, index });
        let mut states = States::default();
        assert_eq!(states.saw(1, at(4), 1), None);
        assert_eq!(states.saw(2, at(4), 1), None);
        assert!(states.saw(3, at(4), 2).is_some());
        assert_eq!(states.saw_progress(1, 0, at(4)), None);
        assert!(
            states.saw_progress(1, 0, at(3)).is_some(),
            "applied went back while the process ran"
        );
        assert_eq!(states.saw_progress(1, 1, at(3)), None);
    }
}
