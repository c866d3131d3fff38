//! What pruning takes, and what it leaves.

use super::*;

#[test]
fn pruning_keeps_what_is_asked_and_all_that_it_needs() {
    for seed in 0..6 {
        run(async {
            let (_folder, target) = folder();
            let mut cluster = Cluster::new(seed);
            let mut states = Vec::new();
            for number in 0..6 {
                let base = (number % 3 > 0).then(|| format!("b{}", number - 1));
                cluster.save(&target, &format!("b{number}"), base.as_deref()).await;
                states.push(cluster.keys.clone());
                cluster.work(30);
            }
            let last = Keep { last: 2, within: Duration::ZERO };
            let now = SystemTime::now() + Duration::from_secs(2 * 24 * 3600);
            let would = prune(&target, &last, &[], now, true).await.unwrap();
            assert_eq!(would.backups, ["b0", "b1", "b2", "b3"]);
            assert_eq!(Manifest::list(&target).await.unwrap().len(), 6);
            let young = Keep { last: 0, within: Duration::from_secs(3 * 24 * 3600) };
            assert_eq!(prune(&target, &young, &[], now, false).await.unwrap().backups.len(), 0);
            assert_eq!(prune(&target, &last, &[], now, false).await.unwrap(), would);
            for number in [4, 5] {
                check(&states[number], &target, &format!("b{number}")).await;
            }
            assert_eq!(prune(&target, &last, &[], now, false).await.unwrap().objects, 0);
            let named = ["b4".to_owned()];
            prune(&target, &last, &named, now, false).await.unwrap();
            check(&states[5], &target, "b5").await;
            let gone = prune(&target, &last, &named, now, false).await;
            assert!(matches!(gone, Err(Error::Missing { .. })));
        });
    }
}

/// What a backup under way builds on stays, also if nobody else needs it.
#[test]
fn pruning_beside_a_backup_under_way_takes_nothing_from_it() {
    run(async {
        let (_folder, target) = folder();
        let mut cluster = Cluster::new(8);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        cluster.save_some(&target, "broken", Some("base"), 100).await.unwrap();
        let none = Keep::default();
        let now = SystemTime::now();
        let pruned = prune(&target, &none, &[], now, false).await.unwrap();
        assert_eq!((pruned.backups.len(), pruned.objects), (0, 0));
        let named = prune(&target, &none, &["base".to_owned()], now, false).await;
        assert!(named.is_err());
        cluster.save(&target, "whole", Some("base")).await;
        cluster.check(&target, "whole").await;
    });
}

/// A prune that ends at any moment leaves backups that verify, and the next one removes the rest.
#[test]
fn a_prune_that_is_broken_off_leaves_only_whole_backups() {
    for polls in 0..30 {
        run(async {
            let (folder, target) = folder();
            let mut cluster = Cluster::new(9);
            cluster.save(&target, "b0", None).await;
            cluster.work(30);
            cluster.save(&target, "b1", Some("b0")).await;
            cluster.save(&target, "b2", None).await;
            let (keep, now) = (Keep { last: 1, within: Duration::ZERO }, SystemTime::now());
            let mut pruning = Box::pin(prune(&target, &keep, &[], now, false));
            for _ in 0..polls {
                if futures::poll!(&mut pruning).is_ready() {
                    break;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            drop(pruning);
            for (name, manifest) in Manifest::list(&target).await.unwrap() {
                manifest.unwrap();
                Backup::open(&target, &name).await.unwrap().verify(|_| ()).await.unwrap();
            }
            cluster.check(&target, "b2").await;
            let later = now + Duration::from_secs(2 * 24 * 3600);
            prune(&target, &keep, &[], later, false).await.unwrap();
            let kept = Manifest::load(&target, "b2").await.unwrap();
            assert_eq!(files(&folder).len(), kept.objects().count() + 2);
        });
    }
}

/// The story: a folder also held what others wrote, and pruning took that for the rest of a backup.
#[test]
fn pruning_touches_nothing_that_no_backup_wrote() {
    run(async {
        let (folder, target) = folder();
        let cluster = Cluster::new(10);
        cluster.save(&target, "b0", None).await;
        cluster.save(&target, "b1", None).await;
        let others =
            ["postgres/base", "b0/notes", "b0/deeper/values-000000", "x/values-000000", "y"];
        for path in others {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "mine").unwrap();
        }
        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let keep = Keep { last: 1, within: Duration::ZERO };
        assert_eq!(prune(&target, &keep, &[], later, false).await.unwrap().backups, ["b0"]);
        assert!(others.iter().all(|path| folder.path().join(path).exists()));
        assert!(!folder.path().join("b0/head").exists());
        let foreign = prune(&target, &keep, &["x".to_owned()], later, false).await;
        assert!(matches!(foreign, Err(Error::Missing { .. })));
        cluster.check(&target, "b1").await;
        let for_ever = Keep { last: 0, within: Duration::MAX };
        assert_eq!(prune(&target, &for_ever, &[], later, false).await.unwrap().backups.len(), 0);
    });
}

/// The story: a machine whose clock was ahead saved once, and its backup counted as the latest ever after.
#[test]
fn the_later_of_two_backups_is_that_of_the_later_index() {
    run(async {
        let (_folder, target) = folder();
        let mut cluster = Cluster::new(12);
        cluster.save(&target, "z-first", None).await;
        cluster.work(10);
        cluster.save(&target, "a-second", None).await;
        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let keep = Keep { last: 1, within: Duration::ZERO };
        assert_eq!(prune(&target, &keep, &[], later, false).await.unwrap().backups, ["z-first"]);
        cluster.check(&target, "a-second").await;
    });
}

/// The base goes between the look at it and the first object of the backup that builds on it.
#[test]
fn a_backup_whose_base_was_pruned_before_it_began_fails_at_once() {
    run(async {
        let (_folder, target) = folder();
        let mut cluster = Cluster::new(13);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let sources = Sources::find(&target, "shop", 1, Some("base"), true).await.unwrap();
        prune(&target, &KEEP_ALL, &["base".to_owned()], SystemTime::now(), false).await.unwrap();
        let begun = Saver::begin(&target, "next", cluster.head(), sources).await;
        assert!(matches!(begun, Err(Error::Missing { .. })));
    });
}

/// A prune took the manifest that a backup under way builds on, and no more. The next prunes leave the
/// objects until that has ended.
#[test]
fn objects_stay_while_a_backup_under_way_builds_on_one_without_a_manifest() {
    run(async {
        let (folder, target) = folder();
        let mut cluster = Cluster::new(14);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let sources = Sources::find(&target, "shop", 1, Some("base"), true).await.unwrap();
        let items = cluster.items(&sources);
        let begun = Saver::begin(&target, "next", cluster.head(), sources).await;
        let mut saver = begun.unwrap();
        std::fs::remove_file(folder.path().join("base/manifest")).unwrap();
        // The base is so old that it is none under way itself.
        let old = SystemTime::now() - Duration::from_secs(9 * 24 * 3600);
        for file in
            files(&folder).into_iter().filter(|file| file.starts_with(folder.path().join("base")))
        {
            std::fs::File::options().write(true).open(file).unwrap().set_modified(old).unwrap();
        }
        let none = Keep::default();
        assert_eq!(prune(&target, &none, &[], SystemTime::now(), false).await.unwrap().objects, 0);
        let keys = items.len() as u64;
        for item in items {
            saver.add(item).await.unwrap();
        }
        saver.finish(keys).await.unwrap();
        cluster.check(&target, "next").await;
    });
}

/// The story: the head of one backup could not be read, and the objects that it needs were removed from
/// the folder of another.
#[test]
fn a_backup_whose_head_is_lost_keeps_all_that_it_needs() {
    for damage in ["none", "flipped", "too long"] {
        run(async {
            let (folder, target) = folder();
            let mut cluster = Cluster::new(11);
            cluster.save(&target, "b0", None).await;
            cluster.work(20);
            cluster.save(&target, "b1", Some("b0")).await;
            let head = folder.path().join("b1/head");
            let mut bytes = std::fs::read(&head).unwrap();
            match damage {
                "none" => std::fs::remove_file(&head).unwrap(),
                "flipped" => {
                    bytes[5] ^= 1;
                    std::fs::write(&head, bytes).unwrap();
                }
                _ => std::fs::write(&head, vec![b'x'; 2 << 20]).unwrap(),
            }
            let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
            let keep = Keep { last: 1, within: Duration::ZERO };
            let pruned = prune(&target, &keep, &["b0".to_owned()], later, false).await.unwrap();
            assert_eq!(pruned.backups, ["b0"], "{damage}");
            cluster.check(&target, "b1").await;
        });
    }
}
