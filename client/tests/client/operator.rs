//! The operator's calls find the leader, are repeated only where that does no harm, and pass on why
//! they were refused.
use std::time::Duration;

use crate::fake::{Cluster, Node, Step, not_leader, options, refuse};
use cairn_client::proto::error_detail::Reason;
use cairn_client::{Error, MemberChange, Mode};

/// A follower, the leader that it names, and a client that knows the follower alone.
async fn two() -> (Cluster, Node, Node, cairn_client::Operator) {
    let cluster = Cluster::new("test");
    let (follower, leader) = (Node::start(&cluster).await, Node::start(&cluster).await);
    follower.always(not_leader(&leader.address));
    let client = options(&[&follower]).connect().await.unwrap();
    (cluster, follower, leader, client.operator())
}

#[tokio::test]
async fn a_change_of_members_goes_to_the_leader_and_says_what_it_waits_for_until_it_is_done() {
    let (_, _follower, _leader, operator) = two().await;
    for change in [
        MemberChange::Add(4),
        MemberChange::Remove(4),
        MemberChange::Replace(4 << 48 | 5),
        MemberChange::Promote(4),
        MemberChange::Move(4, "10.0.0.4:7401".to_owned()),
    ] {
        assert_eq!(change.slot(), 4);
        let waits_for = operator.change_members(&change).await.unwrap();
        assert_eq!(waits_for.as_deref(), Some("being asked again"), "{change:?}");
        assert_eq!(operator.change_members(&change).await, Ok(None), "{change:?}");
    }
}

#[tokio::test]
async fn a_change_of_members_is_asked_for_again_after_its_answer_was_lost() {
    let (_, _follower, leader, operator) = two().await;
    leader.plays([Step::ApplyAndBreak]);
    assert_eq!(operator.change_members(&MemberChange::Add(4)).await, Ok(None));
}

#[tokio::test]
async fn a_mode_is_set_at_the_leader_also_after_its_answer_was_lost() {
    let (cluster, _follower, leader, operator) = two().await;
    leader.plays([refuse(Reason::NoLeader), Step::ApplyAndBreak]);
    assert_eq!(operator.set_mode(Mode::Sync).await, Ok(()));
    assert_eq!(cluster.mode(), i32::from(Mode::Sync));
}

#[tokio::test]
async fn an_upgrade_is_finished_at_the_leader_also_after_its_answer_was_lost() {
    let (cluster, _follower, leader, operator) = two().await;
    leader.plays([refuse(Reason::NoLeader), Step::ApplyAndBreak]);
    assert_eq!(operator.finish_upgrade(2).await, Ok(()));
    assert_eq!(cluster.version(), 2);
}

#[tokio::test]
async fn leadership_moves_once_even_if_the_answer_is_lost() {
    let (_, _follower, leader, operator) = two().await;
    leader.plays([Step::ApplyAndBreak]);
    let lost = operator.move_leader(None).await.unwrap_err();
    assert!(
        matches!(&lost, Error::Unavailable { last_error, .. } if last_error.contains("may have had its effect")),
        "{lost}"
    );
    assert_eq!(*leader.moves.lock().unwrap(), [0]);
    // To a member that is named it is moved again: that changes nothing.
    leader.plays([Step::ApplyAndBreak]);
    let now = operator.move_leader(Some(3)).await.unwrap();
    assert_eq!((now.node_id, now.client_address.as_str()), (3 << 48, "10.0.0.9:7400"));
    assert_eq!(*leader.moves.lock().unwrap(), [0, 3, 3]);
}

#[tokio::test]
async fn a_refusal_is_final_and_carries_the_servers_words() {
    let (_, follower, leader, operator) = two().await;
    leader.always(refuse(Reason::Refused));
    let refused = Error::Refused { message: "refused".to_owned() };
    let changed = operator.change_members(&MemberChange::Remove(1)).await;
    assert_eq!(changed, Err(refused.clone()));
    assert_eq!(operator.set_mode(Mode::Replicated).await, Err(refused.clone()));
    assert_eq!(operator.finish_upgrade(2).await, Err(refused.clone()));
    assert_eq!(operator.move_leader(None).await, Err(refused.clone()));
    let minute = Duration::from_secs(60);
    assert_eq!(operator.drain(&leader.address, minute).await, Err(refused.clone()));
    assert!(!refused.is_transient() && !refused.is_outcome_unknown());
    assert_eq!(*leader.moves.lock().unwrap(), [0]);
    assert!(follower.drains.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_node_is_drained_alone_and_without_a_leader() {
    let cluster = Cluster::new("test");
    let (one, other) = (Node::start(&cluster).await, Node::start(&cluster).await);
    one.knows(&[&one, &other]);
    let operator = options(&[&one]).connect().await.unwrap().operator();
    operator.drain(&other.address, Duration::from_secs(60)).await.unwrap();
    operator.drain(&other.address, Duration::ZERO).await.unwrap();
    assert_eq!(*other.drains.lock().unwrap(), [60_000, 0]);
    assert!(one.drains.lock().unwrap().is_empty());
}

#[tokio::test]
async fn without_a_leader_the_call_ends_at_the_deadline() {
    let cluster = Cluster::new("test");
    let node = Node::start(&cluster).await;
    node.always(refuse(Reason::NoLeader));
    let client = options(&[&node]).deadline(Duration::from_secs(3)).connect().await.unwrap();
    let answer = client.operator().change_members(&MemberChange::Add(4)).await;
    // The deadline may cut the last attempt short.
    let ended = matches!(answer, Err(Error::NoLeader { .. } | Error::DeadlineExceeded { .. }));
    assert!(ended, "{answer:?}");
}
