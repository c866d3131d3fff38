//! The capture of the state from which a checkpoint is written.

use crate::group::{Entries, Group, Interval, KeyList, Keys};
use crate::types::{GroupId, LogId, SharedImage};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A consistent capture of everything, taken when the queue was empty.
pub(crate) struct Capture {
    /// It is the first to hold a snapshot that replaced the state: older checkpoints do not lead to
    /// it.
    pub replaces: bool,
    pub groups: Vec<CapturedGroup>,
    /// What each group's last two intervals touched; empty where nobody knows.
    pub touched: BTreeMap<GroupId, [Interval; 2]>,
}

impl Capture {
    /// All of the state, for a checkpoint of all of it.
    pub(crate) fn whole(groups: &BTreeMap<GroupId, Group>) -> Capture {
        let groups = groups.iter().map(CapturedGroup::of).collect();
        Capture { replaces: false, groups, touched: BTreeMap::new() }
    }

    /// The same, for one of what changed: the next interval begins.
    pub(crate) fn next(replaces: bool, groups: &mut BTreeMap<GroupId, Group>) -> Capture {
        let touched =
            groups.iter_mut().map(|(id, group)| (*id, group.touched.captured())).collect();
        Capture { replaces, touched, ..Capture::whole(groups) }
    }

    /// What each group had applied.
    pub(crate) fn applied(&self) -> BTreeMap<GroupId, LogId> {
        self.groups.iter().filter_map(|group| Some((group.id, group.applied?))).collect()
    }

    /// How the groups differ from a capture at which they had applied this; `None` where nobody knows.
    pub(crate) fn changes(&self, applied: &BTreeMap<GroupId, LogId>) -> Option<Vec<Changes>> {
        let changes = |group: &CapturedGroup| {
            let [before, now] = self.touched.get(&group.id)?;
            let touched = [before.clone()?, now.clone()?];
            Some(Changes { since: applied.get(&group.id).map(|id| id.index), touched })
        };
        self.groups.iter().map(changes).collect()
    }
}

impl Changes {
    /// About so many keys of a group that has applied up to here, if an entry puts one.
    pub(crate) fn about(&self, applied: Option<LogId>) -> u64 {
        let puts = applied.map_or(0, |id| id.index).saturating_sub(self.since.unwrap_or(0));
        puts + self.touched.iter().map(|keys| keys.len() as u64).sum::<u64>()
    }
}

/// How a group's keys differ from those of an earlier capture.
pub(crate) struct Changes {
    /// What was applied then: keys with a later version were put since. `None`: nothing was.
    pub since: Option<u64>,
    /// Keys that were deleted since, or whose value moved: their versions do not show it.
    pub touched: [Arc<KeyList>; 2],
}

/// A group in a [`Capture`].
pub(crate) struct CapturedGroup {
    pub id: GroupId,
    pub purged: Option<LogId>,
    pub applied: Option<LogId>,
    pub applied_before: Option<LogId>,
    pub image: Option<SharedImage>,
    pub log: Entries,
    pub keys: Keys,
}

impl CapturedGroup {
    /// O(1) for the keys, one reference per chunk of entries for the log.
    pub(crate) fn of((id, group): (&GroupId, &Group)) -> CapturedGroup {
        let (purged, log) = group.checkpoint_log();
        CapturedGroup {
            id: *id,
            purged,
            applied: group.applied,
            applied_before: group.applied_before.max(group.applied),
            image: group.image.clone(),
            log,
            keys: group.keys.clone(),
        }
    }
}
