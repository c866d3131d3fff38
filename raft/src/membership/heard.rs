//! How long each member has been silent towards a leader that could have heard it.
//!
//! What holds here: only time counts in which this member led its present term, ran, and was not cut off: a quorum
//! answered it lately, and it was not suspended. To a leader that is cut off all members are silent, and after a pause
//! of its own process it has received no messages.

use super::seen::SILENT_AFTER;
use crate::core::ids::NodeId;
use crate::core::runtime::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A leader that missed its checks for this long was paused itself, or busy with a change.
const MISSED_CHECKS: Duration = Duration::from_secs(1);

/// What a leader has heard from the members since it leads.
#[derive(Clone)]
pub(super) struct Heard {
    term: u64,
    /// When it last looked.
    checked: Instant,
    /// How long it has led by then, as far as that counts.
    led: Duration,
    answers: BTreeMap<NodeId, Answer>,
}

/// A member's last answer.
#[derive(Clone, Copy)]
struct Answer {
    /// `None`, if it gave none.
    at: Option<Instant>,
    /// How long the leader had led when it saw the answer.
    seen: Duration,
}

impl Heard {
    /// What a leader knows at one more check, by when each of the other members last answered.
    pub(super) fn after(
        before: Option<Heard>,
        term: u64,
        is_cut_off: bool,
        answered: impl IntoIterator<Item = (NodeId, Option<Instant>)>,
        now: Instant,
    ) -> Heard {
        let before = before.filter(|before| before.is_of(term, now));
        let passed = before.as_ref().map_or(Duration::ZERO, |before| now - before.checked);
        let (mut led, mut known) =
            before.map_or_else(Default::default, |before| (before.led, before.answers));
        if !is_cut_off {
            led += passed;
        }
        let answers = answered.into_iter().map(|(id, at)| {
            let known = known.remove(&id).filter(|known| known.at == at);
            (id, known.unwrap_or(Answer { at, seen: led }))
        });
        Heard { term, checked: now, answers: answers.collect(), led }
    }

    /// Whether it is of this term, and no check was missed since.
    pub(super) fn is_of(&self, term: u64, now: Instant) -> bool {
        self.term == term && now - self.checked < MISSED_CHECKS
    }

    /// Whether it has led long enough to judge which members are silent.
    pub(super) fn is_long(&self) -> bool {
        self.led >= SILENT_AFTER
    }

    /// The members without an answer for [`SILENT_AFTER`].
    pub(super) fn silent(&self) -> BTreeSet<NodeId> {
        let is_silent = |answer: &Answer| self.led.saturating_sub(answer.seen) >= SILENT_AFTER;
        self.answers.iter().filter(|(_, answer)| is_silent(answer)).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::seen::ANSWERED_WITHIN;
    use super::*;
    use crate::core::runtime;

    const TWO: NodeId = NodeId::new(2, 2);
    const THREE: NodeId = NodeId::new(3, 3);
    const CHECK: Duration = Duration::from_millis(100);

    /// A leader that checks again and again.
    struct Scene {
        now: Instant,
        heard: Option<Heard>,
        /// When the second member last answered. The third always does.
        answered: Option<Instant>,
    }

    impl Scene {
        fn check(&mut self, is_cut_off: bool) {
            self.now += CHECK;
            let answered = [(TWO, self.answered), (THREE, Some(self.now))];
            self.heard = Some(Heard::after(self.heard.take(), 7, is_cut_off, answered, self.now));
        }

        fn checks(&mut self, lasts: Duration, is_cut_off: bool) {
            let until = self.now + lasts;
            while self.now < until {
                self.check(is_cut_off);
            }
        }

        fn silent(&self) -> Vec<NodeId> {
            self.heard.as_ref().map(Heard::silent).into_iter().flatten().collect()
        }
    }

    fn scene() -> Scene {
        let mut scene = Scene { now: runtime::now(), heard: None, answered: None };
        scene.check(false);
        scene
    }

    #[test]
    fn a_member_is_silent_after_it_gave_no_answer_for_long() {
        let mut scene = scene();
        scene.checks(SILENT_AFTER - CHECK, false);
        assert!(scene.silent().is_empty());
        scene.check(false);
        assert_eq!(scene.silent(), [TWO]);
        assert!(scene.heard.as_ref().unwrap().is_long());
        scene.answered = Some(scene.now);
        scene.check(false);
        assert!(scene.silent().is_empty());
        scene.checks(SILENT_AFTER, false);
        assert_eq!(scene.silent(), [TWO], "it went again");
    }

    /// The story: a leader was cut off for so long that it was suspended. A quorum answered it again, and at its
    /// next check, before the first heartbeat was answered, every member had been silent for long enough to be
    /// replaced.
    #[test]
    fn a_leader_that_was_suspended_counts_on_from_where_it_was() {
        let mut scene = scene();
        scene.checks(SILENT_AFTER / 2, false);
        scene.checks(10 * SILENT_AFTER, true);
        scene.check(false);
        assert!(scene.silent().is_empty());
        // It is suspended every second because disks are slow: a lost member is replaced nevertheless.
        for _ in 0..4 {
            assert!(scene.silent().is_empty());
            scene.checks(SILENT_AFTER / 8, false);
            scene.checks(SILENT_AFTER / 8, true);
        }
        assert_eq!(scene.silent(), [TWO]);
    }

    /// The story: a leader is suspended after two of the longest election timeouts. Where one is 2.5 s or more, all
    /// members were silent for long enough by then, and were replaced when the network was back.
    #[test]
    fn what_counts_until_a_leader_knows_that_it_is_cut_off_makes_nobody_silent() {
        let mut scene = scene();
        scene.answered = Some(scene.now);
        scene.check(false);
        scene.checks(ANSWERED_WITHIN, false);
        scene.checks(10 * SILENT_AFTER, true);
        scene.checks(SILENT_AFTER / 4, false);
        assert!(scene.silent().is_empty());
        scene.checks(SILENT_AFTER / 4, false);
        assert_eq!(scene.silent(), [TWO], "it does not come back");
    }

    #[test]
    fn a_leader_that_was_paused_or_elected_again_begins_anew() {
        let mut scene = scene();
        scene.checks(SILENT_AFTER, false);
        assert_eq!(scene.silent(), [TWO]);
        let known = scene.heard.clone().unwrap();
        assert!(known.is_of(7, scene.now) && !known.is_of(8, scene.now));
        assert!(!known.is_of(7, scene.now + MISSED_CHECKS));
        scene.now += MISSED_CHECKS;
        scene.check(false);
        assert!(scene.silent().is_empty());
        assert!(!scene.heard.as_ref().unwrap().is_long());
        let other = Heard::after(Some(known), 8, false, [(TWO, None)], scene.now);
        assert!(other.silent().is_empty() && !other.is_long());
    }
}
