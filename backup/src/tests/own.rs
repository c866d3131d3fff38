//! What a schedule may remove that nobody looks at.

use super::*;
use crate::{Own, prune_own};

const ONE: Keep = Keep { last: 1, within: Duration::ZERO };

fn own(generation: u32, most: usize) -> Own<'static> {
    Own { cluster: "shop", generation, most }
}

fn names(found: Vec<(String, crate::Result<Manifest>)>) -> Vec<String> {
    found.into_iter().map(|(name, _)| name).collect()
}

/// Lets a backup be of this index, and begun that much later than it was.
fn rewrite(place: &Place, manifest: &Manifest, head: Head) {
    let path = place.path().join(&manifest.name).join("manifest");
    let ended = head.began + 1;
    std::fs::write(path, Manifest { head, ended, ..manifest.clone() }.encode().unwrap()).unwrap();
}

/// The story: a cluster with a shorter retention, made of a backup for a drill, removed the backups of the one
/// that it was made of.
#[test]
fn the_backups_of_other_clusters_stay_and_few_go_at_once() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(41);
        for name in ["a0", "a1", "a2", "b0", "b1", "b2", "b3", "b4"] {
            cluster.work(10);
            let saved = cluster.save(&target, name, None).await;
            if name.starts_with('a') {
                rewrite(&place, &saved, Head { generation: 2, ..saved.head.clone() });
            }
        }
        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let pruned = prune_own(&target, &ONE, &own(1, 2), later).await.unwrap();
        assert_eq!(pruned.backups, ["b0", "b1"], "the oldest, two at most");
        let pruned = prune_own(&target, &ONE, &own(3, 2), later).await.unwrap();
        assert_eq!(pruned.backups.len(), 0, "it has none");
        let pruned = prune_own(&target, &ONE, &own(1, 9), later).await.unwrap();
        assert_eq!(pruned.backups, ["b2", "b3"]);
        let left = names(Manifest::list(&target).await.unwrap());
        assert_eq!(left, ["a0", "a1", "a2", "b4"]);
        cluster.check(&target, "b4").await;
    });
}

/// The story: a cluster was made anew, empty, under the same name. Its terms were higher, so the first backup
/// of nothing was the latest one, and the last good one was not among those that stay.
#[test]
fn where_two_clusters_of_one_name_saved_nothing_is_removed() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(42);
        let mut all = Vec::new();
        for name in ["old0", "old1", "new0"] {
            all.push(cluster.save(&target, name, None).await);
            cluster.work(10);
        }
        let [old0, old1, new0] = &all[..] else { panic!("three") };
        let began = new0.head.began - 10_000;
        rewrite(&place, old0, Head { began, index: 5000, ..old0.head.clone() });
        rewrite(&place, old1, Head { began: began + 1000, index: 6000, ..old1.head.clone() });
        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let of_new = |began, index| Head { began, index, term: 9, ..new0.head.clone() };
        // A minute says nothing: a member that lags answers after one that does not.
        rewrite(&place, new0, of_new(began + 1060, 3));
        let would = prune(&target, &ONE, &[], later, true).await.unwrap();
        assert_eq!(would.backups, ["old0", "old1"], "who looks at it may remove it");
        rewrite(&place, new0, of_new(began + 1061, 3));
        let refused = prune_own(&target, &ONE, &own(1, 2), later).await.unwrap_err();
        assert!(matches!(refused, Error::Histories { .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("`new0` began after `old1`"), "{text}");
        assert_eq!(Manifest::list(&target).await.unwrap().len(), 3);
        // Its index is higher by now, and its term is not.
        let overtaken = Head { term: 0, ..of_new(began + 1061, 6001) };
        rewrite(&place, new0, overtaken);
        let refused = prune_own(&target, &ONE, &own(1, 2), later).await;
        assert!(matches!(refused, Err(Error::Histories { .. })), "{refused:?}");
        // Where both are higher it is the same cluster.
        rewrite(&place, new0, of_new(began + 1061, 6001));
        let pruned = prune_own(&target, &ONE, &own(1, 2), later).await.unwrap();
        assert_eq!(pruned.backups, ["old0", "old1"]);
    });
}

/// The story: an incremental save was broken off. The whole one behind it went on with that, and so needed
/// the objects of every backup before.
#[test]
fn a_whole_backup_goes_on_with_no_incremental_one() {
    run(async |_, target| {
        let mut cluster = Cluster::new(43);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        cluster.save_some(&target, "broken", Some("base"), 100).await.unwrap();
        let found = Sources::find(&target, "shop", 1, None, true, None).await.unwrap();
        assert!(found.resumes().is_empty());
        let found = Sources::find(&target, "shop", 1, Some("base"), true, None).await.unwrap();
        assert_eq!(found.resumes(), ["broken"]);
    });
}
