//! Which disks may decay, and when, so that one good copy of everything acknowledged is left.

use super::plan::Plan;
use rand::seq::SliceRandom;

/// The map of the disks that decay in a run.
///
/// The rule, with *f* the number of members that the cluster can lose: of each acknowledged block,
/// and of each value that a key refers to, at least one good copy is left on members that lost
/// nothing they acknowledged, and these members are a majority. So
/// - a seed names up to *f* **victims**; no other disk decays;
/// - a victim whose disk is damaged counts as one of the *f* until everything damaged was
///   rewritten, or until a scrub has read everything live and found nothing. Meanwhile at most *f -
///   1* others may lose power with unsynced acknowledgements, or have a block misread; and while
///   *f* others recover from such a loss, no victim's disk decays;
/// - when a damaged victim ends, it counts as one that lost acknowledged entries until it is active
///   again: damage of its journal makes it recover in place;
/// - where more machines may lose power than the cluster survives without an operator, nothing
///   decays: after such a loss a damaged value may have been the last copy.
///
/// Everything else may happen to any member meanwhile, and to a victim too: kills, power cuts,
/// pauses, partitions.
///
/// The disk itself bounds the damage ([`Core::decay`](cairn_disk::Core::decay)). It spares the
/// newest blocks, since nothing can tell whether the last write before a power cut was lost. It
/// damages one of the superblock's four copies at a time. A power cut in the middle of an update
/// may tear two more; if no two copies agree, the identity is gone and the disk counts as lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Atlas {
    victims: Vec<usize>,
}

impl Atlas {
    /// Chooses the victims of a seed.
    pub(super) fn new(plan: &Plan) -> Atlas {
        if plan.decays.is_empty() || plan.may_ack_unsynced() && plan.beyond_tolerance {
            return Atlas::default();
        }
        let members = usize::from(plan.nodes);
        let mut victims: Vec<usize> = (0..members).collect();
        victims.shuffle(&mut plan.rng(7));
        victims.truncate((members - 1) / 2);
        Atlas { victims }
    }

    /// The machines whose disks may decay.
    pub(super) fn victims(&self) -> &[usize] {
        &self.victims
    }
}
