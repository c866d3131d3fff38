//! Which members were missing when an operator decided. What they hold may have been discarded, and they
//! alone may say so.
//!
//! What holds here: this is known of the decisions, which are given to the members that the operator reaches, and
//! of the disks that were replaced since. No member is asked what it says of itself. A line counts by the host on
//! which it was logged and by the time, whatever the line says.

use madsim::task::NodeId as Host;
use std::time::Duration;

/// A line that a node logged.
#[derive(Clone, Debug)]
pub(super) struct Logged<H = Host> {
    pub(super) text: String,
    /// Of a line about discarded entries alone: the host on which it was logged.
    pub(super) host: Option<H>,
    /// In virtual time.
    pub(super) at: Duration,
}

/// A host whose member took no part in a decision.
#[derive(Clone, Copy, Debug)]
struct Absence<H> {
    host: H,
    from: Duration,
    /// Since then it holds nothing of that time: it has another disk, or the history of the others.
    until: Option<Duration>,
}

/// These hosts.
#[derive(Clone, Debug)]
pub(super) struct Missing<H = Host>(Vec<Absence<H>>);

impl<H: Copy + PartialEq> Missing<H> {
    pub(super) fn none() -> Missing<H> {
        Missing(Vec::new())
    }

    /// An operator decides, and does not reach the members `without`. Those `of_one_history` take part, and
    /// nothing that they applied is discarded: whatever an earlier decision discarded, they do not hold it.
    pub(super) fn decided(
        &mut self,
        without: impl Iterator<Item = H>,
        of_one_history: impl Iterator<Item = H>,
        now: Duration,
    ) {
        of_one_history.for_each(|host| self.ends(host, now));
        self.0.extend(without.map(|host| Absence { host, from: now, until: None }));
    }

    /// An empty disk replaces that of a host.
    pub(super) fn replaced(&mut self, host: H, now: Duration) {
        self.ends(host, now);
    }

    fn ends(&mut self, host: H, now: Duration) {
        for absence in self.0.iter_mut().filter(|absence| absence.host == host) {
            absence.until.get_or_insert(now);
        }
    }

    /// Whether a line comes from a member that was missing before it, and has its disk of then.
    pub(super) fn explains(&self, line: &Logged<H>) -> bool {
        self.0.iter().any(|absence| {
            line.host == Some(absence.host)
                && line.at >= absence.from
                && absence.until.is_none_or(|until| line.at < until)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::empty;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn line(host: Option<u8>, seconds: u64) -> Logged<u8> {
        Logged { text: "discarded".into(), host, at: at(seconds) }
    }

    /// The story: after any unsafe recovery the line counted as expected, whichever member logged it. One that had
    /// taken part and found entries of its own discarded would have passed.
    #[test]
    fn only_a_member_that_was_missing_may_say_that_its_entries_were_discarded() {
        let mut missing = Missing::none();
        assert!(!missing.explains(&line(Some(1), 5)), "nobody decided");
        missing.decided([1].into_iter(), empty(), at(5));
        assert!(missing.explains(&line(Some(1), 5)));
        assert!(!missing.explains(&line(Some(2), 5)), "it took part");
        assert!(!missing.explains(&line(None, 5)), "of nobody");
        assert!(!missing.explains(&line(Some(1), 4)), "nothing was discarded yet");
        missing.decided([1, 3].into_iter(), empty(), at(9));
        assert!(missing.explains(&line(Some(1), 10)) && missing.explains(&line(Some(3), 10)));
        assert!(!missing.explains(&line(Some(3), 8)), "it took part in the first one");
    }

    /// The story: a member was missing in one decision, came back, and took part in the next one with all that the
    /// others held. It counted as missing for ever, and a discarded entry of its own would have passed.
    #[test]
    fn a_member_of_one_history_in_a_later_decision_is_not_missing_any_more() {
        let mut missing = Missing::none();
        missing.decided([1, 2].into_iter(), empty(), at(5));
        // The second member takes part too, and stays apart with what was discarded.
        missing.decided([3].into_iter(), [1].into_iter(), at(9));
        assert!(missing.explains(&line(Some(1), 8)));
        assert!(!missing.explains(&line(Some(1), 9)));
        assert!(missing.explains(&line(Some(2), 9)), "it stays apart");
        missing.decided([1].into_iter(), empty(), at(12));
        assert!(missing.explains(&line(Some(1), 12)), "missing again");
        assert!(!missing.explains(&line(Some(1), 10)));
    }

    #[test]
    fn a_member_on_another_disk_was_not_missing() {
        let mut missing = Missing::none();
        missing.decided([1, 2].into_iter(), empty(), at(5));
        missing.replaced(1, at(8));
        assert!(missing.explains(&line(Some(1), 7)));
        assert!(!missing.explains(&line(Some(1), 8)));
        assert!(missing.explains(&line(Some(2), 8)), "its disk stays");
        missing.decided([1].into_iter(), empty(), at(10));
        missing.replaced(1, at(12));
        assert!(missing.explains(&line(Some(1), 11)), "missing again");
        assert!(!missing.explains(&line(Some(1), 9)));
    }
}
