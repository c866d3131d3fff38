//! The moment in which a member begins to acknowledge before it syncs: it writes its unsynced-ack
//! flag.
//!
//! Until the flag is on the device, everything that the member acknowledged must be synced. So this
//! fault makes the superblock slow just then, while writes continue and one side of the cluster
//! does not get them. The member loses power before its flag is on the device. It then starts as
//! active, and the members that lack the writes ask for its vote.

use super::combined::{POLL, UNSYNCED_ACKS_WITHIN};
use super::faults::Nemesis;
use super::kinds::FaultKind::CutBeforeFlag;
use super::machine::Machine;
use crate::disk::Moment;
use cairn_engine::Mode;
use cairn_engine::io::FileKind;
use std::time::Duration;

/// The longest delay of a superblock write here, and the longest wait for one.
const SLOW: Duration = Duration::from_secs(6);

impl Nemesis {
    /// A member loses power while it sets its flag.
    pub(super) async fn cut_before_flag(&mut self) {
        let Some(leader) = self.leader(0) else { return };
        let Some(roles) = self.choose_roles(leader) else { return };
        self.begin(CutBeforeFlag, &roles);
        let rest = [&roles.absent[..], &[roles.forgetful]].concat();
        if self.cluster.plan.mode == Mode::Replicated {
            // In a degraded quorum the members sync before they acknowledge, and clear their flags.
            self.links.cut_between(&self.hosts(&roles.stale), &self.hosts(&rest));
            self.until_flag_cleared(roles.forgetful).await;
            self.links.heal();
        }
        let Some(disk) =
            self.cluster.machines.get(roles.forgetful).map(|machine| machine.disk.clone())
        else {
            return;
        };
        // With all members back, they acknowledge before they sync again.
        disk.stall(SLOW, Some(FileKind::Superblock));
        let _ =
            tokio::time::timeout(SLOW, disk.after(Moment::WriteTo(FileKind::Superblock), 1)).await;
        self.links.cut_between(&self.hosts(&roles.stale), &self.hosts(&rest));
        self.pause_between(20, 500).await;
        self.end_forgetful(&roles);
        disk.stall(Duration::ZERO, None);
        self.ask_the_forgetful(&roles).await;
    }

    async fn until_flag_cleared(&self, member: usize) {
        let mut waited = Duration::ZERO;
        while waited < UNSYNCED_ACKS_WITHIN
            && self.cluster.machines.get(member).is_some_and(Machine::unsynced_acks)
        {
            tokio::time::sleep(POLL * 10).await;
            waited += POLL * 10;
        }
    }
}
