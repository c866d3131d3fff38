//! Forming a cluster, and configurations that are refused.

use crate::support::{Cluster, put, value, write};
use cairn_engine::Mode;
use cairn_raft::{Replica, ReplicaConfig, Role};

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_one_forms_without_help() {
    let cluster = Cluster::started(1, |_| ()).await;
    let leader = cluster.leader().await;
    write(leader, put("a", "1")).await;
    leader.read_barrier().await.unwrap();
    assert_eq!(value(leader, "a").await.unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_formed_before_all_members_have_answered() {
    let mut cluster = Cluster::new(3, |_| ()).await;
    cluster.start(1).await;
    cluster.start(2).await;
    // Slot 3 is asked for its identity again and again, and does not answer.
    let silent = tokio::net::TcpListener::bind(cluster.members[2].listen).await.unwrap();
    for _ in 0..5 {
        drop(silent.accept().await.unwrap());
    }
    drop(silent);
    for replica in cluster.replicas() {
        assert_eq!((replica.status().members.len(), replica.status().role), (0, Role::Learner));
    }
    cluster.start(3).await;
    cluster.leader().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_not_in_its_own_configuration_is_refused() {
    let mut cluster = Cluster::new(2, |_| ()).await;
    cluster.addresses.remove(&2);
    let config = ReplicaConfig::new(Mode::Device, cluster.addresses.clone());
    let engine = crate::support::open(cluster.members[1].folder.path()).await;
    let Err(error) = Replica::start(config, engine).await else {
        panic!("it started");
    };
    assert!(error.to_string().contains("slot 2 is not among the initial members"), "{error}");
}
