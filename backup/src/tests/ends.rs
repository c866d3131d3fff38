//! When backups ended, and how far back what they need goes: by these a schedule goes on.

use super::*;
use crate::paths::head_path;
use crate::{OfCluster, ended_last, reaches_back};
use std::fs::File;

const NEVER: u64 = u64::MAX;

/// Lets a backup say that it ended then, and the target that it was written then.
fn ends(place: &Place, manifest: &Manifest, ended: u64) {
    let path = place.path().join(&manifest.name).join("manifest");
    std::fs::write(&path, Manifest { ended, ..manifest.clone() }.encode().unwrap()).unwrap();
    written_at(&path, ended);
}

fn written_at(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn the_backup_that_ended_last_is_found_by_its_end_and_not_by_its_name() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(21);
        let last = async |generation, until| {
            let id = ClusterId { generation, ..SHOP };
            let of = OfCluster { id, term: 1, applied_index: u64::MAX };
            let ended = ended_last(&target, of, until).await.unwrap();
            ended.last.map(|manifest| manifest.name)
        };
        assert_eq!(last(1, NEVER).await, None);
        let early = cluster.save(&target, "b", None).await;
        cluster.work(10);
        let late = cluster.save(&target, "a", None).await;
        // What is not finished ended at no time.
        cluster.save_some(&target, "c", None, 50).await.unwrap();
        // Behind what the other objects have.
        let now = late.ended + 1000;
        ends(&place, &early, now + 100);
        ends(&place, &late, now + 200);
        assert_eq!(last(1, NEVER).await.as_deref(), Some("a"));
        assert_eq!(last(1, now + 200).await.as_deref(), Some("a"));
        // A clock was ahead.
        assert_eq!(last(1, now + 199).await.as_deref(), Some("b"));
        assert_eq!(last(1, now + 99).await, None);
        assert_eq!(last(2, NEVER).await, None, "of another cluster");
        // One that was made anew under the same name has not reached it.
        let anew = OfCluster { id: SHOP, term: 1, applied_index: early.head.index };
        let head = Head { index: early.head.index + (1 << 20) + 1, ..late.head.clone() };
        ends(&place, &Manifest { head, ..late.clone() }, now + 200);
        let found = ended_last(&target, anew, NEVER).await.unwrap();
        assert_eq!(found.last.map(|last| last.name).as_deref(), Some("b"));
        assert_eq!(found.namesake.as_deref(), Some("a"));
        // Nor has it come to this term.
        let head = Head { term: 2, ..late.head.clone() };
        ends(&place, &Manifest { head, ..late.clone() }, now + 200);
        assert_eq!(last(1, NEVER).await.as_deref(), Some("b"));
        let path = place.path().join("a/manifest");
        std::fs::write(&path, "damaged").unwrap();
        written_at(&path, now + 200);
        assert_eq!(last(1, NEVER).await.as_deref(), Some("b"));
    });
}

#[test]
fn a_backup_reaches_back_to_the_oldest_one_whose_objects_it_needs() {
    run_in_folder(async |_, target| {
        let mut cluster = Cluster::new(22);
        let whole = cluster.save(&target, "a", None).await;
        target.remove(&head_path("a")).await.unwrap();
        Head { began: 5, ..whole.head }.store(&target, "a").await.unwrap();
        cluster.work(10);
        cluster.save(&target, "b", Some("a")).await;
        cluster.work(10);
        let since = cluster.save(&target, "c", Some("b")).await;
        assert_eq!(reaches_back(&target, &since).await.unwrap(), 5);
        // The manifest of the oldest one need not be there.
        let last = Keep { last: 1, within: Duration::ZERO };
        let pruned = prune(&target, &last, &[], SystemTime::now(), false).await.unwrap();
        assert_eq!(pruned.backups, ["a", "b"]);
        assert_eq!(reaches_back(&target, &since).await.unwrap(), 5);
        let other = cluster.save(&target, "d", None).await;
        assert_eq!(reaches_back(&target, &other).await.unwrap(), other.head.began);
    });
}
