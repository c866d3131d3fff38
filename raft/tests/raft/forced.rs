//! A majority of the disks is lost for good, and an operator makes the cluster anew of one survivor.

use crate::support::{Cluster, format, open, put, quick, until, value, write};
use cairn_engine::Mode;
use cairn_raft::{MemberChange, Role, Survivor, force_new_cluster};
use std::time::Duration;

/// Makes the cluster anew of the member of `slot`, which is down.
async fn force(cluster: &Cluster, slot: u16, generation: u32) -> Survivor {
    let engine = open(cluster.members[usize::from(slot) - 1].folder.path()).await;
    let survivor = Survivor::of(&engine).unwrap();
    let address = cluster.addresses[&slot].clone();
    force_new_cluster(&engine, address, generation).await.unwrap();
    engine.close().await.unwrap();
    survivor
}

async fn until_leads(cluster: &Cluster, slot: u16) {
    until("the survivor leads", || {
        (cluster.replica(slot).status().role == Role::Leader).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_five_one_survivor_goes_on_and_a_second_one_is_another_cluster() {
    let mut cluster = Cluster::started(5, quick).await;
    for number in 0..20 {
        cluster.put(&format!("before{number}"), vec![7; 5000]).await;
    }
    cluster.converge().await;
    for slot in 1..=5 {
        cluster.kill(slot).await;
    }
    // The disks of slots 3, 4 and 5 are gone.
    let survivor = force(&cluster, 1, 7).await;
    assert_eq!(survivor.voters.len(), 5);
    cluster.start(1).await;
    until_leads(&cluster, 1).await;
    write(cluster.replica(1), put("alone", "1")).await;
    assert_eq!(value(cluster.replica(1), "before7").await.unwrap(), vec![7; 5000]);
    let voters: Vec<u16> =
        cluster.replica(1).status().members.iter().map(|member| member.id.slot()).collect();
    assert_eq!(voters, [1]);
    assert_eq!(cluster.replica(1).unsafe_recoveries().count, 1, "the loss is counted");
    assert_eq!(cluster.replica(1).modes().cluster, Some(Mode::Sync));

    // The other survivor comes back as it was: it neither leads nor disturbs.
    cluster.start(2).await;
    cluster.until_asked(1, "PRE_VOTE", 2).await;
    assert_ne!(cluster.replica(2).status().role, Role::Leader);
    assert_eq!(value(cluster.replica(2), "alone").await, None, "it takes nothing");
    write(cluster.replica(1), put("undisturbed", "2")).await;

    // By mistake it is made anew too: both go on, each alone.
    cluster.kill(2).await;
    force(&cluster, 2, 9).await;
    cluster.start(2).await;
    until_leads(&cluster, 2).await;
    write(cluster.replica(2), put("other", "3")).await;
    cluster.until_asked(1, "HELLO", 3).await;
    for slot in [1, 2] {
        let status = cluster.replica(slot).status();
        assert_eq!((status.role, status.members.len()), (Role::Leader, 1));
    }
    assert_eq!(value(cluster.replica(1), "other").await, None);
    assert_eq!(value(cluster.replica(2), "alone").await, None);
    assert_eq!(
        (cluster.replica(1).engine().generation(), cluster.replica(2).engine().generation()),
        (7, 9)
    );

    // An empty disk joins the one that it finds.
    cluster.kill(2).await;
    cluster.members[2].folder = tempfile::tempdir().unwrap();
    format(&cluster.members[2].folder, 3, 777).await;
    cluster.start(3).await;
    let added = async {
        while cluster.replica(1).change_members(MemberChange::Add(3)).await != Ok(None) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), added).await.expect("added");
    until("the new member has it", || cluster.replica(3).votes().then_some(())).await;
    cluster.converge().await;
    assert_eq!(value(cluster.replica(3), "alone").await.unwrap(), "1");
    assert_eq!(cluster.replica(3).engine().generation(), 7);
}
