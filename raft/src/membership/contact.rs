//! A member's contact with the others beside replication: it announces where it is reached until
//! the log says so, asks the leader to add it until it votes, looks for the others while it hears
//! no leader, and then finds out whether it was removed.
//!
//! What holds here: what others say of a member is only asked; the member itself must answer there.
//! The addresses that are asked in one round are bounded.

use super::seen::leaves_configuration;
use crate::core::ids::{MemberAddress, NodeId};
use crate::core::raft_metrics::with_metrics;
use crate::core::runtime;
use crate::durability::{Act, LocalMember};
use crate::transport::{self, Answer, Contact, PendingJoin};
use futures::future::join_all;
use openraft::ServerState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// How often announced addresses are asked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Between two rounds of asking all; less than the time for which a leader keeps a join request.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// A voter that had no contact with a leader for this long asks the others whether they refuse it;
/// sooner if it knows of a configuration without it.
const NO_LEADER_AFTER: Duration = Duration::from_secs(5);
/// The most addresses that are asked in one round.
const CONTACTS_MAX: usize = 64;

/// The task that keeps up a member's contact with the others.
pub(crate) struct Outreach {
    member: Arc<LocalMember>,
    /// Where the others would look for members, as they answered in the last round that had an answer.
    told: BTreeSet<String>,
    /// What was logged last of each address.
    logged: BTreeMap<String, String>,
}

/// Why this member asks the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The log has another address of it.
    Moved,
    /// A voter by its own log, without contact with a leader.
    NoLeader,
    /// It does not vote yet, as far as it knows.
    Joins,
}

/// One answer of a round, and the address that was asked.
type Answered = (String, Result<Answer, Status>);

impl Outreach {
    pub(crate) fn new(member: Arc<LocalMember>) -> Outreach {
        Outreach { member, told: BTreeSet::new(), logged: BTreeMap::new() }
    }

    /// Runs until the member stops.
    pub(crate) async fn run(mut self) {
        let began = runtime::now();
        let mut told_alone = false;
        let mut last_round: Option<runtime::Instant> = None;
        while !self.member.stops() {
            runtime::sleep(POLL_INTERVAL).await;
            self.ask_announced().await;
            let now = runtime::now();
            if last_round.is_some_and(|at| now - at < ROUND_INTERVAL) {
                continue;
            }
            last_round = Some(now);
            if !told_alone && self.is_configured_alone() {
                told_alone = true;
                tracing::warn!(
                    node = %self.member.identity.id(),
                    "the cluster has other members, and this one's configuration names none: add `join` with some of their \
                     peer addresses, so that this member finds them if it loses its log"
                );
            }
            match self.reason() {
                None => *self.member.removed_reason.lock() = None,
                // One that may not stand sends no votes either, and the others do not know that it is there.
                Some(Reason::NoLeader)
                    if now - began <= self.no_leader_after()
                        && self.member.may(Act::Stand).is_ok() => {}
                Some(reason) => self.ask_all(reason).await,
            }
        }
    }

    /// Whether the log names other members and the configuration none.
    fn is_configured_alone(&self) -> bool {
        let LocalMember { addresses, config, .. } = &*self.member;
        let own = &addresses.advertised().peer;
        !addresses.others().is_empty() && config.contacts().all(|address| address == *own)
    }

    fn reason(&self) -> Option<Reason> {
        let metrics = with_metrics(&self.member.raft, Clone::clone);
        if !metrics.membership_config.voter_ids().any(|voter| voter == metrics.id) {
            return Some(Reason::Joins);
        }
        if self.member.addresses.is_moved() && metrics.state != ServerState::Leader {
            return Some(Reason::Moved);
        }
        // openraft may report the leader that it knew before its restart, and a leader that was
        // replaced while its machine was suspended continues without a quorum.
        let (now, limit) = (runtime::now(), self.no_leader_after());
        let leads = metrics.state == ServerState::Leader
            && metrics.last_quorum_acked.is_some_and(|at| now - *at < limit);
        let heard = leads || self.member.heard_within(limit);
        (!heard).then_some(Reason::NoLeader)
    }

    /// For how long no leader is heard before this member asks the others. One that the members
    /// removed hears nobody any more, and is to know that soon.
    fn no_leader_after(&self) -> Duration {
        match with_metrics(&self.member.raft, leaves_configuration) {
            true => Duration::from_millis(self.member.config.election_max_ms),
            false => NO_LEADER_AFTER,
        }
    }

    /// Asks at the addresses that members announced: one that answers there is reached there.
    async fn ask_announced(&self) {
        let announced = self.member.addresses.to_ask();
        let asked = announced.into_iter().map(|(member, address)| async move {
            let contact = Contact { address: address.peer, slot: Some(member.slot()) };
            let answer = self.hello(&contact).await;
            (contact.address, answer)
        });
        for (address, answer) in join_all(asked).await {
            if let Ok(answer) = answer {
                self.heard(&address, &answer);
            }
        }
    }

    async fn hello(&self, contact: &Contact) -> Result<Answer, Status> {
        transport::hello(&self.member.identity, Some(&self.member.addresses), contact).await
    }

    /// A node answered at this address, and says where it is reached.
    fn heard(&self, asked: &str, answer: &Answer) {
        let Some(address) = answer.address.clone() else { return };
        match address.peer == asked {
            true => self.member.addresses.answered(answer.id, answer.epoch, address),
            false => self.member.addresses.announced(answer.id, answer.epoch, address),
        }
    }

    /// Whom to ask: the members, the seeds, those of which the others told, and those that
    /// announced themselves to a member that knows nobody.
    fn contacts(&self) -> BTreeSet<Contact> {
        let LocalMember { addresses, config, .. } = &*self.member;
        let members = addresses.others().into_iter().map(|(_, address)| address);
        let seeds = config.contacts();
        let own = &addresses.advertised().peer;
        let told = self.told.iter().cloned().chain(addresses.unknown());
        let all = members.chain(seeds).chain(told);
        all.filter(|address| address != own).take(CONTACTS_MAX).map(Contact::at).collect()
    }

    /// Asks all members that answer, which announces this one, and to join asks the leader to add
    /// it.
    async fn ask_all(&mut self, reason: Reason) {
        let contacts = self.contacts();
        let this = &*self;
        let asked = contacts.into_iter().map(|contact| async move {
            let answer = this.hello(&contact).await;
            (contact.address, answer)
        });
        let answers: Vec<Answered> = join_all(asked).await;
        let answered = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        let mut told: BTreeSet<String> =
            answered().flat_map(|answer| answer.contacts.iter().cloned()).collect();
        while told.len() > CONTACTS_MAX {
            told.pop_last();
        }
        // A round that nobody answered says nothing. The story: a new disk had heard of the others
        // from its seed, the seed moved, and for a second no link worked: with nothing in its own
        // log, the member knew nobody any more.
        if !told.is_empty() {
            self.told = told;
        }
        self.logged.retain(|address, _| answers.iter().any(|(asked, _)| asked == address));
        for (address, answer) in answers {
            if let Ok(answer) = &answer {
                self.heard(&address, answer);
            }
            let refused = match answer {
                Ok(answer) => match self.ask_to_join(reason, &address, &answer).await {
                    Some(Ok(())) => {
                        *self.member.removed_reason.lock() = None;
                        return;
                    }
                    Some(Err(status)) => status,
                    None => continue,
                },
                Err(status) => status,
            };
            if refused.code() == transport::REFUSED_IDENTITY {
                return self.removed(refused.message());
            }
            self.log(reason, address, refused.message());
        }
    }

    /// Asks a formed cluster's member to add this one. `None`: there is nothing to ask.
    async fn ask_to_join(
        &self,
        reason: Reason,
        address: &str,
        answer: &Answer,
    ) -> Option<Result<(), Status>> {
        let LocalMember { identity, addresses, .. } = &*self.member;
        let own: NodeId = identity.id();
        if reason != Reason::Joins || answer.uninitialized || answer.id == own {
            return None;
        }
        let address_of_own: MemberAddress = addresses.advertised().clone();
        let active = self.member.may(Act::Vouch).is_ok();
        let pending_join = PendingJoin { id: own, address: address_of_own, active };
        let asked = transport::ask_to_join(identity, answer.id, address, pending_join).await;
        Some(asked.map(drop))
    }

    fn removed(&self, reason: &str) {
        let node = self.member.identity.id();
        if self.member.removed_reason.lock().replace(reason.to_owned()).is_none() {
            tracing::warn!(%node, reason, "this identity is no longer a member of the cluster");
        }
    }

    fn log(&mut self, why: Reason, address: String, reason: &str) {
        let before = self.logged.insert(address.clone(), reason.to_owned());
        if before.is_some_and(|before| before == reason) {
            return;
        }
        let node = self.member.identity.id();
        let what = match why {
            Reason::Joins => "not added to the cluster yet",
            Reason::Moved => "a member does not hear of this one's new address yet",
            Reason::NoLeader => "no contact with a leader, and no answer of another member",
        };
        tracing::info!(%node, address, reason, "{what}");
    }
}
