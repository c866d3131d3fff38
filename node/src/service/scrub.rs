//! The RPC with which an operator controls this node's scrubber.

use super::Inner;
use cairn_client::proto::{self, scrub_request::Action};
use cairn_raft::ScrubStatus;
use tonic::Status;

pub(super) fn scrub(
    inner: &Inner,
    request: &proto::ScrubRequest,
) -> Result<proto::ScrubResponse, Status> {
    let replica = &inner.replica;
    match Action::try_from(request.action) {
        Ok(Action::Show) => {}
        Ok(Action::Start) => replica.start_scrub(),
        Ok(Action::Pause) => replica.pause_scrub(true),
        Ok(Action::Resume) => replica.pause_scrub(false),
        Err(_) => {
            return Err(Status::invalid_argument(format!(
                "scrub action {} is not known to this server; use a server of the client's version",
                request.action
            )));
        }
    }
    Ok(proto::ScrubResponse { scrub: Some(status(&replica.scrub_status())) })
}

pub(super) fn status(status: &ScrubStatus) -> proto::Scrub {
    proto::Scrub {
        running: status.running,
        paused: status.paused,
        position: status.position,
        data_bytes: status.data_bytes,
        elapsed_s: status.elapsed_s,
        cycles: status.cycles,
        blocks_checked: status.blocks_checked,
        values_checked: status.values_checked,
        damaged: status.damaged,
        repaired: status.repaired,
        unrepairable: status.unrepairable,
    }
}
