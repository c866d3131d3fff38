//! A replica beside a cluster that was made anew of one member.

use super::*;
use crate::transport::identity::epoch_of;

fn of_generation(generation: u32) -> Option<Envelope> {
    envelope().map(|envelope| Envelope { generation, ..envelope })
}

fn told(generation: u32, uninitialized: bool) -> proto::HelloResponse {
    let envelope = of_generation(generation);
    proto::HelloResponse { envelope, uninitialized, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blank_node_takes_the_generation_of_a_formed_member_and_its_directory_remembers_it() {
    let (_folder, replica, _service) = replica().await;
    let identity = &replica.inner.member.identity;
    let generations = || (identity.generation(), replica.engine().generation());
    identity.adopt_generation(&told(7, true)).await;
    assert_eq!(generations(), (0, 0), "told by a node that is part of no cluster");
    identity.adopt_generation(&told(7, false)).await;
    assert_eq!(generations(), (7, 7));
}

/// The story: of the survivors of a cluster one was made anew. The others heard of its generation, and
/// what they held became part of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_voted_keeps_its_generation() {
    let (_folder, replica, service) = replica().await;
    assert!(service.vote(Remote::default(), candidacy(1)).await.unwrap().granted);
    let identity = &replica.inner.member.identity;
    identity.adopt_generation(&told(7, false)).await;
    assert_eq!((identity.generation(), replica.engine().generation()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_of_another_generation_is_told_this_one_and_nothing_of_it_is_recorded() {
    let (_folder, replica, service) = replica().await;
    let hello = HelloRequest {
        envelope: of_generation(7),
        receiver_slot: 1,
        peer_address: "127.0.0.1:9".into(),
        client_address: "127.0.0.1:8".into(),
        ..Default::default()
    };
    let answer = service.hello(Remote::default(), hello.clone()).await.unwrap();
    let envelope = answer.envelope.as_ref().unwrap();
    assert_eq!((envelope.generation, envelope.sender), (0, replica.node_id().as_u64()));
    assert!(answer.uninitialized, "so that no blank node takes this one's generation");
    let LocalMember { identity, addresses, .. } = &*replica.inner.member;
    let epoch = epoch_of(hello.envelope.as_ref());
    assert!(!identity.identities.is_newest(other(), epoch));
    assert_eq!(addresses.unknown(), Vec::<String>::new());
    let formed = identity.formation.formed().unwrap();
    assert!(formed.contains("looks for members here"), "so that it forms none beside it: {formed}");
    service
        .hello(Remote::default(), HelloRequest { envelope: of_generation(0), ..hello })
        .await
        .unwrap();
    assert!(identity.identities.is_newest(other(), epoch));
    assert_eq!(addresses.unknown(), ["127.0.0.1:9"]);
}

/// The story: a member of the old cluster asked for a vote and gave up while the disk was slow. The
/// vote was stored behind the new generation.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_sender_that_gave_up_has_sent_is_carried_out_before_a_generation_is_taken() {
    let (_folder, replica, service) = replica().await;
    let LocalMember { identity, raft, .. } = &*replica.inner.member;
    let (busy, is_busy) = tokio::sync::oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let holding = tokio::spawn({
        let raft = raft.clone();
        let hold = move |_: &_| {
            busy.send(()).unwrap();
            released.recv().unwrap();
        };
        async move { raft.with_raft_state(hold).await }
    });
    is_busy.await.unwrap();
    let limit = Duration::from_millis(100);
    let vote = runtime::timeout(limit, service.vote(Remote::default(), candidacy(1))).await;
    assert!(vote.is_none(), "the sender gives up");
    let taking = tokio::spawn({
        let identity = identity.clone();
        async move { identity.adopt_generation(&told(7, false)).await }
    });
    runtime::sleep(limit).await;
    release.send(()).unwrap();
    taking.await.unwrap();
    holding.await.unwrap().unwrap();
    assert_eq!((identity.generation(), replica.engine().generation()), (0, 0));
    let voted = raft.with_raft_state(|state| state.vote_ref().leader_id.term).await;
    assert_eq!(voted.unwrap(), 1);
}

/// The story: a member of the old cluster was heard before the directory had the new generation, and
/// its vote or entries were stored behind that.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_message_is_carried_out_no_generation_is_taken_and_while_one_is_taken_nobody_is_heard()
 {
    let (_folder, replica, service) = replica().await;
    let identity = replica.inner.member.identity.clone();
    let carried_out = identity.keep_generation().unwrap();
    let taking = tokio::spawn({
        let identity = identity.clone();
        async move { identity.adopt_generation(&told(7, false)).await }
    });
    let until = runtime::now() + WAIT_LIMIT;
    while identity.keep_generation().is_ok() {
        assert!(runtime::now() < until, "it does not wait for the message");
        runtime::sleep(Duration::from_millis(5)).await;
    }
    let refused = service.vote(Remote::default(), candidacy(1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert_eq!((identity.generation(), replica.engine().generation()), (0, 0));
    drop(carried_out);
    taking.await.unwrap();
    assert_eq!((identity.generation(), replica.engine().generation()), (7, 7));
    let refused = service.vote(Remote::default(), candidacy(1)).await.unwrap_err();
    assert!(refused.message().contains("generation 00000007"), "{refused}");
}
