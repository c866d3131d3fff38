//! What the backups that stay need, and what is left beside that.
//!
//! What holds here: one manifest is in memory at a time. A backup with a symbolic link in its folder is in no list, and what
//! its manifest names is needed all the same.

use crate::error::Result;
use crate::manifest::{Head, Manifest};
use crate::target::{Found, Target, folder_of, head_path, manifest_path, removed_path};
use std::collections::{BTreeMap, BTreeSet};

/// The objects at the target, numbered in the order of their paths.
pub(super) struct Numbers<'a>(BTreeMap<&'a str, u32>);

impl<'a> Numbers<'a> {
    pub(super) fn of(found: &'a BTreeMap<String, Found>) -> Numbers<'a> {
        let all = found.values().flat_map(|found| found.objects.keys());
        Numbers(all.map(String::as_str).zip(0..u32::MAX).collect())
    }
}

/// What is kept of a manifest: its objects may be millions, and there may be many manifests.
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) head: Head,
    pub(super) ended: u64,
    /// The objects at the target that it needs.
    needs: Vec<u32>,
    /// The folders of all objects that it needs.
    folders: BTreeSet<String>,
}

impl Kept {
    fn of(manifest: Manifest, numbers: &Numbers<'_>) -> Kept {
        let paths = || manifest.objects().map(|object| object.path.as_str());
        let folders: BTreeSet<&str> = paths().map(folder_of).collect();
        Kept {
            needs: paths().filter_map(|path| numbers.0.get(path).copied()).collect(),
            folders: folders.into_iter().map(str::to_owned).collect(),
            ended: manifest.ended,
            name: manifest.name,
            head: manifest.head,
        }
    }
}

/// The backups that stay.
pub(super) struct Staying {
    /// Those that a list has.
    pub(super) listed: BTreeMap<String, Kept>,
    /// Those in whose folders a link is.
    apart: BTreeMap<String, Kept>,
}

impl Staying {
    /// All that are found, but for these.
    pub(super) async fn load(
        target: &Target,
        found: &BTreeMap<String, Found>,
        numbers: &Numbers<'_>,
        without: &[String],
    ) -> Result<Staying> {
        let mut staying = Staying { listed: BTreeMap::new(), apart: BTreeMap::new() };
        for (name, found) in found {
            if !found.finished || without.contains(name) {
                continue;
            }
            let kept = Kept::of(Manifest::load(target, name).await?, numbers);
            let of_its_kind =
                if found.has_links { &mut staying.apart } else { &mut staying.listed };
            of_its_kind.insert(name.clone(), kept);
        }
        Ok(staying)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Kept> {
        self.listed.values().chain(self.apart.values())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.listed.contains_key(name) || self.apart.contains_key(name)
    }
}

/// What no backup that stays needs.
#[derive(Default)]
pub(super) struct Rest {
    /// Objects with their bytes.
    pub(super) objects: Vec<(String, u64)>,
    /// Folders in which no save writes any more, and whether nothing of them stays.
    pub(super) ended: Vec<(String, bool)>,
}

impl Rest {
    /// Of these folders, those that may go.
    pub(super) fn of(
        found: &BTreeMap<String, Found>,
        numbers: &Numbers<'_>,
        staying: &Staying,
        may_go: impl Fn(&String) -> bool,
    ) -> Rest {
        let needed = Needed::by(staying, numbers);
        let folders: BTreeSet<&String> = staying.all().flat_map(|kept| &kept.folders).collect();
        let mut rest = Rest::default();
        for (name, found) in found {
            if found.has_links || staying.has(name) || !may_go(name) {
                continue;
            }
            let has_needed = folders.contains(name);
            rest.ended.push((name.clone(), !has_needed));
            let (head, removed) = (head_path(name), removed_path(name));
            for (path, bytes) in &found.objects {
                let stays = needed.has(path) || has_needed && (*path == head || *path == removed);
                if !stays && *path != manifest_path(name) {
                    rest.objects.push((path.clone(), *bytes));
                }
            }
        }
        rest
    }
}

/// Whether any backup that stays needs an object, by the object's number.
struct Needed<'a> {
    numbers: &'a Numbers<'a>,
    is_needed: Vec<bool>,
}

impl<'a> Needed<'a> {
    fn by(staying: &Staying, numbers: &'a Numbers<'a>) -> Needed<'a> {
        let mut is_needed = vec![false; numbers.0.len()];
        for number in staying.all().flat_map(|kept| &kept.needs) {
            if let Some(is_needed) = is_needed.get_mut(index(*number)) {
                *is_needed = true;
            }
        }
        Needed { numbers, is_needed }
    }

    /// What has no number stays.
    fn has(&self, path: &str) -> bool {
        let number = self.numbers.0.get(path);
        number.and_then(|number| self.is_needed.get(index(*number))).is_none_or(|needed| *needed)
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
