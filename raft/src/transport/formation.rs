//! The formation of the cluster: who forms it, what it waits for, and what speaks against it.
//!
//! What holds here: what another member says is bounded, and counts for a moment only. To one that was
//! never part of a cluster, one identity at a time forms it.
//!
//! The story: two machines were given the slot that forms the cluster. Both asked the others, which told
//! both that they were never part of one, and each could be elected by another half of them.

use crate::core::ids::NodeId;
use crate::core::runtime;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// For how long what was heard counts. The forming member asks the others ten times a second; a member
/// that is down delays a round by at most a second.
pub(crate) const FRESH: Duration = Duration::from_secs(5);
/// For how long the answers to the forming member count: well below [`FRESH`], for which a member that
/// answered it answers no other.
pub(crate) const ANSWERS_COUNT_FOR: Duration = Duration::from_secs(2);
/// The longest text that is kept.
const TEXT_CHARS_MAX: usize = 512;
/// What the forming member waits for before it knows more.
const ANSWERS: &str = "waiting for the answers of the other members";

/// What is known of the formation. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Formation(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// This member forms the cluster.
    is_own: bool,
    /// What the forming member waits for.
    waits: Option<(String, runtime::Instant)>,
    /// Who forms the cluster, as it told this member.
    former: Option<(NodeId, runtime::Instant)>,
    /// What tells of a formed cluster of this name.
    formed: Option<(String, runtime::Instant)>,
}

fn is_fresh(at: runtime::Instant) -> bool {
    runtime::now() - at < FRESH
}

impl Formation {
    /// Whether this member forms the cluster now: it says so.
    pub(crate) fn is_own(&self, is_own: bool) {
        self.0.lock().is_own = is_own;
    }

    /// What the forming member waits for, said by itself.
    pub(crate) fn waits(&self, what: &str) {
        let what = what.chars().take(TEXT_CHARS_MAX).collect();
        self.0.lock().waits = Some((what, runtime::now()));
    }

    /// What this member says to the others: empty unless it forms the cluster.
    pub(crate) fn says(&self) -> String {
        let is_own = self.0.lock().is_own;
        match is_own {
            true => self.waiting_for().unwrap_or_else(|| ANSWERS.into()),
            false => String::new(),
        }
    }

    /// A node asks a member that was never part of a cluster. `what`: what it waits for, if it forms the
    /// cluster. `former`: the slot that does, by this member's configuration.
    ///
    /// # Errors
    /// Another one forms it, or a cluster is formed already.
    pub(crate) fn heard(
        &self,
        sender: NodeId,
        former: Option<u16>,
        what: &str,
    ) -> Result<(), String> {
        if what.is_empty() {
            return Ok(());
        }
        if let Some(slot) = former.filter(|slot| *slot != sender.slot()) {
            return Err(format!(
                "by the configuration here slot {slot} forms the cluster, by that of {sender} it does itself: give all the \
                 same `members`"
            ));
        }
        if let Some(formed) = self.formed() {
            return Err(formed);
        }
        let known = &mut *self.0.lock();
        let other = known.former.filter(|(id, at)| *id != sender && is_fresh(*at));
        if let Some((other, _)) = other {
            return Err(format!(
                "two nodes of slot {} form the cluster, {other} and {sender}: stop one of them and give it its own slot",
                sender.slot()
            ));
        }
        known.former = Some((sender, runtime::now()));
        known.waits = Some((what.chars().take(TEXT_CHARS_MAX).collect(), runtime::now()));
        Ok(())
    }

    /// A message came for `predecessor`, which had this member's slot. Only members of a formed cluster
    /// send such.
    pub(crate) fn asked_for(&self, predecessor: NodeId, sender: NodeId) {
        let takes = format!("takes this one for {predecessor}, which had this slot");
        self.heard_of_formed(sender, &takes);
    }

    /// A member of a formed cluster does this here.
    pub(crate) fn heard_of_formed(&self, sender: NodeId, does: &str) {
        let formed = format!(
            "member {sender} of a formed cluster {does}: give `join` a peer address of {sender}, or stop {sender} if its \
             cluster is of no use any more"
        );
        self.0.lock().formed = Some((formed, runtime::now()));
    }

    /// What lately told of a formed cluster of this name.
    pub(crate) fn formed(&self) -> Option<String> {
        let known = self.0.lock();
        known.formed.as_ref().filter(|(_, at)| is_fresh(*at)).map(|(formed, _)| formed.clone())
    }

    /// What the forming member waits for, if it said so lately.
    pub(crate) fn waiting_for(&self) -> Option<String> {
        let known = self.0.lock();
        known.waits.as_ref().filter(|(_, at)| is_fresh(*at)).map(|(what, _)| what.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_forming_member_is_believed_and_its_text_is_cut() {
        let formation = Formation::default();
        let error = formation.heard(NodeId::new(2, 22), Some(1), "slot 3").unwrap_err();
        assert!(error.contains("slot 1 forms the cluster"), "{error}");
        assert_eq!(formation.waiting_for(), None);
        formation.heard(NodeId::new(1, 11), Some(1), &"x".repeat(4 * TEXT_CHARS_MAX)).unwrap();
        assert_eq!(formation.waiting_for().unwrap().len(), TEXT_CHARS_MAX);
    }

    #[test]
    fn one_identity_at_a_time_forms_the_cluster() {
        let formation = Formation::default();
        let [one, two] = [11, 22].map(|incarnation| NodeId::new(1, incarnation));
        formation.heard(two, Some(1), "").unwrap();
        formation.heard(one, Some(1), ANSWERS).unwrap();
        let error = formation.heard(two, Some(1), ANSWERS).unwrap_err();
        assert!(error.starts_with("two nodes of slot 1 form the cluster"), "{error}");
        formation.heard(one, Some(1), ANSWERS).unwrap();
    }

    #[test]
    fn a_member_that_does_not_form_the_cluster_passes_nothing_on() {
        let formation = Formation::default();
        formation.heard(NodeId::new(1, 11), Some(1), ANSWERS).unwrap();
        assert_eq!((formation.waiting_for().as_deref(), &*formation.says()), (Some(ANSWERS), ""));
        formation.is_own(true);
        assert_eq!(formation.says(), ANSWERS);
    }
}
