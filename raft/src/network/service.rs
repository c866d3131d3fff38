//! The server side of the peer protocol.

use super::proto::{self, peer_server::Peer};
use std::pin::Pin;
use tonic::{Request, Response, Status, Streaming};

/// Answers the other members.
pub struct PeerService {}

type AppendResponses = Pin<Box<dyn futures::Stream<Item = Result<proto::AppendResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Peer for PeerService {
    async fn hello(&self, _: Request<proto::HelloRequest>) -> Result<Response<proto::HelloResponse>, Status> {
        unimplemented!()
    }

    type AppendStream = AppendResponses;

    async fn append(
        &self,
        _: Request<Streaming<proto::AppendRequest>>,
    ) -> Result<Response<AppendResponses>, Status> {
        unimplemented!()
    }

    async fn vote(&self, _: Request<proto::VoteRequest>) -> Result<Response<proto::VoteResponse>, Status> {
        unimplemented!()
    }

    async fn pre_vote(&self, _: Request<proto::VoteRequest>) -> Result<Response<proto::VoteResponse>, Status> {
        unimplemented!()
    }

    async fn snapshot_offset(
        &self,
        _: Request<proto::SnapshotOffsetRequest>,
    ) -> Result<Response<proto::SnapshotOffsetResponse>, Status> {
        unimplemented!()
    }

    async fn snapshot_chunk(
        &self,
        _: Request<proto::SnapshotChunkRequest>,
    ) -> Result<Response<proto::SnapshotChunkResponse>, Status> {
        unimplemented!()
    }

    async fn snapshot_finish(
        &self,
        _: Request<proto::SnapshotFinishRequest>,
    ) -> Result<Response<proto::SnapshotFinishResponse>, Status> {
        unimplemented!()
    }

    async fn transfer_leader(
        &self,
        _: Request<proto::TransferLeaderRequest>,
    ) -> Result<Response<proto::TransferLeaderResponse>, Status> {
        unimplemented!()
    }
}
