//! Which backup at a target is the latest, and which one ended last.
//!
//! What holds here: the latest has the highest term and index. Clocks count only where an index may be of
//! a cluster that was made anew under the same name, and then when backups began: one that took long may
//! end behind later ones. Which one ended last says when the next one is due, and nothing else. A term that the
//! cluster has not come to is of another history. Where a backup names a member of the cluster, those that name none
//! do not count: the cluster's own ones name some since, and another one of its name may have saved them.

use crate::cluster::{ClusterId, Clusters, Whose};
use crate::error::{Error, Result};
use crate::manifest::{ALL_FOLDERS_MAX, Head, Manifest};
use crate::paths::folder_of;
use crate::target::Target;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

/// How much earlier a backup of a higher index may have begun: two of the same time.
pub(crate) const SAME_TIME: u64 = 60;
/// By how many entries the member that is asked may be behind the one that sent a backup.
const LAG: u64 = 1 << 20;

/// The cluster of which the latest backup is built upon.
#[derive(Clone, Copy, Debug)]
pub struct OfCluster<'a> {
    /// Which one.
    pub id: ClusterId<'a>,
    /// The highest term that the member has seen that is asked for the state: its log has no higher one.
    pub term: u64,
    /// The last entry that the member has applied that is asked for the state.
    pub applied_index: u64,
}

impl OfCluster<'_> {
    /// Whether the cluster has come to the state of a backup. What is far behind what it has applied, or of a later
    /// term, is of another one of this name, which was made anew since.
    fn has_reached(&self, head: &Head) -> bool {
        head.term <= self.term && head.index <= self.applied_index.saturating_add(LAG)
    }
}

/// The name of the latest backup; with a cluster, of that one, and none behind what it has.
///
/// # Errors
/// [`Error::NoLatest`]; [`Error::Store`]; without a cluster what is wrong with any manifest, since that
/// may be the latest.
pub async fn latest(target: &Target, of: Option<OfCluster<'_>>, now: SystemTime) -> Result<String> {
    let mut found = Vec::new();
    let candidate = |Manifest { name, head, .. }| Candidate { name, head };
    for (_, candidate) in Manifest::each(target, candidate).await? {
        match candidate {
            Ok(candidate) => found.push(candidate),
            // The newest one may be among those that cannot be read now.
            Err(failed @ Error::Store { .. }) => return Err(failed),
            // What can never be read keeps nobody from saving.
            Err(_) if of.is_some() => {}
            Err(error) => return Err(error),
        }
    }
    choose(found, of, now).map_err(|why| Error::NoLatest(format!("{}: {why}", target.text())))
}

/// What the ends of backups say.
#[derive(Debug, Default)]
pub struct Ended {
    /// The cluster's own backup that ended last.
    pub last: Option<Manifest>,
    /// A backup that was written later, of another cluster with the same name and generation: the latest of them.
    pub namesake: Option<String>,
}

/// The finished backup of this cluster that ended last, and until then, in seconds since 1970: a clock was
/// ahead where one ended later. What names no member of the cluster is of another one of this name, and where it
/// does not name its members, so is what is far behind what the cluster has applied. What cannot be read is no
/// backup. Two manifests are in memory at most.
///
/// # Errors
/// [`Error::Store`].
pub async fn ended_last(target: &Target, of: OfCluster<'_>, until: u64) -> Result<Ended> {
    let found = target.find().await?.into_iter().filter(|(_, found)| found.finished);
    let mut found: Vec<_> = found.map(|(name, found)| (found.latest, name)).collect();
    // The manifest is written last: its time is that of the backup's end.
    found.sort_unstable();
    let mut ended = Ended::default();
    for (_, name) in found.into_iter().rev() {
        let manifest = match Manifest::load(target, &name).await {
            // The last one may be the one that cannot be read now.
            Err(failed @ Error::Store { .. }) => return Err(failed),
            Err(_) => continue,
            Ok(manifest) => manifest,
        };
        let (whose, is_reached) = (of.id.whose(&manifest.head), of.has_reached(&manifest.head));
        if whose == Whose::Namesake || whose == Whose::Unknown && !is_reached {
            ended.namesake.get_or_insert(name);
            continue;
        }
        if !is_reached || manifest.ended > until {
            continue;
        }
        match whose {
            Whose::Own => return Ok(Ended { last: Some(manifest), ..ended }),
            // One that names a member may follow.
            Whose::Unknown if ended.last.is_none() => ended.last = Some(manifest),
            _ => {}
        }
    }
    Ok(ended)
}

/// When the oldest backup was begun that has an object which this one needs, in seconds since 1970.
///
/// # Errors
/// [`Error::Store`].
pub async fn reaches_back(target: &Target, manifest: &Manifest) -> Result<u64> {
    let folders: BTreeSet<&str> =
        manifest.objects().map(|object| folder_of(&object.path)).collect();
    let mut began = manifest.head.began;
    // No backup needs more.
    for folder in folders.into_iter().take(ALL_FOLDERS_MAX) {
        match Head::load(target, folder).await {
            // Nothing can build on that, whatever its age is.
            Err(Error::Unreadable { .. }) => {}
            head => began = began.min(head?.map_or(began, |head| head.began)),
        }
    }
    Ok(began)
}

/// A backup that may be the latest.
struct Candidate {
    name: String,
    head: Head,
}

fn choose(
    mut found: Vec<Candidate>,
    of: Option<OfCluster<'_>>,
    now: SystemTime,
) -> std::result::Result<String, String> {
    let ids = found.iter().map(|found| ClusterId::of(&found.head));
    let clusters = Clusters::of(ids.chain(of.map(|of| of.id)));
    if let Some(of) = of {
        let own = clusters.key(&of.id);
        // Nothing builds on what does not say its term.
        found.retain(|found| {
            let head = &found.head;
            head.term > 0 && of.has_reached(head) && clusters.key(&ClusterId::of(head)) == own
        });
        if found.iter().any(|found| !found.head.members.is_empty()) {
            found.retain(|found| !found.head.members.is_empty());
        }
    }
    let keys = found.iter().map(|found| clusters.key(&ClusterId::of(&found.head)));
    if keys.collect::<BTreeSet<_>>().len() > 1 {
        return Err("there are backups of several clusters: name one".into());
    }
    let age = |found: &Candidate| (found.head.term, found.head.index, found.head.began);
    let now = now.duration_since(UNIX_EPOCH).map_or(u64::MAX, |now| now.as_secs());
    // A clock was ahead where it began later than now.
    let by_time = found.iter().filter(|found| found.head.began <= now);
    let by_time = by_time.max_by_key(|found| (found.head.began, age(found)));
    let by_index = found.iter().max_by_key(|found| age(found));
    // A cluster was made anew under the same name, or a clock was wrong. A save need not know: where what
    // it builds on is of another history, it says so.
    if let (None, Some(by_time), Some(by_index)) = (of, by_time, by_index)
        && by_index.head.began.saturating_add(SAME_TIME) < by_time.head.began
    {
        return Err(format!(
            "it is not clear which backup is the latest: {} began last, and {} has the highest index: name one",
            by_time.name, by_index.name
        ));
    }
    by_index
        .map(|found| found.name.clone())
        .ok_or_else(|| "there is no backup of this cluster; `cairn backup save` makes one".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: u64 = 1_800_000_000;
    const DAY: u64 = 24 * 3600;
    const SHOP: OfCluster<'static> = OfCluster { id: ID, term: 7, applied_index: 1000 };
    const ID: ClusterId<'static> = ClusterId { name: "shop", generation: 1, members: &[1, 2, 3] };

    /// A backup of this index, and when it began and ended.
    fn saved(name: &str, index: u64, began: u64, ended: u64) -> Manifest {
        let head = Head { began, ..Head::of_shop(index) };
        Manifest { ended, ..Manifest::new(name.into(), head) }
    }

    /// As a save, and then a restore, choose.
    fn chosen(found: &[Manifest]) -> [std::result::Result<String, String>; 2] {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let candidate = |found: &Manifest| {
            let Manifest { name, head, .. } = found.clone();
            Candidate { name, head }
        };
        [Some(SHOP), None].map(|of| choose(found.iter().map(candidate).collect(), of, now))
    }

    /// The story: a save took longer than the next one, and every later `--since latest` was refused.
    #[test]
    fn a_save_that_began_earlier_and_ended_later_is_not_the_latest() {
        let long = saved("long", 100, NOW - 3 * DAY, NOW - DAY);
        let short = saved("short", 200, NOW - 2 * DAY, NOW - 2 * DAY + 10);
        for found in [[long.clone(), short.clone()], [short, long]] {
            assert_eq!(chosen(&found), [Ok("short".into()), Ok("short".into())]);
        }
    }

    /// A member that lags answers after one that does not.
    #[test]
    fn two_that_began_in_one_minute_are_told_apart_by_their_indexes() {
        let found = [saved("high", 200, NOW - 90, NOW - 80), saved("low", 100, NOW - 30, NOW - 20)];
        assert_eq!(chosen(&found), [Ok("high".into()), Ok("high".into())]);
        let found = [saved("high", 200, NOW - 91, NOW - 80), saved("low", 100, NOW - 30, NOW - 20)];
        let [save, restore] = chosen(&found);
        assert_eq!(save, Ok("high".into()));
        let refused = restore.unwrap_err();
        assert!(refused.contains("low began last, and high has the highest index"), "{refused}");
    }

    /// The story: a clock was a day ahead once, and every later backup was refused until that day had come.
    #[test]
    fn a_backup_of_a_clock_that_was_a_day_ahead_says_nothing_of_later_ones() {
        let ahead = saved("ahead", 100, NOW + DAY, NOW + DAY + 10);
        let later = saved("later", 200, NOW - 3600, NOW - 3590);
        assert_eq!(chosen(&[ahead.clone(), later]), [Ok("later".into()), Ok("later".into())]);
        // It counts by its index as all do.
        let earlier = saved("earlier", 50, NOW - 3600, NOW - 3590);
        assert_eq!(chosen(&[ahead, earlier]), [Ok("ahead".into()), Ok("ahead".into())]);
    }

    /// A cluster that was made anew has small indexes. What its members have not reached is not its own.
    #[test]
    fn a_save_builds_on_nothing_that_its_cluster_has_not_reached() {
        let old = saved("old", 1000 + LAG + 1, NOW - 3 * DAY, NOW - 3 * DAY);
        let new = saved("new", 900, NOW - DAY, NOW - DAY);
        let [save, restore] = chosen(&[old.clone(), new]);
        assert_eq!(save, Ok("new".into()));
        assert!(restore.is_err());
        let [save, _] = chosen(&[old]);
        assert!(save.unwrap_err().contains("there is no backup of this cluster"));
        let reached = saved("reached", 1000 + LAG, NOW - DAY, NOW - DAY);
        assert_eq!(chosen(&[reached])[0], Ok("reached".into()));
    }

    /// The story: a cluster was made anew under the same name, and wrote more than the old one had. What that had saved
    /// in higher terms was the latest, and every save was refused by the first key.
    #[test]
    fn a_save_builds_on_nothing_of_a_term_that_its_cluster_has_not_come_to() {
        let of_term = |name: &str, index, term| {
            let mut found = saved(name, index, NOW - DAY, NOW - DAY);
            found.head.term = term;
            found
        };
        let (old, new) = (of_term("old", 500, 8), of_term("new", 900, 7));
        assert_eq!(chosen(&[old.clone(), new])[0], Ok("new".into()));
        for none in [old, of_term("unknown", 500, 0)] {
            let [save, restore] = chosen(std::slice::from_ref(&none));
            assert!(save.unwrap_err().contains("there is no backup of this cluster"));
            assert_eq!(restore, Ok(none.name));
        }
    }

    /// The story: two clusters of one name saved at one target, and one of them built on what the other one had saved,
    /// until a key of that one showed it.
    #[test]
    fn a_save_builds_on_no_backup_of_other_members_and_a_restore_chooses_none_of_two() {
        let of = |name: &str, index, members: &[u64]| {
            let mut found = saved(name, index, NOW - DAY, NOW - DAY);
            found.head.members = members.to_vec();
            found
        };
        let (own, other) = (of("own", 500, &[1, 2, 3]), of("other", 900, &[7, 8, 9]));
        let [save, restore] = chosen(&[own.clone(), other.clone()]);
        assert_eq!(save, Ok("own".into()));
        assert!(restore.unwrap_err().contains("several clusters"));
        let [save, restore] = chosen(std::slice::from_ref(&other));
        assert!(save.unwrap_err().contains("there is no backup of this cluster"));
        assert_eq!(restore, Ok("other".into()));
        // What names no member may be of either: an earlier release wrote it.
        let unknown = saved("unknown", 950, NOW - DAY, NOW - DAY);
        assert_eq!(chosen(&[own.clone(), unknown.clone()])[0], Ok("own".into()));
        assert!(chosen(&[unknown.clone(), other])[0].is_err());
        assert_eq!(chosen(&[unknown])[0], Ok("unknown".into()));
        // All members were replaced since, one after another.
        let (early, between) = (of("early", 400, &[4, 5, 6]), of("between", 300, &[1, 4]));
        assert_eq!(chosen(&[early, between]), [Ok("early".into()), Ok("early".into())]);
    }

    #[test]
    fn of_two_clusters_one_must_be_named() {
        let mut other = saved("other", 300, NOW - DAY, NOW - DAY);
        other.head.generation = 2;
        let [save, restore] = chosen(&[saved("own", 200, NOW - DAY, NOW - DAY), other]);
        assert_eq!(save, Ok("own".into()));
        assert!(restore.unwrap_err().contains("several clusters"));
    }
}
