//! How far a member is behind what its leader has committed, in time.
//!
//! In time and not in entries: a member may be thousands of small entries behind for a moment, and a
//! single large one for long.
//!
//! What holds here: a member counts as caught up only after it has applied everything that it saw
//! committed while it heard a leader. After its start, and after it heard no leader for a while, it
//! first has to show that: it may lack anything.

use crate::core::runtime;
use parking_lot::Mutex;
use std::time::Duration;

/// The lag of one member.
#[derive(Debug, Default)]
pub(crate) struct Lag(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    checked: Option<runtime::Instant>,
    /// What was committed when it was set, and is to be applied.
    goal: Option<(u64, runtime::Instant)>,
    /// Everything that was committed then is applied.
    applied_all_of: Option<runtime::Instant>,
}

impl Lag {
    /// Records a check: whether a leader was heard within `limit`, and what is committed, as it said,
    /// and applied.
    pub(crate) fn observe(
        &self,
        heard: bool,
        (committed, applied): (Option<u64>, Option<u64>),
        limit: Duration,
    ) {
        let now = runtime::now();
        let mut state = self.0.lock();
        let paused = state.checked.is_some_and(|before| now - before >= limit);
        state.checked = Some(now);
        if !heard || paused {
            (state.goal, state.applied_all_of) = (None, None);
            return;
        }
        let Some(committed) = committed else { return };
        if applied >= Some(committed) {
            (state.goal, state.applied_all_of) = (None, Some(now));
            return;
        }
        if let Some((_, set)) = state.goal.filter(|(goal, _)| applied >= Some(*goal)) {
            (state.goal, state.applied_all_of) = (None, Some(set));
        }
        state.goal.get_or_insert((committed, now));
    }

    /// How long ago everything was applied that was committed then; `None` without a leader.
    pub(crate) fn behind(&self) -> Option<Duration> {
        let state = self.0.lock();
        let since = state.applied_all_of.or(state.goal.map(|(_, set)| set))?;
        Some(runtime::now() - since)
    }

    /// Whether everything is applied that was committed `limit` ago.
    pub(crate) fn is_within(&self, limit: Duration) -> bool {
        self.0.lock().applied_all_of.is_some_and(|at| runtime::now() - at < limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3600);

    fn observed(checks: &[(bool, Option<u64>, Option<u64>)]) -> bool {
        let lag = Lag::default();
        for (heard, committed, applied) in checks {
            lag.observe(*heard, (*committed, *applied), LIMIT);
        }
        lag.is_within(LIMIT)
    }

    /// The story: a member that had been away copied a snapshot for half a minute and said that it was
    /// ready. The next member was stopped, and nobody took a write.
    #[test]
    fn a_member_is_caught_up_once_it_applied_what_was_committed_when_it_first_heard_of_it() {
        assert!(!observed(&[]));
        assert!(!observed(&[(true, None, Some(5))]), "no leader has said what is committed");
        assert!(!observed(&[(true, Some(90), Some(5)), (true, Some(90), Some(5))]));
        assert!(!observed(&[(true, Some(90), Some(5)), (true, Some(95), Some(89))]));
        assert!(observed(&[(true, Some(90), Some(5)), (true, Some(95), Some(90))]));
    }

    #[test]
    fn without_a_leader_nobody_knows_how_far_a_member_is_behind() {
        let lag = Lag::default();
        assert_eq!(lag.behind(), None);
        lag.observe(true, (Some(90), Some(5)), LIMIT);
        assert!(lag.behind().is_some(), "since it heard what is committed");
        lag.observe(false, (Some(90), Some(5)), LIMIT);
        assert_eq!(lag.behind(), None);
    }

    #[test]
    fn a_member_that_heard_no_leader_has_to_catch_up_again() {
        let caught_up = [(true, Some(90), Some(90)), (true, Some(90), Some(90))];
        assert!(observed(&caught_up));
        let away = [&caught_up[..], &[(false, Some(90), Some(90))]].concat();
        assert!(!observed(&away));
        let back =
            [&away[..], &[(true, Some(500), Some(90)), (true, Some(500), Some(90))]].concat();
        assert!(!observed(&back));
        assert!(observed(&[&back[..], &[(true, Some(510), Some(500))]].concat()));
    }

    #[test]
    fn a_member_that_falls_behind_for_long_is_no_longer_caught_up() {
        let lag = Lag::default();
        for applied in [90, 90, 91] {
            lag.observe(true, (Some(90), Some(applied)), LIMIT);
        }
        assert!(lag.is_within(LIMIT) && !lag.is_within(Duration::ZERO));
        // Its process was paused for longer than the limit.
        lag.observe(true, (Some(90), Some(91)), Duration::ZERO);
        assert!(!lag.is_within(LIMIT));
    }
}
