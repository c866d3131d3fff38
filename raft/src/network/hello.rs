//! Asking who is there, before anybody knows.

use super::client::connect;
use super::identity::PeerIdentity;
use super::proto;
use crate::ids::NodeId;
use crate::runtime;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(1);

/// Who answered.
pub(crate) struct Answer {
    pub(crate) id: NodeId,
    /// Whether it was never part of a cluster.
    pub(crate) blank: bool,
}

/// Asks the member of `slot`, expected at `address`.
pub(crate) async fn hello(identity: &PeerIdentity, slot: u16, address: &str) -> Result<Answer, String> {
    let mut client = connect(address)?;
    let request = proto::HelloRequest { envelope: identity.to_anyone(), receiver_slot: u32::from(slot) };
    let answer = runtime::timeout(TIMEOUT, client.hello(request)).await.ok_or("no answer")?;
    let answer = answer.map_err(|status| status.message().to_string())?.into_inner();
    let id = identity
        .sender_in_cluster(answer.envelope.as_ref())
        .map_err(|status| status.message().to_string())?;
    identity.check_answer(answer.envelope.as_ref(), id).map_err(|status| status.message().to_string())?;
    match id.slot() == slot {
        true => Ok(Answer { id, blank: answer.blank }),
        false => Err(format!("member {id} answered")),
    }
}
