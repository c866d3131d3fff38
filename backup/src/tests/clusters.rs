//! Two clusters of one name and generation that save at one target.

use super::*;
use crate::{Ended, OfCluster, Own, ended_last, prune_own};

const OWN: ClusterId<'static> = ClusterId { members: &[1, 2, 3], ..SHOP };
const OTHER: ClusterId<'static> = ClusterId { members: &[7, 8, 9], ..SHOP };
const ONE: Keep = Keep { last: 1, within: Duration::ZERO };

/// Saves so many keys of everything as this cluster does; all of them finish the backup.
async fn save_as(
    id: ClusterId<'_>,
    cluster: &Cluster,
    target: &Target,
    name: &str,
    most: usize,
) -> Option<Manifest> {
    let items = cluster.items(&Sources::default());
    let keys = items.len();
    let head = Head { members: id.members.to_vec(), ..cluster.head() };
    let begun = Saver::begin_with(target, name, head, Sources::default(), SMALL).await;
    let mut saver = begun.unwrap();
    for item in items.into_iter().take(most) {
        saver.add(item).await.unwrap();
    }
    if most < keys {
        saver.break_off().await.unwrap();
        return None;
    }
    Some(saver.finish(keys as u64).await.unwrap())
}

async fn save_all_as(id: ClusterId<'_>, cluster: &Cluster, target: &Target, name: &str) {
    assert!(save_as(id, cluster, target, name, usize::MAX).await.is_some());
}

/// The last backup of this cluster, and a later one of another.
async fn ends(target: &Target, id: ClusterId<'_>) -> (Option<String>, Option<String>) {
    let of = OfCluster { id, term: 1, applied_index: u64::MAX };
    let Ended { last, namesake } = ended_last(target, of, u64::MAX).await.unwrap();
    (last.map(|last| last.name), namesake)
}

fn some(name: &str) -> Option<String> {
    Some(name.to_owned())
}

/// The story: two clusters of one name had one target. Whichever saved last set when the next one was due, for both:
/// one of them never saved.
#[test]
fn when_the_next_backup_is_due_is_said_by_the_clusters_own_ones() {
    run(async |_, target| {
        let mut cluster = Cluster::new(61);
        // An earlier release names no members.
        save_all_as(SHOP, &cluster, &target, "b0").await;
        assert_eq!(ends(&target, OWN).await, (some("b0"), None));
        cluster.work(10);
        save_all_as(OWN, &cluster, &target, "b1").await;
        cluster.work(10);
        save_all_as(OTHER, &cluster, &target, "b2").await;
        assert_eq!(ends(&target, OWN).await, (some("b1"), some("b2")));
        assert_eq!(ends(&target, OTHER).await, (some("b2"), None));
        // Nobody knows whose this one is.
        save_all_as(SHOP, &cluster, &target, "b3").await;
        assert_eq!(ends(&target, OWN).await, (some("b1"), some("b2")));
        // A member was replaced.
        let replaced = ClusterId { members: &[2, 3, 4], ..SHOP };
        assert_eq!(ends(&target, replaced).await.0, some("b1"));
    });
}

#[test]
fn a_schedule_removes_nothing_of_another_cluster_and_a_prune_keeps_the_latest_of_each() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(62);
        for (id, name) in [(OWN, "a0"), (OTHER, "b0"), (OWN, "a1"), (OTHER, "b1"), (OWN, "a2")] {
            save_all_as(id, &cluster, &target, name).await;
            cluster.work(10);
        }
        save_as(OTHER, &cluster, &target, "broken", 60).await;
        let resumes = async |of| {
            let sources = Sources::find(&target, of, None, true, None).await.unwrap();
            sources.resumes().to_vec()
        };
        assert!(resumes(OWN).await.is_empty());
        assert_eq!(resumes(OTHER).await, ["broken"]);

        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let would = prune(&target, &ONE, &[], later, true).await.unwrap();
        assert_eq!(would.backups, ["a0", "a1", "b0"]);
        let own = Own { id: OWN, most: 9 };
        let pruned = prune_own(&target, &ONE, &own, later).await.unwrap();
        assert_eq!(pruned.backups, ["a0", "a1"]);
        assert!(place.path().join("broken/records-000000").exists());
        let own = Own { id: OTHER, most: 9 };
        let pruned = prune_own(&target, &ONE, &own, later).await.unwrap();
        assert_eq!(pruned.backups, ["b0"]);
        assert!(place.is_empty("broken"));
    });
}
