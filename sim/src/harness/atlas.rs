//! Which disks may decay, and when, so that what must survive can survive.

use super::cluster::Cluster;
use super::machine::Machine;
use super::plan::Plan;
use cairn_engine::Mode;
use rand::seq::SliceRandom;

/// The map of the disks that decay in a run.
///
/// The rule, with *f* the number of members that the cluster can do without: of a block that was acknowledged, or of a value
/// that a key still has, at least one good copy must be left among those that remember, and those that remember must be a
/// majority. So
/// - a seed names up to *f* **victims**; nobody else's disk decays;
/// - a victim whose disk is damaged counts as one of the *f* until all that was damaged was written anew, or until a scrub has
///   read everything that is live and found nothing. Meanwhile no more than *f - 1* others may lose power with something to
///   lose, or have a block misread; and while *f* others recover from such a loss, no victim's disk decays;
/// - when it is ended, a damaged victim counts as one that forgot, until it is active again: damage of its journal makes it
///   recover in place;
/// - where more may lose power than the cluster survives without a person, nothing decays: after such a loss a damaged value
///   may have been the last one.
///
/// Everything else may happen to anybody meanwhile, and everything to a victim: deaths, cuts, pauses, partitions.
///
/// What a disk does to a victim is bounded by the disk ([`Core::decay`](crate::disk::Core::decay)): the newest blocks are
/// spared, since of the very last write before a power cut nobody can tell whether it was lost, and of the superblock's four
/// copies one is damaged at a time. A power cut may tear two more, in the middle of an update: without two that agree the
/// identity is gone, and the disk counts as lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Atlas {
    victims: Vec<usize>,
}

impl Atlas {
    /// The seed's choice.
    pub(super) fn new(plan: &Plan) -> Atlas {
        if plan.decays.is_empty() || plan.mode == Mode::Replicated && plan.beyond_tolerance {
            return Atlas::default();
        }
        let members = usize::from(plan.nodes);
        let mut victims: Vec<usize> = (0..members).collect();
        victims.shuffle(&mut plan.rng(7));
        victims.truncate((members - 1) / 2);
        Atlas { victims }
    }

    /// Those whose disks may decay.
    pub(super) fn victims(&self) -> &[usize] {
        &self.victims
    }

    /// Whether this victim's disk may decay now.
    pub(super) fn may_decay(&self, cluster: &Cluster, victim: &Machine) -> bool {
        !cluster.at_peace() && cluster.may_be_damaged(victim) && cluster.does_without(victim)
    }
}
