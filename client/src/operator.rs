//! The calls of an operator: those that give up data, scrub, or change the cluster. An application
//! does not reach them by accident, since they have a handle and a service of their own.

use std::time::Duration;

use tonic::{Code, Response, Status};

use crate::attempts::Attempts;
use crate::error::Why;
use crate::failure::Failure;
use crate::members::{Leader, MemberChange};
use crate::named::Mode;
use crate::node::Stub;
use crate::pool::Target;
use crate::scrub::scrub_status;
use crate::shown::{of_node, some_of_node};
use crate::{Client, Error, ScrubAction, ScrubStatus, proto};

/// How long an answer of the leader, or of a drained node, may take, even if the attempt timeout is
/// shorter: the server may wait for a successor's log, and then until another one leads.
const ANSWER: Duration = Duration::from_secs(7);

/// The operator's calls of a [`Client`], from [`Client::operator`]. The servers allow them only to
/// the role `operator`, and log each one.
#[derive(Clone, Debug)]
pub struct Operator {
    client: Client,
}

/// A call to [`Operator`] that a node has answered, as its audit log shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OperatorCall {
    /// Who asked.
    pub principal: String,
    /// The call's name.
    pub call: String,
    /// Its arguments.
    pub arguments: String,
    /// `ok`, or the refusal.
    pub result: String,
    /// How long before the status it was answered.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "ago_ms", serialize_with = "crate::json::millis")
    )]
    pub ago: Duration,
}

pub(crate) fn operator_call(call: proto::OperatorCall) -> OperatorCall {
    OperatorCall {
        principal: of_node(&call.principal),
        call: of_node(&call.call),
        arguments: of_node(&call.arguments),
        result: of_node(&call.result),
        ago: Duration::from_millis(call.ago_ms),
    }
}

impl Client {
    /// The operator's calls.
    pub fn operator(&self) -> Operator {
        Operator { client: self.clone() }
    }
}

impl Operator {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Sends the unsafe-recovery grant to the node at `endpoint`: an operator accepts the loss of
    /// what no member holds. The node may then vote for `candidate` in this boot epoch
    /// ([`NodeStatus::boot_epoch`](crate::NodeStatus::boot_epoch)), and for no other.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer; [`Error::InvalidRequest`] with its reason if
    /// it refuses.
    pub async fn unsafe_recovery(
        &self,
        endpoint: &str,
        candidate: u64,
        boot_epoch: (u64, u64),
    ) -> Result<(), Error> {
        let (boot_epoch, boot_nonce) = boot_epoch;
        let request = proto::UnsafeRecoveryRequest { candidate, boot_epoch, boot_nonce };
        let call = |mut stub: Stub, timeout| async move {
            let request = stub.request(request, timeout);
            reason(stub.operator.unsafe_recovery(request).await)
        };
        let refused = |reason| Error::InvalidRequest(format!("{endpoint}: {reason}"));
        self.client
            .ask_one(endpoint, self.client.pool.options.attempt_timeout, call)
            .await?
            .map(drop)
            .map_err(refused)
    }

    /// Tells the scrubber of the node at `endpoint` (`host:port`) what to do, and returns its
    /// status after that. Asks the node once; no leader is needed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer, [`Error::InvalidOptions`] if `endpoint` is not
    /// an address.
    pub async fn scrub(&self, endpoint: &str, action: ScrubAction) -> Result<ScrubStatus, Error> {
        let request = proto::ScrubRequest { action: action as i32 };
        let call = |mut stub: Stub, timeout: Duration| async move {
            let request = stub.request(request, timeout);
            stub.operator.scrub(request).await.map(Response::into_inner)
        };
        let answer =
            self.client.ask_one(endpoint, self.client.pool.options.attempt_timeout, call).await?;
        Ok(answer.scrub.map(scrub_status).unwrap_or_default())
    }
}

/// Who belongs to the cluster, what its acknowledgements mean, who leads it, and which releases may
/// run in it. The calls without an
/// endpoint go to the leader, and follow it until the client's deadline
/// ([`Options::deadline`](crate::Options::deadline)).
impl Operator {
    /// Changes who belongs to the cluster, or where a member is. `None`: the change is done.
    /// `Some(why)`: it is not done yet, and this sentence says why; ask again, best some hundred
    /// milliseconds later. Asking again repeats nothing, also after an error and from another client.
    ///
    /// # Errors
    /// [`Error::Refused`], if the present members do not allow the change: the reason and the way
    /// out. [`Error::InvalidRequest`], if it is none: slot 0, or no address.
    /// [`Error::NoLeader`], [`Error::Unavailable`] and [`Error::DeadlineExceeded`] as a read: then
    /// the change may be under way.
    pub async fn change_members(&self, change: &MemberChange) -> Result<Option<String>, Error> {
        let call = |mut stub: Stub, request, timeout| async move {
            let request = stub.request(request, timeout);
            stub.operator.change_members(request).await.map(Response::into_inner)
        };
        let answer = self.ask_leader(change.to_proto(), Repeat::Yes, call).await?;
        Ok(some_of_node(&answer.waits_for))
    }

    /// Sets the least that an acknowledgement means in this cluster. Returns when a majority has logged it. A member whose machine allows less than that
    /// stays stricter. Setting the present mode again changes nothing.
    ///
    /// # Errors
    /// [`Error::Refused`], if the members do not allow the mode: the reason and the way out.
    /// [`Error::InvalidRequest`], if it is unknown. [`Error::NoLeader`], [`Error::Unavailable`] and
    /// [`Error::DeadlineExceeded`] as a read: then the mode may be set, now or later.
    pub async fn set_mode(&self, mode: Mode) -> Result<(), Error> {
        let call = |mut stub: Stub, request, timeout| async move {
            let request = stub.request(request, timeout);
            stub.operator.set_mode(request).await.map(drop)
        };
        let message = proto::SetModeRequest { mode: mode.into() };
        self.ask_leader(message, Repeat::Yes, call).await
    }

    /// Lets the member of this slot lead, or with `None` the voter that can take over soonest.
    /// Returns who leads then.
    ///
    /// # Errors
    /// [`Error::Refused`], if that member cannot lead: the reason and the way out.
    /// [`Error::NoLeader`], [`Error::Unavailable`] and [`Error::DeadlineExceeded`] as a read: then
    /// leadership may have moved. With `None` the client does not ask again once it does not know
    /// whether it has.
    pub async fn move_leader(&self, slot: Option<u16>) -> Result<Leader, Error> {
        let call = |mut stub: Stub, request, timeout| async move {
            let request = stub.request(request, timeout);
            stub.operator.move_leader(request).await.map(Response::into_inner)
        };
        let message = proto::MoveLeaderRequest { slot: slot.map_or(0, u32::from) };
        let repeat = if slot.is_some() { Repeat::Yes } else { Repeat::No };
        let answer = self.ask_leader(message, repeat, call).await?;
        let unnamed = || Error::InvalidRequest("the server does not say who leads".to_owned());
        answer.leader.map(Leader::of).ok_or_else(unnamed)
    }

    /// Lets the node at `endpoint` (`host:port`) give leadership away, and not campaign for `time`
    /// (whole milliseconds) or until it restarts. Zero ends this at once. Asks the node once; no
    /// leader is needed.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason if the node refuses. [`Error::Unavailable`] if it does not
    /// answer, [`Error::InvalidOptions`] if `endpoint` is not an address.
    pub async fn drain(&self, endpoint: &str, time: Duration) -> Result<(), Error> {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let call = |mut stub: Stub, timeout| async move {
            let request = stub.request(proto::DrainRequest { time_ms }, timeout);
            stub.operator.drain(request).await.map(drop)
        };
        self.client
            .ask_one(endpoint, self.client.pool.options.attempt_timeout.max(ANSWER), call)
            .await
    }

    /// Finishes an upgrade: from now on no release of a version below this one runs in the cluster,
    /// and what the versions up to it brought is used. It is not taken back. A version that the
    /// cluster has changes nothing.
    ///
    /// # Errors
    /// [`Error::Refused`], if a member is not known to run a release of that version or a later one.
    /// [`Error::InvalidRequest`], if it is none: 0. [`Error::NoLeader`], [`Error::Unavailable`] and
    /// [`Error::DeadlineExceeded`] as a read: then the version may have risen, now or later.
    pub async fn finish_upgrade(&self, version: u32) -> Result<(), Error> {
        let call = |mut stub: Stub, request, timeout| async move {
            let request = stub.request(request, timeout);
            stub.operator.finish_upgrade(request).await.map(drop)
        };
        self.ask_leader(proto::FinishUpgradeRequest { version }, Repeat::Yes, call).await
    }

    /// Asks the leader until it answers or the deadline passes.
    async fn ask_leader<M: Clone, T, F>(
        &self,
        message: M,
        repeat: Repeat,
        call: impl Fn(Stub, M, Duration) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let pool = &self.client.pool;
        let mut attempts =
            Attempts::new(Target::Leader, self.client.deadline).answered_within(ANSWER);
        loop {
            let (node, connection) = attempts.connection(pool).await?;
            let called = attempts.call(pool, &node, &connection, message.clone(), &call).await;
            let failure = match called {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match (&failure, repeat) {
                // The answer came, and the client is of another cluster meanwhile.
                (Failure::Refused(Error::ClusterMismatch { .. }), Repeat::No) => {
                    let why =
                        "the cluster was replaced meanwhile; the call may have had its effect";
                    return Err(Error::unavailable(node.address(), why));
                }
                (Failure::Refused(error), _) => return Err(error.clone()),
                (Failure::Lost { why, .. } | Failure::Unsupported(why), Repeat::No) => {
                    let text = format!("{why}; the call may have had its effect");
                    let why = Why { text, source: why.source.clone() };
                    return Err(Error::unavailable(node.address(), why));
                }
                _ => {}
            }
            attempts.failed(pool, &node, failure).await?;
        }
    }
}

/// Whether a call may be sent again after its answer was lost.
#[derive(Clone, Copy)]
enum Repeat {
    Yes,
    No,
}

/// The answer, or the reason why the node refused the call in its present state.
fn reason<T>(answer: Result<Response<T>, Status>) -> Result<Result<T, String>, Status> {
    match answer {
        Err(status) if status.code() == Code::FailedPrecondition => {
            Ok(Err(of_node(status.message())))
        }
        answer => answer.map(|answer| Ok(answer.into_inner())),
    }
}
