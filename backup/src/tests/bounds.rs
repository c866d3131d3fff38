//! What a backup may have at most, and what is left out or refused beyond that.

use super::*;
use crate::manifest::{ALL_FOLDERS_MAX, FOLDERS_MAX, mark_removed};

/// Saves so many keys, and breaks off as on a connection that breaks.
async fn break_off(cluster: &Cluster, target: &Target, name: &str, keys: usize) {
    let sources = Sources::find(target, SHOP, None, true, None).await.unwrap();
    let items = cluster.items(&sources);
    let begun = Saver::begin_with(target, name, cluster.head(), sources, SMALL).await;
    let mut saver = begun.unwrap();
    for item in items.into_iter().take(keys) {
        saver.add(item).await.unwrap();
    }
    saver.break_off().await.unwrap();
}

/// The story: a save that breaks off again and again goes on with all its attempts, and each of these with
/// the ones before it. A reader holds an object of each.
#[test]
fn a_save_goes_on_with_breaks_of_32_folders_at_most() {
    run_in_folder(async |_, target| {
        let cluster = Cluster::new(41);
        let mut most = 0;
        for number in 0..60 {
            break_off(&cluster, &target, &format!("broken{number:02}"), 2 * number + 2).await;
            let sources = Sources::find(&target, SHOP, None, true, None).await.unwrap();
            let folders: BTreeSet<String> =
                sources.all.iter().flat_map(|source| source.folders()).collect();
            most = most.max(folders.len());
        }
        assert_eq!(most, ALL_FOLDERS_MAX - 1, "beside the folder of the save itself");
        let whole = cluster.save(&target, "whole", None).await;
        assert!(whole.sources() > FOLDERS_MAX, "{}", whole.sources());
        cluster.check(&target, "whole").await;
    });
}

/// The story: a state had too many objects, and the save said so behind the last of them, hours later.
#[test]
fn a_manifest_that_becomes_too_long_is_refused_while_it_is_saved() {
    run(async |_, target| {
        let mut cluster = Cluster::new(42);
        let whole = cluster.save(&target, "whole", None).await.encode().unwrap().len() as u64;
        cluster.work(200);
        for base in [None, Some("whole")] {
            let sources = Sources::find(&target, SHOP, base, false, None).await.unwrap();
            let items = cluster.items(&sources);
            let sizes = Sizes { manifest: whole / 2, ..SMALL };
            let name = if base.is_some() { "since" } else { "half" };
            let begun = Saver::begin_with(&target, name, cluster.head(), sources, sizes).await;
            let (mut saver, mut refused, mut added) = (begun.unwrap(), None, 0);
            for item in items.iter().cloned() {
                match saver.add(item).await {
                    Ok(()) => added += 1,
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
            }
            let refused = refused.expect("it is too long");
            assert!(matches!(refused, Error::TooMuch { .. }), "{refused}");
            assert!(refused.to_string().contains("save without --since"), "{refused}");
            assert!(added < items.len() * 4 / 5, "{added} of {} keys", items.len());
        }
    });
}

/// The story: a prune had taken a manifest and nothing else. What was left looked like a save that was
/// broken off a minute ago, which the next save goes on with and the next prune leaves alone.
#[test]
fn what_a_prune_began_to_remove_is_not_gone_on_with_and_goes() {
    run(async |folder, target| {
        let mut cluster = Cluster::new(43);
        cluster.save(&target, "b0", None).await;
        cluster.work(10);
        cluster.save(&target, "b1", None).await;
        std::fs::remove_file(folder.path().join("b0/manifest")).unwrap();
        let resumes = async || {
            let sources = Sources::find(&target, SHOP, None, true, None).await.unwrap();
            sources.resumes().to_vec()
        };
        assert_eq!(resumes().await, ["b0"]);
        mark_removed(&target, "b0").await.unwrap();
        assert!(resumes().await.is_empty());
        let pruned = prune(&target, &KEEP_ALL, &[], SystemTime::now(), false).await.unwrap();
        assert!(pruned.objects > 0 && pruned.backups.is_empty(), "{pruned:?}");
        assert!(folder.is_empty("b0"));
        cluster.check(&target, "b1").await;
    });
}
