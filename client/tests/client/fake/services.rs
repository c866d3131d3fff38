//! The calls that a [`Node`] answers. What changes or reads the store follows the node's script; the others do not.
use super::scans::Parts;
use super::store::Store;
use super::{Answer, Node, detail, refused};
use cairn_client::proto::error_detail::Reason;
use cairn_client::proto::kv_server::Kv;
use cairn_client::proto::operator_server::Operator;
use cairn_client::proto::{self, answer, call};
use futures::{Stream, StreamExt, stream};
use prost::Message;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tonic::{Request, Response, Status, Streaming};

/// A call of a stream like a call of its own.
fn single<M>(message: M, timeout: Duration, generation: Option<u32>) -> Request<M> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    if let Some(generation) = generation.map(proto::generation_text) {
        request.metadata_mut().insert(proto::GENERATION_KEY, generation.parse().unwrap());
    }
    request
}

fn failed(status: &Status) -> proto::Failed {
    let detail = status.metadata().get_bin(proto::ERROR_DETAIL_KEY);
    let detail = detail.map(|value| proto::ErrorDetail::decode(value.to_bytes().unwrap()).unwrap());
    proto::Failed { code: status.code() as i32, message: status.message().to_owned(), detail }
}

#[tonic::async_trait]
impl Kv for Node {
    async fn hello(&self, _: Request<proto::HelloRequest>) -> Answer<proto::HelloResponse> {
        self.hellos.fetch_add(1, Ordering::SeqCst);
        if self.hangs.load(Ordering::SeqCst) && self.always_hangs() {
            std::future::pending().await
        }
        let starts = {
            let mut starting = self.starting.lock().unwrap();
            let starts = *starting > 0;
            *starting = starting.saturating_sub(1);
            starts
        };
        if starts {
            return Err(Status::unavailable("starting"));
        }
        if self.denies.load(Ordering::SeqCst) {
            return Err(refused(&detail(Reason::Unauthenticated), "refused"));
        }
        let member = |address: &String| proto::Member {
            client_address: address.clone(),
            ..Default::default()
        };
        let generation = *self.generation.lock().unwrap();
        let membership = u64::from(generation != 0);
        Ok(Response::new(proto::HelloResponse {
            generation,
            membership_term: membership,
            membership_index: membership,
            cluster: self.cluster.name.clone(),
            limits: Some(self.cluster.limits),
            leader: None,
            applied_index: self.cluster.store.lock().unwrap().index,
            members: self.members.lock().unwrap().iter().map(member).collect(),
            server_version: "test".to_owned(),
            protocol: self.cluster.protocol,
        }))
    }

    async fn write(&self, request: Request<proto::WriteRequest>) -> Answer<proto::WriteResponse> {
        self.writes.lock().unwrap().push(request.get_ref().clone());
        self.perform(request, Store::write).await
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Answer<proto::GetResponse> {
        self.reads.lock().unwrap().push(request.get_ref().clone());
        self.perform(request, |store, get| store.get(&get.key)).await
    }

    async fn get_many(
        &self,
        request: Request<proto::GetManyRequest>,
    ) -> Answer<proto::GetManyResponse> {
        if self.earlier.load(Ordering::SeqCst) {
            return Err(Status::unimplemented(""));
        }
        self.many.lock().unwrap().push(request.get_ref().clone());
        self.perform(request, |store, get| proto::GetManyResponse {
            items: get.keys.iter().map(|key| store.get(key)).collect(),
            at: Some(proto::Position { term: 3, index: store.index }),
        })
        .await
    }

    type MultiplexStream =
        Pin<Box<dyn Stream<Item = Result<proto::MultiplexResponse, Status>> + Send>>;

    async fn multiplex(
        &self,
        request: Request<Streaming<proto::MultiplexRequest>>,
    ) -> Answer<Self::MultiplexStream> {
        let node = self.clone();
        let calls = request.into_inner().flat_map(|message| {
            let message = message.unwrap_or_default();
            stream::iter(message.calls.into_iter().map(move |call| (call, message.generation)))
        });
        let answers = calls.map(move |(call, generation)| {
            let node = node.clone();
            async move {
                let timeout = Duration::from_millis(call.timeout_ms);
                let answer = match call.kind.unwrap() {
                    call::Kind::Write(write) => node
                        .write(single(write, timeout, generation))
                        .await
                        .map(|r| answer::Kind::Write(r.into_inner())),
                    call::Kind::Get(get) => node
                        .get(single(get, timeout, generation))
                        .await
                        .map(|r| answer::Kind::Get(r.into_inner())),
                    call::Kind::GetMany(_) if node.earlier.load(Ordering::SeqCst) => {
                        Err(Status::invalid_argument("a call without content"))
                    }
                    call::Kind::GetMany(get) => node
                        .get_many(single(get, timeout, generation))
                        .await
                        .map(|r| answer::Kind::GetMany(r.into_inner())),
                };
                let kind =
                    Some(answer.unwrap_or_else(|status| answer::Kind::Failed(failed(&status))));
                Ok(proto::MultiplexResponse { answers: vec![proto::Answer { id: call.id, kind }] })
            }
        });
        Ok(Response::new(Box::pin(answers.buffer_unordered(proto::CALLS_OF_A_STREAM))))
    }

    type WatchStream = super::watches::Tells;

    async fn watch(
        &self,
        request: Request<Streaming<proto::WatchRequest>>,
    ) -> Answer<Self::WatchStream> {
        if self.earlier.load(Ordering::SeqCst) {
            self.refused_watches.fetch_add(1, Ordering::SeqCst);
            return Err(Status::unimplemented(""));
        }
        if self.means_another(&request) {
            return Err(refused(&detail(Reason::OtherGeneration), "refused"));
        }
        Ok(Response::new(self.watches.open(request.into_inner())))
    }

    async fn list(&self, mut request: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        if self.earlier.load(Ordering::SeqCst) {
            request.get_mut().end.clear();
        }
        self.lists.lock().unwrap().push(request.get_ref().clone());
        self.perform(request, Store::list).await
    }

    type ScanStream = Parts;

    async fn scan(&self, request: Request<proto::ScanRequest>) -> Answer<Self::ScanStream> {
        if self.earlier.load(Ordering::SeqCst) {
            return Err(Status::unimplemented(""));
        }
        self.scans.lock().unwrap().push(request.get_ref().clone());
        let whole = self.perform(request, Store::scan).await?.into_inner();
        Ok(Response::new(self.sent(whole)))
    }

    async fn safe_to_stop(
        &self,
        _: Request<proto::SafeToStopRequest>,
    ) -> Answer<proto::SafeToStopResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> Answer<proto::StatusResponse> {
        let index = self.cluster.store.lock().unwrap().index;
        let cluster = self.cluster.name.clone();
        let role = proto::Role::Leader.into();
        Ok(Response::new(proto::StatusResponse {
            cluster,
            role,
            applied_index: index,
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl Operator for Node {
    async fn unsafe_recovery(
        &self,
        _: Request<proto::UnsafeRecoveryRequest>,
    ) -> Answer<proto::UnsafeRecoveryResponse> {
        Err(Status::failed_precondition(
            "this member is active and votes without an unsafe-recovery grant",
        ))
    }

    async fn scrub(&self, request: Request<proto::ScrubRequest>) -> Answer<proto::ScrubResponse> {
        let paused = request.into_inner().action() == proto::scrub_request::Action::Pause;
        Ok(Response::new(proto::ScrubResponse {
            scrub: Some(proto::Scrub { paused, ..Default::default() }),
        }))
    }

    async fn change_members(
        &self,
        request: Request<proto::ChangeMembersRequest>,
    ) -> Answer<proto::ChangeMembersResponse> {
        self.perform(request, |store, change| {
            let asked_before = store.changes.contains(&change);
            store.changes.push(change);
            let waits_for = if asked_before { "" } else { "being asked again" };
            proto::ChangeMembersResponse { waits_for: waits_for.to_owned() }
        })
        .await
    }

    async fn set_mode(
        &self,
        request: Request<proto::SetModeRequest>,
    ) -> Answer<proto::SetModeResponse> {
        self.perform(request, |store, asked| {
            store.mode = asked.mode;
            proto::SetModeResponse {}
        })
        .await
    }

    async fn move_leader(
        &self,
        request: Request<proto::MoveLeaderRequest>,
    ) -> Answer<proto::MoveLeaderResponse> {
        self.moves.lock().unwrap().push(request.get_ref().slot);
        self.perform(request, |_, asked| {
            let leader = proto::Leader {
                node_id: u64::from(asked.slot) << 48,
                client_address: "10.0.0.9:7400".to_owned(),
            };
            proto::MoveLeaderResponse { leader: Some(leader) }
        })
        .await
    }

    type BackupStream = futures::stream::Empty<Result<proto::BackupPart, Status>>;

    async fn backup(&self, _: Request<proto::BackupRequest>) -> Answer<Self::BackupStream> {
        Err(Status::unimplemented("this node sends no state"))
    }

    async fn finish_upgrade(
        &self,
        request: Request<proto::FinishUpgradeRequest>,
    ) -> Answer<proto::FinishUpgradeResponse> {
        self.perform(request, |store, asked| {
            store.version = asked.version;
            proto::FinishUpgradeResponse {}
        })
        .await
    }

    async fn drain(&self, request: Request<proto::DrainRequest>) -> Answer<proto::DrainResponse> {
        self.drains.lock().unwrap().push(request.get_ref().time_ms);
        self.perform(request, |_, _| proto::DrainResponse {}).await
    }
}
