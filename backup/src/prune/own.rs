//! What a schedule removes, which nobody looks at first.
//!
//! What holds here: it removes only what says that it is of this cluster and generation, a finished backup in its
//! manifest, and one that was broken off in its head. What names another cluster, other members, or none, stays for
//! `cairn backup prune`. A backup whose time lies in the future neither goes nor counts: whoever wrote it, by a
//! clock that was wrong or on purpose, it pushes no other one out. Where two clusters of one name have saved,
//! nothing is removed.

use super::{Keep, Kept, Pruned, Which, prune_of};
use crate::cluster::{ClusterId, Clusters, Key};
use crate::error::{Error, Result};
use crate::latest::SAME_TIME;
use crate::manifest::Head;
use crate::target::Target;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// How far the clocks of two members may be apart, until a backup of the one is in the future of the other.
const CLOCKS_APART: Duration = Duration::from_secs(10 * 60);
/// So many backups of the future are named.
const AHEAD_NAMED: usize = 8;

/// What a schedule may remove that nobody looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own<'a> {
    /// The cluster whose backups it removes, and no others.
    pub id: ClusterId<'a>,
    /// So many at most, the oldest first: a clock that is wrong, or a number that is too small, costs few.
    pub most: usize,
}

/// What is of the cluster, among all that is at the target.
pub(super) struct OwnHeads {
    pub(super) clusters: Clusters,
    own: Key,
}

impl OwnHeads {
    pub(super) fn among<'a>(own: &Own<'a>, heads: impl Iterator<Item = &'a Head>) -> OwnHeads {
        let clusters = Clusters::of(heads.map(ClusterId::of).chain([own.id]));
        let own = clusters.key(&own.id);
        OwnHeads { clusters, own }
    }

    pub(super) fn has(&self, head: &Head) -> bool {
        self.clusters.key(&ClusterId::of(head)) == self.own
    }
}

/// As [`prune`](super::prune), of the backups of one cluster, and so many at most.
///
/// # Errors
/// As there; [`Error::Histories`].
pub async fn prune_own(
    target: &Target,
    keep: &Keep,
    own: &Own<'_>,
    now: SystemTime,
) -> Result<Pruned> {
    prune_of(target, keep, Which::Own(own), now, false).await
}

type Backups<'a> = BTreeMap<&'a String, &'a Kept>;

/// The backups of a cluster that count, and those that do not.
pub(super) struct Counted<'a> {
    pub(super) of_own: Backups<'a>,
    /// Some of those whose time lies in the future.
    pub(super) ahead: Vec<String>,
}

impl<'a> Counted<'a> {
    pub(super) fn of(
        own: &OwnHeads,
        stays: &'a BTreeMap<String, Kept>,
        now: SystemTime,
    ) -> Counted<'a> {
        let until = seconds(now).saturating_add(CLOCKS_APART.as_secs());
        let of_own = stays.iter().filter(|(_, kept)| own.has(&kept.head));
        let (ahead, of_own): (Backups<'a>, Backups<'a>) =
            of_own.partition(|(_, kept)| kept.head.began.max(kept.ended) > until);
        let ahead = ahead.into_keys().take(AHEAD_NAMED).cloned().collect();
        Counted { of_own, ahead }
    }
}

/// Since 1970.
pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Whether they are of one cluster, and not of one that was made anew under the same name: then the state of a
/// later time has a lower index or term.
///
/// # Errors
/// [`Error::Histories`].
pub(super) fn of_one_history<'a>(
    target: &Target,
    backups: impl Iterator<Item = &'a Kept>,
    now: SystemTime,
) -> Result<()> {
    let now = seconds(now);
    // A clock was ahead where one began later than now.
    let mut backups: Vec<_> = backups.filter(|backup| backup.head.began <= now).collect();
    backups.sort_unstable_by_key(|backup| backup.head.began);
    let mut highest: Option<&Kept> = None;
    for backup in backups {
        let is_lower =
            |high: &Kept| backup.head.index < high.head.index || backup.head.term < high.head.term;
        match highest {
            Some(high)
                if is_lower(high)
                    && high.head.began.saturating_add(SAME_TIME) < backup.head.began =>
            {
                return Err(Error::Histories {
                    target: target.text().to_owned(),
                    earlier: high.name.clone(),
                    later: backup.name.clone(),
                });
            }
            Some(high) if is_lower(high) => {}
            _ => highest = Some(backup),
        }
    }
    Ok(())
}
