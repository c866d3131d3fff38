//! Chooses the groups that clients use in a long run, so that the history of one group does not
//! grow without end.
//!
//! There are a few positions, each with a group. A group is replaced after enough requests since
//! its last check, or when too many of its writes may still take effect. Its successor is the
//! checked group that has rested longest, or else a new one. So the search for an explanation of a
//! group's answers stays small, and old keys are written again.

use std::collections::VecDeque;

/// Requests of a group until it is checked.
const REQUESTS_MAX: usize = 100;
/// A group with this many writes that may still take effect gets no more requests.
const OPEN_MAX: usize = 4;

pub(super) struct Rotation {
    /// The group at each position.
    positions: Vec<u32>,
    /// Each group's use, by group number.
    uses: Vec<Use>,
    /// Checked groups that are at no position and may be used again.
    rested: VecDeque<u32>,
}

#[derive(Clone, Copy, Default)]
struct Use {
    /// Requests since its last check.
    requests: usize,
    /// Writes that may still take effect.
    open: usize,
}

impl Rotation {
    pub(super) fn new(positions: u32) -> Rotation {
        let uses = vec![Use::default(); positions as usize];
        Rotation { positions: (0..positions).collect(), uses, rested: VecDeque::new() }
    }

    /// The group at this position, for one request.
    pub(super) fn group(&mut self, position: u32) -> u32 {
        let Some(group) = self.positions.get_mut(position as usize) else { return position };
        let full = |used: &Use| used.requests >= REQUESTS_MAX || used.open >= OPEN_MAX;
        if self.uses.get(*group as usize).is_none_or(full) {
            *group = self.rested.pop_front().unwrap_or_else(|| {
                self.uses.push(Use::default());
                u32::try_from(self.uses.len()).unwrap_or(u32::MAX) - 1
            });
        }
        if let Some(used) = self.uses.get_mut(*group as usize) {
            used.requests += 1;
        }
        *group
    }

    /// The outcome of a write of this group is unknown.
    pub(super) fn opened(&mut self, group: u32) {
        if let Some(used) = self.uses.get_mut(group as usize) {
            used.open += 1;
        }
    }

    /// The group was checked, and `open` of its writes may still take effect.
    pub(super) fn checked(&mut self, group: u32, open: usize) {
        if let Some(used) = self.uses.get_mut(group as usize) {
            *used = Use { requests: 0, open };
        }
        if open < OPEN_MAX && !self.positions.contains(&group) && !self.rested.contains(&group) {
            self.rested.push_back(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_rests_after_enough_requests_and_returns_once_it_is_checked() {
        let mut rotation = Rotation::new(2);
        for _ in 0..REQUESTS_MAX {
            assert_eq!((rotation.group(0), rotation.group(1)), (0, 1));
        }
        assert_eq!((rotation.group(0), rotation.group(1)), (2, 3));
        rotation.checked(1, 0);
        rotation.checked(0, OPEN_MAX);
        for _ in 1..REQUESTS_MAX {
            assert_eq!(rotation.group(0), 2);
        }
        assert_eq!((rotation.group(0), rotation.group(0)), (1, 1));
    }

    #[test]
    fn a_group_rests_when_too_many_outcomes_are_unknown_and_returns_once_they_are_known() {
        let mut rotation = Rotation::new(1);
        for _ in 0..OPEN_MAX {
            assert_eq!(rotation.group(0), 0);
            rotation.opened(0);
        }
        assert_eq!(rotation.group(0), 1);
        for open in [OPEN_MAX, OPEN_MAX - 1] {
            rotation.checked(0, open);
        }
        rotation.opened(1);
        rotation.checked(1, OPEN_MAX);
        assert_eq!(rotation.group(0), 0);
    }
}
