//! Which start of each member is its latest: what was heard, and what the log says.
//!
//! The story against which this stands: an older copy of a member's disk is put in its place, or a copy is started beside
//! it. The copy knows nothing of what the member promised since. What was heard alone would be forgotten by a restart of
//! the listener, so a leader puts each start of a member that it hears of into the log.

use crate::core::ids::NodeId;
use cairn_engine::Run;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// More members than any cluster has: a stranger's inventions must not take all memory.
const STARTS_MAX: usize = 4096;

/// No disk is opened so often without anybody hearing of it: a number further ahead is an invention, which would shut the
/// member out for good.
const GAP_MAX: u64 = 1 << 20;

/// As the state machine holds them. A copy is O(1).
pub(crate) type StartsImage = Arc<BTreeMap<NodeId, Run>>;

/// The latest start of each member, as far as this one knows. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Starts(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    heard: BTreeMap<NodeId, Run>,
    logged: StartsImage,
}

impl Starts {
    /// A member speaks from this start, which goes on from those of its lineage.
    ///
    /// # Errors
    /// The start that is known, if this one does not go on from it.
    pub(crate) fn hear(&self, member: NodeId, run: Run, lineage: &[u64]) -> Result<(), Run> {
        let mut known = self.0.lock();
        let logged = known.logged.get(&member).copied();
        if let Some(logged) = logged.filter(|logged| !goes_on(run, lineage, *logged)) {
            return Err(logged);
        }
        if known.heard.len() >= STARTS_MAX && !known.heard.contains_key(&member) {
            // Whoever invents identities invents large ones.
            known.heard.pop_last();
        }
        let heard = known.heard.entry(member).or_insert(run);
        // What the log says settles between twins.
        if goes_on(run, lineage, *heard) || logged == Some(run) {
            *heard = run;
        }
        if *heard == run { Ok(()) } else { Err(*heard) }
    }

    /// By now the log says so.
    pub(crate) fn are(&self, logged: &StartsImage) {
        let mut known = self.0.lock();
        if !Arc::ptr_eq(&known.logged, logged) {
            known.logged = logged.clone();
        }
    }

    /// Whether the log has this start of a member, or a later one.
    pub(crate) fn has_logged(&self, member: NodeId, run: Run) -> bool {
        self.0.lock().logged.get(&member).is_some_and(|logged| *logged == run || is_old(run, *logged))
    }

    /// Whether the log says that this is the latest start of a member.
    pub(crate) fn is_latest(&self, member: NodeId, run: Run) -> bool {
        self.0.lock().logged.get(&member) == Some(&run)
    }

    /// The start of a member that was heard, and that the log does not have.
    pub(crate) fn news_of(&self, member: NodeId) -> Option<Run> {
        let heard = *self.0.lock().heard.get(&member)?;
        (!self.has_logged(member, heard)).then_some(heard)
    }
}

/// Whether a run is the known one, or a later one of the same disk. A copy of the disk counts its openings on its own, so the
/// number alone does not tell. Of a run so much later that its lineage does not reach back, the number must do.
fn goes_on(run: Run, lineage: &[u64], known: Run) -> bool {
    let Some(gap) = run.start.checked_sub(known.start).filter(|gap| *gap <= GAP_MAX) else {
        return false;
    };
    match gap.checked_sub(1) {
        None => run.nonce == known.nonce,
        Some(back) => usize::try_from(back)
            .ok()
            .and_then(|back| lineage.get(back))
            .is_none_or(|nonce| *nonce == known.nonce),
    }
}

/// Whether the log knows better.
fn is_old(run: Run, latest: Run) -> bool {
    run.start < latest.start || run.start == latest.start && run.nonce != latest.nonce
}

/// The log says that a member has started; whoever is no member any more is forgotten.
pub(crate) fn log_start(
    starts: &mut StartsImage,
    member: NodeId,
    run: Run,
    is_member: impl Fn(NodeId) -> bool,
) {
    if starts.get(&member).is_some_and(|known| run.start <= known.start) {
        return;
    }
    let starts = Arc::make_mut(starts);
    starts.retain(|known, _| is_member(*known));
    starts.insert(member, run);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: NodeId = NodeId::new(2, 22);

    fn run(start: u64, nonce: u64) -> Run {
        Run { start, nonce }
    }

    #[test]
    fn what_the_log_says_is_not_forgotten_with_what_was_heard() {
        let mut image = StartsImage::default();
        log_start(&mut image, MEMBER, run(5, 50), |_| true);
        log_start(&mut image, MEMBER, run(5, 51), |_| true);
        log_start(&mut image, MEMBER, run(4, 40), |_| true);
        let starts = Starts::default();
        starts.are(&image);
        assert_eq!(starts.hear(MEMBER, run(5, 51), &[40]), Err(run(5, 50)), "a twin");
        assert_eq!(starts.hear(MEMBER, run(4, 40), &[30]), Err(run(5, 50)), "an older copy");
        assert_eq!(starts.hear(MEMBER, run(5, 50), &[40]), Ok(()));
        assert_eq!(starts.news_of(MEMBER), None);
        assert_eq!(starts.hear(MEMBER, run(6, 60), &[50, 40]), Ok(()));
        assert_eq!(starts.news_of(MEMBER), Some(run(6, 60)));
        assert!(starts.has_logged(MEMBER, run(5, 50)) && !starts.has_logged(MEMBER, run(6, 60)));
    }

    /// A copy that is started again and again counts further than the disk itself.
    #[test]
    fn a_copy_is_refused_however_often_it_is_started() {
        let starts = Starts::default();
        starts.hear(MEMBER, run(5, 50), &[40]).unwrap();
        // Made during start 4.
        assert!(starts.hear(MEMBER, run(5, 55), &[40]).is_err());
        assert!(starts.hear(MEMBER, run(6, 66), &[55, 40]).is_err());
        assert!(starts.hear(MEMBER, run(7, 77), &[66, 55, 40]).is_err());
        // The disk itself was started twice without being heard.
        assert_eq!(starts.hear(MEMBER, run(8, 80), &[70, 60, 50, 40]), Ok(()));
        assert_eq!(starts.hear(MEMBER, run(8 + GAP_MAX + 1, 1), &[]), Err(run(8, 80)), "an invention");
    }

    #[test]
    fn the_log_settles_between_twins() {
        let starts = Starts::default();
        starts.hear(MEMBER, run(5, 51), &[40]).unwrap();
        assert!(starts.hear(MEMBER, run(5, 50), &[40]).is_err());
        let mut image = StartsImage::default();
        log_start(&mut image, MEMBER, run(5, 50), |_| true);
        starts.are(&image);
        assert_eq!(starts.hear(MEMBER, run(5, 50), &[40]), Ok(()));
        assert!(starts.hear(MEMBER, run(5, 51), &[40]).is_err());
    }

    #[test]
    fn starts_of_those_who_are_gone_are_dropped() {
        let mut image = StartsImage::default();
        log_start(&mut image, MEMBER, run(5, 50), |_| true);
        log_start(&mut image, NodeId::new(2, 23), run(1, 10), |id| id != MEMBER);
        assert_eq!(image.keys().copied().collect::<Vec<_>>(), [NodeId::new(2, 23)]);
    }
}
