//! A member that may lack what it acknowledged: what it withholds, and what a grant lets it do.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_recovering_member_gives_no_vote_no_pre_vote_and_takes_no_leadership() {
    let (_folder, replica, service) = replica().await;
    replica.inner.member.change(Event::Lost);
    let refused = |status: tonic::Status| {
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("recovering"), "{}", status.message());
    };
    refused(service.pre_vote(Remote::default(), candidacy(1)).await.unwrap_err());
    refused(service.vote(Remote::default(), candidacy(1)).await.unwrap_err());
    let transfer = TransferLeaderRequest {
        envelope: envelope(),
        from: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
        to: NodeId::new(1, 1).as_u64(),
        last_log_id: None,
    };
    refused(service.transfer_leader(Remote::default(), transfer).await.unwrap_err());
    assert!(replica.engine().vote(GROUP).is_none(), "nothing was promised");
}

fn unsafe_recovery() -> UnsafeRecovery {
    UnsafeRecovery { candidate: other(), epoch: BootEpoch { number: 1, nonce: 1 } }
}

/// The grant was given so long ago that it has expired.
fn expire(member: &LocalMember, grant: UnsafeRecovery) {
    assert_eq!(member.standing().grant(runtime::now()), Some(grant));
    member.change(Event::Granted(grant, runtime::now() - UnsafeRecovery::LIFETIME));
}

/// The story: an operator's grant led to no leader, and had no end. The missing member came back,
/// and the others elected a leader without what it held.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_lets_votes_through_for_its_candidate_until_it_expires() {
    let (_folder, replica, service) = replica().await;
    replica.inner.member.change(Event::Lost);
    replica
        .unsafe_recovery(UnsafeRecovery {
            epoch: BootEpoch { number: 1, nonce: 2 },
            ..unsafe_recovery()
        })
        .await
        .unwrap();
    assert!(
        service.vote(Remote::default(), candidacy(1)).await.is_err(),
        "another boot epoch than the one in the grant"
    );
    replica.unsafe_recovery(unsafe_recovery()).await.unwrap();
    assert!(service.pre_vote(Remote::default(), candidacy(1)).await.unwrap().granted);
    assert!(service.vote(Remote::default(), candidacy(1)).await.unwrap().granted);
    expire(&replica.inner.member, unsafe_recovery());
    assert!(service.pre_vote(Remote::default(), candidacy(2)).await.is_err());
    assert!(service.vote(Remote::default(), candidacy(2)).await.is_err());
    replica.unsafe_recovery(unsafe_recovery()).await.unwrap();
    assert!(
        service.vote(Remote::default(), candidacy(2)).await.unwrap().granted,
        "the grant was given again"
    );
}

/// The story: one member led, and two recovered under its grant, the second after others had
/// elected a leader without the grant: one decision was counted as two unsafe recoveries.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_leadership_under_a_grant_counts_as_an_unsafe_one() {
    let (_folder, replica, service) = replica().await;
    let member = &replica.inner.member;
    member.change(Event::Lost);
    let is_unsafe = |leader: NodeId, term| {
        let vote = Vote { term, node_id: leader.as_u64(), committed: true };
        member.is_unsafe_leadership(
            leader,
            &crate::transport::messages::vote_from_proto(
                Some(vote),
                member.identity.votes_of(leader),
            )
            .unwrap(),
        )
    };
    assert!(!is_unsafe(other(), 1));
    replica.unsafe_recovery(unsafe_recovery()).await.unwrap();
    assert!(is_unsafe(other(), 1), "whether this member's own vote was needed or not");
    assert!(!is_unsafe(NodeId::new(3, 3), 1), "another member leads");
    service.vote(Remote::default(), candidacy(1)).await.unwrap();
    expire(member, unsafe_recovery());
    assert!(is_unsafe(other(), 1), "how it was elected does not change");
    assert!(!is_unsafe(other(), 2), "elected again, by others");
    assert!(!is_unsafe(NodeId::new(3, 3), 1));
}

/// The story: a member that needed an unsafe-recovery record asked again after a restart, and asked
/// only for a boot-epoch record that time. And the late request of its earlier boot replaced the
/// one of the later boot.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_for_a_record_are_merged() {
    let (_folder, replica) = alone().await;
    let LocalMember { records, progress, raft, .. } = &*replica.inner.member;
    let vote = with_metrics(raft, |seen| seen.vote);
    let epoch = |number| BootEpoch { number, nonce: number };
    let boot = |number| Boot { epoch: epoch(number), version: VERSION, release: Arc::default() };
    let unsafe_recoveries = progress.unsafe_recoveries().count;
    for (number, unsafe_recovery) in [(5, true), (6, false), (5, false)] {
        records.propose(vote, other(), boot(number), unsafe_recovery);
    }
    let logged = async {
        while !progress.has_epoch(other(), epoch(6)) {
            runtime::sleep(Duration::from_millis(5)).await;
        }
    };
    runtime::timeout(WAIT_LIMIT, logged).await.expect("the record of the later epoch");
    assert!(
        progress.unsafely_recovered_since(vote.leader_id.term),
        "the unsafe-recovery record precedes the boot-epoch record"
    );
    assert!(progress.unsafe_recoveries().count > unsafe_recoveries);
}

/// Elected in the last moment of its grant, a member recovers under its own leadership.
#[tokio::test(flavor = "multi_thread")]
async fn the_candidate_campaigns_while_its_grant_is_valid_and_stays_leader_after_it() {
    let (_folder, replica, _service) = replica().await;
    let member = &replica.inner.member;
    member.change(Event::Lost);
    let own = replica.node_id();
    let asks_for_votes = || member.may(Act::AskForVotes).is_ok();
    assert!(!asks_for_votes() && !member.standing().was_chosen(own));
    let grant = UnsafeRecovery { candidate: own, epoch: replica.engine().boot_epoch() };
    replica.unsafe_recovery(grant).await.unwrap();
    assert!(asks_for_votes() && member.standing().was_chosen(own));
    expire(member, grant);
    assert!(!asks_for_votes() && member.standing().was_chosen(own));
}

/// A grant elects a leader that may lack what it acknowledged: a change of the members, or
/// acknowledgements before syncs, would lean on what it does not have.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_recovers_does_not_count_itself_among_the_healthy() {
    let (_folder, replica) = alone().await;
    let inner = &replica.inner;
    let healthy = || {
        let metrics = with_metrics(&inner.member.raft, Clone::clone);
        inner.service.ack_modes.healthy(&inner.member, &metrics)
    };
    assert_eq!(healthy(), BTreeSet::from([replica.node_id()]));
    inner.member.change(Event::Lost);
    assert_eq!(healthy(), BTreeSet::new());
    inner.member.change(Event::Recovered);
    assert_eq!(healthy(), BTreeSet::from([replica.node_id()]));
}

/// A candidate that is being stopped begins no election: the grant would keep the others waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_that_is_being_stopped_takes_no_grant() {
    let (_folder, replica, _service) = replica().await;
    let member = &replica.inner.member;
    member.change(Event::Lost);
    member.change(Event::Leaves);
    let grant =
        UnsafeRecovery { candidate: replica.node_id(), epoch: replica.engine().boot_epoch() };
    let refused = replica.unsafe_recovery(grant).await.unwrap_err();
    assert!(refused.contains("is being stopped"), "{refused}");
    replica.unsafe_recovery(unsafe_recovery()).await.expect("it votes for another one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovering_member_takes_entries_only_from_the_leadership_that_agreed_to_help() {
    let (_folder, replica, service) = replica().await;
    replica.inner.member.change(Event::Lost);
    let append = AppendRequest {
        envelope: envelope(),
        vote: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
        previous: None,
        entries: vec![],
        committed: None,
        ack_mode_number: 0,
        ack_fast: false,
        matched: None,
    };
    let refused = service.append_one(Remote::default(), append.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let member = &replica.inner.member;
    let (leader, vote) = member.take_refused().unwrap();
    assert_eq!((leader, member.standing().helper()), (other(), None));
    member.change(Event::Helped(vote));
    let mut later = append.clone();
    later.vote.as_mut().unwrap().term = 2;
    assert!(
        service.append_one(Remote::default(), later).await.is_err(),
        "the leader of another term has not agreed to help"
    );
    assert!(member.take_refused().is_some_and(|(_, vote)| vote.leader_id.term == 2));
    let mut earlier = append.clone();
    earlier.vote.as_mut().unwrap().term = 0;
    assert!(service.append_one(Remote::default(), earlier).await.is_err());
    assert_eq!(member.take_refused(), None, "a late message of an earlier leader is ignored");
    assert!(service.append_one(Remote::default(), append).await.is_ok());
    // The status is updated a moment later.
    while replica.status().term != 1 {
        tokio::task::yield_now().await;
    }
}
