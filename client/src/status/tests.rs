//! What a client makes of a status, whatever a node wrote into it.

use super::*;
use prost::Message;

/// The story: an operator's call had escape sequences and a line break in its arguments, and
/// `cairn status` of another operator showed a line that no node had written.
#[test]
fn no_text_of_a_status_can_do_more_than_be_read() {
    let hostile = || "\u{1b}[2J\n\u{9b}\u{202e}forged".to_owned();
    let call = proto::OperatorCall {
        principal: hostile(),
        call: hostile(),
        arguments: hostile(),
        result: hostile(),
        ago_ms: 1,
    };
    let member = proto::Member {
        node_id: 7,
        slot: 1,
        client_address: hostile(),
        peer_address: hostile(),
        voter: true,
    };
    let status = proto::StatusResponse {
        cluster: hostile(),
        server_version: hostile(),
        leader: Some(proto::Leader { node_id: 7, client_address: hostile() }),
        members: vec![member],
        storage: Some(proto::Storage {
            backend: hostile(),
            directory: hostile(),
            ..Default::default()
        }),
        durability: Some(proto::Durability {
            device_contract: hostile(),
            warnings: vec![hostile()],
            exceptions: vec![hostile()],
            ..Default::default()
        }),
        damage: hostile(),
        stopped_reason: hostile(),
        election_blocked: hostile(),
        not_ready: hostile(),
        versions: Some(proto::Versions {
            members: vec![proto::MemberVersion { release: hostile(), ..Default::default() }],
            ..Default::default()
        }),
        operator_calls: vec![call],
        ..Default::default()
    };
    // The message's texts, counted by what Rust shows of them: raw, or escaped once before.
    let (raw, escaped) = (r"\u{1b}[2J\n", r"\\u{1b}[2J\\n");
    let sent = format!("{status:?}").matches(raw).count();
    let shown = format!("{:?}", NodeStatus::of(status));
    assert_eq!(shown.matches(escaped).count(), sent, "{shown}");
    assert_eq!(shown.replace(escaped, "").matches(raw).count(), 0, "{shown}");
}

/// Scripts read these names.
#[cfg(feature = "serde")]
#[test]
fn in_json_times_have_their_unit_in_their_name_and_identities_are_text() {
    let status = proto::StatusResponse {
        node_id: (3 << 48) + 12,
        role: Role::Leader.into(),
        member_state: 77,
        leader: Some(proto::Leader { node_id: 1 << 48, client_address: "c:1".into() }),
        configurations: vec![proto::Configuration { voters: vec![1 << 48, (2 << 48) + 255] }],
        uptime_ms: 5000,
        drained_ms: 7,
        certificate_left_s: Some(0),
        boot_epoch: 2,
        boot_nonce: u64::MAX,
        generation: 10,
        versions: Some(proto::Versions { own: 2, cluster: 1, ..Default::default() }),
        modes: Some(proto::Modes { own: Mode::Sync.into(), ..Default::default() }),
        scrub: Some(proto::Scrub { elapsed_s: 9, ..Default::default() }),
        history: Some(proto::History {
            oldest: Some(proto::Position { term: 3, index: 70 }),
            entries: 4,
            bytes: 500,
            age_ms: 60,
        }),
        ..Default::default()
    };
    let told = serde_json::to_value(NodeStatus::of(status)).unwrap();
    let expected = serde_json::json!({
        "node_id": "3.c", "role": "leader", "member_state": "unknown", "leader_id": "1.0",
        "leader": "c:1", "configurations": [["1.0", "2.ff"]], "uptime_ms": 5000, "drained_ms": 7,
        "certificate_left_s": 0, "ca_left_s": null, "boot_epoch": 2, "generation": "0000000a", "version": 2, "cluster_version": 1,
        "modes": { "cluster": null, "own": "sync", "effective": "unknown" },
        "history": { "oldest": [3, 70], "entries": 4, "bytes": 500, "age_ms": 60 },
        "stopped_reason": null, "storage": null,
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(told.get(name), Some(value), "{name}");
    }
    assert_eq!(told.pointer("/scrub/elapsed_s"), Some(&9.into()));
}

#[test]
fn any_bytes_decode_to_a_status_or_to_an_error() {
    let member = proto::Member {
        node_id: 7,
        slot: 1,
        client_address: "c:1".into(),
        peer_address: "p:2".into(),
        voter: true,
    };
    let leader = proto::Leader { node_id: 7, client_address: "c:1".into() };
    let durability = proto::Durability { warnings: vec!["w".into()], ..Default::default() };
    let seed = proto::StatusResponse {
        cluster: "blue".into(),
        slot: 1,
        leader: Some(leader),
        members: vec![member],
        configurations: vec![proto::Configuration { voters: vec![7, 8] }],
        damage: "d".into(),
        storage: Some(proto::Storage { unsynced_ms: 5, ..Default::default() }),
        durability: Some(durability),
        uptime_ms: 5,
        scrub: Some(proto::Scrub { elapsed_s: 5, ..Default::default() }),
        operator_calls: vec![proto::OperatorCall { ago_ms: 5, ..Default::default() }],
        modes: Some(proto::Modes { own: Mode::Sync.into(), ..Default::default() }),
        drained_ms: 5,
        certificate_left_s: Some(5),
        ca_left_s: Some(6),
        versions: Some(proto::Versions {
            members: vec![proto::MemberVersion { version: 2, ..Default::default() }],
            ..Default::default()
        }),
        history: Some(proto::History {
            oldest: Some(proto::Position { term: 3, index: 70 }),
            ..Default::default()
        }),
        ..Default::default()
    };
    cairn_fuzz::target!("status" => seed.encode_to_vec()).for_each(|bytes| {
        let most = 256 * bytes.len() + 4096;
        let decode = || proto::StatusResponse::decode(bytes);
        let Ok(message) = cairn_fuzz::within(most, decode) else { return };
        let told = message.clone();
        let status = cairn_fuzz::within(most, || NodeStatus::of(message));
        assert_eq!(status.slot, told.slot.min(u32::from(u16::MAX)) as u16);
        assert_eq!(status.uptime.as_millis(), u128::from(told.uptime_ms));
        assert_eq!(status.leader_id, told.leader.as_ref().map(|leader| leader.node_id));
        assert_eq!(status.leader, told.leader.map(|leader| of_node(&leader.client_address)));
        assert_eq!(status.stopped_reason.unwrap_or_default(), of_node(&told.stopped_reason));
        assert_eq!(status.members.len(), told.members.len());
        assert_eq!(status.configurations.len(), told.configurations.len());
        assert_eq!(status.operator_calls.len(), told.operator_calls.len());
        assert_eq!(status.storage.is_some(), told.storage.is_some());
        assert_eq!(status.modes.is_some(), told.modes.is_some());
        assert_eq!(status.drained.is_some(), told.drained_ms > 0);
        let left = |left: Option<Duration>| left.map(|left| left.as_secs());
        assert_eq!(left(status.certificate_left), told.certificate_left_s);
        assert_eq!(left(status.ca_left), told.ca_left_s);
        let oldest = told.history.and_then(|history| history.oldest);
        let shown = status.history.and_then(|history| history.oldest);
        assert_eq!(shown, oldest.map(|oldest| (oldest.term, oldest.index)));
        let members = |versions: VersionStatus| versions.members.len();
        let said = told.versions.map(|versions| versions.members.len());
        assert_eq!(status.versions.map(members), said);
    });
}
