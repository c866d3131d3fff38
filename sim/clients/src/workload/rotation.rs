//! Which groups clients ask about, where a run is so long that one group's history would grow
//! without end.
//!
//! There are a few places, each with a group. A group that was asked enough since it was last
//! judged, or of which too many writes may still take effect, makes way for one that was judged and
//! rested longest, or else for a new one. So what is searched for one explanation of a group's
//! answers stays small, and old keys are written again.

use std::collections::VecDeque;

/// Requests about a group until it is judged.
const REQUESTS_MAX: usize = 100;
/// A group of which so many writes may still take effect is not asked about any more.
const OPEN_MAX: usize = 4;

pub(super) struct Rotation {
    /// The group at each place.
    places: Vec<u32>,
    /// Each group's use, by its number.
    uses: Vec<Use>,
    /// Judged groups that stand at no place and may be used again.
    rested: VecDeque<u32>,
}

#[derive(Clone, Copy, Default)]
struct Use {
    /// Requests since it was judged.
    requests: usize,
    /// Writes that may still take effect.
    open: usize,
}

impl Rotation {
    pub(super) fn new(places: u32) -> Rotation {
        let uses = vec![Use::default(); places as usize];
        Rotation { places: (0..places).collect(), uses, rested: VecDeque::new() }
    }

    /// The group at this place, for one request.
    pub(super) fn group(&mut self, place: u32) -> u32 {
        let Some(group) = self.places.get_mut(place as usize) else { return place };
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

    /// The group was judged, and so many of its writes may still take effect.
    pub(super) fn judged(&mut self, group: u32, open: usize) {
        if let Some(used) = self.uses.get_mut(group as usize) {
            *used = Use { requests: 0, open };
        }
        if open < OPEN_MAX && !self.places.contains(&group) && !self.rested.contains(&group) {
            self.rested.push_back(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_makes_way_when_it_was_asked_enough_and_comes_back_once_it_is_judged() {
        let mut rotation = Rotation::new(2);
        for _ in 0..REQUESTS_MAX {
            assert_eq!((rotation.group(0), rotation.group(1)), (0, 1));
        }
        assert_eq!((rotation.group(0), rotation.group(1)), (2, 3));
        rotation.judged(1, 0);
        rotation.judged(0, OPEN_MAX);
        for _ in 1..REQUESTS_MAX {
            assert_eq!(rotation.group(0), 2);
        }
        assert_eq!((rotation.group(0), rotation.group(0)), (1, 1));
    }

    #[test]
    fn a_group_makes_way_when_too_many_outcomes_are_unknown_and_comes_back_once_they_are_known() {
        let mut rotation = Rotation::new(1);
        for _ in 0..OPEN_MAX {
            assert_eq!(rotation.group(0), 0);
            rotation.opened(0);
        }
        assert_eq!(rotation.group(0), 1);
        for open in [OPEN_MAX, OPEN_MAX - 1] {
            rotation.judged(0, open);
        }
        rotation.opened(1);
        rotation.judged(1, OPEN_MAX);
        assert_eq!(rotation.group(0), 0);
    }
}
