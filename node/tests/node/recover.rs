//! What `cairn recover` makes of what the members say, against members that say what a test has them say: who is missing,
//! who may be chosen, and what must not have changed between the question and the decision.

use crate::support::{Ran, hold, run};
use cairn_client::proto::kv_server::{Kv, KvServer};
use cairn_client::proto::{self, StatusResponse};
use cairn_client::{Client, Options};
use cairn_node::outage::{Undecided, Waiting, decide, look};
use cairn_ports::HeldPort;
use serde_json::Value;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

const A: u64 = (1 << 48) | 0xa;
const B: u64 = (2 << 48) | 0xb;
const C: u64 = (3 << 48) | 0xc;
const NEW: u64 = (3 << 48) | 0xe;

/// What the members share.
#[derive(Default)]
struct Shared {
    members: Vec<proto::Member>,
    mandates: AtomicUsize,
    /// The member that a mandate named was elected.
    elected: AtomicBool,
}

/// A member that answers by its script; its last answer stays.
#[derive(Clone)]
struct Member {
    shared: Arc<Shared>,
    answers: Arc<Mutex<VecDeque<StatusResponse>>>,
    elected: StatusResponse,
}

/// The addresses of slots 1 to 3, and those members that run.
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

    /// What a recovering member says whose log ends at `last_log_index`.
    fn recovering(&self, id: u64, last_log_index: u64) -> StatusResponse {
        StatusResponse {
            node_id: id,
            slot: slot(id),
            role: "follower".into(),
            standing: "recovering".into(),
            last_log_term: 5,
            last_log_index,
            start: 2,
            run: 7,
            members: self.shared.members.clone(),
            membership_term: 1,
            ..Default::default()
        }
    }

    /// Has a member answer so; once it is elected, with the loss counted at `last_loss_index`.
    fn serve(&self, answers: Vec<StatusResponse>, last_loss_index: u64) {
        let last = answers.last().expect("an answer").clone();
        let role = if last.node_id == A { "leader" } else { "follower" };
        let elected = StatusResponse {
            role: role.into(),
            standing: if last.standing == "recovering" { "active".into() } else { last.standing.clone() },
            losses: u64::from(last_loss_index > 0),
            last_loss_index,
            ..last.clone()
        };
        let address = self.addresses[slot(last.node_id) as usize - 1].parse().expect("an address");
        let member =
            Member { shared: self.shared.clone(), answers: Arc::new(Mutex::new(answers.into())), elected };
        let incoming = TcpIncoming::bind(address).expect("a port");
        tokio::spawn(Server::builder().add_service(KvServer::new(member)).serve_with_incoming(incoming));
    }

    fn recover(&self, arguments: &[&str]) -> Ran {
        let endpoints = self.addresses.join(",");
        let mut all = vec!["recover", "--endpoints", &endpoints];
        all.extend(arguments);
        run(self.folder.path(), &all)
    }

    fn client(&self) -> Client {
        Options::new(self.addresses.clone()).deadline(Duration::from_secs(2)).build().expect("options")
    }

    fn mandates(&self) -> usize {
        self.shared.mandates.load(Ordering::SeqCst)
    }
}

fn slot(id: u64) -> u32 {
    u32::try_from(id >> 48).expect("a slot")
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

    async fn status(&self, _: Request<proto::StatusRequest>) -> Answer<StatusResponse> {
        if self.shared.elected.load(Ordering::SeqCst) {
            return Ok(Response::new(self.elected.clone()));
        }
        let mut answers = self.answers.lock().expect("no panic");
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        Ok(Response::new(next.expect("an answer")))
    }

    async fn mandate(&self, request: Request<proto::MandateRequest>) -> Answer<proto::MandateResponse> {
        assert_eq!(request.into_inner().candidate, A);
        self.shared.mandates.fetch_add(1, Ordering::SeqCst);
        self.shared.elected.store(true, Ordering::SeqCst);
        Ok(Response::new(proto::MandateResponse {}))
    }

    async fn write(&self, _: Request<proto::WriteRequest>) -> Answer<proto::WriteResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn get(&self, _: Request<proto::GetRequest>) -> Answer<proto::GetResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn list(&self, _: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn scrub(&self, _: Request<proto::ScrubRequest>) -> Answer<proto::ScrubResponse> {
        Err(Status::unimplemented("not here"))
    }

    type BatchStream = Pin<Box<dyn futures::Stream<Item = Result<proto::BatchResponse, Status>> + Send>>;

    async fn batch(&self, _: Request<Streaming<proto::BatchRequest>>) -> Answer<Self::BatchStream> {
        Err(Status::unimplemented("not here"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_is_accepted_is_counted_and_voids_the_versions_that_were_read() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    for (id, last) in [(A, 12), (B, 11), (C, 10)] {
        cluster.serve(vec![cluster.recovering(id, last)], 13);
    }
    let asked = cluster.recover(&["-o", "json"]);
    assert_eq!((asked.code, cluster.mandates()), (6, 0), "{asked:?}");
    assert_eq!(json_of(&asked)["chosen"], "1.a");
    let accepted = cluster.recover(&["--accept-loss", "--yes"]);
    assert_eq!((accepted.code, cluster.mandates()), (0, 3), "{accepted:?}");
    assert!(accepted.stdout.contains("read again before a conditional write"), "{accepted:?}");
}

/// The story: a disk was lost with the power, and its machine came up with an empty one. It answered, so that nobody
/// seemed to be missing, and what only the lost disk held was given up without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_voter_in_whose_place_another_identity_answers_is_missing() {
    let cluster = Cluster::of(&[A, B, C], &[NEW]);
    cluster.serve(vec![cluster.recovering(A, 12)], 13);
    cluster.serve(vec![cluster.recovering(B, 11)], 13);
    cluster.serve(vec![StatusResponse { standing: "joining".into(), ..cluster.recovering(NEW, 10) }], 13);
    let refused = cluster.recover(&["--accept-loss", "--yes"]);
    assert_eq!((refused.code, cluster.mandates()), (2, 0), "{refused:?}");
    for words in ["--allow-missing", "node 3.c", "node 3.e answers there, which is joining"] {
        assert!(refused.stderr.contains(words), "{words} is not in {refused:?}");
    }
    let accepted = cluster.recover(&["--accept-loss", "--allow-missing", "--yes"]);
    assert_eq!((accepted.code, cluster.mandates()), (0, 2), "{accepted:?}");
}

/// A newcomer that lost power while it copied has nothing to say: not in the counting, and not as the one to lead.
#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_recovers_neither_counts_nor_is_chosen() {
    let cluster = Cluster::of(&[A, B, C], &[NEW]);
    cluster.serve(vec![cluster.recovering(A, 12)], 0);
    cluster.serve(vec![cluster.recovering(NEW, 20)], 0);
    let asked = json_of(&cluster.recover(&["-o", "json"]));
    assert_eq!((&asked["chosen"], asked["nodes"].as_array().map(Vec::len)), (&Value::from("1.a"), Some(1)));
    let refused = cluster.recover(&["--accept-loss", "--allow-missing", "--yes"]);
    assert_eq!((refused.code, cluster.mandates()), (1, 0), "{refused:?}");
    assert!(refused.stderr.contains("1 of 3 voters answered"), "{refused:?}");
}

/// While a newcomer takes a slot, elections need a majority with the old identity as well as one with the new.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_being_taken_over_counts_once_both_its_voters_answer() {
    let cluster = Cluster::of(&[A, B, C, NEW], &[]);
    cluster.serve(vec![cluster.recovering(A, 12)], 0);
    cluster.serve(vec![StatusResponse { standing: "active".into(), ..cluster.recovering(NEW, 11) }], 0);
    let refused = cluster.recover(&["--accept-loss", "--allow-missing", "--yes"]);
    assert_eq!((refused.code, cluster.mandates()), (1, 0), "{refused:?}");
    assert!(refused.stderr.contains("1 of 3 voters answered"), "{refused:?}");
}

/// The story: a member was named twice, its log grew between its answers, and it was taken for two.
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
async fn nothing_is_decided_of_members_that_started_again_since_they_were_looked_at() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    cluster.serve(vec![cluster.recovering(A, 12)], 13);
    cluster.serve(vec![cluster.recovering(B, 11)], 13);
    let again = StatusResponse { start: 3, run: 8, ..cluster.recovering(C, 10) };
    cluster.serve(vec![cluster.recovering(C, 10), again], 13);
    let refused = cluster.recover(&["--accept-loss", "--yes"]);
    assert_eq!((refused.code, cluster.mandates()), (1, 0), "{refused:?}");
    assert!(refused.stderr.contains("nothing was changed"), "{refused:?}");
    assert_eq!(cluster.recover(&["--accept-loss", "--yes"]).code, 0);
}

/// The story: the member whose vote elected the leader was killed before it asked for its mark, and came back without its
/// mandate: writes were lost, and no status told.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_was_not_counted_is_said_aloud() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    for (id, last) in [(A, 12), (B, 11), (C, 10)] {
        // An earlier loss is none of this one.
        cluster.serve(vec![cluster.recovering(id, last)], 9);
    }
    let ran = cluster.recover(&["--accept-loss", "--yes"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("no loss was counted"), "{ran:?}");
}

/// The story: a member was looked at, started again, and had forgotten more by the time that the others voted for the one that had
/// seemed to reach furthest. A person's decision looked once more, the configuration's did not.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_decides_looks_once_more() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    cluster.serve(vec![cluster.recovering(A, 12)], 13);
    cluster.serve(vec![cluster.recovering(B, 11)], 13);
    let again = StatusResponse { start: 3, run: 8, ..cluster.recovering(C, 10) };
    cluster.serve(vec![cluster.recovering(C, 10), again], 13);
    let client = cluster.client();
    let found = look(&client).await;
    let chosen = found.chosen().expect("somebody to lead");
    let refused = decide(&client, &found, chosen).await;
    assert!(matches!(refused, Err(Undecided::Changed)), "{refused:?}");
    assert_eq!(cluster.mandates(), 0);
    let found = look(&client).await;
    decide(&client, &found, found.chosen().expect("somebody to lead")).await.expect("nothing has changed");
    assert_eq!(cluster.mandates(), 3);
}

/// Each of three voters recovers, remembers, has stopped, or is not there.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_waits_for_a_decision_only_where_every_voter_is_here_and_too_few_remember() {
    const STATES: [&str; 4] = ["recovering", "active", "stopped", "absent"];
    for number in 0..STATES.len().pow(3) {
        let states = [number % 4, number / 4 % 4, number / 16].map(|state| STATES[state]);
        let cluster = Cluster::of(&[A, B, C], &[]);
        for (id, state) in [A, B, C].into_iter().zip(states) {
            let answer = match state {
                "absent" => continue,
                "stopped" => StatusResponse {
                    standing: "active".into(),
                    stopped_reason: "its disk".into(),
                    ..cluster.recovering(id, 12)
                },
                standing => StatusResponse { standing: standing.into(), ..cluster.recovering(id, 12) },
            };
            cluster.serve(vec![answer], 0);
        }
        let count = |which: &str| states.iter().filter(|state| **state == which).count();
        let waiting = look(&cluster.client()).await.waiting();
        let away = count("absent") + count("stopped");
        match waiting {
            None => assert!(count("recovering") == 0 || count("active") >= 2, "{states:?}"),
            Some(Waiting::Decision) => assert!(away == 0 && count("active") < 2, "{states:?}"),
            Some(Waiting::Missing(names)) => {
                assert!(away > 0 && names.len() == away && count("active") < 2, "{states:?} {names:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_waits_for_nothing_while_one_member_hears_a_leader() {
    let cluster = Cluster::of(&[A, B, C], &[]);
    let leader = Some(proto::Leader { node_id: C, client_address: cluster.addresses[2].clone() });
    cluster.serve(vec![cluster.recovering(A, 12)], 0);
    cluster.serve(vec![StatusResponse { leader, ..cluster.recovering(B, 11) }], 0);
    assert_eq!(look(&cluster.client()).await.waiting(), None, "the leader is out of reach for A alone");
}

#[test]
fn a_cluster_that_decides_by_itself_does_not_send_for_a_person() {
    let said = |automatic| Waiting::Decision.sentence(automatic);
    assert_eq!(
        said(false).as_deref(),
        Some("too many members may have forgotten; `cairn recover` decides; waiting does not help")
    );
    assert_eq!(said(true), None);
}
