//! Removing backups, and what was broken off.
//!
//! What holds here: an object goes only when no manifest that stays names it, and a head only when no
//! object of its folder stays: without one nobody finds the rest again. What is younger than a day and
//! was never finished is a backup under way: that stays, with all that it builds on. Manifests go
//! first, so a prune that is broken off leaves no backup without an object; where one was, a prune says so.
//! A backup that begins meanwhile stores its head and then looks whether its base is still there, and the
//! first records of what it goes on with. A prune removes manifests and then looks for heads that are new,
//! removes first records and looks again, and then removes other objects: one of the two sees the other. A
//! folder without a head or a manifest that can be read is no backup's, and is not touched. If reading
//! fails, nothing is removed. What a schedule removes, of its own cluster alone, is in `own`.
//!
//! Nothing goes of a folder with a symbolic link in it, and what its manifest names stays too, and so does an object of another
//! backup to which such a link leads. Where a manifest is
//! behind a link that leads elsewhere, or of which the system does not say in time where it leads, nothing is removed: nobody
//! knows what it needs.

mod kept;
mod own;

use self::kept::{Kept, Numbers, Rest, Staying};
use self::own::{Counted, OwnHeads, of_one_history, seconds};
use crate::cluster::{ClusterId, Clusters, Key};
use crate::error::{Error, Result};
use crate::manifest::{Head, Manifest, is_marked_removed, mark_removed};
use crate::paths::{first_records, folder_of, is_manifest, manifest_path, removed_path};
use crate::target::{Found, Survey, Target};
use futures::stream::{self, StreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

pub use self::own::{Own, prune_own};

/// A backup under way writes more often.
pub(crate) const UNDER_WAY: Duration = Duration::from_secs(24 * 3600);
/// How often a prune begins anew because a backup began meanwhile, or another prune removed one.
const ROUNDS: usize = 3;
/// Objects that are removed at once: a bucket takes some ten milliseconds for each.
const REMOVALS: usize = 16;

/// Which of two backups of a cluster is the later one: their terms and indexes. Clocks may be ahead.
type Age = (u64, u64);
/// A backup, with the time at which it ended.
type Aged = (Age, u64, String);

/// Which backups of each cluster stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// The latest, so many. If it is any, the one that ended last stays too: a cluster that was made
    /// anew under the same name has smaller terms and indexes.
    pub last: usize,
    /// All that are younger than this, now or when the last of them ended.
    pub within: Duration,
}

/// What was removed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Finished backups.
    pub backups: Vec<String>,
    /// Objects, also those that were left by what was broken off.
    pub objects: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Backups under way for which objects stay that may not be needed: what they build on is not known.
    pub kept_for: Vec<String>,
    /// Of [`prune_own`]: backups of the cluster whose time lies in the future, eight at most. They stay, and
    /// are none of those that [`Keep`] counts.
    pub ahead: Vec<String>,
}

/// Removes the backups that need not stay, and those that are named. With `dry_run` only says what it
/// would remove.
///
/// # Errors
/// [`Error::Missing`], of one that is named; [`Error::Link`], of one that is named, or of a manifest that is elsewhere and
/// not named; [`Error::Needed`]; [`Error::Damaged`], of a manifest that is
/// to stay: what it needs is not known, so name it or put it right; [`Error::Newer`] and
/// [`Error::TooLong`], of a manifest too; [`Error::NoFile`], where it marks what it removed; [`Error::Unreadable`];
/// [`Error::Store`].
pub async fn prune(
    target: &Target,
    keep: &Keep,
    named: &[String],
    now: SystemTime,
    dry_run: bool,
) -> Result<Pruned> {
    prune_of(target, keep, Which::All(named), now, dry_run).await
}

/// Which backups may go.
#[derive(Clone, Copy)]
enum Which<'a> {
    /// Those of each cluster, and these in any case.
    All(&'a [String]),
    Own(&'a Own<'a>),
}

async fn prune_of(
    target: &Target,
    keep: &Keep,
    which: Which<'_>,
    now: SystemTime,
    dry_run: bool,
) -> Result<Pruned> {
    let mut pruned = Pruned::default();
    let is_named = |name: &String| matches!(which, Which::All(named) if named.contains(name));
    for round in 1..=ROUNDS {
        let plan = match Plan::make(target, keep, which, &pruned.backups, now).await {
            // Another prune removed it since it was listed.
            Err(Error::Missing { name, .. }) if round < ROUNDS && !is_named(&name) => continue,
            plan => plan?,
        };
        if dry_run {
            return Ok(plan.would());
        }
        let began = plan.carry_out(target, &mut pruned).await?;
        pruned.ahead.clone_from(&plan.ahead);
        if began.is_empty() {
            pruned.kept_for = plan.kept_for;
            break;
        }
        // It may need what was to go: look again what it builds on.
        pruned.kept_for = began;
    }
    Ok(pruned)
}

/// What is to be removed.
struct Plan {
    /// What was at the target when it was made.
    seen: BTreeMap<String, Found>,
    backups: Vec<String>,
    /// Objects with their bytes.
    objects: Vec<(String, u64)>,
    /// Folders in which no save writes any more, and whether nothing of them stays.
    ended: Vec<(String, bool)>,
    kept_for: Vec<String>,
    ahead: Vec<String>,
}

impl Plan {
    /// `gone` are removed already.
    async fn make(
        target: &Target,
        keep: &Keep,
        which: Which<'_>,
        gone: &[String],
        now: SystemTime,
    ) -> Result<Plan> {
        let named: Vec<String> = match which {
            Which::All(named) => {
                named.iter().filter(|name| !gone.contains(name)).cloned().collect()
            }
            Which::Own(_) => Vec::new(),
        };
        let Survey { found, folder_links, object_links, .. } =
            target.survey().await?.readable(target)?;
        let stood_for = stood_for(target, &object_links, &named).await?;
        let named = without_hidden(target, &folder_links, &object_links, named).await?;
        let seen = found.clone();
        let (found, heads) = of_backups(target, found, &named).await?;
        for name in &named {
            target.see_way(&manifest_path(name)).await?;
            if !found.get(name).is_some_and(|found| found.finished) {
                let (target, name) = (target.text().to_owned(), name.clone());
                return Err(Error::Missing { target, name });
            }
        }
        let numbers = Numbers::of(&found);
        let mut staying = Staying::load(target, &found, &numbers, &named, stood_for).await?;
        let mut goes: Vec<String> = named.clone();
        let under_way = under_way(&found, &heads, now);
        let bases: BTreeSet<&String> =
            under_way.iter().filter_map(|name| heads.get(name)?.base.as_ref()).collect();
        let (mut ahead, mut one_history) = (Vec::new(), Ok(()));
        let all_heads = || heads.values().chain(staying.all().map(|kept| &kept.head));
        let own_heads = match which {
            Which::All(_) => None,
            Which::Own(own) => Some(OwnHeads::among(own, all_heads())),
        };
        let old = match (which, &own_heads) {
            (Which::Own(own), Some(own_heads)) => {
                let counted = Counted::of(own_heads, &staying.listed, now);
                one_history = of_one_history(target, counted.of_own.values().copied(), now);
                let mut old = old(counted.of_own.into_iter(), &own_heads.clusters, keep, now);
                old.truncate(own.most.saturating_sub(gone.len()));
                ahead = counted.ahead;
                old
            }
            _ => {
                let of = staying.listed.values().map(|kept| ClusterId::of(&kept.head));
                old(staying.listed.iter(), &Clusters::of(of), keep, now)
            }
        };
        for name in old {
            if !bases.contains(&name) {
                staying.listed.remove(&name);
                goes.push(name);
            }
        }
        if let Some(name) = named.iter().find(|name| bases.contains(name)) {
            return Err(Error::Needed(name.clone()));
        }
        // Nothing goes whose removal cannot be marked: without its manifest it would count as under way for a day.
        for name in &goes {
            target.see_way(&removed_path(name)).await?;
        }
        // What another cluster broke off, or what names none, is for a person to remove.
        let is_own = |name: &String| match &own_heads {
            None => true,
            Some(own) => {
                let is_own = heads.get(name).is_some_and(|head| own.has(head));
                is_own || goes.contains(name) || gone.contains(name)
            }
        };
        let may_go = |name: &String| !under_way.contains(name) && is_own(name);
        let Rest { mut objects, mut ended } = Rest::of(&found, &numbers, &staying, may_go);
        // What it builds on was removed by a prune that did not see it begin: nobody knows what it needs.
        let lacks_base = |name: &&String| {
            let base = heads.get(*name).and_then(|head| head.base.as_ref());
            base.is_some_and(|base| !staying.has(base))
        };
        let kept_for: Vec<String> = under_way.iter().filter(lacks_base).cloned().collect();
        if !kept_for.is_empty() {
            objects.clear();
            ended.clear();
        }
        if !goes.is_empty() || !objects.is_empty() {
            one_history?;
        }
        Ok(Plan { seen, backups: goes, objects, ended, kept_for, ahead })
    }

    /// What it would remove.
    fn would(self) -> Pruned {
        Pruned {
            objects: self.objects.len(),
            bytes: bytes_of(self.objects.iter()),
            backups: self.backups,
            kept_for: self.kept_for,
            ahead: self.ahead,
        }
    }

    /// Removes it. Ends early if backups began meanwhile, and returns these.
    async fn carry_out(&self, target: &Target, pruned: &mut Pruned) -> Result<Vec<String>> {
        for name in &self.backups {
            target.remove(&manifest_path(name)).await?;
            pruned.backups.push(name.clone());
            mark_removed(target, name).await?;
        }
        let began = self.began(target).await?;
        if !began.is_empty() {
            return Ok(began);
        }
        let (first, mut others): (Vec<_>, Vec<_>) =
            self.objects.iter().partition(|(path, _)| *path == first_records(folder_of(path)));
        remove_all(target, &first, pruned).await?;
        let began = self.began(target).await?;
        if !began.is_empty() {
            return Ok(began);
        }
        for (name, _) in &self.ended {
            target.remove_unfinished(name).await?;
        }
        others.sort_by_key(|(path, _)| rank(path));
        remove_all(target, &others, pruned).await?;
        for (name, _) in self.ended.iter().filter(|(_, is_empty)| *is_empty) {
            target.remove(&removed_path(name)).await?;
        }
        Ok(Vec::new())
    }

    /// Backups that began since it was made, or went on though nobody wrote there for a day by this clock.
    /// They may need what is to go.
    async fn began(&self, target: &Target) -> Result<Vec<String>> {
        let found = target.survey().await?.readable(target)?.found;
        let goes_on = |name: &String, found: &Found| {
            let was = self.seen.get(name);
            was.is_none_or(|was| found.finished && !was.finished || found.latest > was.latest)
        };
        let began = found.iter().filter(|(name, found)| goes_on(name, found) && !found.removed);
        Ok(began.map(|(name, _)| name.clone()).collect())
    }
}

/// Removes objects, many at once; the heads of their folders only behind all others, and marks last.
async fn remove_all(
    target: &Target,
    objects: &[&(String, u64)],
    pruned: &mut Pruned,
) -> Result<()> {
    for alike in objects.chunk_by(|(path, _), (next, _)| rank(path) == rank(next)) {
        let removals = alike.iter().map(|(path, _)| target.remove(path));
        let mut removals = stream::iter(removals).buffer_unordered(REMOVALS);
        while let Some(removed) = removals.next().await {
            removed?;
        }
        pruned.objects += alike.len();
        pruned.bytes = pruned.bytes.saturating_add(bytes_of(alike.iter().copied()));
    }
    Ok(())
}

/// Of all of them, as far as there are such numbers: a bucket says what it likes.
fn bytes_of<'a>(objects: impl Iterator<Item = &'a (String, u64)>) -> u64 {
    objects.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}

/// In which order objects go. With a head or a mark the rest is found again.
fn rank(path: &str) -> (bool, bool) {
    (path.ends_with("/removed"), path.ends_with("/head"))
}

/// Of the names that are given, those whose backups can go. A manifest behind a link that leads elsewhere is of a
/// backup that somebody moved away, and that may need what is here.
///
/// The story: the objects that such a backup needed counted as needed by nobody, and were removed. Who names it says
/// that it counts for nothing.
async fn without_hidden(
    target: &Target,
    folder_links: &[String],
    object_links: &[String],
    mut named: Vec<String>,
) -> Result<Vec<String>> {
    let by_folder = folder_links.iter().map(|name| (name.as_str(), true));
    let manifests = object_links.iter().filter(|path| is_manifest(path));
    for (link, by_folder) in by_folder.chain(manifests.map(|path| (folder_of(path), false))) {
        let is_named = named.iter().any(|name| name == link);
        match target.hides_manifest(link, by_folder).await {
            Ok(false) => continue,
            Ok(true) if !is_named => target.see_way(&manifest_path(link)).await?,
            Err(failed) if !is_named => return Err(failed),
            // It counts for nothing, wherever the link leads.
            Ok(true) | Err(_) => {}
        }
        named.retain(|name| name != link);
    }
    Ok(named)
}

/// The objects at the target for which links stand. What is behind the manifest of a backup that is named counts for nothing, so
/// nobody needs to know where that one leads.
///
/// The story: the system failed to say where the link of a manifest leads. To name the backup, which the page advised, did not help.
async fn stood_for(
    target: &Target,
    object_links: &[String],
    named: &[String],
) -> Result<BTreeSet<String>> {
    let is_of_named = |path: &&String| {
        is_manifest(path) && named.iter().any(|name| name.as_str() == folder_of(path))
    };
    let (of_named, others): (Vec<&String>, Vec<&String>) =
        object_links.iter().partition(is_of_named);
    let mut paths = target.led_to(others).await?;
    for link in of_named {
        // Where it is known, that object stays even so.
        paths.extend(target.led_to([link]).await.unwrap_or_default());
    }
    Ok(paths)
}

/// The folders that are a backup's, and the heads that can be read.
async fn of_backups(
    target: &Target,
    found: BTreeMap<String, Found>,
    named: &[String],
) -> Result<(BTreeMap<String, Found>, BTreeMap<String, Head>)> {
    let (mut of_backups, mut heads) = (BTreeMap::new(), BTreeMap::new());
    for (name, found) in found {
        let is_named = found.finished && named.contains(&name);
        let head = match Head::load(target, &name).await? {
            None if found.finished && !is_named => head_of_manifest(target, &name).await?,
            head => head,
        };
        // Without one that can be read it is no backup's folder, if nobody says that it is.
        let is_backups =
            head.is_some() || is_named || found.removed && is_marked_removed(target, &name).await?;
        heads.extend(head.map(|head| (name.clone(), head)));
        if is_backups {
            of_backups.insert(name, found);
        }
    }
    Ok((of_backups, heads))
}

/// What is under way, and what that goes on with.
fn under_way(
    found: &BTreeMap<String, Found>,
    heads: &BTreeMap<String, Head>,
    now: SystemTime,
) -> BTreeSet<String> {
    let mut under_way: BTreeSet<String> = BTreeSet::new();
    let is_begun = |found: &Found| {
        !found.finished && !found.removed && is_younger(found.latest, UNDER_WAY, now)
    };
    let mut look: Vec<&String> =
        found.iter().filter(|(_, found)| is_begun(found)).map(|(name, _)| name).collect();
    while let Some(name) = look.pop() {
        if under_way.insert(name.clone()) {
            look.extend(heads.get(name).iter().flat_map(|head| &head.resumes));
        }
    }
    under_way
}

/// The backups that are not kept by their number or age, the oldest of each cluster first.
fn old<'a>(
    stays: impl Iterator<Item = (&'a String, &'a Kept)>,
    known: &Clusters,
    keep: &Keep,
    now: SystemTime,
) -> Vec<String> {
    let mut clusters: BTreeMap<Key, Vec<Aged>> = BTreeMap::new();
    for (name, Kept { head, ended, .. }) in stays {
        let aged = ((head.term, head.index), *ended, name.clone());
        clusters.entry(known.key(&ClusterId::of(head))).or_default().push(aged);
    }
    let mut all = Vec::new();
    for mut backups in clusters.into_values() {
        backups.sort_unstable();
        // The end of one whose clock was ahead says nothing.
        let ended = backups.iter().filter(|(_, ended, _)| *ended <= seconds(now));
        let last = ended.max_by_key(|(age, ended, _)| (*ended, *age)).cloned();
        // A clock that is ahead makes none of them old: their ages count from the last one.
        let ended_last = last.as_ref().map_or(0, |(_, ended, _)| *ended);
        let ended_last = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(ended_last));
        let now = ended_last.map_or(now, |ended| ended.min(now));
        let last = last.filter(|_| keep.last > 0);
        let old = backups.len().saturating_sub(keep.last);
        for backup in backups.into_iter().take(old) {
            let ended = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(backup.1));
            if !is_younger(ended, keep.within, now) && last.as_ref() != Some(&backup) {
                all.push(backup.2);
            }
        }
    }
    all
}

/// The head of a backup whose own is lost: its manifest has it, too.
///
/// The story: one head could not be read, and objects that the backup needs were removed from the folders
/// of others.
async fn head_of_manifest(target: &Target, name: &str) -> Result<Option<Head>> {
    match Manifest::load(target, name).await {
        Ok(manifest) => Ok(Some(manifest.head)),
        // A later release, or one that nobody knows: what it needs may be somewhere. It was there a moment
        // ago, so that it is not says nothing either.
        Err(
            failed @ (Error::Store { .. }
            | Error::Newer { .. }
            | Error::TooLong { .. }
            | Error::Link { .. }
            | Error::NoFile { .. }
            | Error::Unreadable { .. }
            | Error::Missing { .. }),
        ) => Err(failed),
        // It is no backup's, or is of no use to anybody.
        Err(_) => Ok(None),
    }
}

/// Whether this time is less than so long ago. One that nobody can tell is.
pub(crate) fn is_younger(time: Option<SystemTime>, than: Duration, now: SystemTime) -> bool {
    time.and_then(|time| time.checked_add(than)).is_none_or(|until| until > now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a bucket listed two objects of which each took all bytes that there are.
    #[test]
    fn what_a_bucket_says_of_its_objects_is_added_up_whatever_it_is() {
        let objects = [u64::MAX, 1].map(|bytes| ("a/values-000000".to_owned(), bytes));
        assert_eq!(bytes_of(objects.iter()), u64::MAX);
        assert_eq!(bytes_of(objects[1..].iter()), 1);
    }
}
