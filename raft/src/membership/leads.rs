//! Since when a leader has led and heard the members, so that it can judge which of them are silent.
//!
//! What holds here: the time in which this member did not lead, did not run or was suspended does not count.

use super::seen::SILENT_AFTER;
use crate::core::runtime;
use std::time::Duration;

/// A leader that missed its rounds for this long was paused itself, or busy with a change.
pub(super) const MISSED_ROUND: Duration = Duration::from_secs(1);

/// What a leader knows of its leadership, as far as it heard the others all the time.
#[derive(Clone, Copy)]
pub(super) struct Leads {
    pub(super) term: u64,
    /// How often it had been suspended by then.
    suspensions: u64,
    pub(super) since: runtime::Instant,
    pub(super) checked: runtime::Instant,
}

impl Leads {
    /// What it knows at one more check, now. To a suspended leader all members are silent: it knows nothing.
    ///
    /// The story: a leader was cut off for so long that it was suspended. A quorum answered it again, and
    /// at its next check, before the first heartbeat was answered, every member had been silent for long
    /// enough to be replaced.
    pub(super) fn after(
        before: Option<Leads>,
        term: u64,
        is_suspended: bool,
        suspensions: u64,
        now: runtime::Instant,
    ) -> Option<Leads> {
        // After a pause of its own process it received no messages either.
        let goes_on = |before: &Leads| {
            (before.term, before.suspensions) == (term, suspensions)
                && now - before.checked < MISSED_ROUND
        };
        let since = before.filter(goes_on).map_or(now, |before| before.since);
        (!is_suspended).then_some(Leads { term, suspensions, since, checked: now })
    }

    /// Whether it has led long enough to judge which members are silent.
    pub(super) fn is_long(&self) -> bool {
        self.checked - self.since >= SILENT_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BETWEEN_CHECKS: Duration = Duration::from_millis(100);

    #[test]
    fn a_leader_judges_members_only_after_it_has_led_and_heard_them_for_long() {
        let began = runtime::now();
        let check = |leads, after: Duration, term, is_suspended, suspensions| {
            Leads::after(leads, term, is_suspended, suspensions, began + after)
        };
        // One check after another, from one time to another.
        let checks = |mut leads, [from, to]: [Duration; 2], suspensions| {
            let mut after = from;
            while after <= to {
                leads = check(leads, after, 3, false, suspensions);
                after += BETWEEN_CHECKS;
            }
            leads
        };
        let judges = |leads: Option<Leads>| leads.is_some_and(|leads| leads.is_long());
        assert!(!judges(checks(None, [Duration::ZERO, SILENT_AFTER / 2], 0)));
        let leads = checks(None, [Duration::ZERO, SILENT_AFTER], 0);
        assert!(judges(leads));

        let next = SILENT_AFTER + BETWEEN_CHECKS;
        assert!(judges(check(leads, next, 3, false, 0)));
        assert!(!judges(check(leads, next, 4, false, 0)), "elected again");
        let paused = SILENT_AFTER + MISSED_ROUND;
        assert!(!judges(check(leads, paused, 3, false, 0)), "its process was paused");

        let suspended = check(leads, next, 3, true, 1);
        assert!(suspended.is_none(), "it hears nobody");
        let leads_on = next + BETWEEN_CHECKS;
        assert!(!judges(check(suspended, leads_on, 3, false, 1)), "no heartbeat is answered yet");
        assert!(!judges(check(leads, next, 3, false, 1)), "suspended between two checks");
        assert!(judges(checks(suspended, [leads_on, leads_on + SILENT_AFTER], 1)));
    }
}
