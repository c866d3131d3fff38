//! The error of a request at its deadline, and which of its failures it tells.
//!
//! What holds here: a failure that explains less does not take the place of one that explains more. A leader that
//! is named and cannot be reached is no cluster without a leader.

use std::sync::Arc;

use bytes::Bytes;

use super::Attempts;
use crate::Error;
use crate::error::Why;
use crate::failure::Failure;
use crate::node::Node;
use crate::pool::{Pool, Target};
use crate::shown::of_node;

impl Attempts {
    /// The error that ends a request without an effect, after this failure at `node`; `None`: another node is asked.
    pub(crate) fn ended_by(
        &self,
        pool: &Pool,
        node: &Arc<Node>,
        failure: &Failure,
    ) -> Option<Error> {
        let error = match failure {
            Failure::Refused(error) => return Some(error.clone()),
            Failure::Unreadable(message) => {
                Error::ValueUnreadable { key: Bytes::new(), message: message.clone() }
            }
            Failure::Unsupported(why) => Error::Unsupported { message: why.text.clone() },
            Failure::Compacted { oldest, now } => Error::Compacted { oldest: *oldest, now: *now },
            _ => return None,
        };
        // Another node may have the value intact, know the call, or have a history that reaches further back.
        let is_over = self.is_nobody_left(pool, node);
        is_over.then(|| self.longest_history(failure).unwrap_or(error))
    }

    /// Of the histories that do not reach back to a watch, this failure's among them, the one that reaches back furthest.
    fn longest_history(&self, failure: &Failure) -> Option<Error> {
        let this = match failure {
            Failure::Compacted { oldest, now } => Some((*oldest, *now)),
            _ => None,
        };
        let known = self.compacted.into_iter().chain(this);
        let (oldest, now) = known.min_by_key(|(oldest, _)| oldest.index)?;
        Some(Error::Compacted { oldest, now })
    }

    /// A node that is down explains less than a node that says why nobody is served, or who leads, and a
    /// node of another cluster less than what a member answered.
    pub(super) fn says_less(&self, failure: &Failure) -> bool {
        use Failure::{
            Compacted, ElectionBlocked, Lost, NoLeader, NotLeader, NotSent, OtherCluster,
            Unreadable, Unsupported,
        };
        match (&self.last, failure) {
            (
                Some(ElectionBlocked(_) | NoLeader | NotLeader(Some(_)) | OtherCluster(_)),
                NotSent(_),
            ) => true,
            // Of a read: a node that was asked knows that it cannot be answered.
            (
                Some(Unreadable(_) | Unsupported(_)),
                NotSent(_) | Lost { .. } | NoLeader | NotLeader(_),
            ) => self.target != Target::Leader,
            // A node that knows no watch has no history, either.
            (
                Some(Compacted { .. }),
                NotSent(_) | Lost { .. } | NoLeader | NotLeader(_) | Unsupported(_),
            ) => true,
            (Some(last), OtherCluster(_)) => !matches!(last, OtherCluster(_) | NotSent(_)),
            _ => false,
        }
    }

    /// The error of the request at its deadline.
    pub(crate) fn exhausted(&self) -> Error {
        let tried = self.tried.clone();
        match &self.last {
            None => Error::deadline_exceeded("nothing was sent"),
            Some(Failure::NotLeader(Some(address))) => self.without_the_leader_at(address),
            Some(Failure::NotLeader(None) | Failure::NoLeader) => Error::NoLeader { tried },
            Some(Failure::Overloaded(retry_after)) => {
                Error::Overloaded { retry_after: *retry_after }
            }
            Some(Failure::Full(retry_after, why)) => {
                Error::StorageFull { retry_after: *retry_after, why: why.clone() }
            }
            Some(Failure::ElectionBlocked(sentence)) => {
                Error::unavailable_at(tried, sentence.clone())
            }
            Some(Failure::SessionExpired) => Error::unavailable_at(tried, "session expired"),
            Some(Failure::Lost { why, timed_out: true, .. }) => {
                Error::deadline_exceeded(why.clone())
            }
            Some(Failure::Lost { why, .. } | Failure::NotSent(why)) => {
                Error::unavailable_at(tried, why.clone())
            }
            Some(Failure::Unsupported(why)) => Error::Unsupported { message: why.text.clone() },
            Some(Failure::Unreadable(message)) => {
                Error::ValueUnreadable { key: Bytes::new(), message: message.clone() }
            }
            Some(last @ Failure::Compacted { oldest, now }) => {
                let error = Error::Compacted { oldest: *oldest, now: *now };
                self.longest_history(last).unwrap_or(error)
            }
            Some(Failure::Refused(error) | Failure::OtherCluster(error)) => error.clone(),
        }
    }

    /// The error where a node names the leader at this address. The story: behind a load balancer, or with a
    /// wrong `advertise.client`, a client reached some members and not the leader. It said that the cluster had
    /// no leader, and somebody looked for the fault among healthy members.
    fn without_the_leader_at(&self, address: &str) -> Error {
        let tried = self.tried.clone();
        let why = match &self.named {
            None => Why::from("that is no host:port"),
            // It answers, and does not lead: the nodes disagree for a while.
            Some(node) if node.connection().is_some() => return Error::NoLeader { tried },
            Some(node) => match node.last_failure() {
                Some(error) => error.into(),
                None => "no connection before the deadline".into(),
            },
        };
        let address = of_node(address);
        let text = format!(
            "the leader is said to be at {address}, which cannot be reached from here: {why}; a client must reach the \
             `advertise.client` of every member"
        );
        Error::unavailable_at(tried, Why { text, source: why.source })
    }
}
