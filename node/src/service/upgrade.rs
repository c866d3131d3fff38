//! The call that finishes an upgrade.

use super::Inner;
use super::membership::{in_time, refused};
use cairn_client::proto;
use std::time::Duration;
use tonic::Status;

pub(super) async fn finish(
    inner: &Inner,
    request: &proto::FinishUpgradeRequest,
    budget: Duration,
) -> Result<proto::FinishUpgradeResponse, Status> {
    if request.version == 0 {
        return Err(Status::invalid_argument("version 0: expected a version from 1"));
    }
    let finished = in_time(budget, inner.replica.finish_upgrade(request.version)).await?;
    finished.map_err(|error| refused(inner, error))?;
    Ok(proto::FinishUpgradeResponse {})
}
