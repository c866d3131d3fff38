//! Forming the cluster, once.
//!
//! Every member was formatted with the cluster's name, its slot and a random incarnation, and is
//! configured with the same initial members. The member of the lowest slot asks the others for
//! their identities. When all have answered, and all are uninitialized as it is itself, it proposes
//! them as the first membership. The others wait.
//!
//! The story behind "all are uninitialized": the member of the lowest slot loses its disk and comes
//! back uninitialized. The others are initialized by now. It must not form a second cluster beside
//! the first, so it waits.
//!
//! And: a cluster grew from three members to five, and the first three lost their disks. All that their
//! configuration names were uninitialized again, and two more held everything. Members of a formed cluster
//! look for the others, so the forming member first listens for [`LISTEN_FOR`]. It forms none while one of
//! them answers where it announced itself, or takes this member for the one that had its slot.

use crate::core::ids::{MemberAddress, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::durability::LocalMember;
use crate::transport::formation::{ANSWERS_COUNT_FOR, FRESH};
use crate::transport::{Answer, Contact, cause, hello};
use futures::future::{join, join_all};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// One line is logged for this many rounds.
const ROUNDS_PER_LINE: u64 = 100;
/// For how long this member is reachable before it forms a cluster, and in how many heartbeats. A leader
/// sends more often, and a member without one asks all others once a second.
const LISTEN_FOR: Duration = Duration::from_millis(1500);
const LISTEN_HEARTBEATS: u32 = 12;

/// Whether this member is the one that forms the cluster.
pub(crate) fn is_mine(member: &LocalMember) -> bool {
    member.config.initial_members.keys().next() == Some(&member.identity.id().slot())
}

/// Asks until every member has answered, then forms the cluster.
pub(crate) async fn run(member: Arc<LocalMember>) {
    member.identity.formation.is_own(true);
    until_formed(&member).await;
    member.identity.formation.is_own(false);
}

async fn until_formed(member: &LocalMember) {
    let node = member.identity.id();
    let began = runtime::now();
    let heartbeat = Duration::from_millis(member.config.heartbeat_ms);
    let listen_for = LISTEN_FOR.max(heartbeat.saturating_mul(LISTEN_HEARTBEATS));
    for round in 0.. {
        if member.stops() || joined(member) {
            return;
        }
        let asked = runtime::now();
        let answers = ask(member).await;
        // The process may have been suspended: then the others may have answered another one.
        let late = runtime::now() - asked >= ANSWERS_COUNT_FOR;
        let reason = match answers {
            Ok(_) if late => "the members answered too late".to_owned(),
            Ok(_) if asked - began < listen_for => {
                "it listens for members of a formed cluster".to_owned()
            }
            Ok(members) => return form(member, members).await,
            Err(reason) => reason,
        };
        member.identity.formation.waits(&reason);
        if round % ROUNDS_PER_LINE == 0 {
            tracing::info!(%node, reason, "the cluster is not formed yet");
        }
        runtime::sleep(POLL_INTERVAL).await;
    }
}

/// Another member has made this member part of a cluster.
fn joined(member: &LocalMember) -> bool {
    with_metrics(&member.raft, |metrics| {
        metrics.running_state.is_err() || metrics.membership_config.voter_ids().next().is_some()
    })
}

/// The first membership, if every member answers and is uninitialized. Asks all of them again each
/// time: a member that was wiped since has another identity.
async fn ask(member: &LocalMember) -> Result<BTreeMap<NodeId, MemberAddress>, String> {
    let own = member.identity.id();
    let others = member.config.initial_members.iter().filter(|(slot, _)| **slot != own.slot());
    let asked = others.map(|(slot, address)| async move {
        (*slot, address, ask_one(member, *slot, &address.peer).await)
    });
    let (answers, elsewhere) = join(join_all(asked), formed_elsewhere(member)).await;
    let mut members = BTreeMap::from([(own, member.addresses.advertised().clone())]);
    let (mut missing, mut formed) = (Vec::new(), elsewhere);
    for (slot, address, answer) in answers {
        match answer {
            Ok(answer) if answer.uninitialized => {
                members.insert(answer.id, answer.address.unwrap_or_else(|| address.clone()));
            }
            Ok(answer) => {
                formed = Some(format!(
                    "member {} already belongs to a formed cluster, and this member is uninitialized; it waits until \
                     the leader adds it",
                    answer.id
                ));
            }
            Err(status) => {
                missing.push(format!("slot {slot} at {}: {}", address.peer, cause(&status)))
            }
        }
    }
    let reason = match formed {
        Some(reason) => reason,
        None if missing.is_empty() => return Ok(members),
        None => format!(
            "waiting for {}; start every member, or correct its address in `members`",
            missing.join(", ")
        ),
    };
    Err(reason)
}

/// What tells of a formed cluster to which the configured members do not belong.
async fn formed_elsewhere(member: &LocalMember) -> Option<String> {
    if let Some(formed) = member.identity.formation.formed() {
        return Some(formed);
    }
    let LocalMember { config, addresses, .. } = member;
    let known = |address: &String| {
        *address == addresses.advertised().peer
            || config.initial_members.values().any(|member| member.peer == *address)
    };
    let announced = addresses.unknown_since().into_iter().filter(|(address, _)| !known(address));
    let announced = announced.map(|(address, at)| (address, runtime::now() - at < FRESH));
    let seeds = config.seeds.iter().cloned().map(|seed| (seed, false));
    let asked = seeds.chain(announced).map(|(address, lately)| async move {
        let contact = Contact::at(address.clone());
        let answer = hello(&member.identity, Some(addresses), &contact).await;
        (address, lately, answer)
    });
    join_all(asked).await.into_iter().find_map(|(address, lately, answer)| match answer {
        Ok(answer) if answer.uninitialized => None,
        Ok(formed) => {
            Some(format!("member {} of a formed cluster answers at {address}", formed.id))
        }
        // It may belong to one.
        Err(status) if lately => Some(format!(
            "waiting for the node that announced itself at {address}: {}; stop it, or correct its `advertise.peer`",
            cause(&status)
        )),
        Err(_) => None,
    })
}

/// Asks the member of `slot`, where the configuration says, and where the member says, if that is
/// elsewhere: the log gets an address at which it answered.
async fn ask_one(member: &LocalMember, slot: u16, peer: &str) -> Result<Answer, Status> {
    let ask = async |address: &str| {
        let contact = Contact { address: address.to_owned(), slot: Some(slot) };
        hello(&member.identity, Some(&member.addresses), &contact).await
    };
    let answer = ask(peer).await?;
    match answer.address.as_ref().filter(|own| own.peer != peer) {
        None => Ok(answer),
        Some(own) => ask(&own.peer).await.map_err(|status| {
            let reason = format!(
                "it advertises {}, where it does not answer: {}",
                own.peer,
                status.message()
            );
            Status::new(status.code(), reason)
        }),
    }
}

async fn form(member: &LocalMember, members: BTreeMap<NodeId, MemberAddress>) {
    let names: Vec<String> = members.keys().map(NodeId::to_string).collect();
    let node = member.identity.id();
    let _no_generation_meanwhile = member.identity.fence.read().await;
    if member.identity.generation() != 0 {
        tracing::info!(%node, "a cluster that was made anew of one member answers: this node joins it");
        return;
    }
    match member.raft.initialize(members).await {
        Ok(()) => tracing::info!(%node, members = names.join(" "), "the cluster is formed"),
        Err(error) => tracing::error!(%node, %error, "the cluster cannot be formed"),
    }
}
