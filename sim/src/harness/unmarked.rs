//! The moment in which a member begins to acknowledge ahead of its syncs: its `lazy` mark is being written.
//!
//! Until the mark is on the device a power cut must find that everything acknowledged was synced. So here the superblock's
//! file is slow just then, writes go on, one side of the cluster never has them, and the member loses power before its
//! mark is there: it starts as one that forgot nothing, and its vote is asked for by those who lack the writes.

use super::conspire::{LAZY, POLL};
use super::faults::Nemesis;
use super::kinds::FaultKind::Unmarked;
use super::machine::Machine;
use crate::disk::Moment;
use cairn_engine::Mode;
use cairn_engine::io::FileKind;
use std::time::Duration;

/// How long a superblock's write may take here, at most, and the wait for it.
const SLOW: Duration = Duration::from_secs(6);

impl Nemesis {
    /// A member loses power while it sets its mark.
    pub(super) async fn unmarked(&mut self) {
        let Some(leader) = self.leader(0) else { return };
        let Some(parts) = self.deal(leader) else { return };
        self.begin(Unmarked, &parts);
        let rest = [&parts.gone[..], &[parts.forgets]].concat();
        if self.cluster.plan.mode == Mode::Replicated {
            // Who misses a member syncs before it acknowledges, and clears its mark.
            self.links.part(&self.hosts(&parts.out), &self.hosts(&rest));
            self.until_unmarked(parts.forgets).await;
            self.links.heal();
        }
        let Some(disk) = self.cluster.machines.get(parts.forgets).map(|machine| machine.disk.clone()) else {
            return;
        };
        // With all back, acknowledgements run ahead again.
        disk.stall(SLOW, Some(FileKind::Superblock));
        let _ = tokio::time::timeout(SLOW, disk.after(Moment::WriteTo(FileKind::Superblock), 1)).await;
        self.links.part(&self.hosts(&parts.out), &self.hosts(&rest));
        self.pause_between(20, 500).await;
        self.strike(&parts);
        disk.stall(Duration::ZERO, None);
        let gone = self.remove(&parts);
        self.links.heal();
        self.links.part(&self.hosts(&parts.gone), &self.hosts(&[&parts.out[..], &[parts.forgets]].concat()));
        self.bring_back(parts.forgets).await;
        self.pause_between(1_500, 4_000).await;
        self.undo(&parts, gone).await;
    }

    async fn until_unmarked(&self, member: usize) {
        let mut waited = Duration::ZERO;
        while waited < LAZY && self.cluster.machines.get(member).is_some_and(Machine::lazy) {
            tokio::time::sleep(POLL * 10).await;
            waited += POLL * 10;
        }
    }
}
