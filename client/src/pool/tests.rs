//! What a client makes of what nodes report and hints name.

use super::*;
use crate::proto;
use prost::Message;
use std::collections::BTreeSet;

fn hello(members: &[&str]) -> proto::HelloResponse {
    let member = |(slot, address): (u32, &&str)| proto::Member {
        node_id: u64::from(slot),
        slot,
        client_address: address.to_string(),
        peer_address: "p:2".into(),
        voter: true,
    };
    let limits = proto::Limits { max_key_bytes: 9, ..Default::default() };
    let leader = members
        .first()
        .map(|address| proto::Leader { node_id: 1, client_address: address.to_string() });
    proto::HelloResponse {
        cluster: "blue".into(),
        limits: Some(limits),
        leader,
        applied_index: 4,
        members: (1..).zip(members).map(member).collect(),
        protocol: 1,
        ..Default::default()
    }
}

fn known(pool: &Pool) -> Vec<String> {
    pool.all().iter().map(|node| node.address().to_owned()).collect()
}

/// The story: a member moved. The client heard of it from the leader, and then a follower that
/// lagged named the old address again.
#[test]
fn a_node_that_lags_takes_no_member_away() {
    let pool = Pool::new(Options::new(["seed:1"]).seed(1)).unwrap();
    let at = |index, members: &[&str]| proto::HelloResponse {
        membership_term: 2,
        membership_index: index,
        ..hello(members)
    };
    pool.learn("seed:1", at(5, &["a:1", "old:1"])).unwrap();
    pool.learn("seed:1", at(9, &["a:1", "new:1"])).unwrap();
    assert_eq!(known(&pool), ["seed:1", "a:1", "new:1"]);
    pool.learn("seed:1", at(5, &["a:1", "old:1"])).unwrap();
    assert!(known(&pool).contains(&"new:1".to_owned()));
    assert_eq!(pool.view.members().last().unwrap().client_address, "new:1");
    pool.learn("seed:1", at(9, &["a:1", "new:1"])).unwrap();
    assert_eq!(known(&pool), ["seed:1", "a:1", "new:1"]);
}

/// The stories: an operator made a cluster anew of two survivors, and a client that knew the one
/// took what the other one answered for the same history. The first membership of a cluster is
/// the first entry of its log, whose term and index are 0: that was taken for a node that knows
/// none, so a client of a cluster whose members had never changed went on with another one.
#[test]
fn a_client_stays_with_the_generation_of_the_first_formed_cluster_that_answers() {
    for first in [0, 7] {
        let pool = Pool::new(Options::new(["seed:1"]).seed(1)).unwrap();
        let of =
            |generation, members: &[&str]| proto::HelloResponse { generation, ..hello(members) };
        // A node that was never part of a cluster has none yet, and knows no members.
        pool.learn("blank:1", of(0, &[])).unwrap();
        pool.learn("blank:1", of(9, &[])).unwrap();
        pool.learn("seed:1", of(first, &["seed:1", "a:1"])).unwrap();
        pool.learn("blank:1", of(0, &[])).unwrap();
        pool.learn("a:1", of(first, &["seed:1", "a:1"])).unwrap();
        pool.stays(Some(first), "a:1").unwrap();
        for other in [5, 9] {
            let Err(Error::ClusterMismatch { endpoint, expected, found }) =
                pool.learn("b:2", of(other, &["b:2"]))
            else {
                panic!("generation {other} is heard");
            };
            assert_eq!(endpoint, "b:2");
            assert_eq!(expected, format!("blue of generation {first:08x}"));
            assert_eq!(found, format!("blue of generation {other:08x}"));
        }
    }
}

/// The story: of the nodes that a client was given, one was left over when the cluster was made
/// anew, and answered first. The client refused all others until it was started again.
#[test]
fn a_client_that_nobody_has_served_goes_to_the_generation_that_answers_now() {
    let pool = Pool::new(Options::new(["old:1", "a:1"]).seed(1)).unwrap();
    let old = proto::HelloResponse {
        membership_term: 9,
        membership_index: 90,
        ..hello(&["old:1", "lost:1"])
    };
    pool.learn("old:1", old.clone()).unwrap();
    let anew = proto::HelloResponse { generation: 7, ..hello(&["a:1", "b:2"]) };
    pool.learn("a:1", anew).unwrap();
    let addresses = pool.view.members().into_iter().map(|member| member.client_address);
    assert_eq!(addresses.collect::<Vec<_>>(), ["a:1", "b:2"]);
    assert_eq!(pool.leader_address().as_deref(), Some("a:1"));
    pool.stays(Some(7), "a:1").unwrap();
    assert!(matches!(pool.learn("old:1", old), Err(Error::ClusterMismatch { .. })));
}

/// The story: while the first write of a client was under way, it heard of a left-over node. The
/// write was answered, and the client stayed with the left-over node.
#[test]
fn a_client_stays_with_the_generation_that_the_served_request_named() {
    let pool = Pool::new(Options::new(["old:1", "a:1"]).seed(1)).unwrap();
    let anew = proto::HelloResponse { generation: 7, ..hello(&["a:1", "b:2"]) };
    pool.learn("a:1", anew.clone()).unwrap();
    let named = pool.view.caller().generation();
    let old = hello(&["old:1", "lost:1"]);
    pool.learn("old:1", old.clone()).unwrap();
    let late = pool.view.caller().generation();
    assert_eq!((named, late), (Some(7), Some(0)));
    pool.stays(named, "a:1").unwrap();
    assert_eq!(pool.view.caller().generation(), Some(7));
    assert_eq!(pool.leader_address(), None, "the left-over node does not lead");
    assert!(matches!(pool.learn("old:1", old), Err(Error::ClusterMismatch { .. })));
    pool.learn("a:1", anew).unwrap();
    assert_eq!(pool.view.members().first().unwrap().client_address, "a:1");
    // A stale read that the left-over node answers at the same time.
    let Err(Error::ClusterMismatch { endpoint, expected, found }) = pool.stays(late, "old:1")
    else {
        panic!("what another generation answers is taken")
    };
    assert_eq!((&*endpoint, &*expected), ("old:1", "blue of generation 00000007"));
    assert_eq!(found, "blue of generation 00000000");
    assert_eq!(pool.view.caller().generation(), Some(7));
}

#[test]
fn nodes_that_hints_name_are_bounded_and_those_of_the_options_stay() {
    let pool = Pool::new(Options::new(["seed:1"]).seed(1)).unwrap();
    for port in 1..2 * NODES_MAX {
        assert!(pool.at(&format!("hint:{port}")).is_some());
    }
    assert_eq!(pool.len(), 1 + NODES_MAX);
    assert_eq!(known(&pool).first().unwrap(), "seed:1");
}

#[test]
fn any_bytes_add_the_members_that_they_name_or_none() {
    cairn_fuzz::target!(
        "alone" => hello(&[]).encode_to_vec(),
        "members" => hello(&["a:1", "b:2", "127.0.0.1:3"]).encode_to_vec(),
    )
    .for_each(|bytes| {
        let most = 256 * bytes.len() + 4096;
        let decode = || proto::HelloResponse::decode(bytes);
        let Ok(hello) = cairn_fuzz::within(most, decode) else { return };
        let options = Options::new(["a:1"]).seed(1).cluster("blue");
        let pool = Pool::new(options).unwrap();
        // A connection's settings take much more than its address.
        let most = 1024 * bytes.len() + (64 << 10);
        let learnt = cairn_fuzz::within(most, || pool.learn("a:1", hello.clone()));
        assert_eq!(learnt.is_ok(), hello.cluster == "blue");
        let addresses: BTreeSet<_> =
            pool.all().iter().map(|node| node.address().to_owned()).collect();
        assert_eq!(addresses.len(), pool.len(), "each address once");
        assert!(addresses.contains("a:1"), "the options' nodes stay");
        assert!(pool.len() <= 2 + hello.members.len());
        if learnt.is_ok() {
            assert_eq!(pool.view.members().len(), hello.members.len());
        }
    });
}
