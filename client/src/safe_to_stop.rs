//! Which members may be stopped now.

use std::time::Duration;

use tonic::Response;

use crate::node::Stub;
use crate::pool::Target;
use crate::shown::of_node;
use crate::{Client, Error, proto};

/// Whether a member may be stopped now, all others running on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopVerdict {
    /// The member's slot.
    pub slot: u16,
    /// Its identity.
    pub node_id: u64,
    /// Why it must not be stopped, a sentence for each reason; empty: it may be.
    pub obstacles: Vec<String>,
}

impl StopVerdict {
    /// Whether the member may be stopped.
    pub fn is_safe(&self) -> bool {
        self.obstacles.is_empty()
    }
}

impl Client {
    /// For each member whether it may be stopped now, as the leader says after a quorum has confirmed
    /// it: without a member that may be, the cluster goes on serving. Stop one, and ask again before
    /// the next: that one may be stopped once the first is back and holds everything.
    ///
    /// # Errors
    /// As a read: [`Error::NoLeader`] if nobody can tell.
    pub async fn safe_to_stop(&self) -> Result<Vec<StopVerdict>, Error> {
        let message = || proto::SafeToStopRequest {};
        let call = |mut stub: Stub, request, timeout: Duration| async move {
            let request = stub.request(request, timeout);
            stub.unary.safe_to_stop(request).await.map(Response::into_inner)
        };
        let answer = self.read(Target::Any, message, call).await?;
        let verdict = |verdict: proto::StopVerdict| {
            let slot = u16::try_from(verdict.slot).map_err(|_| {
                Error::InvalidRequest("the server names a slot that is none".into())
            })?;
            let obstacles = verdict.obstacles.iter().map(|why| of_node(why)).collect();
            Ok(StopVerdict { slot, node_id: verdict.node_id, obstacles })
        };
        answer.verdicts.into_iter().map(verdict).collect()
    }
}
