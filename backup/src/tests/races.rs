//! A save beside a prune, and prunes that end early.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A prune that ends at any moment leaves backups that verify, and the next one removes the rest.
///
/// The story: the removal that it had begun went on beside what looked at the backups, and one of them was gone before it was read.
#[test]
fn a_prune_that_is_broken_off_leaves_only_whole_backups() {
    for polls in 0..30 {
        let (folder, target) = Place::folder();
        let mut cluster = Cluster::new(9);
        run_once(async {
            cluster.save(&target, "b0", None).await;
            cluster.work(30);
            cluster.save(&target, "b1", Some("b0")).await;
            cluster.save(&target, "b2", None).await;
        });
        let (keep, now) = (Keep { last: 1, within: Duration::ZERO }, SystemTime::now());
        // The end of its runtime waits for the removal that is under way.
        run_once(async {
            let mut pruning = Box::pin(prune(&target, &keep, &[], now, false));
            begun(&mut pruning, polls).await;
        });
        run_once(async {
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

/// Lets something go on for a moment. Returns what it returns, if it ends.
async fn begun<T>(work: &mut (impl Future<Output = T> + Unpin), polls: usize) -> Option<T> {
    for _ in 0..polls {
        if let Poll::Ready(done) = futures::poll!(&mut *work) {
            return Some(done);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    None
}

/// The story: `cairn backup list` failed because a schedule removed a backup between the look at the names and
/// the look at the manifests. A prune failed likewise beside another one.
#[test]
fn a_backup_that_goes_at_any_moment_fails_no_list_and_no_prune() {
    for polls in 0..30 {
        run_in_folder(async |folder, target| {
            let cluster = Cluster::new(9);
            for name in ["b0", "b1", "b2"] {
                cluster.save(&target, name, None).await;
            }
            let mut listing = Box::pin(Manifest::list(&target));
            let listed = begun(&mut listing, polls).await;
            let (keep, now) = (Keep { last: 1, within: Duration::ZERO }, SystemTime::now());
            let mut pruning = Box::pin(prune(&target, &keep, &[], now, true));
            let pruned = begun(&mut pruning, polls).await;

            std::fs::remove_file(folder.path().join("b1/manifest")).unwrap();
            let listed = match listed {
                Some(listed) => listed,
                None => listing.await,
            };
            assert!(listed.unwrap().iter().all(|(_, manifest)| manifest.is_ok()));
            let pruned = match pruned {
                Some(pruned) => pruned,
                None => pruning.await,
            };
            assert!(pruned.unwrap().backups.contains(&"b0".to_owned()));
        });
    }
}

/// The base goes between the look at it and the first object of the backup that builds on it.
#[test]
fn a_backup_whose_base_was_pruned_before_it_began_fails_at_once() {
    run(async |_, target| {
        let mut cluster = Cluster::new(13);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let sources = Sources::find(&target, SHOP, Some("base"), true, None).await.unwrap();
        prune(&target, &KEEP_ALL, &["base".to_owned()], SystemTime::now(), false).await.unwrap();
        let begun = Saver::begin(&target, "next", cluster.head(), sources).await;
        assert!(matches!(begun, Err(Error::Missing { .. })));
    });
}

/// A prune that had looked for heads takes the base while the head of the next backup is stored: the save looks behind
/// that, and sees it.
#[test]
fn a_backup_whose_base_goes_while_its_head_is_stored_fails_at_once() {
    run_in_folder(async |folder, target| {
        let mut cluster = Cluster::new(47);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let (manifest, aside) = (folder.path().join("base/manifest"), folder.path().join("aside"));
        // The system may have looked before the manifest went: a thread of it goes on while this one rests.
        for number in 0..20 {
            let next = format!("next{number}");
            let sources = Sources::find(&target, SHOP, Some("base"), false, None).await.unwrap();
            let begin = Saver::begin_with(&target, &next, cluster.head(), sources, SMALL);
            let mut beginning = Box::pin(begin);
            poll_until(&mut beginning, &folder, &format!("{next}/head"), true).await;
            std::fs::rename(&manifest, &aside).unwrap();
            if let Err(refused) = beginning.await {
                assert!(
                    matches!(&refused, Error::Missing { name, .. } if name == "base"),
                    "{refused}"
                );
                assert!(folder.is_empty(&next), "it leaves nothing");
                return;
            }
            std::fs::rename(&aside, &manifest).unwrap();
        }
        panic!("it does not look behind its head");
    });
}

/// A prune took the manifest that a backup under way builds on, and no more. The next prunes leave the
/// objects until that has ended.
#[test]
fn objects_stay_while_a_backup_under_way_builds_on_one_without_a_manifest() {
    run(async |folder, target| {
        let mut cluster = Cluster::new(14);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let sources = Sources::find(&target, SHOP, Some("base"), true, None).await.unwrap();
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

/// Polls until the file is gone, and no further.
async fn poll_until_gone(pruning: impl Future, folder: &Place, file: &str) {
    poll_until(pruning, folder, file, false).await;
}

/// Whether what a future waited for has come.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Polls until the file is there or gone, and no further: it looks when an operation has ended, before a
/// poll begins the next one.
async fn poll_until(future: impl Future, folder: &Place, file: &str, there: bool) {
    let mut future = std::pin::pin!(future);
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    loop {
        // Without it the runtime lets nothing go on after some time.
        yield_now().await;
        if !woken.0.swap(false, Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        if folder.path().join(file).exists() == there {
            return;
        }
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "{file} stays as it is");
    }
}

/// The story: a prune had taken the manifest. A save took the rest for a backup that was broken off, and
/// the prune then removed values that the save named.
#[test]
fn a_save_that_goes_on_with_what_a_prune_is_removing_fails_at_once() {
    run(async |folder, target| {
        let mut cluster = Cluster::new(23);
        cluster.save(&target, "b0", None).await;
        cluster.work(10);
        cluster.save(&target, "b1", None).await;
        // As it is while the manifest of b0 is gone and nothing else is.
        let (manifest, aside) = (folder.path().join("b0/manifest"), folder.path().join("aside"));
        std::fs::rename(&manifest, &aside).unwrap();
        let sources = Sources::find(&target, SHOP, None, true, None).await.unwrap();
        let more = Sources::find(&target, SHOP, None, true, None).await.unwrap();
        assert_eq!(sources.resumes(), ["b0"]);
        std::fs::rename(&aside, &manifest).unwrap();

        // It begins before the prune looks for the last time: the prune sees it.
        let keep = Keep { last: 1, within: Duration::ZERO };
        let mut pruning = Box::pin(prune(&target, &keep, &[], SystemTime::now(), false));
        poll_until_gone(&mut pruning, &folder, "b0/manifest").await;
        let items = cluster.items(&sources);
        let begun = Saver::begin_with(&target, "early", cluster.head(), sources, SMALL).await;
        let pruned = pruning.await.unwrap();
        assert_eq!((pruned.backups, pruned.objects), (vec!["b0".to_owned()], 0));
        let (mut saver, keys) = (begun.unwrap(), items.len() as u64);
        for item in items {
            saver.add(item).await.unwrap();
        }
        saver.finish(keys).await.unwrap();
        cluster.check(&target, "early").await;

        // It begins when the prune has looked: it sees the prune.
        let keep = Keep { last: 0, within: Duration::ZERO };
        let (named, now) = (["early".to_owned()], SystemTime::now());
        let pruning = Box::pin(prune(&target, &keep, &named, now, false));
        poll_until_gone(pruning, &folder, "b0/records-000000").await;
        assert!(folder.path().join("b0/values-000000").exists(), "records go first");
        let begun = Saver::begin_with(&target, "late", cluster.head(), more, SMALL).await;
        assert!(matches!(begun, Err(Error::Missing { name, .. }) if name == "b0"));
        assert!(folder.is_empty("late"), "it leaves nothing");
    });
}

/// A save begins on one backup while another one is pruned.
#[test]
fn a_prune_beside_a_backup_that_began_meanwhile_says_which_or_looks_again() {
    for base in ["b0", "b1"] {
        run(async |folder, target| {
            let mut cluster = Cluster::new(24);
            cluster.save(&target, "b0", None).await;
            cluster.work(2000);
            cluster.save(&target, "b1", None).await;
            let sources = Sources::find(&target, SHOP, Some(base), false, None).await.unwrap();
            let keep = Keep { last: 1, within: Duration::ZERO };
            let mut pruning = Box::pin(prune(&target, &keep, &[], SystemTime::now(), false));
            // It has seen what is there, and has not looked again.
            let begun = match base {
                "b1" => {
                    poll_until_gone(&mut pruning, &folder, "b0/manifest").await;
                    Saver::begin_with(&target, "next", cluster.head(), sources, SMALL).await
                }
                _ => {
                    let begun =
                        Saver::begin_with(&target, "next", cluster.head(), sources, SMALL).await;
                    std::fs::rename(folder.path().join("next"), folder.path().join("x~")).unwrap();
                    poll_until_gone(&mut pruning, &folder, "b0/manifest").await;
                    std::fs::rename(folder.path().join("x~"), folder.path().join("next")).unwrap();
                    begun
                }
            };
            let pruned = pruning.await.unwrap();
            assert_eq!(pruned.backups, ["b0"]);
            match base {
                "b1" => {
                    assert!(pruned.objects > 0 && pruned.kept_for.is_empty(), "{pruned:?}");
                    assert!(folder.is_empty("b0"));
                }
                _ => {
                    assert_eq!((pruned.objects, pruned.kept_for), (0, vec!["next".to_owned()]));
                    let would = prune(&target, &keep, &[], SystemTime::now(), true).await.unwrap();
                    assert_eq!(would.kept_for, ["next"]);
                }
            }
            drop(begun.unwrap());
        });
    }
}

/// The story: the clock of a prune was a day ahead, so it took a save that went on for one that was broken
/// off. It removed an object between the save's look at all of them and the manifest.
#[test]
fn an_object_that_goes_just_before_the_manifest_leaves_no_backup() {
    run(async |folder, target| {
        let mut cluster = Cluster::new(44);
        cluster.save(&target, "base", None).await;
        cluster.work(10);
        let sources = Sources::find(&target, SHOP, Some("base"), true, None).await.unwrap();
        let items = cluster.items(&sources);
        let begun = Saver::begin_with(&target, "next", cluster.head(), sources, SMALL).await;
        let (mut saver, keys) = (begun.unwrap(), items.len() as u64);
        for item in items {
            saver.add(item).await.unwrap();
        }
        let mut finishing = Box::pin(saver.finish(keys));
        poll_until(&mut finishing, &folder, "next/manifest", true).await;
        std::fs::remove_file(folder.path().join("base/values-000000")).unwrap();
        let failed = finishing.await.unwrap_err();
        assert!(matches!(&failed, Error::Damaged { name, .. } if name == "next"), "{failed}");
        assert!(!folder.path().join("next/manifest").exists());
        // With all of them there it is one.
        let whole = cluster.save(&target, "whole", None).await;
        assert_eq!(whole.sources(), 1, "what was broken off lacks what it names");
        cluster.check(&target, "whole").await;
    });
}

/// The manifest is written last: a save that is killed as soon as it is there has saved all that it names.
#[test]
fn a_save_that_is_killed_once_its_manifest_is_there_is_whole() {
    run_in_folder(async |folder, target| {
        let cluster = Cluster::new(46);
        let items = cluster.items(&Sources::default());
        let begun =
            Saver::begin_with(&target, "next", cluster.head(), Sources::default(), SMALL).await;
        let (mut saver, keys) = (begun.unwrap(), items.len() as u64);
        for item in items {
            saver.add(item).await.unwrap();
        }
        poll_until(saver.finish(keys), &folder, "next/manifest", true).await;
        cluster.check(&target, "next").await;
    });
}

/// The same clock: the prune sees that the save goes on, and leaves it its objects.
#[test]
fn a_prune_by_a_clock_that_is_a_day_ahead_sees_a_save_that_goes_on() {
    run(async |folder, target| {
        let mut cluster = Cluster::new(45);
        cluster.save(&target, "b0", None).await;
        cluster.work(10);
        cluster.save(&target, "b1", None).await;
        let items = cluster.items(&Sources::default());
        let begun =
            Saver::begin_with(&target, "next", cluster.head(), Sources::default(), SMALL).await;
        let (mut saver, keys) = (begun.unwrap(), items.len() as u64);
        for item in items {
            saver.add(item).await.unwrap();
        }
        let tomorrow = SystemTime::now() + Duration::from_secs(25 * 3600);
        let keep = Keep { last: 1, within: Duration::ZERO };
        let mut pruning = Box::pin(prune(&target, &keep, &[], tomorrow, false));
        poll_until_gone(&mut pruning, &folder, "b0/manifest").await;
        saver.finish(keys).await.unwrap();
        pruning.await.unwrap();
        cluster.check(&target, "next").await;
    });
}
