//! What this member knows of identities: the latest boot of each member, from its messages and from
//! the log, which identities are removed, and which version every member speaks at least.
//!
//! The story behind it: an older copy of a member's disk is put in its place, or started beside it.
//! The copy knows nothing of what the member promised since. What this member observed in messages
//! would be lost at its restart, so a leader logs each boot that it observes.

use crate::core::boot::Boot;
use crate::core::ids::NodeId;
use crate::core::types::Membership;
use crate::core::version::{FIRST, Feature};
use cairn_engine::BootEpoch;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// More members than any cluster has: invented identities must not take all memory.
const EPOCHS_MAX: usize = 4096;

/// No disk is opened this often unnoticed: a number further ahead is invented, and accepting it
/// would shut the member out for good.
const GAP_MAX: u64 = 1 << 20;

/// The logged boots in the state machine. A copy is O(1).
pub(crate) type BootEpochsImage = Arc<BTreeMap<NodeId, Boot>>;

/// The removed identities in the state machine: once members, and no longer. A copy is O(1).
pub(crate) type RemovedImage = Arc<BTreeSet<NodeId>>;

/// What this member has observed, and what the log says as far as it is applied here. Clones share
/// it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identities(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    observed: BTreeMap<NodeId, Boot>,
    logged: BootEpochsImage,
    removed: RemovedImage,
    /// The cluster's version; 0: the log says nothing.
    version: u32,
}

impl Known {
    fn version(&self) -> u32 {
        self.version.max(FIRST)
    }

    /// A boot as the log may have it in this version of the cluster.
    fn loggable(&self, boot: &Boot) -> Boot {
        match Feature::Releases.is_used(self.version()) {
            true => boot.clone(),
            false => Boot { release: Arc::default(), ..boot.clone() },
        }
    }

    /// What the log lacks of a member's boot.
    fn lacks(&self, member: NodeId, boot: &Boot) -> Option<Boot> {
        let boot = self.loggable(boot);
        let known = self.logged.get(&member);
        let known = known.is_some_and(|logged| *logged == boot || is_old(boot.epoch, logged.epoch));
        (!known).then_some(boot)
    }
}

impl Identities {
    /// Observes a message of a member from this boot, with its fencing history.
    ///
    /// # Errors
    /// The known boot epoch, if this one does not succeed it.
    pub(crate) fn observe(
        &self,
        member: NodeId,
        boot: &Boot,
        fencing_history: &[u64],
    ) -> Result<(), BootEpoch> {
        let (epoch, mut known) = (boot.epoch, self.0.lock());
        let logged = known.logged.get(&member).map(|logged| logged.epoch);
        if let Some(logged) = logged.filter(|logged| !succeeds(epoch, fencing_history, *logged)) {
            return Err(logged);
        }
        if known.observed.len() >= EPOCHS_MAX && !known.observed.contains_key(&member) {
            // Invented identities are likely large numbers.
            known.observed.pop_last();
        }
        let observed = known.observed.entry(member).or_insert_with(|| boot.clone());
        // The log decides between two copies of a disk.
        if succeeds(epoch, fencing_history, observed.epoch) || logged == Some(epoch) {
            observed.clone_from(boot);
        }
        if observed.epoch == epoch { Ok(()) } else { Err(observed.epoch) }
    }

    /// Sets what the log says by now.
    pub(crate) fn set_logged(
        &self,
        boot_epochs: &BootEpochsImage,
        removed: &RemovedImage,
        version: u32,
    ) {
        let mut known = self.0.lock();
        (known.logged, known.removed) = (boot_epochs.clone(), removed.clone());
        known.version = version;
    }

    /// The cluster's version.
    pub(crate) fn version(&self) -> u32 {
        self.0.lock().version()
    }

    /// The logged boots.
    pub(crate) fn logged(&self) -> BootEpochsImage {
        self.0.lock().logged.clone()
    }

    /// A boot as the log may have it now.
    pub(crate) fn loggable(&self, boot: &Boot) -> Boot {
        self.0.lock().loggable(boot)
    }

    /// Whether the node's newest observed boot speaks the cluster's version.
    pub(crate) fn speaks_enough(&self, node: NodeId) -> bool {
        let known = self.0.lock();
        known.observed.get(&node).is_some_and(|boot| boot.version >= known.version())
    }

    /// The members of which this member does not know, from the log and from their latest messages,
    /// that they speak this version.
    pub(crate) fn behind(&self, membership: &Membership, version: u32) -> Vec<NodeId> {
        let known = self.0.lock();
        let is_latest = |id: &NodeId, boot: &Boot| {
            known.logged.get(id).is_none_or(|logged| !is_old(boot.epoch, logged.epoch))
        };
        let went_back = |(id, boot): &(&NodeId, &Boot)| {
            boot.version < version && is_latest(id, boot) && membership.get_node(id).is_some()
        };
        let went_back = known.observed.iter().filter(went_back).map(|(id, _)| *id);
        let mut behind = behind(&known.logged, membership, version);
        behind.extend(went_back);
        behind.sort_unstable();
        behind.dedup();
        behind
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
            .is_some_and(|logged| logged.epoch == epoch || is_old(epoch, logged.epoch))
    }

    /// Whether this is the member's latest boot epoch according to the log.
    pub(crate) fn is_latest(&self, member: NodeId, epoch: BootEpoch) -> bool {
        self.0.lock().logged.get(&member).is_some_and(|logged| logged.epoch == epoch)
    }

    /// Whether this is the newest boot epoch of a member that was observed here.
    pub(crate) fn is_newest(&self, member: NodeId, epoch: BootEpoch) -> bool {
        self.0.lock().observed.get(&member).is_some_and(|observed| observed.epoch == epoch)
    }

    /// What the log lacks of a member's boot that was observed.
    pub(crate) fn unlogged(&self, member: NodeId) -> Option<Boot> {
        let known = self.0.lock();
        known.lacks(member, known.observed.get(&member)?)
    }

    /// What the log lacks of this boot of a member.
    pub(crate) fn unlogged_of(&self, member: NodeId, boot: &Boot) -> Option<Boot> {
        self.0.lock().lacks(member, boot)
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

/// Records a logged boot, and drops those of identities that are no longer members. The same boot may
/// be logged again, with more.
pub(crate) fn log_boot(
    boot_epochs: &mut BootEpochsImage,
    member: NodeId,
    boot: Boot,
    is_member: impl Fn(NodeId) -> bool,
) {
    let known = boot_epochs.get(&member).map(|known| known.epoch);
    if known.is_some_and(|known| is_old(boot.epoch, known)) {
        return;
    }
    let boot_epochs = Arc::make_mut(boot_epochs);
    boot_epochs.retain(|known, _| is_member(*known));
    boot_epochs.insert(member, boot);
}

/// The members of which the log does not say that they speak this version.
pub(crate) fn behind(
    boot_epochs: &BootEpochsImage,
    membership: &Membership,
    version: u32,
) -> Vec<NodeId> {
    let members = membership.nodes().map(|(id, _)| *id);
    let speaks = |id: &NodeId| boot_epochs.get(id).is_some_and(|boot| boot.version >= version);
    members.filter(|id| !speaks(id)).collect()
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

    fn boot(number: u64, nonce: u64) -> Boot {
        Boot { epoch: epoch(number, nonce), version: 1, release: Arc::default() }
    }

    #[test]
    fn logged_epochs_outlast_a_restart_that_loses_observed_ones() {
        let mut image = BootEpochsImage::default();
        log_boot(&mut image, MEMBER, boot(5, 50), |_| true);
        log_boot(&mut image, MEMBER, boot(5, 51), |_| true);
        log_boot(&mut image, MEMBER, boot(4, 40), |_| true);
        let identities = Identities::default();
        identities.set_logged(&image, &RemovedImage::default(), 0);
        assert_eq!(
            identities.observe(MEMBER, &boot(5, 51), &[40]),
            Err(epoch(5, 50)),
            "another copy"
        );
        assert_eq!(
            identities.observe(MEMBER, &boot(4, 40), &[30]),
            Err(epoch(5, 50)),
            "an older copy"
        );
        assert_eq!(identities.observe(MEMBER, &boot(5, 50), &[40]), Ok(()));
        assert_eq!(identities.unlogged(MEMBER), None);
        assert_eq!(identities.observe(MEMBER, &boot(6, 60), &[50, 40]), Ok(()));
        assert_eq!(identities.unlogged(MEMBER), Some(boot(6, 60)));
        assert!(
            identities.has_logged(MEMBER, epoch(5, 50))
                && !identities.has_logged(MEMBER, epoch(6, 60))
        );
    }

    /// A copy that is started often counts further than the disk itself.
    #[test]
    fn a_copy_is_refused_however_often_it_boots() {
        let identities = Identities::default();
        identities.observe(MEMBER, &boot(5, 50), &[40]).unwrap();
        // Copied during boot 4.
        assert!(identities.observe(MEMBER, &boot(5, 55), &[40]).is_err());
        assert!(identities.observe(MEMBER, &boot(6, 66), &[55, 40]).is_err());
        assert!(identities.observe(MEMBER, &boot(7, 77), &[66, 55, 40]).is_err());
        // The disk itself was booted twice unobserved.
        assert_eq!(identities.observe(MEMBER, &boot(8, 80), &[70, 60, 50, 40]), Ok(()));
        assert_eq!(
            identities.observe(MEMBER, &boot(8 + GAP_MAX + 1, 1), &[]),
            Err(epoch(8, 80)),
            "an invented number"
        );
    }

    #[test]
    fn the_log_decides_between_two_copies_of_a_disk() {
        let identities = Identities::default();
        identities.observe(MEMBER, &boot(5, 51), &[40]).unwrap();
        assert!(identities.observe(MEMBER, &boot(5, 50), &[40]).is_err());
        let mut image = BootEpochsImage::default();
        log_boot(&mut image, MEMBER, boot(5, 50), |_| true);
        identities.set_logged(&image, &RemovedImage::default(), 0);
        assert_eq!(identities.observe(MEMBER, &boot(5, 50), &[40]), Ok(()));
        assert!(identities.observe(MEMBER, &boot(5, 51), &[40]).is_err());
    }

    #[test]
    fn epochs_of_removed_identities_are_dropped() {
        let mut image = BootEpochsImage::default();
        log_boot(&mut image, MEMBER, boot(5, 50), |_| true);
        log_boot(&mut image, NodeId::new(2, 23), boot(1, 10), |id| id != MEMBER);
        assert_eq!(image.keys().copied().collect::<Vec<_>>(), [NodeId::new(2, 23)]);
    }

    fn runs(number: u64, version: u32, release: &str) -> Boot {
        Boot { version, release: release.into(), ..boot(number, number) }
    }

    #[test]
    fn the_same_boot_is_logged_again_with_more_and_another_boot_of_its_number_is_not() {
        let mut image = BootEpochsImage::default();
        log_boot(&mut image, MEMBER, runs(5, 0, ""), |_| true);
        log_boot(&mut image, MEMBER, runs(5, 1, ""), |_| true);
        assert_eq!(image.get(&MEMBER), Some(&runs(5, 1, "")));
        let copy = Boot { epoch: epoch(5, 51), ..runs(5, 9, "") };
        log_boot(&mut image, MEMBER, copy, |_| true);
        log_boot(&mut image, MEMBER, runs(4, 9, ""), |_| true);
        assert_eq!(image.get(&MEMBER), Some(&runs(5, 1, "")));
        // A member that went back to the release before.
        log_boot(&mut image, MEMBER, runs(6, 0, ""), |_| true);
        assert_eq!(image.get(&MEMBER), Some(&runs(6, 0, "")));
    }

    #[test]
    fn releases_are_logged_once_the_clusters_version_allows_it() {
        let since = Feature::Releases.since();
        let identities = Identities::default();
        let mut image = BootEpochsImage::default();
        identities.observe(MEMBER, &runs(5, since, "1.2.3"), &[]).unwrap();
        assert_eq!(identities.unlogged(MEMBER), Some(runs(5, since, "")));
        log_boot(&mut image, MEMBER, runs(5, since, ""), |_| true);
        identities.set_logged(&image, &RemovedImage::default(), since - 1);
        assert_eq!(identities.unlogged(MEMBER), None);
        identities.set_logged(&image, &RemovedImage::default(), since);
        assert_eq!(identities.unlogged(MEMBER), Some(runs(5, since, "1.2.3")));
        log_boot(&mut image, MEMBER, runs(5, since, "1.2.3"), |_| true);
        identities.set_logged(&image, &RemovedImage::default(), since);
        assert_eq!(identities.unlogged(MEMBER), None);
    }

    #[test]
    fn a_member_is_behind_unless_the_log_and_its_latest_message_say_that_it_speaks_the_version() {
        let (one, two, three) = (NodeId::new(1, 11), MEMBER, NodeId::new(3, 33));
        let members = membership(&[one, two, three]);
        let identities = Identities::default();
        let mut image = BootEpochsImage::default();
        log_boot(&mut image, one, runs(1, 2, ""), |_| true);
        log_boot(&mut image, two, runs(1, 1, ""), |_| true);
        identities.set_logged(&image, &RemovedImage::default(), 0);
        assert_eq!(identities.behind(&members, 2), [two, three]);
        assert_eq!(identities.behind(&members, 1), [three]);
        log_boot(&mut image, two, runs(2, 2, ""), |_| true);
        log_boot(&mut image, three, runs(1, 3, ""), |_| true);
        identities.set_logged(&image, &RemovedImage::default(), 0);
        assert_eq!(identities.behind(&members, 2), []);
        // It went back a moment ago, and that is not logged yet.
        identities.observe(one, &runs(2, 1, ""), &[1]).unwrap();
        assert_eq!(identities.behind(&members, 2), [one]);
        // What an earlier boot said counts no more, once the log has a later one.
        log_boot(&mut image, one, runs(3, 2, ""), |_| true);
        identities.set_logged(&image, &RemovedImage::default(), 0);
        assert_eq!(identities.behind(&members, 2), []);
        // Nobody asks a node that is no member.
        identities.observe(NodeId::new(4, 44), &runs(1, 1, ""), &[]).unwrap();
        assert_eq!(identities.behind(&members, 2), []);
    }

    #[test]
    fn a_node_that_asked_to_join_before_the_version_rose_is_not_let_in_after_it() {
        let identities = Identities::default();
        assert!(!identities.speaks_enough(MEMBER), "nothing is known of it");
        identities.observe(MEMBER, &runs(1, 1, ""), &[]).unwrap();
        assert!(identities.speaks_enough(MEMBER));
        identities.set_logged(&BootEpochsImage::default(), &RemovedImage::default(), 2);
        assert!(!identities.speaks_enough(MEMBER));
        identities.observe(MEMBER, &runs(2, 2, ""), &[1]).unwrap();
        assert!(identities.speaks_enough(MEMBER));
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
        identities.set_logged(&BootEpochsImage::default(), &image, 0);
        assert!(identities.is_removed(old));
        assert!(!identities.is_removed(new) && !identities.is_removed(one));
    }
}
