//! The service for operators: what gives up data or scrubs.
//!
//! What holds here: each call passes [`KvService::operator_call`], which checks the caller's role
//! and audits the call, whether it is allowed or refused.

use super::{KvService, scrub};
use crate::access::Need;
use crate::admission::caller::Caller;
use crate::metrics::Method;
use cairn_client::proto;
use cairn_client::proto::scrub_request::Action;
use cairn_engine::BootEpoch;
use cairn_raft::{NodeId, UnsafeRecovery};
use tonic::{Request, Response, Status};

impl KvService {
    /// Serves one call of an operator.
    async fn operator_call<M, T, F>(
        &self,
        (method, need): (Method, Need<'_>),
        request: Request<M>,
        arguments: impl FnOnce(&M) -> String,
        work: impl FnOnce(M) -> F,
    ) -> Result<Response<T>, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let caller = self.caller(&request);
        let message = request.into_inner();
        let (principal, arguments) = (name(&caller), arguments(&message));
        let audited = self.inner.audit.begin(principal, method.name(), arguments);
        let work = async {
            caller?.may(need)?;
            work(message).await
        };
        let answer = self.measured(method, work).await;
        audited.end(answer.as_ref().err().map(Status::message));
        answer
    }
}

/// Who made a call, for the audit.
fn name(caller: &Result<Caller, Status>) -> String {
    let known = caller.as_ref().map(|caller| caller.identity().principal().to_string());
    known.unwrap_or_else(|_| "nobody".into())
}

#[tonic::async_trait]
impl proto::operator_server::Operator for KvService {
    async fn unsafe_recovery(
        &self,
        request: Request<proto::UnsafeRecoveryRequest>,
    ) -> Result<Response<proto::UnsafeRecoveryResponse>, Status> {
        let arguments = |asked: &proto::UnsafeRecoveryRequest| {
            let candidate = NodeId::from_u64(asked.candidate);
            format!("candidate {candidate}, boot epoch {}", asked.boot_epoch)
        };
        let call = (Method::UnsafeRecovery, Need::UnsafeRecovery);
        let work = |asked: proto::UnsafeRecoveryRequest| async move {
            let epoch = BootEpoch { number: asked.boot_epoch, nonce: asked.boot_nonce };
            let candidate = NodeId::from_u64(asked.candidate);
            let unsafe_recovery = UnsafeRecovery { candidate, epoch };
            let given = self.inner.replica.unsafe_recovery(unsafe_recovery).await;
            given.map(|()| proto::UnsafeRecoveryResponse {}).map_err(Status::failed_precondition)
        };
        self.operator_call(call, request, arguments, work).await
    }

    async fn scrub(
        &self,
        request: Request<proto::ScrubRequest>,
    ) -> Result<Response<proto::ScrubResponse>, Status> {
        let arguments = |asked: &proto::ScrubRequest| {
            let known = Action::try_from(asked.action).map(|action| action.as_str_name());
            known.map_or_else(|_| asked.action.to_string(), str::to_lowercase)
        };
        let call = (Method::Scrub, Need::Operator);
        let work = |asked: proto::ScrubRequest| async move { scrub::scrub(&self.inner, &asked) };
        self.operator_call(call, request, arguments, work).await
    }
}
