//! What an open may assume about a directory, from how its last process ended.

use super::recovery::ShutdownEvidence;
use crate::superblock::Superblock;
use crate::types::{KernelBootId, MemberState, Mode};

/// Whether the machine may have lost power since the last process: whoever runs under another kernel boot
/// cannot tell.
pub(super) fn lost_power(known: &Superblock, boot: KernelBootId) -> bool {
    known.boot != boot
}

/// The member state after this open.
/// - A recovering member stays recovering: a restart of its process does not change that.
/// - A power cut lost nothing acknowledged if the unsynced-ack flag is clear.
/// - After a failed write or sync, readable data is no proof that it is synced, and with peers the
///   member recovers. This holds under another kernel boot id too, since the id may change for less
///   than a power cut.
pub(super) fn classify(known: &Superblock, power_cut: bool, peers: bool) -> MemberState {
    let may_lack_acks = power_cut && known.unsynced_acks || known.failed_sync.is_some() && peers;
    match known.member_state {
        MemberState::Active if !may_lack_acks => MemberState::Active,
        _ => MemberState::Recovering,
    }
}

/// What recovery may assume about the journal. A failed sync under the running kernel counts as a
/// power cut: single blocks may have reverted to older content. But without peers everything
/// acknowledged must be there.
pub(super) fn shutdown_evidence(
    known: &Superblock,
    power_cut: bool,
    peers: bool,
) -> ShutdownEvidence {
    let keeps = known.mode == Some(Mode::Device);
    let failed_sync = known.failed_sync.filter(|_| !power_cut || keeps);
    ShutdownEvidence {
        power_cut: power_cut || failed_sync.is_some(),
        kept_written: match failed_sync {
            // A failed sync may have lost completed writes, whatever the device promises. With
            // peers, no completed write is assumed to be there.
            Some(_) => keeps && !peers,
            None => keeps || !power_cut,
        },
        reaches: failed_sync.filter(|_| power_cut || !peers),
        synced: failed_sync.filter(|_| known.acks_are_synced()).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Geometry, Identity};

    /// Every superblock by which a start judges, with and without a power cut, and peers.
    fn all() -> impl Iterator<Item = (Superblock, bool, bool)> {
        let modes = [None, Some(Mode::Sync), Some(Mode::Replicated), Some(Mode::Device)];
        (0..128usize).map(move |number| {
            let is = |bit: usize| number & 1 << bit != 0;
            let identity = Identity { cluster: "prod".into(), slot: 1, incarnation: 1 };
            let known = Superblock {
                member_state: [MemberState::Active, MemberState::Recovering][usize::from(is(0))],
                unsynced_acks: is(1),
                failed_sync: is(2).then_some(9),
                mode: modes[number >> 5],
                ..Superblock::first(identity, Geometry::for_total(64 << 20).unwrap())
            };
            (known, is(3), is(4))
        })
    }

    #[test]
    fn a_member_recovers_if_it_did_or_if_acknowledged_writes_may_be_gone() {
        for (known, power_cut, peers) in all() {
            let recovers = matches!(
                (known.member_state, power_cut, known.unsynced_acks, known.failed_sync, peers),
                (MemberState::Recovering, ..) | (_, true, true, ..) | (.., Some(_), true)
            );
            let found = classify(&known, power_cut, peers);
            assert_eq!(found == MemberState::Recovering, recovers, "{known:?} {power_cut} {peers}");
        }
    }

    #[test]
    fn the_journal_is_judged_by_the_power_cut_the_failed_sync_and_the_device() {
        for (known, power_cut, peers) in all() {
            let device = known.mode == Some(Mode::Device);
            let expected = match (device, power_cut, known.failed_sync, peers) {
                (_, false, None, _) => (false, true, None),
                (false, true, ..) => (true, false, None),
                (true, true, None, _) => (true, true, None),
                (true, true, failed, peers) => (true, !peers, failed),
                (_, false, _, true) => (true, false, None),
                (device, false, failed, false) => (true, device, failed),
            };
            let synced = match (known.mode, known.unsynced_acks) {
                (Some(Mode::Sync), _) | (Some(Mode::Replicated), false) if !power_cut => {
                    known.failed_sync.unwrap_or(0)
                }
                _ => 0,
            };
            let found = shutdown_evidence(&known, power_cut, peers);
            let judged = (found.power_cut, found.kept_written, found.reaches);
            assert_eq!(judged, expected, "{known:?} {power_cut} {peers}");
            assert_eq!(found.synced, synced, "{known:?} {power_cut} {peers}");
        }
    }
}
