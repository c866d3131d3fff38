//! Terms that elections cannot have reached, in what other members send and in what is stored.

use super::members::Members;
use super::*;
use crate::transport::terms;
use openraft::ServerState;

/// The story: a member accepted one message with the greatest term, which ended the cluster: no
/// next term was left for an election, not even after all members restarted.
#[tokio::test(flavor = "multi_thread")]
async fn a_term_that_elections_cannot_have_reached_is_refused_in_every_message() {
    let (_folder, replica, service) = replica().await;
    let far = (1 << 32) + 2;
    assert!(
        service.vote(Remote::default(), candidacy(far)).await.is_err(),
        "not even by one that never voted"
    );
    assert!(service.vote(Remote::default(), candidacy(1)).await.unwrap().granted);
    for term in [far, (1 << 62) - 1, 1 << 62, u64::MAX] {
        let leads = || Some(Vote { term, node_id: other().as_u64(), committed: true });
        let snapshot = proto::SnapshotMeta {
            last_log_id: Some(proto::LogId { term: 1, index: 5 }),
            ..Default::default()
        };
        let append = AppendRequest { envelope: envelope(), vote: leads(), ..Default::default() };
        let offset = proto::SnapshotOffsetRequest {
            envelope: envelope(),
            vote: leads(),
            meta: Some(snapshot.clone()),
        };
        let chunk = proto::SnapshotChunkRequest {
            envelope: envelope(),
            vote: leads(),
            last_log_id: snapshot.last_log_id,
            ..Default::default()
        };
        let finish = proto::SnapshotFinishRequest {
            envelope: envelope(),
            vote: leads(),
            meta: Some(snapshot),
            ..Default::default()
        };
        let transfer = TransferLeaderRequest {
            envelope: envelope(),
            from: leads(),
            to: NodeId::new(1, 1).as_u64(),
            last_log_id: None,
        };
        let refused = [
            ("vote", service.vote(Remote::default(), candidacy(term)).await.err()),
            ("pre-vote", service.pre_vote(Remote::default(), candidacy(term)).await.err()),
            ("append", service.append_one(Remote::default(), append).await.err()),
            ("offset", service.snapshot_offset(Remote::default(), offset).await.err()),
            ("chunk", service.snapshot_chunk(Remote::default(), chunk).await.err()),
            ("finish", service.snapshot_finish(Remote::default(), finish).await.err()),
            ("transfer", service.transfer_leader(Remote::default(), transfer).await.err()),
        ];
        for (message, status) in refused {
            let status = status.unwrap_or_else(|| panic!("{message} of term {term}"));
            assert_eq!(status.code(), Code::InvalidArgument, "{message} of term {term}: {status}");
        }
    }
    let answer = service.vote(Remote::default(), candidacy(2)).await.unwrap();
    assert!(answer.granted, "the cluster continues: {answer:?}");
    assert_eq!(replica.engine().vote(GROUP).unwrap()[1..9], 2u64.to_le_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_member_takes_its_first_term_from_its_leader_and_later_ones_within_the_jump() {
    let (_folder, _replica, service) = replica().await;
    let append = |term| {
        let vote = Some(Vote { term, node_id: other().as_u64(), committed: true });
        AppendRequest { envelope: envelope(), vote, ..Default::default() }
    };
    let first = 1 << 40;
    service.append_one(Remote::default(), append(first)).await.unwrap();
    service.append_one(Remote::default(), append(first + (1 << 32))).await.unwrap();
    assert!(service.append_one(Remote::default(), append(first + (2 << 32) + 1)).await.is_err());
}

/// Answers of followers and voters are checked like requests.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_a_term_that_elections_cannot_have_reached_is_refused() {
    let (_folder, replica, service) = replica().await;
    service.vote(Remote::default(), candidacy(1)).await.unwrap();
    let identity = &replica.inner.member.identity;
    let vote = |term| {
        crate::transport::messages::vote_from_proto(
            Some(Vote { term, node_id: other().as_u64(), committed: true }),
            identity.votes_of(other()),
        )
    };
    assert!(vote(1 + (1 << 32)).is_ok());
    assert!(vote(2 + (1 << 32)).is_err(), "even if it claims to lead");
}

/// The story: three votes of one member, each 2^32 above the last, divided a cluster for good. Each
/// member refused the terms of the others, no leader could be elected, and the advice, to replace a
/// member, needs a leader.
#[tokio::test(flavor = "multi_thread")]
async fn members_whose_terms_lie_far_apart_approach_one_another_and_elect_a_leader() {
    let members = Members::with_elections(|_| 300).await;
    let jump = 1_u64 << 32;
    let far = [1, jump + 2, 3 * jump + 2].into_iter().zip(&members.replicas);
    for (term, replica) in far.skip(1) {
        // As the last one of several votes, each of which is valid: this is past the check.
        let raft = &replica.inner.member.raft;
        let last = raft.with_raft_state(|state| state.log_ids.last().cloned()).await.unwrap();
        let vote = crate::core::types::Vote::new(term, NodeId::from_u64(0));
        let mut request = openraft::raft::VoteRequest::new(vote, last);
        request.leadership_transfer = true;
        raft.vote(request).await.unwrap();
    }
    // Two members that met are a quorum, and may elect one another before the third one comes near.
    let commits = |one: &Replica| {
        with_metrics(&one.inner.member.raft, |metrics| {
            let committed = metrics
                .last_applied
                .is_some_and(|last| last.committed_leader_id().term == metrics.current_term);
            (metrics.state == ServerState::Leader && committed).then_some(metrics.current_term)
        })
    };
    let term = members
        .until("a leader that commits", |one| commits(one).filter(|term| *term > jump))
        .await;
    assert!(term < 4 * jump, "{term}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_misled_member_logs_how_to_replace_it() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&folder).await;
    let logged = |engine: &Engine| {
        let log = Log::default();
        let subscriber =
            tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || terms::warn_if_misled(engine, other()));
        String::from_utf8(std::mem::take(&mut *log.0.lock())).unwrap()
    };
    assert_eq!(logged(&engine), "");
    let vote =
        |term: u64| [&[1][..], &term.to_le_bytes(), &other().as_u64().to_le_bytes(), &[0]].concat();
    engine.save_vote(GROUP, &vote(1 << 32)).await.unwrap();
    assert_eq!(logged(&engine), "");
    engine.save_vote(GROUP, &vote((1 << 62) - 1)).await.unwrap();
    let logged = logged(&engine);
    assert!(logged.contains("ERROR") && logged.contains("cairn format"), "{logged}");
}

/// Collects the log lines.
#[derive(Clone, Default)]
struct Log(Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}
