//! What pruning takes, and what it leaves.

use super::*;
use crate::Pruned;

#[test]
fn pruning_keeps_what_is_asked_and_all_that_it_needs() {
    for seed in 0..6 {
        run_and(seed == 0, async |_, target| {
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
    run(async |_, target| {
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

/// The story: a folder also held what others wrote, and pruning took that for the rest of a backup.
#[test]
fn pruning_touches_nothing_that_no_backup_wrote() {
    run(async |folder, target| {
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
    run(async |_, target| {
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

/// The story: the head of one backup could not be read, and the objects that it needs were removed from
/// the folder of another.
#[test]
fn a_backup_whose_head_is_lost_keeps_all_that_it_needs() {
    for damage in ["none", "flipped", "too long"] {
        run(async |folder, target| {
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

/// Makes a file as old as this.
fn age_by(folder: &Place, hours: u64) {
    let old = SystemTime::now() - Duration::from_secs(hours * 3600);
    for file in files(folder) {
        std::fs::File::options().write(true).open(file).unwrap().set_modified(old).unwrap();
    }
}

/// The story: the head of a pruned backup went while a later one needed its values. When that one went
/// too, nobody knew the values for a backup's, and they stayed for ever.
#[test]
fn values_that_a_later_backup_needs_go_when_that_one_has_gone() {
    for (hours, broken) in [(0, false), (48, false), (48, true)] {
        run(async |folder, target| {
            let mut cluster = Cluster::new(21);
            let keep = Keep { last: 1, within: Duration::ZERO };
            let pruned = async |named: &[String]| {
                prune(&target, &keep, named, SystemTime::now(), false).await.unwrap()
            };
            let mut base = None;
            if broken {
                cluster.save_some(&target, "b0", None, 60).await.unwrap();
            } else {
                cluster.save(&target, "b0", None).await;
                base = Some("b0");
            }
            cluster.work(20);
            cluster.save(&target, "b1", base).await;
            let needs = Manifest::load(&target, "b1").await.unwrap().sources();
            assert_eq!(needs, 2, "it needs values of b0");
            age_by(&folder, hours);
            pruned(&[]).await;
            assert!(folder.path().join("b0/head").exists());
            assert!(!folder.path().join("b0/records-000000").exists());
            cluster.check(&target, "b1").await;
            cluster.work(2000);
            cluster.save(&target, "b2", None).await;
            age_by(&folder, hours);
            let Pruned { backups, kept_for, .. } = pruned(&[]).await;
            assert_eq!((backups, kept_for), (vec!["b1".to_owned()], vec![]));
            let kept = Manifest::load(&target, "b2").await.unwrap();
            assert_eq!(files(&folder).len(), kept.objects().count() + 2);
            cluster.check(&target, "b2").await;
            pruned(&["b2".to_owned()]).await;
            assert_eq!(pruned(&[]).await, Pruned::default());
            assert!(folder.is_empty(""));
        });
    }
}

/// Hourly backups: what is pruned is younger than a day, and none of it is under way.
#[test]
fn a_young_chain_is_pruned_as_an_old_one() {
    run(async |folder, target| {
        let mut cluster = Cluster::new(22);
        cluster.save(&target, "b0", None).await;
        let keep = Keep { last: 1, within: Duration::ZERO };
        for number in 1..8 {
            cluster.work(200);
            let base = format!("b{}", number - 1);
            cluster.save(&target, &format!("b{number}"), Some(&base)).await;
            let pruned = prune(&target, &keep, &[], SystemTime::now(), false).await.unwrap();
            assert_eq!((pruned.backups, pruned.kept_for), (vec![base], vec![]));
        }
        let kept = Manifest::load(&target, "b7").await.unwrap();
        let rests = kept.sources() - 1;
        assert_eq!(files(&folder).len(), kept.objects().count() + 2 + 2 * rests);
        cluster.check(&target, "b7").await;
    });
}

/// A cluster that was scrapped and made anew has the same name and generation, and small indexes.
#[test]
fn the_backup_that_ended_last_stays_though_others_have_later_indexes() {
    run(async |folder, target| {
        let mut old = Cluster::new(25);
        old.work(100);
        for name in ["old0", "old1"] {
            old.save(&target, name, None).await;
            let path = folder.path().join(name).join("manifest");
            let manifest = Manifest::load(&target, name).await.unwrap();
            let earlier = Manifest { ended: manifest.ended - 1000, ..manifest };
            std::fs::write(path, earlier.encode().unwrap()).unwrap();
            old.work(10);
        }
        let new = Cluster::new(26);
        assert!(new.index < old.index);
        new.save(&target, "new", None).await;
        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let keep = Keep { last: 1, within: Duration::ZERO };
        assert_eq!(prune(&target, &keep, &[], later, false).await.unwrap().backups, ["old0"]);
        new.check(&target, "new").await;
        // Who wants to keep none keeps none.
        let keep = Keep { last: 0, within: Duration::ZERO };
        assert_eq!(prune(&target, &keep, &[], later, true).await.unwrap().backups.len(), 2);
    });
}

#[test]
fn a_backup_of_which_nothing_can_be_read_is_removed_by_its_name() {
    run(async |folder, target| {
        let mut cluster = Cluster::new(27);
        cluster.save(&target, "b0", None).await;
        cluster.work(10);
        cluster.save(&target, "b1", Some("b0")).await;
        for file in ["b0/head", "b0/manifest"] {
            std::fs::write(folder.path().join(file), "nothing").unwrap();
        }
        let keep = Keep { last: 1, within: Duration::ZERO };
        let now = SystemTime::now();
        let pruned = prune(&target, &keep, &["b0".to_owned()], now, false).await.unwrap();
        assert_eq!(pruned.backups, ["b0"]);
        cluster.check(&target, "b1").await;
        // Its values go with the last that needs them.
        prune(&target, &keep, &["b1".to_owned()], now, false).await.unwrap();
        assert!(folder.is_empty(""));
    });
}

/// An older release knows nothing of what a newer one's backup needs.
#[test]
fn nothing_is_removed_beside_a_manifest_that_is_newer_or_too_long() {
    run(async |folder, target| {
        let mut cluster = Cluster::new(28);
        cluster.save(&target, "b0", None).await;
        cluster.work(10);
        let manifest = cluster.save(&target, "b1", Some("b0")).await;
        std::fs::remove_file(folder.path().join("b1/head")).unwrap();
        let path = folder.path().join("b1/manifest");
        let before = files(&folder);
        let pruned = async || {
            let now = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
            let pruned = prune(&target, &Keep::default(), &[], now, false).await;
            assert_eq!(files(&folder), before);
            pruned.unwrap_err()
        };
        let newer = Manifest { format: 9, ..manifest };
        std::fs::write(&path, newer.encode().unwrap()).unwrap();
        assert!(matches!(pruned().await, Error::Newer { .. }));
        std::fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
        assert!(matches!(pruned().await, Error::TooLong { .. }));
    });
}

/// The store writes a file beside the object and gives it its name at the end. It does not list it.
#[test]
fn files_that_a_killed_save_left_unfinished_go_with_the_rest() {
    run_in_folder(async |folder, target| {
        let cluster = Cluster::new(29);
        cluster.save_some(&target, "broken", None, 60).await.unwrap();
        cluster.save(&target, "whole", None).await;
        let unfinished = ["broken/values-000099#1", "broken/records-000099#12", "broken/head#1"];
        for path in unfinished {
            std::fs::write(folder.path().join(path), "half").unwrap();
        }
        // It is under way for as long as it is young.
        prune(&target, &KEEP_ALL, &[], SystemTime::now(), false).await.unwrap();
        assert!(unfinished.iter().all(|path| folder.path().join(path).exists()));
        std::fs::write(folder.path().join("broken/notes#1"), "mine").unwrap();
        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        prune(&target, &KEEP_ALL, &["whole".to_owned()], later, false).await.unwrap();
        assert_eq!(files(&folder), [folder.path().join("broken/notes#1")]);
        std::fs::remove_dir_all(folder.path().join("broken")).unwrap();
        assert!(folder.is_empty(""));
    });
}

/// The story: the clock of the machine that prunes was months ahead, and all backups but one were old.
#[test]
fn a_clock_that_is_ahead_makes_no_backup_old() {
    run(async |_, target| {
        let mut cluster = Cluster::new(15);
        for name in ["b0", "b1", "b2"] {
            cluster.save(&target, name, None).await;
            cluster.work(10);
        }
        let later = SystemTime::now() + Duration::from_secs(200 * 24 * 3600);
        let month = Keep { last: 1, within: Duration::from_secs(30 * 24 * 3600) };
        assert_eq!(prune(&target, &month, &[], later, false).await.unwrap().backups.len(), 0);
        let none = Keep { last: 1, within: Duration::ZERO };
        assert_eq!(prune(&target, &none, &[], later, false).await.unwrap().backups.len(), 2);
    });
}
