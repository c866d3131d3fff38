//! Members are added and removed, and the mode changes.

use crate::support::{Cluster, WAIT_LIMIT, format, put, quick, until, value, write};
use cairn_engine::Mode;
use cairn_raft::{ChangeError, MemberChange, NodeId, Replica, ReplicaConfig, Role};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A cluster of one, and nodes of the slots up to `size` that are not members.
async fn of_one(size: u16) -> Cluster {
    of_one_with(size, quick).await
}

async fn of_one_with(size: u16, configure: fn(&mut ReplicaConfig)) -> Cluster {
    let mut cluster = Cluster::new(size, configure).await;
    (cluster.founders, cluster.mode) = (1, Mode::Replicated);
    cluster.start(1).await;
    cluster.leader().await;
    cluster
}

/// What a leader says of members that answer late, and of a hand-over that takes long: on a busy machine also
/// of those that are there.
const FOR_NOW: [&str; 4] =
    ["active and reachable", "does not answer", "try again", "could take over"];

/// Asks until the change is done.
async fn done(cluster: &Cluster, asked: MemberChange) {
    let done = async {
        while let Err(refusal) = change(cluster, asked.clone()).await {
            assert!(FOR_NOW.iter().any(|words| refusal.contains(words)), "{asked:?}: {refusal}");
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_LIMIT, done).await.unwrap_or_else(|_| panic!("never done: {asked:?}"));
}

/// Asks until the change is refused with these words.
async fn refused(cluster: &Cluster, asked: MemberChange, words: &str) {
    let refused = async {
        loop {
            let refusal = change(cluster, asked.clone()).await.unwrap_err();
            if refusal.contains(words) {
                return;
            }
            assert!(FOR_NOW.iter().any(|words| refusal.contains(words)), "{asked:?}: {refusal}");
            sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = timeout(WAIT_LIMIT, refused).await;
    assert!(ended.is_ok(), "never refused with `{words}`: {asked:?}");
}

/// Asks whoever leads until the change is done.
///
/// # Errors
/// The refusal.
async fn change(cluster: &Cluster, change: MemberChange) -> Result<(), String> {
    let asked = async {
        loop {
            let leader = cluster.replicas().find(|replica| replica.status().role == Role::Leader);
            if let Some(leader) = leader {
                match leader.change_members(change.clone()).await {
                    Ok(None) => return Ok(()),
                    Ok(Some(_)) | Err(ChangeError::NotLeader { .. }) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_LIMIT, asked).await.unwrap_or_else(|_| panic!("never done: {change:?}"))
}

/// Moves leadership, however busy the machine is.
async fn move_leader(cluster: &Cluster, slot: u16) {
    let moved = async {
        loop {
            // A node that is refused knows none.
            let leader = cluster.replicas().find(|replica| replica.status().role == Role::Leader);
            if let Some(leader) = leader {
                match leader.move_leader(Some(slot)).await {
                    Ok(now) => return assert_eq!(now.slot(), slot),
                    Err(error) => println!("not moved for now: {error}"),
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_LIMIT, moved).await.unwrap_or_else(|_| panic!("{slot} never leads"));
}

/// Moves leadership until all see it there: on a busy machine another one may be elected meanwhile.
async fn until_leads(cluster: &Cluster, slot: u16) {
    let leads = async {
        loop {
            move_leader(cluster, slot).await;
            if cluster.leader().await.node_id().slot() == slot {
                return;
            }
        }
    };
    timeout(WAIT_LIMIT, leads).await.unwrap_or_else(|_| panic!("{slot} does not stay leader"));
}

/// Drains a member, once another one can take over from it.
async fn drain(cluster: &Cluster, slot: u16) {
    let drained = async {
        while let Err(refusal) = cluster.replica(slot).drain(Duration::from_secs(600)).await {
            assert!(matches!(refusal, ChangeError::Refused(_)), "{refusal}");
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT_LIMIT, drained).await.unwrap_or_else(|_| panic!("{slot} is never drained"));
}

async fn set_mode(cluster: &Cluster, mode: Mode) -> Result<(), String> {
    let asked = async {
        loop {
            let leader = cluster.replicas().find(|replica| replica.status().role == Role::Leader);
            if let Some(leader) = leader {
                match leader.set_mode(mode).await {
                    Ok(()) => {
                        assert_eq!(
                            leader.modes().cluster,
                            Some(mode),
                            "answered before it is applied"
                        );
                        return Ok(());
                    }
                    Err(ChangeError::Refused(reason)) if !reason.contains("try again") => {
                        return Err(reason);
                    }
                    Err(_) => {}
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(WAIT_LIMIT, asked).await.unwrap_or_else(|_| panic!("the mode never changed"))
}

fn voters(cluster: &Cluster, slot: u16) -> Vec<u16> {
    let members = cluster.replica(slot).status().members;
    members.iter().filter(|member| member.voter).map(|member| member.id.slot()).collect()
}

async fn until_voters(cluster: &Cluster, slot: u16, expected: &[u16]) {
    until("the voters", || (voters(cluster, slot) == expected).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_grows_to_three_and_shrinks_to_one_and_the_mode_follows() {
    let mut cluster = of_one(3).await;
    cluster.put("by one", "1").await;
    until("the first mode", || cluster.replica(1).modes().cluster).await;
    assert_eq!(cluster.replica(1).modes().cluster, Some(Mode::Sync), "one voter");
    let reason = set_mode(&cluster, Mode::Replicated).await.unwrap_err();
    assert!(reason.contains("needs 3 voters"), "{reason}");
    cluster.start(2).await;
    done(&cluster, MemberChange::Add(2)).await;
    until_voters(&cluster, 2, &[1, 2]).await;
    cluster.put("by two", "2").await;
    cluster.start(3).await;
    done(&cluster, MemberChange::Add(3)).await;
    until_voters(&cluster, 3, &[1, 2, 3]).await;
    cluster.put("by three", "3").await;
    set_mode(&cluster, Mode::Replicated).await.unwrap();
    until("the mode everywhere", || {
        cluster.replicas().all(|one| one.modes().effective == Mode::Replicated).then_some(())
    })
    .await;
    // Long enough for the fast ack mode and a set flag.
    let mut number = 0;
    while !cluster.replicas().any(|one| one.engine().status().unsynced_acks) {
        let leader = cluster.leader().await;
        let puts = (0..8).map(|of| leader.write(put(&format!("unsynced {of}"), "x")));
        futures::future::join_all(puts).await;
        number += 1;
        assert!(number < 10_000, "the flag is never set");
    }
    refused(&cluster, MemberChange::Remove(3), "cairn mode set sync").await;
    set_mode(&cluster, Mode::Sync).await.unwrap();

    // The leader leaves.
    let leader = cluster.leader().await.node_id().slot();
    done(&cluster, MemberChange::Remove(leader)).await;
    let stay: Vec<u16> = (1..=3).filter(|slot| *slot != leader).collect();
    until_voters(&cluster, stay[0], &stay).await;
    until("the removed member knows", || cluster.replica(leader).removed_reason()).await;
    cluster.kill(leader).await;
    cluster.put("by two again", "4").await;
    until("no flag is set", || {
        cluster.replicas().all(|one| !one.engine().status().unsynced_acks).then_some(())
    })
    .await;
    done(&cluster, MemberChange::Remove(stay[1])).await;
    cluster.kill(stay[1]).await;
    cluster.put("by one again", "5").await;
    refused(&cluster, MemberChange::Remove(stay[0]), "last voter").await;
    for (key, expected) in
        [("by one", "1"), ("by two", "2"), ("by three", "3"), ("by two again", "4")]
    {
        assert_eq!(value(cluster.replica(stay[0]), key).await.unwrap(), expected);
    }
    // A cluster of one comes back by itself.
    cluster.kill(stay[0]).await;
    cluster.start(stay[0]).await;
    cluster.put("by one, restarted", "6").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_leaves_no_majority_is_refused_and_a_dead_member_can_be_removed() {
    let mut cluster = Cluster::new(3, quick).await;
    for slot in 1..=3 {
        cluster.start(slot).await;
    }
    cluster.put("a", "1").await;
    cluster.kill(3).await;
    let leader = cluster.leader().await.node_id().slot();
    let other = if leader == 1 { 2 } else { 1 };
    refused(&cluster, MemberChange::Remove(other), "would not be active and reachable").await;
    done(&cluster, MemberChange::Remove(3)).await;
    until_voters(&cluster, leader, &[1, 2]).await;
    cluster.put("b", "2").await;
    // The removed one is refused when it comes back.
    cluster.start(3).await;
    until("the reason", || cluster.replica(3).removed_reason()).await;
    cluster.kill(3).await;
    // An empty disk in its slot is added again.
    cluster.members[2].folder = tempfile::tempdir().unwrap();
    format(&cluster.members[2].folder, 3, 777).await;
    cluster.start(3).await;
    done(&cluster, MemberChange::Add(3)).await;
    until_voters(&cluster, 3, &[1, 2, 3]).await;
    cluster.put("c", "3").await;
    cluster.converge().await;
}

/// The story: two of five had just gone, and counted as healthy by what they acknowledged before. The
/// leader removed a third one, and no majority was left to commit that.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_have_just_gone_do_not_count_for_a_change() {
    let mut cluster = Cluster::started(5, quick).await;
    cluster.put("a", "1").await;
    let leader = cluster.leader().await.node_id().slot();
    let others: Vec<u16> = (1..=5).filter(|slot| *slot != leader).collect();
    let [first, second, stays, ..] = others[..] else { panic!("{others:?}") };
    cluster.kill(first).await;
    cluster.kill(second).await;
    refused(&cluster, MemberChange::Remove(stays), "2 would not be active and reachable").await;
    cluster.put("b", "2").await;
    done(&cluster, MemberChange::Remove(first)).await;
    cluster.put("c", "3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_member_is_replaced_only_when_an_operator_says_so() {
    let mut cluster = Cluster::new(4, quick).await;
    cluster.founders = 3;
    for slot in 1..=3 {
        cluster.start(slot).await;
    }
    cluster.put("a", "1").await;
    // A second node of slot 3, on the fourth disk.
    cluster.members[3].folder = tempfile::tempdir().unwrap();
    format(&cluster.members[3].folder, 3, 777).await;
    cluster.start(4).await;
    let (old, new) = (NodeId::new(3, 103), NodeId::new(3, 777));
    let leader = until("a leader", || cluster.replica(1).leader()).await.0.slot();
    cluster.until_asked(leader, "JOIN", 5).await;
    assert!(cluster.replica(leader).status().members.iter().all(|member| member.id != new));
    // It leads, and a member hears nobody who claims its own slot.
    move_leader(&cluster, 3).await;
    let leads = |member: &Replica| (member.status().role == Role::Leader).then_some(());
    until("the old one leads", || leads(cluster.replica(3))).await;
    done(&cluster, MemberChange::Replace(old)).await;
    until("the new identity votes", || cluster.replica(4).votes().then_some(())).await;
    until("the old one knows", || cluster.replica(3).removed_reason()).await;
    cluster.kill(3).await;
    cluster.put("b", "2").await;
    // It was done before.
    done(&cluster, MemberChange::Replace(old)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_moves_where_an_operator_wants_it_and_a_drained_member_does_not_lead() {
    let mut cluster = Cluster::started(3, quick).await;
    cluster.put("a", "1").await;
    let leader = cluster.leader().await.node_id().slot();
    let to = if leader == 1 { 2 } else { 1 };
    until_leads(&cluster, to).await;
    drain(&cluster, to).await;
    let after = cluster.leader().await.node_id().slot();
    assert_ne!(after, to);
    let drained = cluster.replica(to).drained_for();
    assert!(drained.is_some_and(|left| left.as_secs() > 500), "{drained:?}");
    let refused = async {
        loop {
            match cluster.leader().await.move_leader(Some(to)).await {
                Err(ChangeError::Refused(_)) => return,
                Err(ChangeError::NotLeader { .. }) => {}
                answer => panic!("{answer:?}"),
            }
        }
    };
    timeout(WAIT_LIMIT, refused).await.expect("the drained one may not lead");
    // The leader dies: the third one leads, never the drained one.
    let third = (1..=3).find(|slot| *slot != to && *slot != after).unwrap();
    let leads = until("one that is not drained leads alone", || {
        let leads = |one: &&Replica| one.status().role == Role::Leader;
        let leaders: Vec<u16> =
            cluster.replicas().filter(leads).map(|one| one.node_id().slot()).collect();
        leaders.first().copied().filter(|leads| leaders.len() == 1 && *leads != to)
    })
    .await;
    cluster.kill(leads).await;
    let expected = if leads == after { third } else { after };
    until("the third one leads", || {
        (cluster.replica(expected).status().role == Role::Leader).then_some(())
    })
    .await;
    write(cluster.replica(expected), put("b", "2")).await;
    cluster.replica(to).drain(Duration::ZERO).await.unwrap();
    assert_eq!(cluster.replica(to).drained_for(), None);
    until_leads(&cluster, to).await;
}

/// An election timeout is at most ten heartbeats, as for distant members: who has no leader is heard before a
/// cluster is formed, also on a slow machine.
fn ten_heartbeats(config: &mut ReplicaConfig) {
    quick(config);
    config.heartbeat_ms = 800;
}

/// Gives the only founder an empty disk, and returns why it forms no cluster; `None`: it is a member again.
async fn with_an_empty_disk(cluster: &mut Cluster) -> Option<String> {
    cluster.kill(1).await;
    cluster.members[0].folder = tempfile::tempdir().unwrap();
    format(&cluster.members[0].folder, 1, 999).await;
    cluster.start(1).await;
    until("it says why", || {
        let replica = cluster.replica(1);
        let members = replica.status().members.len();
        assert_ne!(members, 1, "a second cluster was formed");
        let why = replica.not_formed().filter(|why| why.contains("member 2."));
        (members > 1 || why.is_some()).then_some(why)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_the_configuration_lacks_keeps_a_second_cluster_from_being_formed() {
    let mut cluster = of_one_with(2, ten_heartbeats).await;
    cluster.start(2).await;
    done(&cluster, MemberChange::Add(2)).await;
    // Nobody can lead: the other one looks for its members.
    let why = with_an_empty_disk(&mut cluster).await.expect("a majority is lost");
    assert!(why.contains("member 2."), "{why}");
    cluster.until_asked(2, "HELLO", 5).await;
    assert!(cluster.replica(1).status().members.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_the_configuration_lacks_keeps_a_second_cluster_from_being_formed() {
    let mut cluster = of_one_with(3, ten_heartbeats).await;
    for slot in [2, 3] {
        cluster.start(slot).await;
        done(&cluster, MemberChange::Add(slot)).await;
    }
    move_leader(&cluster, 2).await;
    with_an_empty_disk(&mut cluster).await;
}
