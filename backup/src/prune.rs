//! Removing backups, and what was broken off.
//!
//! What holds here: an object goes only when no manifest that stays names it. What is younger than a
//! day and has no manifest is a backup under way: that stays, with all that it builds on. Manifests go
//! first, so a prune that is broken off leaves no backup without an object. A backup that begins meanwhile
//! stores its head and then looks whether its base is still there; a prune removes manifests and then
//! looks for heads that are new, before it removes an object: one of the two sees the other. A folder
//! without a head or a manifest that can be read is no backup's, and is not touched. If reading fails,
//! nothing is removed.

use crate::error::{Error, Result};
use crate::manifest::{Head, Manifest};
use crate::target::{Target, manifest_path};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// A backup under way writes more often.
pub(crate) const UNDER_WAY: Duration = Duration::from_secs(24 * 3600);

/// Which of two backups of a cluster is the later one: their terms and indexes. Clocks may be ahead.
type Age = (u64, u64);
/// A backup, with the time at which it ended.
type Aged = (Age, u64, String);

/// Which backups of each cluster stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// The latest, so many.
    pub last: usize,
    /// All that are younger than this.
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
}

/// Removes the backups that need not stay, and those that are named. With `dry_run` only says what it
/// would remove.
///
/// # Errors
/// [`Error::Missing`], of one that is named; [`Error::Damaged`], of a manifest that is to stay: what it
/// needs is not known, so name it or put it right; [`Error::Store`].
pub async fn prune(
    target: &Target,
    keep: &Keep,
    named: &[String],
    now: SystemTime,
    dry_run: bool,
) -> Result<Pruned> {
    let found = target.find().await?;
    let seen: BTreeSet<String> = found.keys().cloned().collect();
    let mut heads: BTreeMap<String, Head> = BTreeMap::new();
    for (name, found) in &found {
        let head = match (Head::load(target, name).await?, found.finished) {
            (None, true) => head_of_manifest(target, name).await?,
            (head, _) => head,
        };
        // Without one that can be read it is no backup's folder.
        heads.extend(head.map(|head| (name.clone(), head)));
    }
    let found: BTreeMap<_, _> =
        found.into_iter().filter(|(name, _)| heads.contains_key(name)).collect();
    for name in named {
        if !found.get(name).is_some_and(|found| found.finished) {
            let (target, name) = (target.text().to_owned(), name.clone());
            return Err(Error::Missing { target, name });
        }
    }
    let mut stays: BTreeMap<String, Manifest> = BTreeMap::new();
    let mut goes: Vec<String> = named.to_vec();
    for (name, _) in found.iter().filter(|(name, found)| found.finished && !named.contains(name)) {
        stays.insert(name.clone(), Manifest::load(target, name).await?);
    }
    let mut clusters: BTreeMap<(String, u32), Vec<Aged>> = BTreeMap::new();
    for (name, manifest) in &stays {
        let cluster = (manifest.head.cluster.clone(), manifest.head.generation);
        let age = (manifest.head.term, manifest.head.index);
        clusters.entry(cluster).or_default().push((age, manifest.ended, name.clone()));
    }
    // What is under way, and all that it builds on.
    let is_young = |latest: Option<SystemTime>| is_younger(latest, UNDER_WAY, now);
    let mut under_way: BTreeSet<String> = BTreeSet::new();
    let mut bases: BTreeSet<String> = BTreeSet::new();
    let mut look: Vec<String> = found
        .iter()
        .filter(|(_, found)| !found.finished && is_young(found.latest))
        .map(|(name, _)| name.clone())
        .collect();
    while let Some(name) = look.pop() {
        if let Some(head) = heads.get(&name) {
            bases.extend(head.base.clone());
            let more = head.resumes.iter().filter(|resumed| !under_way.contains(*resumed));
            look.extend(more.cloned());
        }
        under_way.insert(name);
    }
    for mut backups in clusters.into_values() {
        backups.sort_unstable();
        let old = backups.len().saturating_sub(keep.last);
        for (_, ended, name) in backups.into_iter().take(old) {
            let ended = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(ended));
            if !is_younger(ended, keep.within, now) && !bases.contains(&name) {
                stays.remove(&name);
                goes.push(name);
            }
        }
    }
    if let Some(name) = named.iter().find(|name| bases.contains(*name)) {
        return Err(Error::Needed(name.clone()));
    }
    let needed: BTreeSet<&str> =
        stays.values().flat_map(Manifest::objects).map(|object| object.path.as_str()).collect();
    let mut pruned = Pruned { backups: goes.clone(), ..Pruned::default() };
    let mut objects = Vec::new();
    for (name, found) in &found {
        if stays.contains_key(name) || under_way.contains(name) {
            continue;
        }
        for (path, bytes) in &found.objects {
            if !needed.contains(path.as_str()) && *path != manifest_path(name) {
                pruned.objects += 1;
                pruned.bytes += bytes;
                objects.push(path);
            }
        }
    }
    // What it builds on was removed by a prune that did not see it begin: nobody knows what it needs.
    if bases.iter().any(|base| !stays.contains_key(base)) {
        (pruned.objects, pruned.bytes) = (0, 0);
        objects.clear();
    }
    if dry_run {
        return Ok(pruned);
    }
    for name in &goes {
        target.remove(&manifest_path(name)).await?;
    }
    // One that began meanwhile may need what is to go.
    let again = target.find().await?;
    if again.keys().any(|name| !seen.contains(name)) {
        (pruned.objects, pruned.bytes) = (0, 0);
        return Ok(pruned);
    }
    // Heads go last: without one nobody finds the rest again.
    objects.sort_by_key(|path| path.ends_with("/head"));
    for path in objects {
        target.remove(path).await?;
    }
    Ok(pruned)
}

/// The head of a backup whose own is lost: its manifest has it, too.
///
/// The story: one head could not be read, and objects that the backup needs were removed from the folders
/// of others.
async fn head_of_manifest(target: &Target, name: &str) -> Result<Option<Head>> {
    match Manifest::load(target, name).await {
        Ok(manifest) => Ok(Some(manifest.head)),
        Err(failed @ Error::Store { .. }) => Err(failed),
        // It is no backup's, or is of no use to anybody.
        Err(_) => Ok(None),
    }
}

/// Whether this time is less than so long ago. One that nobody can tell is.
pub(crate) fn is_younger(time: Option<SystemTime>, than: Duration, now: SystemTime) -> bool {
    time.and_then(|time| time.checked_add(than)).is_none_or(|until| until > now)
}
