//! Which members were missing when an operator decided. What they hold may have been discarded, and they
//! alone may say so.
//!
//! What holds here: this is known of the decision, which is given to the members that the operator reaches, and
//! of the disks that were replaced since. No member is asked. A line counts by the host on which it was
//! logged and by the time, whatever the line says.

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
    /// Since then it has another disk, of a member that holds nothing of that time.
    until: Option<Duration>,
}

/// These hosts.
#[derive(Clone, Debug)]
pub(super) struct Missing<H = Host>(Vec<Absence<H>>);

impl<H: Copy + PartialEq> Missing<H> {
    pub(super) fn none() -> Missing<H> {
        Missing(Vec::new())
    }

    /// An operator decides, and does not reach the members of these hosts.
    pub(super) fn decided(&mut self, without: impl Iterator<Item = H>, now: Duration) {
        self.0.extend(without.map(|host| Absence { host, from: now, until: None }));
    }

    /// An empty disk replaces that of a host.
    pub(super) fn replaced(&mut self, host: H, now: Duration) {
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
        missing.decided([1].into_iter(), at(5));
        assert!(missing.explains(&line(Some(1), 5)));
        assert!(!missing.explains(&line(Some(2), 5)), "it took part");
        assert!(!missing.explains(&line(None, 5)), "of nobody");
        assert!(!missing.explains(&line(Some(1), 4)), "nothing was discarded yet");
        missing.decided([1, 3].into_iter(), at(9));
        assert!(missing.explains(&line(Some(1), 10)) && missing.explains(&line(Some(3), 10)));
        assert!(!missing.explains(&line(Some(3), 8)), "it took part in the first one");
    }

    #[test]
    fn a_member_on_another_disk_was_not_missing() {
        let mut missing = Missing::none();
        missing.decided([1, 2].into_iter(), at(5));
        missing.replaced(1, at(8));
        assert!(missing.explains(&line(Some(1), 7)));
        assert!(!missing.explains(&line(Some(1), 8)));
        assert!(missing.explains(&line(Some(2), 8)), "its disk stays");
        missing.decided([1].into_iter(), at(10));
        missing.replaced(1, at(12));
        assert!(missing.explains(&line(Some(1), 11)), "missing again");
        assert!(!missing.explains(&line(Some(1), 9)));
    }
}
