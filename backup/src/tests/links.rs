//! Symbolic links in a folder for backups.

use super::*;
use crate::prune_own;
use crate::target::manifest_path;
use std::fs;
use std::os::unix::fs::symlink;

const ONE: Keep = Keep { last: 1, within: Duration::ZERO };

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
        fs::rename(place.path().join(&moved), &other).unwrap();
        symlink(&other, place.path().join(&moved)).unwrap();
        let before = fs::read_dir(place.path().join("b0")).unwrap().count();

        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let own = crate::Own { id: SHOP, most: 9 };
        let pruned = prune_own(&target, &ONE, &own, later).await.unwrap();
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
    });
}
