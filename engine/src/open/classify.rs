//! What an open may assume about a directory, from how its last process ended.

use super::recovery::ShutdownEvidence;
use crate::superblock::Superblock;
use crate::types::{MemberState, Mode};

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
