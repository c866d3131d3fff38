//! What the nodes reported about the cluster: its name, its limits, its members, and the generation
//! that the client means ([`crate::caller`]).
//!
//! What holds here: what a node says that lags takes nothing away that a later membership added. The
//! members are those of the meant generation.

use parking_lot::RwLock;

use crate::Error;
use crate::caller::{Caller, OtherGeneration, generation_of};
use crate::convert;
use crate::proto::{self, generation_text};
use crate::types::{Limits, Member};

pub(crate) struct ClusterView {
    caller: Caller,
    reported: RwLock<Reported>,
}

#[derive(Default)]
struct Reported {
    cluster: Option<String>,
    limits: Option<Limits>,
    members: Vec<Member>,
    /// Log id of the membership that `members` is from: term, index.
    membership: (u64, u64),
}

impl Reported {
    fn forget_members(&mut self) {
        (self.members, self.membership) = (Vec::new(), (0, 0));
    }
}

/// What a report changed.
pub(crate) struct Learnt {
    /// The members that it named.
    pub(crate) members: Vec<Member>,
    /// No later membership is known.
    pub(crate) newest: bool,
    /// The client means another generation now.
    pub(crate) other_generation: bool,
}

impl ClusterView {
    /// Of this cluster, or of the first one that answers.
    pub(crate) fn new(cluster: Option<String>, caller: Caller) -> ClusterView {
        ClusterView { caller, reported: RwLock::new(Reported { cluster, ..Reported::default() }) }
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Stores what the node at `address` reports.
    ///
    /// # Errors
    /// [`Error::ClusterMismatch`] if it is of another cluster, or generation, than the client's.
    pub(crate) fn learn(
        &self,
        address: &str,
        hello: proto::HelloResponse,
    ) -> Result<Learnt, Error> {
        let generation = generation_of(&hello);
        let members: Vec<Member> = hello.members.into_iter().map(convert::member).collect();
        let membership = (hello.membership_term, hello.membership_index);
        let mut reported = self.reported.write();
        match &reported.cluster {
            Some(cluster) if *cluster != hello.cluster => {
                return Err(Error::ClusterMismatch {
                    endpoint: address.to_owned(),
                    expected: cluster.clone(),
                    found: hello.cluster,
                });
            }
            Some(_) => {}
            None => reported.cluster = Some(hello.cluster.clone()),
        }
        let mut other_generation = false;
        if let Some(generation) = generation {
            let before = self.caller.told(generation).map_err(|OtherGeneration(known)| {
                mismatch(address, &hello.cluster, known, generation)
            })?;
            if before.is_some() {
                reported.forget_members();
                other_generation = true;
            }
        }
        reported.limits = hello.limits.as_ref().map(convert::limits).or(reported.limits);
        let newest = !members.is_empty() && membership >= reported.membership;
        if newest || reported.members.is_empty() {
            reported.members.clone_from(&members);
            reported.membership = membership;
        }
        Ok(Learnt { members, newest, other_generation })
    }

    /// A request that named this generation was served by the node at `address`, or may take effect:
    /// the client stays with it. Returns whether it meant another one by now.
    ///
    /// # Errors
    /// [`Error::ClusterMismatch`] if the client stays with another one since it asked.
    pub(crate) fn stays(&self, named: Option<u32>, address: &str) -> Result<bool, Error> {
        let other = self.caller.stays(named).map_err(|OtherGeneration(known)| {
            let cluster = self.cluster().unwrap_or_default();
            mismatch(address, &cluster, known, named.unwrap_or_default())
        })?;
        if other {
            self.reported.write().forget_members();
        }
        Ok(other)
    }

    pub(crate) fn limits(&self) -> Option<Limits> {
        self.reported.read().limits
    }

    pub(crate) fn members(&self) -> Vec<Member> {
        self.reported.read().members.clone()
    }

    pub(crate) fn cluster(&self) -> Option<String> {
        self.reported.read().cluster.clone()
    }
}

/// The node at this address is of another generation than the client's.
fn mismatch(address: &str, cluster: &str, known: u32, found: u32) -> Error {
    let of = |number| format!("{cluster} of generation {}", generation_text(number));
    Error::ClusterMismatch { endpoint: address.to_owned(), expected: of(known), found: of(found) }
}
