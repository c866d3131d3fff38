//! Why the cluster is not formed yet, as the member that forms it says, in the words for an operator.
//!
//! What holds here: what another member says is bounded, and counts for a moment only.

use crate::core::ids::NodeId;
use crate::core::runtime;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The forming member asks the others ten times a second; a member that is down delays a round by
/// at most a second.
const FRESH: Duration = Duration::from_secs(5);
/// The longest text that is kept.
const TEXT_CHARS_MAX: usize = 512;

/// What the forming member waits for, as last heard. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Formation(Arc<Mutex<Option<(String, runtime::Instant)>>>);

impl Formation {
    /// What the forming member waits for, said by itself.
    pub(crate) fn waits(&self, what: &str) {
        let what = what.chars().take(TEXT_CHARS_MAX).collect();
        *self.0.lock() = Some((what, runtime::now()));
    }

    /// The same, said to another member: only by the one that forms the cluster.
    pub(crate) fn heard(&self, sender: NodeId, former: Option<u16>, what: &str) {
        if former == Some(sender.slot()) && !what.is_empty() {
            self.waits(what);
        }
    }

    /// What the forming member waits for, if it said so lately.
    pub(crate) fn waiting_for(&self) -> Option<String> {
        let said = self.0.lock();
        said.as_ref().filter(|(_, at)| runtime::now() - *at < FRESH).map(|(what, _)| what.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_forming_member_is_believed_and_its_text_is_cut() {
        let formation = Formation::default();
        formation.heard(NodeId::new(2, 22), Some(1), "slot 3");
        assert_eq!(formation.waiting_for(), None);
        formation.heard(NodeId::new(1, 11), Some(1), &"x".repeat(4 * TEXT_CHARS_MAX));
        assert_eq!(formation.waiting_for().unwrap().len(), TEXT_CHARS_MAX);
    }
}
