//! The calls of an operator: those that give up data, scrub, or change the cluster. An application
//! does not reach them by accident, since they have a handle and a service of their own.

use std::time::Duration;

use tonic::{Code, Response, Status};

use crate::node::Stub;
use crate::scrub::scrub_status;
use crate::{Client, Error, ScrubAction, ScrubStatus, proto};

/// The operator's calls of a [`Client`], from [`Client::operator`]. The servers allow them only to
/// the role `operator`, and log each one.
#[derive(Clone, Debug)]
pub struct Operator {
    client: Client,
}

/// A call to [`Operator`] that a node has answered, as its audit log shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub ago: Duration,
}

pub(crate) fn operator_call(call: proto::OperatorCall) -> OperatorCall {
    OperatorCall {
        principal: call.principal,
        call: call.call,
        arguments: call.arguments,
        result: call.result,
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
        self.client.ask_one(endpoint, call).await?.map(drop).map_err(refused)
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
        let answer = self.client.ask_one(endpoint, call).await?;
        Ok(answer.scrub.map(scrub_status).unwrap_or_default())
    }
}

/// The answer, or the reason why the node refused the call in its present state.
fn reason<T>(answer: Result<Response<T>, Status>) -> Result<Result<T, String>, Status> {
    match answer {
        Err(status) if status.code() == Code::FailedPrecondition => {
            Ok(Err(status.message().to_owned()))
        }
        answer => answer.map(|answer| Ok(answer.into_inner())),
    }
}
