use super::*;
use crate::core::proto;
use prost::Message;

fn envelope(cluster: &str, sender: NodeId, receiver: NodeId) -> Envelope {
    envelope_of(cluster, sender, receiver, 1, 1)
}

fn envelope_of(
    cluster: &str,
    sender: NodeId,
    receiver: NodeId,
    boot_epoch: u64,
    boot_nonce: u64,
) -> Envelope {
    Envelope {
        cluster: cluster.into(),
        sender: sender.as_u64(),
        receiver: receiver.as_u64(),
        boot_epoch,
        boot_nonce,
        protocol: PROTOCOL,
        version: VERSION,
        ..Envelope::default()
    }
}

fn answer(envelope: Envelope) -> proto::JoinResponse {
    proto::JoinResponse { envelope: Some(envelope), voter: false }
}

fn member(identities: Identities) -> PeerIdentity {
    let epoch = BootEpoch { number: 1, nonce: 9 };
    PeerIdentity { epoch, identities, ..PeerIdentity::without_identity("blue", NodeId::new(1, 11)) }
}

fn here() -> PeerIdentity {
    member(Identities::default())
}

#[test]
fn an_earlier_boot_epoch_and_a_copy_are_refused_once_a_later_one_is_known() {
    let here = here();
    let observe = |number, nonce| {
        let message = envelope_of("blue", NodeId::new(2, 22), NodeId::new(1, 11), number, nonce);
        here.sender_of_request(&Remote::default(), Some(&message)).map(drop)
    };
    observe(4, 40).unwrap();
    observe(4, 40).unwrap();
    assert!(observe(4, 41).unwrap_err().message().contains("older copy"));
    assert!(observe(3, 30).is_err());
    observe(5, 50).unwrap();
    assert!(observe(4, 40).is_err());
    observe(5, 50).unwrap();
}

#[test]
fn a_message_of_a_removed_identity_is_refused_in_requests_and_answers() {
    let identities = Identities::default();
    let here = member(identities.clone());
    let old = NodeId::new(2, 22);
    let message = envelope("blue", old, NodeId::new(1, 11));
    here.sender_of_request(&Remote::default(), Some(&message)).unwrap();
    identities.set_logged(&Arc::default(), &Arc::new([old].into()), 0);
    assert!(
        here.sender_of_request(&Remote::default(), Some(&message)).unwrap_err().code()
            == REFUSED_IDENTITY
    );
    assert!(here.sender_of_hello(&Remote::default(), Some(&message), 1).is_err());
    assert!(here.check_answer(&answer(message), old).is_err());
    here.sender_of_request(
        &Remote::default(),
        Some(&envelope("blue", NodeId::new(2, 23), NodeId::new(1, 11))),
    )
    .unwrap();
}

/// The certificates of member 1 of cluster blue.
fn certificates(folder: &tempfile::TempDir) -> Tls {
    use cairn_tls::issue::{Authority, Validity};
    let (authority, ca) = Authority::create("blue", Validity::days(1)).unwrap();
    let own = CertificateName::member("blue", 1).unwrap();
    let own = authority.issue(&own, &[], Validity::days(1)).unwrap();
    let [ca, certificate, key] =
        [("ca", ca.certificate), ("own", own.certificate), ("key", own.key)].map(|(name, text)| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        });
    Tls::load(cairn_tls::Files { ca, certificate, key }).unwrap()
}

/// The story: whoever reached the peer port could speak for any member. A message with a late
/// boot epoch, even one that was refused, shut the member out.
#[test]
fn with_certificates_a_message_counts_only_under_the_name_of_its_sender() {
    let folder = tempfile::tempdir().unwrap();
    let here = here().with_tls(Some(certificates(&folder)));
    let under = |name: Option<&str>| {
        let certificate = name.map(|name| name.parse().unwrap());
        Remote { certificate, address: None }
    };
    let (other, own) = (NodeId::new(2, 22), NodeId::new(1, 11));
    let late = envelope_of("blue", other, own, 1 << 40, 7);
    for name in [
        None,
        Some("cairn://blue/member/3"),
        Some("cairn://blue/client/2"),
        Some("cairn://red/member/2"),
    ] {
        let remote = under(name);
        let status = here.sender_of_request(&remote, Some(&late)).unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(
            status.message().contains("the certificate of its connection is"),
            "{}",
            status.message()
        );
        assert!(here.sender_of_hello(&remote, Some(&late), 1).is_err());
    }
    // An answer in its name on another slot's connection.
    assert!(here.check_answer(&answer(late.clone()), NodeId::new(3, 33)).is_err());
    assert!(here.sender_of_hello_answer(&answer(late), 3).is_err());
    // Nothing of that was recorded: the member itself is heard, in an early boot epoch.
    let first = envelope_of("blue", other, own, 1, 1);
    let remote = under(Some("cairn://blue/member/2"));
    assert_eq!(here.sender_of_request(&remote, Some(&first)).unwrap(), other);
    assert_eq!(here.sender_of_hello(&remote, Some(&first), 1).unwrap(), other);
    assert_eq!(here.sender_of_hello_answer(&answer(first), 2).unwrap(), other);
}

#[test]
fn a_request_for_this_member_is_taken() {
    let message = envelope("blue", NodeId::new(2, 22), NodeId::new(1, 11));
    assert_eq!(
        here().sender_of_request(&Remote::default(), Some(&message)).unwrap(),
        NodeId::new(2, 22)
    );
}

#[test]
fn a_request_for_an_earlier_incarnation_is_refused() {
    let message = envelope("blue", NodeId::new(2, 22), NodeId::new(1, 10));
    let status = here().sender_of_request(&Remote::default(), Some(&message)).unwrap_err();
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert!(status.message().contains("for member 1.a, this is 1.b"), "{}", status.message());
}

#[test]
fn a_request_of_another_cluster_is_refused() {
    let message = envelope("red", NodeId::new(2, 22), NodeId::new(1, 11));
    let status = here().sender_of_request(&Remote::default(), Some(&message)).unwrap_err();
    assert!(status.message().contains("cluster `red`"), "{}", status.message());
}

#[tokio::test]
async fn a_message_of_another_generation_is_refused_and_a_blank_node_takes_the_generation() {
    let (here, other) = (here(), NodeId::new(2, 22));
    let message = Envelope { generation: 7, ..envelope("blue", other, NodeId::new(1, 11)) };
    assert!(here.is_other_generation(Some(&message)));
    let status = here.sender_of_request(&Remote::default(), Some(&message)).unwrap_err();
    assert!(status.message().contains("generation 00000007"), "{}", status.message());
    assert!(here.check_answer(&answer(message.clone()), other).is_err());
    let hello = |envelope: Envelope, uninitialized| {
        let envelope = Some(envelope);
        proto::HelloResponse { envelope, uninitialized, ..Default::default() }
    };
    let foreign = Envelope { cluster: "red".into(), ..message.clone() };
    here.adopt_generation(&hello(foreign, false)).await;
    assert_eq!(here.generation(), 0);
    here.adopt_generation(&hello(message.clone(), true)).await;
    assert_eq!(here.generation(), 0, "that node is part of no cluster either");
    here.adopt_generation(&hello(message.clone(), false)).await;
    assert_eq!(here.generation(), 7);
    here.check_answer(&answer(message.clone()), other).unwrap();
    // It stays with the first.
    here.adopt_generation(&hello(Envelope { generation: 8, ..message }, false)).await;
    assert_eq!(here.generation(), 7);
}

/// The other generation may go on from an older copy of this member's disk, or have booted more often.
#[test]
fn what_a_message_of_another_generation_says_of_its_sender_is_not_recorded() {
    let (here, other, own) = (here(), NodeId::new(2, 22), NodeId::new(1, 11));
    let late = Envelope { generation: 7, ..envelope_of("blue", other, own, 9, 90) };
    assert!(here.sender_of_request(&Remote::default(), Some(&late)).is_err());
    assert!(here.sender_of_hello(&Remote::default(), Some(&late), 1).is_err());
    assert!(here.check_answer(&answer(late), other).is_err());
    let first = envelope_of("blue", other, own, 1, 1);
    assert_eq!(here.sender_of_request(&Remote::default(), Some(&first)).unwrap(), other);
}

#[test]
fn a_message_in_another_version_of_the_protocol_is_refused_before_anything_else_of_it_is_used() {
    let message = |protocol| Envelope {
        protocol,
        ..envelope("blue", NodeId::new(2, 22), NodeId::new(1, 11))
    };
    let here = here();
    for other in [0, PROTOCOL + 1, u32::MAX] {
        let later = Envelope { boot_epoch: 9, ..message(other) };
        let status = here.sender_of_request(&Remote::default(), Some(&later)).unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        let named = format!("version {other} of the protocol between members");
        assert!(status.message().contains(&named), "{}", status.message());
        assert!(here.check_answer(&answer(later), NodeId::new(2, 22)).is_err());
    }
    here.sender_of_request(&Remote::default(), Some(&message(PROTOCOL))).unwrap();
}

#[test]
fn a_build_that_speaks_less_than_the_clusters_version_is_neither_heard_nor_recorded() {
    let identities = Identities::default();
    let here = member(identities.clone());
    let other = NodeId::new(2, 22);
    let sent = |boot_epoch, version| {
        let envelope = envelope_of("blue", other, NodeId::new(1, 11), boot_epoch, 1);
        Envelope { version, ..envelope }
    };
    let request =
        |sent: Envelope| here.sender_of_request(&Remote::default(), Some(&sent)).map(drop);
    let refused = |sent: Envelope, cluster: u32| {
        for refusal in [
            request(sent.clone()).unwrap_err(),
            here.sender_of_hello(&Remote::default(), Some(&sent), 1).unwrap_err(),
            here.check_answer(&answer(sent.clone()), other).unwrap_err(),
        ] {
            assert_eq!(refusal.code(), Code::FailedPrecondition);
            for part in [
                format!("speaks version {}", sent.version),
                format!("the cluster's is {cluster}"),
                format!("start a release of version {cluster}"),
            ] {
                assert!(refusal.message().contains(&part), "{}", refusal.message());
            }
        }
    };
    // A release before versions is not heard by any.
    refused(sent(1, 0), 1);
    request(sent(1, 1)).unwrap();
    // One that speaks more is: it is upgraded first.
    request(sent(1, 3)).unwrap();
    identities.set_logged(&Arc::default(), &Arc::default(), 3);
    refused(sent(9, 2), 3);
    // Nothing of the refused one was recorded: its boot epoch would shut out this one.
    request(sent(2, 3)).unwrap();
}

#[test]
fn a_request_without_an_envelope_is_refused() {
    assert!(here().sender_of_request(&Remote::default(), None).is_err());
}

#[test]
fn another_identity_in_the_same_slot_is_refused() {
    let message = envelope("blue", NodeId::new(1, 99), NodeId::new(1, 11));
    assert!(here().sender_of_request(&Remote::default(), Some(&message)).is_err());
}

#[test]
fn an_answer_by_another_incarnation_is_refused() {
    let answer = answer(envelope("blue", NodeId::new(2, 23), NodeId::new(1, 11)));
    assert!(here().check_answer(&answer, NodeId::new(2, 22)).is_err());
    assert!(here().check_answer(&answer, NodeId::new(2, 23)).is_ok());
}

/// The input is a HelloRequest, with which a stranger's first bytes arrive.
#[test]
fn any_bytes_name_a_sender_of_this_cluster_or_are_refused() {
    let hello = |envelope| {
        let envelope = Some(envelope);
        proto::HelloRequest { envelope, receiver_slot: 1, ..Default::default() }.encode_to_vec()
    };
    let (other, own) = (NodeId::new(2, 22), NodeId::new(1, 11));
    let later = Envelope { fencing_history: vec![9, 8], ..envelope_of("blue", other, own, 3, 30) };
    cairn_fuzz::target!(
        "first" => hello(envelope("blue", other, own)),
        "later" => hello(later),
    )
    .for_each(|bytes| {
        let most = 64 * bytes.len() + (16 << 10);
        let decode = || proto::HelloRequest::decode(bytes);
        let Ok(message) = cairn_fuzz::within(most, decode) else { return };
        let (here, sent) = (here(), message.envelope.as_ref());
        let sender = cairn_fuzz::within(most, || here.sender_in_cluster(sent));
        let slot = here.sender_of_hello(&Remote::default(), sent, message.receiver_slot);
        let request = here.sender_of_request(&Remote::default(), sent);
        let Ok(sender) = sender else {
            return assert!(slot.is_err() && request.is_err());
        };
        let sent = sent.unwrap();
        assert_eq!((sent.cluster.as_str(), sent.protocol), ("blue", PROTOCOL));
        assert!(sent.version > 0);
        assert!(sender == own || sender.slot() != own.slot());
        assert_eq!(slot.is_ok(), message.receiver_slot <= 1);
        assert_eq!(request.is_ok(), sent.receiver == own.as_u64());
        let answer = proto::HelloResponse { envelope: Some(sent.clone()), ..Default::default() };
        assert_eq!(here.check_answer(&answer, sender).is_ok(), request.is_ok());
        // From now on the same number with another nonce is another copy of the disk.
        let copy = Envelope { boot_nonce: !sent.boot_nonce, ..sent.clone() };
        assert!(here.sender_in_cluster(Some(&copy)).is_err());
    });
}
