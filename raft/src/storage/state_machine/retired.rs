//! The identities that were members and are none any more.

use crate::core::ids::NodeId;
use crate::core::types::Membership;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// As the state machine holds them. A copy is O(1).
pub(crate) type RetiredImage = Arc<BTreeSet<NodeId>>;

/// The retired identities as far as this member has applied the log. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retired(Arc<Mutex<RetiredImage>>);

impl Retired {
    /// By now these are retired.
    pub(crate) fn are(&self, retired: &RetiredImage) {
        let mut known = self.0.lock();
        if !Arc::ptr_eq(&known, retired) {
            *known = retired.clone();
        }
    }

    pub(crate) fn contains(&self, id: NodeId) -> bool {
        self.0.lock().contains(&id)
    }
}

/// Adds those whom a membership drops.
pub(crate) fn retire(retired: &mut RetiredImage, before: &Membership, after: &Membership) {
    let dropped: Vec<NodeId> =
        before.nodes().map(|(id, _)| *id).filter(|id| after.get_node(id).is_none()).collect();
    if !dropped.is_empty() {
        Arc::make_mut(retired).extend(dropped);
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
    fn whoever_is_dropped_is_retired_and_stays_so() {
        let (one, old, new) = (NodeId::new(1, 1), NodeId::new(2, 2), NodeId::new(2, 3));
        let mut image = RetiredImage::default();
        retire(&mut image, &membership(&[one, old]), &membership(&[one, old, new]));
        assert!(image.is_empty());
        retire(&mut image, &membership(&[one, old, new]), &membership(&[one, new]));
        retire(&mut image, &membership(&[one, new]), &membership(&[one, new]));
        let retired = Retired::default();
        retired.are(&image);
        assert!(retired.contains(old) && !retired.contains(new) && !retired.contains(one));
    }
}
