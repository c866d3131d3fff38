//! A process that reaches the peer port of a member, and speaks in the name of another one.

use crate::support::stranger::Stranger;
use crate::support::{Cluster, value_of};
use cairn_client::NodeStatus;
use cairn_raft::peer_proto::{
    AppendRequest, Entry, Envelope, FetchValueRequest, HelloRequest, JoinRequest, LogId,
    RecoverRequest, SnapshotChunkRequest, SnapshotFinishRequest, SnapshotMeta,
    SnapshotOffsetRequest, TransferLeaderRequest, Vote, VoteRequest, forge,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// What must stay as it is.
fn state(statuses: &[NodeStatus]) -> Vec<impl PartialEq + std::fmt::Debug + use<>> {
    let one = |node: &NodeStatus| {
        let members: Vec<_> =
            node.members.iter().map(|member| (member.node_id, member.voter)).collect();
        (
            node.slot,
            node.role,
            node.term,
            node.leader_id,
            node.membership,
            members,
            node.member_state,
        )
    };
    statuses.iter().map(one).collect()
}

/// Anything that carries bytes.
trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Bytes for S {}

/// Connects to an address as this stranger; without TLS if there is none.
async fn connect(stranger: Option<&Stranger>, address: &str) -> std::io::Result<Box<dyn Bytes>> {
    match stranger.cloned() {
        None => Ok(Box::new(TcpStream::connect(address).await?)),
        Some(stranger) => Ok(Box::new(stranger.connect(address.to_owned()).await?)),
    }
}

/// Sends each kind of message once, and returns what it was answered.
async fn send_each(
    (stranger, address): (Option<&Stranger>, &str),
    sender: u64,
    receiver: u64,
    term: u64,
) -> Vec<(&'static str, Result<(), String>)> {
    let envelope = Some(Envelope {
        cluster: "tested".into(),
        sender,
        receiver,
        // Later than any: if it were taken, the member itself would be refused from now on.
        boot_epoch: 1 << 40,
        boot_nonce: 7,
        fencing_history: vec![],
        protocol: 1,
        version: cairn_raft::VERSION,
        ..Default::default()
    });
    let candidate = Some(Vote { term: term + 5, node_id: sender, committed: false });
    let leader = Some(Vote { term: term + 5, node_id: sender, committed: true });
    let far = Some(LogId { term: term + 5, index: 1 << 30 });
    let meta = Some(SnapshotMeta { last_log_id: far, ..Default::default() });
    let append = AppendRequest {
        envelope: envelope.clone(),
        vote: leader,
        entries: vec![Entry {
            term: term + 5,
            index: 0,
            meta: vec![0].into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut answers = Vec::new();
    macro_rules! send {
        ($($name:ident: $request:expr),+ $(,)?) => {$(
            let answer = match connect(stranger, address).await {
                Ok(stream) => forge(stream, stringify!($name), &$request).await,
                Err(error) => Err(error.to_string()),
            };
            answers.push((stringify!($name), answer));
        )+};
    }
    send! {
        HELLO: HelloRequest {
            envelope: envelope.clone(),
            receiver_slot: 1,
            ..Default::default()
        },
        APPEND_ONE: append.clone(),
        APPEND: append,
        VOTE: VoteRequest { envelope: envelope.clone(), vote: candidate, last_log_id: far, leadership_transfer: true },
        PRE_VOTE: VoteRequest { envelope: envelope.clone(), vote: candidate, last_log_id: far, leadership_transfer: false },
        SNAPSHOT_OFFSET: SnapshotOffsetRequest { envelope: envelope.clone(), vote: leader, meta: meta.clone() },
        SNAPSHOT_CHUNK: SnapshotChunkRequest { envelope: envelope.clone(), vote: leader, last_log_id: far, ..Default::default() },
        SNAPSHOT_FINISH: SnapshotFinishRequest { envelope: envelope.clone(), vote: leader, meta, ..Default::default() },
        TRANSFER_LEADER: TransferLeaderRequest { envelope: envelope.clone(), from: leader, to: receiver, last_log_id: None },
        RECOVER: RecoverRequest { envelope: envelope.clone(), unsafe_recovery: true },
        JOIN: JoinRequest {
            envelope: envelope.clone(),
            peer_address: "127.0.0.1:1".into(),
            client_address: "127.0.0.1:2".into(),
            active: true,
        },
        FETCH_VALUE: FetchValueRequest { envelope, log_id: far, hash: vec![0; 16].into(), ..Default::default() },
    }
    answers
}

/// The story: a process that reached the peer port could depose the leader, make a member forget its
/// log, or name itself a member, with one message.
#[tokio::test]
async fn whoever_is_not_the_member_that_a_message_names_changes_nothing() {
    // Nobody campaigns because the machine is slow.
    let timing = "timing.election_min = \"30s\"\ntiming.election_max = \"60s\"";
    let mut cluster = Cluster::secured(3, "64MiB", timing);
    cluster.start_all().await;
    assert_eq!(cluster.cairn(&["put", "key", "value"]).code, 0);
    let before = cluster.until_all("a leader", |node| node.leader.is_some()).await;
    let ca = cluster.certificates.as_ref().expect("secured").ca();
    let (second, none) = (ca.issue("member/2"), None);
    for node in &before {
        let address = value_of(cluster.config(usize::from(node.slot) - 1), "listen.peer");
        // In the name of slot 3 to the others, and of slot 1 to the third.
        let in_name_of = if node.slot == 3 { 1 } else { 3 };
        let sender = before.iter().find(|node| node.slot == in_name_of).expect("a member").node_id;
        for (who, stranger) in [
            ("member 2", Some(Stranger::new(Some(&second)))),
            ("no certificate", Some(Stranger::new(none))),
            ("plain text", None),
        ] {
            let to = (stranger.as_ref(), &*address);
            let answers = send_each(to, sender, node.node_id, node.term).await;
            assert_eq!(answers.len(), 12);
            for (kind, answer) in answers {
                let said = answer.expect_err(&format!("{who}: {kind}"));
                let by_name = "and the certificate of its connection is cairn://tested/member/2";
                assert!(who != "member 2" || said.contains(by_name), "{who}: {kind}: {said}");
            }
        }
    }
    assert_eq!(state(&cluster.statuses().await), state(&before));
    let words = "refused: the message is in the name of member";
    let logs = cluster.logs_with(words, |logs| logs.contains(words)).await;
    assert!(!logs.contains("is known: a late message"), "no boot epoch was taken: {logs}");
    // All of them still take part.
    assert_eq!(cluster.cairn(&["put", "key", "again"]).code, 0);
    let written = cluster.statuses().await.iter().map(|node| node.committed_index).max();
    cluster.until_all("all follow", |node| Some(node.applied_index) >= written).await;
    assert_eq!(state(&cluster.statuses().await), state(&before));
}

/// The same message is taken from the member itself: what refuses the others is the certificate.
#[tokio::test]
async fn a_member_is_heard_under_its_own_certificate() {
    let mut cluster = Cluster::secured(1, "64MiB", "");
    cluster.start_all().await;
    let own = cluster.statuses().await.remove(0);
    let ca = cluster.certificates.as_ref().expect("secured").ca();
    let address = value_of(cluster.config(0), "listen.peer");
    let member = Stranger::new(Some(&ca.issue("member/2")));
    let sender = (2 << 48) + 9;
    for (kind, answer) in send_each((Some(&member), &address), sender, own.node_id, own.term).await
    {
        if kind == "HELLO" {
            assert_eq!(answer, Ok(()));
        } else if let Err(said) = answer {
            assert!(!said.contains("certificate"), "{kind}: {said}");
        }
    }
}
