//! The service for operators: what gives up data, changes members, mode or leader, finishes an upgrade,
//! or scrubs.
//!
//! What holds here: each call passes [`KvService::operator_call`], which checks the caller's role
//! and audits the call, whether it is allowed, redirected or refused.

use super::{KvService, backup, membership, scrub, upgrade};
use crate::access::Need;
use crate::access::audit::End;
use crate::admission::caller::Caller;
use crate::admission::deadline;
use crate::metrics::Method;
use cairn_client::Mode;
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::scrub_request::Action;
use cairn_client::proto::{self, ErrorDetail};
use cairn_engine::BootEpoch;
use cairn_raft::{NodeId, UnsafeRecovery};
use std::time::Duration;
use tonic::{Code, Request, Response, Status};

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
        T: Audited,
    {
        let caller = self.caller(&request);
        let message = request.into_inner();
        let (principal, arguments) = (name(&caller), arguments(&message));
        let audited = self.inner.audit.begin(principal, method.name(), arguments);
        let mut allowed = false;
        let work = async {
            caller?.may(need)?;
            allowed = true;
            work(message).await
        };
        let answer = self.measured(method, work).await;
        audited.end(match &answer {
            Ok(answer) => answer.get_ref().end(),
            Err(status) if is_redirect(status) => End::Redirected(status.message()),
            Err(status) if !allowed => End::Refused(status.message()),
            // It may still happen.
            Err(status) if status.code() == Code::DeadlineExceeded => {
                End::UnderWay(status.message())
            }
            Err(status) => End::Failed(status.message()),
        });
        answer
    }

    /// How long a call may work.
    fn budget<M>(&self, request: &Request<M>) -> Duration {
        deadline::budget(request.metadata(), self.inner.config.timing.request)
    }
}

/// Whether the answer names the leader to ask.
fn is_redirect(status: &Status) -> bool {
    ErrorDetail::of(status).is_some_and(|detail| detail.reason() == Reason::NotLeader)
}

/// An answer, as the audit sees it.
trait Audited {
    fn end(&self) -> End<'_> {
        End::Done
    }
}

impl Audited for proto::UnsafeRecoveryResponse {}
impl Audited for proto::ScrubResponse {}
impl Audited for proto::SetModeResponse {}
impl Audited for proto::MoveLeaderResponse {}
impl Audited for proto::DrainResponse {}
impl Audited for proto::FinishUpgradeResponse {}
impl Audited for backup::Parts {}
impl Audited for proto::ChangeMembersResponse {
    fn end(&self) -> End<'_> {
        match self.waits_for.as_str() {
            "" => End::Done,
            what => End::UnderWay(what),
        }
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

    async fn change_members(
        &self,
        request: Request<proto::ChangeMembersRequest>,
    ) -> Result<Response<proto::ChangeMembersResponse>, Status> {
        let (call, budget) = ((Method::ChangeMembers, Need::Operator), self.budget(&request));
        let work = |asked: proto::ChangeMembersRequest| async move {
            membership::change(&self.inner, &asked, budget).await
        };
        self.operator_call(call, request, membership::words, work).await
    }

    async fn set_mode(
        &self,
        request: Request<proto::SetModeRequest>,
    ) -> Result<Response<proto::SetModeResponse>, Status> {
        let (call, budget) = ((Method::SetMode, Need::Operator), self.budget(&request));
        let arguments = |asked: &proto::SetModeRequest| Mode::from(asked.mode()).to_string();
        let work = |asked: proto::SetModeRequest| async move {
            membership::set_mode(&self.inner, &asked, budget).await
        };
        self.operator_call(call, request, arguments, work).await
    }

    async fn move_leader(
        &self,
        request: Request<proto::MoveLeaderRequest>,
    ) -> Result<Response<proto::MoveLeaderResponse>, Status> {
        let (call, budget) = ((Method::MoveLeader, Need::Operator), self.budget(&request));
        let arguments = |asked: &proto::MoveLeaderRequest| match asked.slot {
            0 => "to any voter".to_string(),
            slot => format!("to slot {slot}"),
        };
        let work = |asked: proto::MoveLeaderRequest| async move {
            membership::move_leader(&self.inner, &asked, budget).await
        };
        self.operator_call(call, request, arguments, work).await
    }

    async fn finish_upgrade(
        &self,
        request: Request<proto::FinishUpgradeRequest>,
    ) -> Result<Response<proto::FinishUpgradeResponse>, Status> {
        let (call, budget) = ((Method::FinishUpgrade, Need::Operator), self.budget(&request));
        let arguments = |asked: &proto::FinishUpgradeRequest| format!("version {}", asked.version);
        let work = |asked: proto::FinishUpgradeRequest| async move {
            upgrade::finish(&self.inner, &asked, budget).await
        };
        self.operator_call(call, request, arguments, work).await
    }

    type BackupStream = backup::Parts;

    async fn backup(
        &self,
        request: Request<proto::BackupRequest>,
    ) -> Result<Response<backup::Parts>, Status> {
        let (call, budget) = ((Method::Backup, Need::Backup), self.budget(&request));
        let arguments = |asked: &proto::BackupRequest| match asked.held.len() {
            0 => "everything".to_owned(),
            held => format!("beside {held} earlier ones"),
        };
        let (caller, session) = (self.caller(&request), self.session(&request));
        let answering = caller.clone();
        let streams = self.inner.backups.clone();
        let work = |asked: proto::BackupRequest| async move {
            backup::backup(&self.inner, (caller?, session?), asked, budget, streams).await
        };
        let answer = self.operator_call(call, request, arguments, work).await?;
        Ok(answering?.answered(answer))
    }

    async fn drain(
        &self,
        request: Request<proto::DrainRequest>,
    ) -> Result<Response<proto::DrainResponse>, Status> {
        let (call, budget) = ((Method::Drain, Need::Operator), self.budget(&request));
        let arguments = |asked: &proto::DrainRequest| match asked.time_ms {
            0 => "end".to_string(),
            time_ms => format!("for {time_ms} ms"),
        };
        let work = |asked: proto::DrainRequest| async move {
            membership::drain(&self.inner, &asked, budget).await
        };
        self.operator_call(call, request, arguments, work).await
    }
}
