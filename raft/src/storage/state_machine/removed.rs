//! The removed identities: once members, and no longer.

use crate::core::ids::NodeId;
use crate::core::types::Membership;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The removed identities in the state machine. A copy is O(1).
pub(crate) type RemovedImage = Arc<BTreeSet<NodeId>>;

/// The removed identities, as far as this member has applied the log. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Removed(Arc<Mutex<RemovedImage>>);

impl Removed {
    /// Sets the identities that are removed by now.
    pub(crate) fn set(&self, removed: &RemovedImage) {
        let mut known = self.0.lock();
        if !Arc::ptr_eq(&known, removed) {
            *known = removed.clone();
        }
    }

    pub(crate) fn contains(&self, id: NodeId) -> bool {
        self.0.lock().contains(&id)
    }
}

/// Adds the identities that a membership drops.
pub(crate) fn add_dropped(removed: &mut RemovedImage, before: &Membership, after: &Membership) {
    let dropped: Vec<NodeId> =
        before.nodes().map(|(id, _)| *id).filter(|id| after.get_node(id).is_none()).collect();
    if !dropped.is_empty() {
        Arc::make_mut(removed).extend(dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::MemberAddress;
    use std::collections::BTreeMap;

    fn membership(ids: &[NodeId]) -> Membership {
        let nodes: BTreeMap<NodeId, MemberAddress> =
            ids.iter().map(|id| (*id, MemberAddress::default())).collect();
        Membership::new(vec![ids.iter().copied().collect()], nodes).unwrap()
    }

    #[test]
    fn a_dropped_identity_is_removed_for_good() {
        let (one, old, new) = (NodeId::new(1, 1), NodeId::new(2, 2), NodeId::new(2, 3));
        let mut image = RemovedImage::default();
        add_dropped(&mut image, &membership(&[one, old]), &membership(&[one, old, new]));
        assert!(image.is_empty());
        add_dropped(&mut image, &membership(&[one, old, new]), &membership(&[one, new]));
        add_dropped(&mut image, &membership(&[one, new]), &membership(&[one, new]));
        let removed = Removed::default();
        removed.set(&image);
        assert!(removed.contains(old) && !removed.contains(new) && !removed.contains(one));
    }
}
