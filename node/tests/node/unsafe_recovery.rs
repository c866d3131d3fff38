//! `cairn unsafe-recovery` against scripted members: which ones are missing, which may be chosen,
//! and what must not have changed between the survey and the decision.

use crate::support::{Ran, WAIT_LIMIT, hold, run};
use cairn_client::proto::kv_server::{Kv, KvServer};
use cairn_client::proto::operator_server::{Operator, OperatorServer};
use cairn_client::proto::{self, StatusResponse};
use cairn_client::{Client, MemberState, Options, Role};
use cairn_launch::HeldPort;
use cairn_node::outage::{ElectionBlocked, MemberSurvey, NotApplied, Verdict, decide, survey};
use serde_json::Value;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

const A: u64 = (1 << 48) | 0xa;
const B: u64 = (2 << 48) | 0xb;
const C: u64 = (3 << 48) | 0xc;
const NEW: u64 = (3 << 48) | 0xe;

/// The state that members share.
#[derive(Default)]
struct Shared {
    members: Vec<proto::Member>,
    unsafe_recovery_grants: AtomicUsize,
    /// Whether the member that a grant named was elected.
    elected: AtomicBool,
}

/// A member that answers by its script. The last answer is repeated.
#[derive(Clone)]
struct Member {
    shared: Arc<Shared>,
    answers: Arc<Mutex<VecDeque<StatusResponse>>>,
    elected: StatusResponse,
}

/// The addresses of slots 1 to 3. Only some of the members run.
struct Cluster {
    shared: Arc<Shared>,
    addresses: Vec<String>,
    _ports: Vec<HeldPort>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// `voters` and `learners`, each at the address of its slot.
    fn of(voters: &[u64], learners: &[u64]) -> Cluster {
        let (ports, addresses) = hold(3);
        let member = |id: &u64, voter| proto::Member {
            node_id: *id,
            slot: slot(*id),
            client_address: addresses[slot(*id) as usize - 1].clone(),
            voter,
            ..Default::default()
        };
        let voting = voters.iter().map(|id| member(id, true));
        let members = voting.chain(learners.iter().map(|id| member(id, false))).collect();
        let shared = Arc::new(Shared { members, ..Shared::default() });
        Cluster { shared, addresses, _ports: ports, folder: tempfile::tempdir().expect("a folder") }
    }

    /// The status of a recovering member whose log ends at `last_log_index`.
    fn recovering(&self, id: u64, last_log_index: u64) -> StatusResponse {
        StatusResponse {
            node_id: id,
            slot: slot(id),
            role: Role::Follower.into(),
            member_state: MemberState::Recovering.into(),
            last_log_term: 5,
            last_log_index,
            boot_epoch: 2,
            boot_nonce: 7,
            members: self.shared.members.clone(),
            membership_term: 1,
            ..Default::default()
        }
    }

    /// Starts a member with these answers. Once it is elected, it reports an unsafe recovery at
    /// `last_unsafe_recovery_index`.
    fn serve(&self, answers: Vec<StatusResponse>, last_unsafe_recovery_index: u64) {
        let last = answers.last().expect("an answer").clone();
        let role = if last.node_id == A { Role::Leader } else { Role::Follower };
        let elected = StatusResponse {
            role: role.into(),
            member_state: match last.member_state() {
                proto::MemberState::Recovering => MemberState::Active.into(),
                _ => last.member_state,
            },
            unsafe_recoveries: u64::from(last_unsafe_recovery_index > 0),
            last_unsafe_recovery_index,
            ..last.clone()
        };
        let address = self.addresses[slot(last.node_id) as usize - 1].parse().expect("an address");
        let member = Member {
            shared: self.shared.clone(),
            answers: Arc::new(Mutex::new(answers.into())),
            elected,
        };
        let incoming = TcpIncoming::bind(address).expect("a port");
        let services = Server::builder()
            .add_service(KvServer::new(member.clone()))
            .add_service(OperatorServer::new(member));
        tokio::spawn(services.serve_with_incoming(incoming));
    }

    fn recover(&self, arguments: &[&str]) -> Ran {
        let endpoints = self.addresses.join(",");
        let mut all = vec!["unsafe-recovery", "--endpoints", &endpoints];
        all.extend(arguments);
        run(self.folder.path(), &all)
    }

    fn client(&self) -> Client {
        Options::new(self.addresses.clone())
            .deadline(WAIT_LIMIT)
            .connect_timeout(WAIT_LIMIT)
            .attempt_timeout(WAIT_LIMIT)
            .build()
            .expect("options")
    }

    fn unsafe_recovery_grants(&self) -> usize {
        self.shared.unsafe_recovery_grants.load(Ordering::SeqCst)
    }
}

fn slot(id: u64) -> u32 {
    u32::try_from(id >> 48).expect("a slot")
}

fn chosen(found: &MemberSurvey) -> cairn_node::outage::Answer {
    match found.verdict() {
        Verdict::Decide { chosen } => chosen,
        other => panic!("{other:?}"),
    }
}

fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Kv for Member {
    async fn hello(&self, _: Request<proto::HelloRequest>) -> Answer<proto::HelloResponse> {
        let members = self.shared.members.clone();
        Ok(Response::new(proto::HelloResponse {
            cluster: "tested".into(),
            members,
            protocol: cairn_client::PROTOCOL,
            ..Default::default()
        }))
    }

    async fn safe_to_stop(
        &self,
        _: Request<proto::SafeToStopRequest>,
    ) -> Answer<proto::SafeToStopResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> Answer<StatusResponse> {
        if self.shared.elected.load(Ordering::SeqCst) {
            return Ok(Response::new(self.elected.clone()));
        }
        let mut answers = self.answers.lock().expect("no panic");
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        Ok(Response::new(next.expect("an answer")))
    }

    async fn write(&self, _: Request<proto::WriteRequest>) -> Answer<proto::WriteResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn get(&self, _: Request<proto::GetRequest>) -> Answer<proto::GetResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn get_many(&self, _: Request<proto::GetManyRequest>) -> Answer<proto::GetManyResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn list(&self, _: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        Err(Status::unimplemented("not here"))
    }

    type ScanStream = futures::stream::Empty<Result<proto::ScanPart, Status>>;

    async fn scan(&self, _: Request<proto::ScanRequest>) -> Answer<Self::ScanStream> {
        Err(Status::unimplemented("not here"))
    }

    type MultiplexStream =
        Pin<Box<dyn futures::Stream<Item = Result<proto::MultiplexResponse, Status>> + Send>>;

    async fn multiplex(
        &self,
        _: Request<Streaming<proto::MultiplexRequest>>,
    ) -> Answer<Self::MultiplexStream> {
        Err(Status::unimplemented("not here"))
    }

    type WatchStream = futures::stream::Empty<Result<proto::WatchResponse, Status>>;

    async fn watch(&self, _: Request<Streaming<proto::WatchRequest>>) -> Answer<Self::WatchStream> {
        Err(Status::unimplemented("not here"))
    }
}

#[tonic::async_trait]
impl Operator for Member {
    async fn unsafe_recovery(
        &self,
        request: Request<proto::UnsafeRecoveryRequest>,
    ) -> Answer<proto::UnsafeRecoveryResponse> {
        assert_eq!(request.into_inner().candidate, A);
        self.shared.unsafe_recovery_grants.fetch_add(1, Ordering::SeqCst);
        self.shared.elected.store(true, Ordering::SeqCst);
        Ok(Response::new(proto::UnsafeRecoveryResponse {}))
    }

    async fn scrub(&self, _: Request<proto::ScrubRequest>) -> Answer<proto::ScrubResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn change_members(
        &self,
        _: Request<proto::ChangeMembersRequest>,
    ) -> Answer<proto::ChangeMembersResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn set_mode(&self, _: Request<proto::SetModeRequest>) -> Answer<proto::SetModeResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn move_leader(
        &self,
        _: Request<proto::MoveLeaderRequest>,
    ) -> Answer<proto::MoveLeaderResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn drain(&self, _: Request<proto::DrainRequest>) -> Answer<proto::DrainResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn finish_upgrade(
        &self,
        _: Request<proto::FinishUpgradeRequest>,
    ) -> Answer<proto::FinishUpgradeResponse> {
        Err(Status::unimplemented("not here"))
    }

    type BackupStream = futures::stream::Empty<Result<proto::BackupPart, Status>>;

    async fn backup(&self, _: Request<proto::BackupRequest>) -> Answer<Self::BackupStream> {
        Err(Status::unimplemented("not here"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_recovery_is_counted_and_voids_the_versions_that_were_read() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    for (id, last) in [(A, 12), (B, 11), (C, 10)] {
        cluster.serve(vec![cluster.recovering(id, last)], 13);
    }
    let asked = cluster.recover(&["-o", "json"]);
    assert_eq!((asked.code, cluster.unsafe_recovery_grants()), (6, 0), "{asked:?}");
    assert_eq!(json_of(&asked)["chosen"], "1.a");
    let accepted = cluster.recover(&["--accept-data-loss", "--yes"]);
    assert_eq!((accepted.code, cluster.unsafe_recovery_grants()), (0, 3), "{accepted:?}");
    assert!(accepted.stdout.contains("read again before a conditional write"), "{accepted:?}");
}

/// The story: a disk was lost in the power cut, and its machine came up with an empty one. That
/// machine answered, so no member seemed to be missing, and what only the lost disk held was
/// discarded without a warning.
#[tokio::test(flavor = "multi_thread")]
async fn a_voter_at_whose_address_another_identity_answers_is_missing() {
    let cluster = Cluster::of(&[A, B, C], &[NEW]);
    cluster.serve(vec![cluster.recovering(A, 12)], 13);
    cluster.serve(vec![cluster.recovering(B, 11)], 13);
    cluster.serve(
        vec![StatusResponse {
            member_state: MemberState::Joining.into(),
            ..cluster.recovering(NEW, 10)
        }],
        13,
    );
    let refused = cluster.recover(&["--accept-data-loss", "--yes"]);
    assert_eq!((refused.code, cluster.unsafe_recovery_grants()), (2, 0), "{refused:?}");
    for words in ["--allow-missing", "node 3.c", "node 3.e answers there, which is joining"] {
        assert!(refused.stderr.contains(words), "{words} is not in {refused:?}");
    }
    let accepted = cluster.recover(&["--accept-data-loss", "--allow-missing", "--yes"]);
    assert_eq!((accepted.code, cluster.unsafe_recovery_grants()), (0, 2), "{accepted:?}");
}

/// A learner that lost power while it copied does not count, and cannot be chosen to lead.
#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_recovers_neither_counts_nor_is_chosen() {
    let cluster = Cluster::of(&[A, B, C], &[NEW]);
    cluster.serve(vec![cluster.recovering(A, 12)], 0);
    cluster.serve(vec![cluster.recovering(NEW, 20)], 0);
    let asked = json_of(&cluster.recover(&["-o", "json"]));
    assert_eq!(
        (&asked["verdict"], &asked["chosen"], asked["nodes"].as_array().map(Vec::len)),
        (&Value::from("too-few"), &Value::Null, Some(1))
    );
    let refused = cluster.recover(&["--accept-data-loss", "--allow-missing", "--yes"]);
    assert_eq!((refused.code, cluster.unsafe_recovery_grants()), (4, 0), "{refused:?}");
    assert!(refused.stderr.contains("1 of 3 voters answered"), "{refused:?}");

    cluster.serve(vec![cluster.recovering(B, 11)], 0);
    let asked = json_of(&cluster.recover(&["-o", "json"]));
    assert_eq!(
        (&asked["chosen"], asked["nodes"].as_array().map(Vec::len)),
        (&Value::from("1.a"), Some(2))
    );
}

/// While a learner takes a slot, elections need a majority with the old identity and one with the
/// new identity.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_being_taken_over_counts_once_both_its_voters_answer() {
    let cluster = Cluster::of(&[A, B, C, NEW], &[]);
    cluster.serve(vec![cluster.recovering(A, 12)], 0);
    cluster.serve(
        vec![StatusResponse {
            member_state: MemberState::Active.into(),
            ..cluster.recovering(NEW, 11)
        }],
        0,
    );
    let refused = cluster.recover(&["--accept-data-loss", "--allow-missing", "--yes"]);
    assert_eq!((refused.code, cluster.unsafe_recovery_grants()), (4, 0), "{refused:?}");
    assert!(refused.stderr.contains("1 of 3 voters answered"), "{refused:?}");
}

/// The story: one member had two addresses, its log grew between its two answers, and it was
/// counted as two.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_answers_at_two_addresses_counts_once() {
    let mut cluster = Cluster::of(&[A, B, C], &[]);
    cluster.serve(vec![cluster.recovering(A, 12), cluster.recovering(A, 10)], 0);
    cluster.serve(vec![cluster.recovering(B, 11)], 0);
    let port = cluster.addresses[0].rsplit(':').next().expect("a port").to_owned();
    cluster.addresses.push(format!("localhost:{port}"));
    let asked = json_of(&cluster.recover(&["-o", "json"]));
    let nodes = asked["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.iter().map(|node| &node["node_id"]).collect::<Vec<_>>(), ["1.a", "2.b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_decided_if_a_member_restarted_since_the_survey() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    cluster.serve(vec![cluster.recovering(A, 12)], 13);
    cluster.serve(vec![cluster.recovering(B, 11)], 13);
    let restarted = StatusResponse { boot_epoch: 3, boot_nonce: 8, ..cluster.recovering(C, 10) };
    cluster.serve(vec![cluster.recovering(C, 10), restarted], 13);
    let refused = cluster.recover(&["--accept-data-loss", "--yes"]);
    assert_eq!((refused.code, cluster.unsafe_recovery_grants()), (4, 0), "{refused:?}");
    assert!(refused.stderr.contains("nothing was changed"), "{refused:?}");
    assert_eq!(cluster.recover(&["--accept-data-loss", "--yes"]).code, 0);
}

/// The story: the member whose vote elected the leader was killed before it asked for its
/// unsafe-recovery record, and restarted without its grant. Writes were lost, and no status showed
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_recovery_that_was_not_counted_is_reported() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    for (id, last) in [(A, 12), (B, 11), (C, 10)] {
        // An earlier unsafe recovery is not this one.
        cluster.serve(vec![cluster.recovering(id, last)], 9);
    }
    let ran = cluster.recover(&["--accept-data-loss", "--yes"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("no unsafe recovery was counted"), "{ran:?}");
}

/// The story: after the survey a member restarted and had lost more, and then the others voted for
/// the member that had seemed to have the most up-to-date log. An operator's decision surveyed the
/// members again, the automatic one did not.
#[tokio::test(flavor = "multi_thread")]
async fn every_decision_surveys_the_members_again() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    cluster.serve(vec![cluster.recovering(A, 12)], 13);
    cluster.serve(vec![cluster.recovering(B, 11)], 13);
    let restarted = StatusResponse { boot_epoch: 3, boot_nonce: 8, ..cluster.recovering(C, 10) };
    cluster.serve(vec![cluster.recovering(C, 10), restarted], 13);
    let client = cluster.client();
    let found = survey(&client).await;
    let refused = decide(&client, &found, &chosen(&found)).await;
    assert!(matches!(refused, Err(NotApplied::Changed)), "{refused:?}");
    assert_eq!(cluster.unsafe_recovery_grants(), 0);
    let found = survey(&client).await;
    decide(&client, &found, &chosen(&found)).await.expect("nothing has changed");
    assert_eq!(cluster.unsafe_recovery_grants(), 3);
}

/// Each of three voters is recovering, active, stopped or absent.
#[tokio::test(flavor = "multi_thread")]
async fn an_election_needs_a_decision_only_if_every_voter_answers_and_too_few_are_active() {
    const STATES: [&str; 4] = ["recovering", "active", "stopped", "absent"];
    for number in 0..STATES.len().pow(3) {
        let states = [number % 4, number / 4 % 4, number / 16].map(|state| STATES[state]);
        let cluster = Cluster::of(&[A, B, C], &[]);
        for (id, state) in [A, B, C].into_iter().zip(states) {
            let answer = match state {
                "absent" => continue,
                "stopped" => StatusResponse {
                    member_state: MemberState::Active.into(),
                    stopped_reason: "its disk".into(),
                    ..cluster.recovering(id, 12)
                },
                name => StatusResponse {
                    member_state: name.parse::<MemberState>().expect("a state").into(),
                    ..cluster.recovering(id, 12)
                },
            };
            cluster.serve(vec![answer], 0);
        }
        let count = |which: &str| states.iter().filter(|state| **state == which).count();
        let election_blocked = survey(&cluster.client()).await.election_blocked();
        let away = count("absent") + count("stopped");
        match election_blocked {
            None => assert!(count("recovering") == 0 || count("active") >= 2, "{states:?}"),
            Some(ElectionBlocked::Decision) => {
                assert!(away == 0 && count("active") < 2, "{states:?}")
            }
            Some(ElectionBlocked::Missing(names)) => {
                assert!(
                    away > 0 && names.len() == away && count("active") < 2,
                    "{states:?} {names:?}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_election_is_blocked_while_a_member_knows_a_leader() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    let leader = Some(proto::Leader { node_id: C, client_address: cluster.addresses[2].clone() });
    cluster.serve(vec![cluster.recovering(A, 12)], 0);
    cluster.serve(vec![StatusResponse { leader, ..cluster.recovering(B, 11) }], 0);
    assert_eq!(
        survey(&cluster.client()).await.election_blocked(),
        None,
        "only A cannot reach the leader"
    );
}

#[test]
fn a_cluster_that_decides_automatically_does_not_ask_for_an_operator() {
    let said = |automatic| ElectionBlocked::Decision.sentence(automatic);
    assert_eq!(
        said(false).as_deref(),
        Some(
            "too many members may have lost acknowledged writes; `cairn unsafe-recovery` decides; waiting does not help"
        )
    );
    assert_eq!(said(true), None);
}
