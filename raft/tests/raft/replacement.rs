//! A member whose disk was lost comes back in its slot under a new identity.

use crate::support::{Cluster, format, put, quick, until, value, write};
use cairn_raft::{NodeId, Role};
use tempfile::TempDir;

/// Gives the member of `slot`, which is down, an empty disk with this identity. Returns the old
/// disk.
async fn replace_disk(cluster: &mut Cluster, slot: u16, incarnation: u64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    format(&folder, slot, incarnation).await;
    std::mem::replace(&mut cluster.members[usize::from(slot) - 1].folder, folder)
}

/// The voters, according to this member.
fn voters(cluster: &Cluster, slot: u16) -> Vec<NodeId> {
    cluster
        .replica(slot)
        .status()
        .members
        .iter()
        .filter(|member| member.voter)
        .map(|member| member.id)
        .collect()
}

async fn until_members(cluster: &Cluster, expected: &[NodeId]) {
    until("the membership with the new identity", || {
        let mut slots = cluster.members.iter().filter(|member| member.running.is_some());
        slots
            .all(|member| {
                let members = cluster.replica(member.slot).status().members;
                members.len() == expected.len() && voters(cluster, member.slot) == expected
            })
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_a_new_disk_replaces_its_old_identity_and_counts_from_then_on() {
    // Long enough for an undisturbed leader to stay, and short enough for the tests that end one.
    let mut cluster = Cluster::started(3, |config| {
        (config.election_min_ms, config.election_max_ms) = (6000, 12_000);
    })
    .await;
    // Use the lowest slot, which forms a cluster if all members are uninitialized: it must not form
    // a second one.
    for number in 0..20 {
        cluster.put(&format!("before{number}"), vec![7; 5000]).await;
    }
    cluster.converge().await;
    let (old, replacement) = (NodeId::new(1, 101), NodeId::new(1, 999));
    let others = [NodeId::new(2, 102), NodeId::new(3, 103)];
    cluster.kill(1).await;
    let old_disk = replace_disk(&mut cluster, 1, 999).await;
    cluster.start(1).await;
    until_members(&cluster, &[replacement, others[0], others[1]]).await;
    cluster.put("after", "1").await;
    cluster.converge().await;
    assert_eq!(value(cluster.replica(1), "before7").await.unwrap(), vec![7; 5000]);

    // One of the two members that never failed goes down: now a majority needs the new identity.
    cluster.kill(2).await;
    cluster.put("with the new identity", "2").await;
    cluster.start(2).await;
    cluster.converge().await;

    // The old disk turns up again, at the same address.
    cluster.kill(1).await;
    let new_disk = std::mem::replace(&mut cluster.members[0].folder, old_disk);
    let leader = until("a leader of the two", || {
        cluster
            .replicas()
            .find(|replica| replica.status().role == Role::Leader)
            .map(|leader| leader.node_id())
    })
    .await;
    cluster.start(1).await;
    assert_eq!(cluster.replica(1).node_id(), old);
    let reason = until("the reason of the removal", || cluster.replica(1).removed_reason()).await;
    assert!(
        reason.contains("removed") && reason.contains("give it an empty data directory"),
        "{reason}"
    );
    let slot = leader.slot();
    assert_eq!(cluster.replica(slot).status().role, Role::Leader, "it disturbed the others");
    write(cluster.replica(slot), put("undisturbed", "3")).await;
    cluster.kill(1).await;
    cluster.members[0].folder = new_disk;
    cluster.start(1).await;
    cluster.converge().await;
    assert_eq!(value(cluster.replica(1), "undisturbed").await.unwrap(), "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_joining_node_waits_while_its_slots_identity_is_alive_and_another_one_replaces_an_abandoned_learner()
 {
    let mut cluster = Cluster::started(3, quick).await;
    cluster.put("a", "1").await;
    cluster.kill(3).await;
    // The first one joins as a learner, and goes down before it votes.
    let first = NodeId::new(3, 777);
    replace_disk(&mut cluster, 3, 777).await;
    cluster.start(3).await;
    until("the first joining node is a learner", || {
        let members = cluster.replica(1).status().members;
        members.iter().any(|member| member.id == first && !member.voter).then_some(())
    })
    .await;
    cluster.kill(3).await;
    replace_disk(&mut cluster, 3, 888).await;
    cluster.start(3).await;
    until_members(&cluster, &[NodeId::new(1, 101), NodeId::new(2, 102), NodeId::new(3, 888)]).await;
    cluster.put("b", "2").await;
    cluster.converge().await;
}
