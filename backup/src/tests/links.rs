//! Symbolic links in a folder for backups.

use super::*;
use crate::paths::manifest_path;
use crate::{Own, Pruned, prune_own};
use std::fs;
use std::os::unix::fs::symlink;

const ONE: Keep = Keep { last: 1, within: Duration::ZERO };
const TWO: Keep = Keep { last: 2, within: Duration::ZERO };
const OWN: Own<'static> = Own { id: SHOP, most: 9 };

fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(9 * 24 * 3600)
}

/// Puts a file or a folder elsewhere, and leaves a link.
fn move_away(place: &Place, path: &str, elsewhere: &Path) {
    let here = place.path().join(path);
    fs::rename(&here, elsewhere).unwrap();
    symlink(elsewhere, here).unwrap();
}

fn move_back(place: &Place, path: &str, elsewhere: &Path) {
    let here = place.path().join(path);
    fs::remove_file(&here).unwrap();
    fs::rename(elsewhere, here).unwrap();
}

fn refused<T>(result: crate::Result<T>) -> String {
    let error = result.err().unwrap();
    assert!(matches!(error, Error::Link { .. }), "{error}");
    // The story: a line of the source was joined to the next one with its indentation.
    assert!(!error.to_string().contains("  "), "{error}");
    error.to_string()
}

/// The story: somebody made a link `latest` to the latest backup. Its manifest was that of another name, so every prune
/// refused, and `prune --remove latest`, which the error advised, removed the manifest of the backup itself.
#[test]
fn a_link_to_a_backup_is_none_and_nothing_goes_through_it() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(71);
        cluster.save(&target, "b0", None).await;
        cluster.work(10);
        cluster.save(&target, "b1", None).await;
        symlink("b1", place.path().join("latest")).unwrap();
        // What leads back to the folder itself, and what leads nowhere.
        symlink(".", place.path().join("again")).unwrap();
        symlink("gone", place.path().join("nowhere")).unwrap();
        let names: Vec<String> = target.find().await.unwrap().into_keys().collect();
        assert_eq!(names, ["b0", "b1"]);

        let opened = refused(Backup::open(&target, "latest").await.map(drop));
        assert!(opened.contains("latest` is a symbolic link"), "{opened}");
        let named = ["latest".to_owned()];
        refused(prune(&target, &KEEP_ALL, &named, SystemTime::now(), false).await);
        refused(target.remove(&manifest_path("latest")).await);
        refused(target.create("latest/head", "new".into()).await);
        cluster.check(&target, "b1").await;

        let pruned = prune(&target, &ONE, &[], SystemTime::now(), false).await.unwrap();
        assert_eq!(pruned.backups, ["b0"]);
        cluster.check(&target, "b1").await;
        assert!(place.path().join("latest").is_symlink());
    });
}

/// Somebody moved what is large to another disk, and left links. What else of that is theirs nobody knows.
#[test]
fn a_backup_with_a_link_for_an_object_is_left_alone_and_named_by_who_asks_for_it() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(72);
        let moved = cluster.save(&target, "b0", None).await.values[0].path.clone();
        cluster.work(10);
        cluster.save(&target, "b1", Some("b0")).await;
        cluster.save(&target, "b2", None).await;
        let elsewhere = tempfile::tempdir().unwrap();
        let other = elsewhere.path().join("values");
        move_away(&place, &moved, &other);
        let before = fs::read_dir(place.path().join("b0")).unwrap().count();

        let pruned = prune_own(&target, &ONE, &OWN, later()).await.unwrap();
        assert_eq!(pruned.backups, ["b1"]);
        assert_eq!(fs::read_dir(place.path().join("b0")).unwrap().count(), before);
        assert!(other.exists());
        let backup = Backup::open(&target, "b0").await.unwrap();
        let said = refused(backup.verify_stored(|_| ()).await);
        assert!(said.contains(&moved), "{said}");
        refused(target.remove(&moved).await);
        assert!(other.exists());
        // Nothing builds on it.
        let based = Sources::find(&target, SHOP, Some("b0"), false, None).await;
        assert!(matches!(based.err(), Some(Error::Damaged { .. })));
        // Who names it removes the backup, and none of its objects.
        let named = ["b0".to_owned()];
        let pruned = prune(&target, &ONE, &named, later(), false).await.unwrap();
        assert_eq!((pruned.backups, pruned.objects), (named.to_vec(), 0));
        let opened = Backup::open(&target, "b0").await;
        assert!(matches!(opened.err(), Some(Error::Missing { .. })));
        assert_eq!(fs::read_dir(place.path().join("b0")).unwrap().count(), before);
        assert!(other.exists());
    });
}

/// The story: one large object of a backup was moved to another disk for a day, with a link in its place. The backup was in no
/// list then, so what it needed in the folders of earlier backups was needed by nobody, and a prune removed it. The
/// object came back, and the backup was damaged for good.
#[test]
fn what_a_backup_with_a_link_needs_elsewhere_stays() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(73);
        cluster.save(&target, "b0", None).await;
        cluster.work(50);
        let saved = cluster.save(&target, "b1", Some("b0")).await;
        let then = cluster.keys.clone();
        assert!(saved.values.iter().any(|object| object.path.starts_with("b0/")));
        let own = saved.values.iter().find(|object| object.path.starts_with("b1/"));
        let moved = own.unwrap().path.clone();
        for name in ["b2", "b3"] {
            cluster.work(10);
            cluster.save(&target, name, None).await;
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let other = elsewhere.path().join("values");
        move_away(&place, &moved, &other);

        let pruned = prune_own(&target, &ONE, &OWN, later()).await.unwrap();
        assert_eq!(pruned.backups, ["b0", "b2"]);
        move_back(&place, &moved, &other);
        check(&then, &target, "b1").await;
        // It is one of those that count again.
        let pruned = prune_own(&target, &ONE, &OWN, later()).await.unwrap();
        assert_eq!(pruned.backups, ["b1"]);
        assert!(place.is_empty("b0") && place.is_empty("b1"));
        cluster.check(&target, "b3").await;
    });
}

/// What is under way goes on once the object is back, and needs what it builds on.
#[test]
fn a_backup_under_way_with_a_link_keeps_what_it_builds_on() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(74);
        cluster.save(&target, "b0", None).await;
        cluster.work(50);
        cluster.save(&target, "b1", None).await;
        let sources = Sources::find(&target, SHOP, Some("b0"), false, None).await.unwrap();
        let items = cluster.items(&sources);
        let begun = Saver::begin_with(&target, "broken", cluster.head(), sources, SMALL).await;
        let mut saver = begun.unwrap();
        for item in items.into_iter().take(100) {
            saver.add(item).await.unwrap();
        }
        saver.break_off().await.unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        move_away(&place, "broken/records-000000", &elsewhere.path().join("records"));
        let pruned = prune_own(&target, &ONE, &OWN, SystemTime::now()).await.unwrap();
        assert_eq!(pruned, Pruned::default());
        // A day later it is none, and nothing of it goes.
        let pruned = prune_own(&target, &ONE, &OWN, later()).await.unwrap();
        assert_eq!(pruned.backups, ["b0"]);
        assert!(place.path().join("broken/head").exists());
        cluster.check(&target, "b1").await;
    });
}

/// The story: a backup was moved to another disk, or its manifest alone, with a link in its place. What it needed was needed
/// by nobody, and a prune removed it.
#[test]
fn where_a_manifest_is_behind_a_link_that_leads_elsewhere_nothing_is_removed() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(75);
        cluster.save(&target, "b0", None).await;
        cluster.work(50);
        cluster.save(&target, "b1", Some("b0")).await;
        let then = cluster.keys.clone();
        cluster.work(10);
        cluster.save(&target, "b2", None).await;
        let elsewhere = tempfile::tempdir().unwrap();
        let other = elsewhere.path().join("moved");
        let objects = async || {
            let found = target.find().await.unwrap();
            found.into_iter().map(|(name, found)| (name, found.objects)).collect::<Vec<_>>()
        };
        for moved in ["b1", "b1/manifest"] {
            move_away(&place, moved, &other);
            let before = objects().await;
            let said = refused(prune_own(&target, &ONE, &OWN, later()).await);
            assert!(said.contains(&format!("{moved}` is a symbolic link")), "{said}");
            refused(prune(&target, &ONE, &[], later(), false).await);
            assert_eq!(objects().await, before);
            move_back(&place, moved, &other);
        }
        let pruned = prune_own(&target, &TWO, &OWN, later()).await.unwrap();
        assert_eq!(pruned.backups, ["b0"]);
        check(&then, &target, "b1").await;
        // Who names it says that nobody needs it. The link and what it leads to stay.
        move_away(&place, "b1", &other);
        let pruned = prune(&target, &ONE, &["b1".to_owned()], later(), false).await.unwrap();
        assert!(pruned.backups.is_empty() && pruned.objects > 0, "{pruned:?}");
        assert!(place.is_empty("b0") && other.join("manifest").exists());
        assert!(place.path().join("b1").is_symlink());
        cluster.check(&target, "b2").await;
    });
}

/// The story: a link stood in the place of a manifest, and led to that of the backup beside it. It counted as a link to that backup,
/// so what the backup itself needed was needed by nobody, and a prune removed it.
#[test]
fn a_link_to_the_manifest_of_another_backup_is_none_to_that_backup() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(76);
        cluster.save(&target, "b0", None).await;
        cluster.work(50);
        cluster.save(&target, "b1", Some("b0")).await;
        let then = cluster.keys.clone();
        cluster.work(10);
        cluster.save(&target, "b2", None).await;
        let elsewhere = tempfile::tempdir().unwrap();
        let other = elsewhere.path().join("manifest");
        let manifest = place.path().join("b1/manifest");
        fs::rename(&manifest, &other).unwrap();
        symlink("../b2/manifest", &manifest).unwrap();
        let said = refused(prune_own(&target, &ONE, &OWN, later()).await);
        assert!(said.contains("b1/manifest` is a symbolic link"), "{said}");
        move_back(&place, "b1/manifest", &other);
        check(&then, &target, "b1").await;
    });
}

/// The story: two backups had the same values, and somebody put a link to those of the one in the place of those of the other. No manifest
/// that stayed named them, a prune removed them, and the link led nowhere.
#[test]
fn an_object_to_which_a_link_of_another_backup_leads_stays() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(77);
        let same = cluster.save(&target, "b0", None).await.values[0].path.clone();
        let linked = cluster.save(&target, "b1", None).await.values[0].path.clone();
        let then = cluster.keys.clone();
        cluster.work(10);
        cluster.save(&target, "b2", None).await;
        let (same, link) = (place.path().join(same), place.path().join(linked));
        fs::remove_file(&link).unwrap();
        symlink(Path::new("..").join(same.strip_prefix(place.path()).unwrap()), &link).unwrap();

        let pruned = prune_own(&target, &ONE, &OWN, later()).await.unwrap();
        assert_eq!(pruned.backups, ["b0"]);
        assert!(pruned.objects > 0 && same.exists(), "{pruned:?}");
        // It is as it was once the link is replaced by what it leads to.
        fs::remove_file(&link).unwrap();
        fs::copy(&same, &link).unwrap();
        check(&then, &target, "b1").await;
        let pruned = prune_own(&target, &ONE, &OWN, later()).await.unwrap();
        assert_eq!(pruned.backups, ["b1"]);
        assert!(place.is_empty("b0") && place.is_empty("b1"));
        cluster.check(&target, "b2").await;
    });
}

/// To what no system can look up: a part of the path is too long.
fn link_to_what_cannot_be_told(place: &Place, path: &str) {
    symlink("n".repeat(300), place.path().join(path)).unwrap();
}

fn cannot_be_told(result: crate::Result<Pruned>, path: &str) {
    let said = result.unwrap_err().to_string();
    assert!(said.contains(&format!("where `{path}` leads cannot be told")), "{said}");
}

/// The story: a disk failed behind a link. The page said that a prune goes on once it names the backup, and it did not.
#[test]
fn a_prune_that_names_the_backup_goes_on_where_nobody_can_tell_where_its_link_leads() {
    for link in ["b1", "b1/manifest"] {
        run_in_folder(async |place, target| {
            let mut cluster = Cluster::new(79);
            for name in ["b0", "b1", "b2"] {
                cluster.save(&target, name, None).await;
                cluster.work(10);
            }
            let then = cluster.keys.clone();
            cluster.save(&target, "b3", None).await;
            let elsewhere = tempfile::tempdir().unwrap();
            fs::rename(place.path().join(link), elsewhere.path().join("moved")).unwrap();
            link_to_what_cannot_be_told(&place, link);

            cannot_be_told(prune_own(&target, &ONE, &OWN, later()).await, "b1/manifest");
            let other = ["b2".to_owned()];
            cannot_be_told(prune(&target, &ONE, &other, later(), false).await, "b1/manifest");
            let named = ["b1".to_owned()];
            let pruned = prune(&target, &ONE, &named, later(), false).await.unwrap();
            assert_eq!(pruned.backups, ["b0", "b2"]);
            assert!(place.path().join(link).is_symlink(), "the link stays");
            check(&then, &target, "b3").await;
        });
    }
}

/// It may stand for an object of any backup.
#[test]
fn a_link_of_an_object_holds_back_a_prune_until_it_can_be_told_where_it_leads_or_it_is_removed() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(80);
        let values = cluster.save(&target, "b0", None).await.values[0].path.clone();
        cluster.work(10);
        cluster.save(&target, "b1", None).await;
        fs::remove_file(place.path().join(&values)).unwrap();
        link_to_what_cannot_be_told(&place, &values);
        for named in [vec![], vec!["b0".to_owned()]] {
            cannot_be_told(prune(&target, &ONE, &named, later(), false).await, &values);
        }
        fs::remove_file(place.path().join(&values)).unwrap();
        let pruned = prune(&target, &ONE, &[], later(), false).await.unwrap();
        assert_eq!(pruned.backups, ["b0"]);
        cluster.check(&target, "b1").await;
    });
}
