//! What a schedule may remove that nobody looks at.

use super::*;
use crate::manifest::mark_removed;
use crate::{Own, prune_own};

const ONE: Keep = Keep { last: 1, within: Duration::ZERO };

fn own(generation: u32, most: usize) -> Own<'static> {
    Own { id: ClusterId { generation, ..SHOP }, most }
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

/// Saves a state under this head, and breaks off.
async fn break_off(cluster: &Cluster, target: &Target, name: &str, head: Head) {
    let (items, sources) = (cluster.items(&Sources::default()), Sources::default());
    let mut saver = Saver::begin_with(target, name, head, sources, SMALL).await.unwrap();
    for item in items.into_iter().take(60) {
        saver.add(item).await.unwrap();
    }
    saver.break_off().await.unwrap();
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
        // Nor does what was broken off go, though no backup is old.
        break_off(&cluster, &target, "broken", cluster.head()).await;
        let refused = prune_own(&target, &KEEP_ALL, &own(1, 2), later).await;
        assert!(matches!(refused, Err(Error::Histories { .. })), "{refused:?}");
        assert!(place.path().join("broken/records-000000").exists());
        // Where both are higher it is the same cluster.
        rewrite(&place, new0, of_new(began + 1061, 6001));
        let pruned = prune_own(&target, &ONE, &own(1, 2), later).await.unwrap();
        assert_eq!(pruned.backups, ["old0", "old1"]);
    });
}

/// The story: two clusters saved at one target. The schedule of one removed what the other one was to go on with,
/// by a clock that was a day ahead.
#[test]
fn what_another_cluster_or_nobody_broke_off_stays_for_a_person() {
    run_in_folder(async |place, target| {
        let cluster = Cluster::new(46);
        cluster.save(&target, "whole", None).await;
        let others = ["another", "anew", "nobodys"];
        break_off(&cluster, &target, "own", cluster.head()).await;
        let head = Head { cluster: "other".into(), ..cluster.head() };
        break_off(&cluster, &target, "another", head).await;
        let head = Head { generation: 2, ..cluster.head() };
        break_off(&cluster, &target, "anew", head).await;
        break_off(&cluster, &target, "nobodys", cluster.head()).await;
        std::fs::remove_file(place.path().join("nobodys/head")).unwrap();
        mark_removed(&target, "nobodys").await.unwrap();

        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let pruned = prune_own(&target, &ONE, &own(1, 2), later).await.unwrap();
        assert!(pruned.objects > 0 && pruned.backups.is_empty(), "{pruned:?}");
        assert!(place.is_empty("own"));
        for name in others {
            assert!(place.path().join(name).join("records-000000").exists(), "{name}");
        }
        prune(&target, &ONE, &[], later, false).await.unwrap();
        assert!(others.iter().all(|name| place.is_empty(name)));
        cluster.check(&target, "whole").await;
    });
}

/// The story: somebody put manifests at the target, with the highest index and a time of next year. They were the
/// latest, and each backup that was saved pushed two good ones out.
#[test]
fn backups_of_the_future_push_none_out_and_stay() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(47);
        let mut last = None;
        for name in ["b0", "b1", "b2"] {
            last = Some(cluster.save(&target, name, None).await);
            cluster.work(10);
        }
        let last = last.unwrap();
        let now = SystemTime::now();
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let make_up = |number: usize, began: u64| {
            let made_up = Manifest { name: format!("f{number}"), ..last.clone() };
            std::fs::create_dir_all(place.path().join(&made_up.name)).unwrap();
            rewrite(&place, &made_up, Head { began, index: 9000, ..last.head.clone() });
        };
        for number in 0..9 {
            make_up(number, seconds + 365 * 24 * 3600);
        }
        let two = Keep { last: 2, within: Duration::ZERO };
        let pruned = prune_own(&target, &two, &own(1, 9), now).await.unwrap();
        assert_eq!(pruned.backups, ["b0"]);
        assert_eq!(pruned.ahead, ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7"]);
        assert_eq!(prune_own(&target, &two, &own(1, 9), now).await.unwrap().backups.len(), 0);
        assert_eq!(Manifest::list(&target).await.unwrap().len(), 2 + 9);
        // The clocks of two members are never the same.
        make_up(0, seconds + 9 * 60);
        let pruned = prune_own(&target, &two, &own(1, 9), now).await.unwrap();
        assert_eq!((pruned.backups, &pruned.ahead[0]), (vec!["b1".to_owned()], &"f1".to_owned()));
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
        let found = Sources::find(&target, SHOP, None, true, None).await.unwrap();
        assert!(found.resumes().is_empty());
        let found = Sources::find(&target, SHOP, Some("base"), true, None).await.unwrap();
        assert_eq!(found.resumes(), ["broken"]);
    });
}
