//! Room that was promised, and the requests that it was promised to.

use crate::codec::{encode_command, encode_payload};
use crate::command::{Command, Condition, Operation};
use crate::network::proto::{self, AppendRequest, Vote};
use crate::replica::tests::{other, replica};
use bytes::Bytes;
use openraft::EntryPayload;
use tonic::Code;

/// The story: the room that was promised to a request counted no longer as soon as its stream was reset, while openraft still held
/// the request. Others were promised the same room, and the member stopped when it had to store both.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_promised_room_keeps_it_until_replication_has_dropped_its_entries() {
    let (_folder, replica, service) = replica().await;
    let shared = &service.shared;
    let free = replica.engine().status().free_bytes;
    let value = Bytes::from(vec![1; 64 << 10]);
    let most_of_it = usize::try_from(free * 2 / 3).unwrap() / value.len();
    let key = Bytes::from_static(b"key");
    let put = Operation::Put { key, value, condition: Condition::None };
    let operations = vec![put; most_of_it];
    let command = encode_command(Command { synced: false, session: None, operations }, 1);
    let (meta, values) = encode_payload(EntryPayload::Normal(command));
    let append = || AppendRequest {
        vote: Some(Vote { term: 1, node_id: other().as_u64(), committed: true }),
        entries: vec![proto::Entry { term: 1, index: 0, meta: meta.clone(), values: values.clone() }],
        ..AppendRequest::default()
    };
    let first = shared.append_request(other(), append()).unwrap();
    let refused = shared.append_request(other(), append()).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    drop(first);
    shared.append_request(other(), append()).unwrap();
}
