//! The calls that change who belongs to the cluster, what its acknowledgements mean, and who leads.
//!
//! What holds here: a request is checked before replication hears of it. A call to a member that does
//! not lead answers like a write. The futures of these rare calls are boxed: they nest too deep for the
//! compiler.

use super::Inner;
use crate::admission::refusal;
use crate::config::{check_address, is_wildcard};
use cairn_client::proto;
use cairn_client::proto::change_members_request::Kind;
use cairn_engine::Mode;
use cairn_raft::{ChangeError, MemberChange, NodeId};
use futures::FutureExt;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Status;

/// The longest time for which a member may be drained. One that is forgotten must not stay so.
const DRAIN_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

pub(super) async fn change(
    inner: &Inner,
    request: &proto::ChangeMembersRequest,
    budget: Duration,
) -> Result<proto::ChangeMembersResponse, Status> {
    let change = read(request)?;
    let waits_for = match timeout(budget, inner.replica.change_members(change).boxed()).await {
        Ok(answer) => answer.map_err(|error| refused(inner, error))?,
        Err(_) => Some("the members agree on the change".into()),
    };
    Ok(proto::ChangeMembersResponse { waits_for: waits_for.unwrap_or_default() })
}

pub(super) async fn set_mode(
    inner: &Inner,
    request: &proto::SetModeRequest,
    budget: Duration,
) -> Result<proto::SetModeResponse, Status> {
    let mode = match request.mode() {
        proto::Mode::Device => Mode::Device,
        proto::Mode::Replicated => Mode::Replicated,
        proto::Mode::Sync => Mode::Sync,
        proto::Mode::Unspecified => {
            let number = request.mode;
            return Err(Status::invalid_argument(format!(
                "mode {number}: not one that this release knows"
            )));
        }
    };
    in_time(budget, inner.replica.set_mode(mode).boxed())
        .await?
        .map_err(|error| refused(inner, error))?;
    Ok(proto::SetModeResponse {})
}

pub(super) async fn move_leader(
    inner: &Inner,
    request: &proto::MoveLeaderRequest,
    budget: Duration,
) -> Result<proto::MoveLeaderResponse, Status> {
    let to = if request.slot == 0 { None } else { Some(slot(request.slot)?) };
    let moved = in_time(budget, inner.replica.move_leader(to).boxed()).await?;
    let leader = moved.map_err(|error| refused(inner, error))?;
    let members = inner.replica.status().members;
    let address = members.into_iter().find(|member| member.id == leader);
    let address = address.map(|member| member.address).unwrap_or_default();
    Ok(proto::MoveLeaderResponse { leader: Some(refusal::leader_message((leader, address))) })
}

pub(super) async fn drain(
    inner: &Inner,
    request: &proto::DrainRequest,
    budget: Duration,
) -> Result<proto::DrainResponse, Status> {
    let time = Duration::from_millis(request.time_ms);
    if time > DRAIN_MAX {
        return Err(Status::invalid_argument(format!(
            "a member is drained for at most {} days; give a shorter time, and drain it again",
            DRAIN_MAX.as_secs() / (24 * 3600)
        )));
    }
    let drained = in_time(budget, inner.replica.drain(time).boxed()).await?;
    drained.map_err(|error| refused(inner, error))?;
    Ok(proto::DrainResponse {})
}

/// The change that is asked for.
fn read(request: &proto::ChangeMembersRequest) -> Result<MemberChange, Status> {
    let (slot, address) = (slot(request.slot)?, &request.peer_address);
    let invalid = |reason: String| Err(Status::invalid_argument(reason));
    let change = match Kind::try_from(request.kind) {
        Ok(Kind::Add) => MemberChange::Add(slot),
        Ok(Kind::Remove) => MemberChange::Remove(slot),
        Ok(Kind::Replace) => {
            let old = NodeId::from_u64(request.node_id);
            return match old.slot() == slot && address.is_empty() {
                true => Ok(MemberChange::Replace(old)),
                false => invalid(format!("node_id {old} is not an identity of slot {slot}")),
            };
        }
        Ok(Kind::Promote) => MemberChange::Promote(slot),
        Ok(Kind::Move) => {
            return match check_address(address) {
                Ok(()) if is_wildcard(address) => invalid(format!(
                    "peer_address `{address}`: nobody reaches a member there; give the address at which others do"
                )),
                Ok(()) => Ok(MemberChange::Move(slot, address.clone())),
                Err(reason) => invalid(format!("peer_address `{address}`: {reason}")),
            };
        }
        Ok(Kind::Unspecified) | Err(_) => {
            return invalid(format!(
                "change of members {} is not known to this server; use a server of the client's version",
                request.kind
            ));
        }
    };
    match address.is_empty() && request.node_id == 0 {
        true => Ok(change),
        false => invalid("peer_address is for MOVE only, and node_id for REPLACE only".into()),
    }
}

fn slot(number: u32) -> Result<u16, Status> {
    let slot = u16::try_from(number).ok().filter(|slot| *slot > 0);
    slot.ok_or_else(|| {
        Status::invalid_argument(format!("slot {number}: expected a slot from 1 to 65535"))
    })
}

pub(super) fn refused(inner: &Inner, error: ChangeError) -> Status {
    refusal::of_change(inner.no_service(), error)
}

pub(super) async fn in_time<T>(
    budget: Duration,
    work: impl Future<Output = T>,
) -> Result<T, Status> {
    let late = |_| {
        Status::deadline_exceeded(format!(
            "not done within {} ms; it may still happen, `cairn status` shows whether it did",
            budget.as_millis()
        ))
    };
    timeout(budget, work).await.map_err(late)
}

/// The arguments of a change, for the audit.
pub(super) fn words(request: &proto::ChangeMembersRequest) -> String {
    let known = Kind::try_from(request.kind).map(|kind| kind.as_str_name().to_lowercase());
    let kind = known.unwrap_or_else(|_| format!("change {}", request.kind));
    match (request.peer_address.as_str(), request.node_id) {
        ("", 0) => format!("{kind} slot {}", request.slot),
        ("", node_id) => {
            format!("{kind} slot {}: node {}", request.slot, NodeId::from_u64(node_id))
        }
        (address, _) => format!("{kind} slot {} to {address}", request.slot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(kind: i32, slot: u32, address: &str) -> proto::ChangeMembersRequest {
        proto::ChangeMembersRequest { kind, slot, peer_address: address.into(), node_id: 0 }
    }

    #[test]
    fn a_change_is_understood_or_refused_with_what_is_wrong_in_it() {
        for (kind, words) in [
            (Kind::Add, "add slot 4"),
            (Kind::Remove, "remove slot 4"),
            (Kind::Promote, "promote slot 4"),
        ] {
            let request = asked(kind.into(), 4, "");
            assert!(read(&request).is_ok(), "{words}");
            assert_eq!(super::words(&request), words);
        }
        let moved = asked(Kind::Move.into(), 4, "10.0.0.4:7401");
        assert!(read(&moved).is_ok());
        assert_eq!(words(&moved), "move slot 4 to 10.0.0.4:7401");
        let node_id = NodeId::new(4, 0xab).as_u64();
        let replaced =
            proto::ChangeMembersRequest { node_id, ..asked(Kind::Replace.into(), 4, "") };
        assert!(read(&replaced).is_ok());
        assert_eq!(words(&replaced), "replace slot 4: node 4.ab");
        let other = proto::ChangeMembersRequest { slot: 5, ..replaced.clone() };
        let added = proto::ChangeMembersRequest { kind: Kind::Add.into(), ..replaced };
        for (request, word) in [
            (other, "node_id 4.ab is not an identity of slot 5"),
            (added, "node_id for REPLACE only"),
            (asked(Kind::Replace.into(), 4, ""), "not an identity of slot 4"),
            (asked(Kind::Add.into(), 0, ""), "slot 0: expected a slot from 1"),
            (asked(Kind::Add.into(), 65_536, ""), "slot 65536"),
            (asked(Kind::Add.into(), 4, "a:1"), "for MOVE only"),
            (asked(Kind::Move.into(), 4, ""), "expected host:port"),
            (asked(Kind::Move.into(), 4, "0.0.0.0:7401"), "nobody reaches a member there"),
            (asked(0, 4, ""), "is not known to this server"),
            (asked(99, 4, ""), "change of members 99"),
        ] {
            let refusal = read(&request).expect_err("refused");
            assert!(refusal.message().contains(word), "{}", refusal.message());
        }
    }
}
