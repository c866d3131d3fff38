//! What the backups that stay need, and what is left beside that.
//!
//! What holds here: one manifest is in memory at a time. What is kept of each are runs of numbers: there may be hundreds of
//! backups that need the same tens of thousands of objects. A backup with a symbolic link in its folder is in no list, and what
//! its manifest names is needed all the same, and so is an object for which such a link stands.

use crate::error::Result;
use crate::manifest::{Head, Manifest};
use crate::paths::{folder_of, head_path, manifest_path, removed_path};
use crate::target::{Found, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The objects at the target, numbered in the order of their paths.
pub(super) struct Numbers<'a>(BTreeMap<&'a str, u32>);

impl<'a> Numbers<'a> {
    pub(super) fn of(found: &'a BTreeMap<String, Found>) -> Numbers<'a> {
        let all = found.values().flat_map(|found| found.objects.keys());
        Numbers(all.map(String::as_str).zip(0..u32::MAX).collect())
    }
}

/// Numbers, consecutive ones as one range.
struct Runs(Vec<Range<u32>>);

impl Runs {
    fn of(mut numbers: Vec<u32>) -> Runs {
        numbers.sort_unstable();
        numbers.dedup();
        let mut runs: Vec<Range<u32>> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some(run) if run.end == number => run.end += 1,
                _ => runs.push(number..number + 1),
            }
        }
        runs.shrink_to_fit();
        Runs(runs)
    }
}

/// What is kept of a manifest: its objects may be millions, and there may be many manifests.
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) head: Head,
    pub(super) ended: u64,
    /// The objects at the target that it needs.
    needs: Runs,
    /// The folders of all objects that it needs.
    folders: BTreeSet<String>,
}

impl Kept {
    fn of(manifest: Manifest, numbers: &Numbers<'_>) -> Kept {
        let paths = || manifest.objects().map(|object| object.path.as_str());
        let folders: BTreeSet<&str> = paths().map(folder_of).collect();
        Kept {
            needs: Runs::of(paths().filter_map(|path| numbers.0.get(path).copied()).collect()),
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
    /// Objects to which links in such folders lead.
    stood_for: BTreeSet<String>,
}

impl Staying {
    /// All that are found, but for some. `stood_for` are the objects to which links lead.
    pub(super) async fn load(
        target: &Target,
        found: &BTreeMap<String, Found>,
        numbers: &Numbers<'_>,
        without: &[String],
        stood_for: BTreeSet<String>,
    ) -> Result<Staying> {
        let mut staying = Staying { listed: BTreeMap::new(), apart: BTreeMap::new(), stood_for };
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
        let of_kept = staying.all().flat_map(|kept| &kept.folders).map(String::as_str);
        let of_links = staying.stood_for.iter().map(|path| folder_of(path));
        let folders: BTreeSet<&str> = of_kept.chain(of_links).collect();
        let mut rest = Rest::default();
        for (name, found) in found {
            if found.has_links || staying.has(name) || !may_go(name) {
                continue;
            }
            let has_needed = folders.contains(name.as_str());
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
        for run in staying.all().flat_map(|kept| &kept.needs.0) {
            if let Some(part) = is_needed.get_mut(index(run.start)..index(run.end)) {
                part.fill(true);
            }
        }
        let stood_for = staying.stood_for.iter().filter_map(|path| numbers.0.get(path.as_str()));
        for number in stood_for {
            if let Some(needed) = is_needed.get_mut(index(*number)) {
                *needed = true;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Object;
    use crate::paths::path_of;

    const OBJECTS: u32 = 1 << 16;

    fn object(number: u32) -> Object {
        let path = path_of("b0", "values", index(number));
        Object { number, path, bytes: 1, raw_bytes: 1, zstd: false, crc32: 0 }
    }

    /// The story: of each backup that stayed the number of every object that it needs was kept. Of 720 backups of 65,536
    /// objects that were hundreds of megabytes in the leader.
    #[test]
    fn what_a_backup_needs_takes_as_much_memory_as_there_are_gaps_in_it() {
        let all: Vec<Object> = (0..OBJECTS).map(object).collect();
        let objects = all.iter().map(|object| (object.path.clone(), object.bytes)).collect();
        let found: BTreeMap<String, Found> =
            [("b0".to_owned(), Found { objects, ..Found::default() })].into();
        let numbers = Numbers::of(&found);
        let kept = |is_left_out: fn(u32) -> bool| {
            let values = all.iter().filter(|object| !is_left_out(object.number)).cloned();
            let manifest = Manifest::new("b1".into(), Head::of_shop(1));
            Kept::of(Manifest { values: values.rev().collect(), ..manifest }, &numbers)
        };
        let whole = kept(|_| false).needs.0;
        assert_eq!((whole.len(), whole.first()), (1, Some(&(0..OBJECTS))));
        let gaps = kept(|number| number == 7 || number == OBJECTS - 1);
        assert_eq!(gaps.needs.0, vec![0..7, 8..OBJECTS - 1]);

        let listed = [("b1".to_owned(), gaps)].into();
        let staying = Staying { listed, apart: BTreeMap::new(), stood_for: BTreeSet::new() };
        let rest = Rest::of(&found, &numbers, &staying, |_| true);
        let left: Vec<&str> = rest.objects.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(left, [object(7).path, object(OBJECTS - 1).path]);
        assert_eq!(rest.ended, [("b0".to_owned(), false)]);
    }
}
