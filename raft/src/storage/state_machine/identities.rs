//! What this member knows of identities: the latest boot epoch of each member, from its messages
//! and from the log, and which identities are removed.
//!
//! The story behind it: an older copy of a member's disk is put in its place, or started beside it.
//! The copy knows nothing of what the member promised since. What this member observed in messages
//! would be lost at its restart, so a leader logs each boot epoch that it observes.

use crate::core::ids::NodeId;
use crate::core::types::Membership;
use cairn_engine::BootEpoch;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// More members than any cluster has: invented identities must not take all memory.
const EPOCHS_MAX: usize = 4096;

/// No disk is opened this often unnoticed: a number further ahead is invented, and accepting it
/// would shut the member out for good.
const GAP_MAX: u64 = 1 << 20;

/// The logged boot epochs in the state machine. A copy is O(1).
pub(crate) type BootEpochsImage = Arc<BTreeMap<NodeId, BootEpoch>>;

/// The removed identities in the state machine: once members, and no longer. A copy is O(1).
pub(crate) type RemovedImage = Arc<BTreeSet<NodeId>>;

/// What this member has observed, and what the log says as far as it is applied here. Clones share
/// it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identities(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    observed: BTreeMap<NodeId, BootEpoch>,
    logged: BootEpochsImage,
    removed: RemovedImage,
}

impl Identities {
    /// Observes a message of a member from this boot epoch, with its fencing history.
    ///
    /// # Errors
    /// The known boot epoch, if this one does not succeed it.
    pub(crate) fn observe(
        &self,
        member: NodeId,
        epoch: BootEpoch,
        fencing_history: &[u64],
    ) -> Result<(), BootEpoch> {
        let mut known = self.0.lock();
        let logged = known.logged.get(&member).copied();
        if let Some(logged) = logged.filter(|logged| !succeeds(epoch, fencing_history, *logged)) {
            return Err(logged);
        }
        if known.observed.len() >= EPOCHS_MAX && !known.observed.contains_key(&member) {
            // Invented identities are likely large numbers.
            known.observed.pop_last();
        }
        let observed = known.observed.entry(member).or_insert(epoch);
        // The log decides between two copies of a disk.
        if succeeds(epoch, fencing_history, *observed) || logged == Some(epoch) {
            *observed = epoch;
        }
        if *observed == epoch { Ok(()) } else { Err(*observed) }
    }

    /// Sets what the log says by now.
    pub(crate) fn set_logged(&self, boot_epochs: &BootEpochsImage, removed: &RemovedImage) {
        let mut known = self.0.lock();
        (known.logged, known.removed) = (boot_epochs.clone(), removed.clone());
    }

    /// Whether the identity was once a member, and is no longer.
    pub(crate) fn is_removed(&self, id: NodeId) -> bool {
        self.0.lock().removed.contains(&id)
    }

    /// Whether the log has this boot epoch of a member, or a later one.
    pub(crate) fn has_logged(&self, member: NodeId, epoch: BootEpoch) -> bool {
        self.0
            .lock()
            .logged
            .get(&member)
            .is_some_and(|logged| *logged == epoch || is_old(epoch, *logged))
    }

    /// Whether this is the member's latest boot epoch according to the log.
    pub(crate) fn is_latest(&self, member: NodeId, epoch: BootEpoch) -> bool {
        self.0.lock().logged.get(&member) == Some(&epoch)
    }

    /// Whether this is the newest boot epoch of a member that was observed here.
    pub(crate) fn is_newest(&self, member: NodeId, epoch: BootEpoch) -> bool {
        self.0.lock().observed.get(&member) == Some(&epoch)
    }

    /// A member's boot epoch that was observed and that the log lacks.
    pub(crate) fn unlogged(&self, member: NodeId) -> Option<BootEpoch> {
        let observed = *self.0.lock().observed.get(&member)?;
        (!self.has_logged(member, observed)).then_some(observed)
    }
}

/// Whether a boot epoch is the known one, or a later one of the same disk. A copy of the disk
/// counts its own boots, so the number alone does not tell: the fencing history must contain the
/// known nonce. If the epoch is so much later that its fencing history does not reach back, the
/// number decides.
fn succeeds(epoch: BootEpoch, fencing_history: &[u64], known: BootEpoch) -> bool {
    let Some(gap) = epoch.number.checked_sub(known.number).filter(|gap| *gap <= GAP_MAX) else {
        return false;
    };
    match gap.checked_sub(1) {
        None => epoch.nonce == known.nonce,
        Some(back) => usize::try_from(back)
            .ok()
            .and_then(|back| fencing_history.get(back))
            .is_none_or(|nonce| *nonce == known.nonce),
    }
}

/// Whether the log has a later boot epoch, or another boot of the same number.
fn is_old(epoch: BootEpoch, latest: BootEpoch) -> bool {
    epoch.number < latest.number || epoch.number == latest.number && epoch.nonce != latest.nonce
}

/// Records a logged boot epoch, and drops those of identities that are no longer members.
pub(crate) fn log_epoch(
    boot_epochs: &mut BootEpochsImage,
    member: NodeId,
    epoch: BootEpoch,
    is_member: impl Fn(NodeId) -> bool,
) {
    if boot_epochs.get(&member).is_some_and(|known| epoch.number <= known.number) {
        return;
    }
    let boot_epochs = Arc::make_mut(boot_epochs);
    boot_epochs.retain(|known, _| is_member(*known));
    boot_epochs.insert(member, epoch);
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

    const MEMBER: NodeId = NodeId::new(2, 22);

    fn epoch(number: u64, nonce: u64) -> BootEpoch {
        BootEpoch { number, nonce }
    }

    #[test]
    fn logged_epochs_outlast_a_restart_that_loses_observed_ones() {
        let mut image = BootEpochsImage::default();
        log_epoch(&mut image, MEMBER, epoch(5, 50), |_| true);
        log_epoch(&mut image, MEMBER, epoch(5, 51), |_| true);
        log_epoch(&mut image, MEMBER, epoch(4, 40), |_| true);
        let identities = Identities::default();
        identities.set_logged(&image, &RemovedImage::default());
        assert_eq!(
            identities.observe(MEMBER, epoch(5, 51), &[40]),
            Err(epoch(5, 50)),
            "another copy"
        );
        assert_eq!(
            identities.observe(MEMBER, epoch(4, 40), &[30]),
            Err(epoch(5, 50)),
            "an older copy"
        );
        assert_eq!(identities.observe(MEMBER, epoch(5, 50), &[40]), Ok(()));
        assert_eq!(identities.unlogged(MEMBER), None);
        assert_eq!(identities.observe(MEMBER, epoch(6, 60), &[50, 40]), Ok(()));
        assert_eq!(identities.unlogged(MEMBER), Some(epoch(6, 60)));
        assert!(
            identities.has_logged(MEMBER, epoch(5, 50))
                && !identities.has_logged(MEMBER, epoch(6, 60))
        );
    }

    /// A copy that is started often counts further than the disk itself.
    #[test]
    fn a_copy_is_refused_however_often_it_boots() {
        let identities = Identities::default();
        identities.observe(MEMBER, epoch(5, 50), &[40]).unwrap();
        // Copied during boot 4.
        assert!(identities.observe(MEMBER, epoch(5, 55), &[40]).is_err());
        assert!(identities.observe(MEMBER, epoch(6, 66), &[55, 40]).is_err());
        assert!(identities.observe(MEMBER, epoch(7, 77), &[66, 55, 40]).is_err());
        // The disk itself was booted twice unobserved.
        assert_eq!(identities.observe(MEMBER, epoch(8, 80), &[70, 60, 50, 40]), Ok(()));
        assert_eq!(
            identities.observe(MEMBER, epoch(8 + GAP_MAX + 1, 1), &[]),
            Err(epoch(8, 80)),
            "an invented number"
        );
    }

    #[test]
    fn the_log_decides_between_two_copies_of_a_disk() {
        let identities = Identities::default();
        identities.observe(MEMBER, epoch(5, 51), &[40]).unwrap();
        assert!(identities.observe(MEMBER, epoch(5, 50), &[40]).is_err());
        let mut image = BootEpochsImage::default();
        log_epoch(&mut image, MEMBER, epoch(5, 50), |_| true);
        identities.set_logged(&image, &RemovedImage::default());
        assert_eq!(identities.observe(MEMBER, epoch(5, 50), &[40]), Ok(()));
        assert!(identities.observe(MEMBER, epoch(5, 51), &[40]).is_err());
    }

    #[test]
    fn epochs_of_removed_identities_are_dropped() {
        let mut image = BootEpochsImage::default();
        log_epoch(&mut image, MEMBER, epoch(5, 50), |_| true);
        log_epoch(&mut image, NodeId::new(2, 23), epoch(1, 10), |id| id != MEMBER);
        assert_eq!(image.keys().copied().collect::<Vec<_>>(), [NodeId::new(2, 23)]);
    }

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
        let identities = Identities::default();
        identities.set_logged(&BootEpochsImage::default(), &image);
        assert!(identities.is_removed(old));
        assert!(!identities.is_removed(new) && !identities.is_removed(one));
    }
}
