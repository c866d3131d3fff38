//! Surveys of the members: which of them may be stopped now.
//!
//! What holds here: whoever reaches the HTTP port may ask, and each survey opens connections to other
//! members on the thread that replicates. So callers share surveys, and these begin at most ten times
//! a second.

use super::coalesce::Coalescer;
use super::read_barrier::ReadBarrier;
use crate::membership::Reconciler;
use crate::transport::StopVerdict;
use std::sync::Arc;
use std::time::Duration;

/// The least time between the beginnings of two surveys.
const INTERVAL: Duration = Duration::from_millis(100);

/// What a survey found, or why nobody can tell.
pub(super) type Surveyed = Result<Vec<StopVerdict>, String>;

/// The callers' handle.
#[derive(Clone)]
pub(super) struct Surveys(Coalescer<Surveyed>);

impl Surveys {
    /// Starts surveys that are made like this; they end with the last handle.
    pub(super) fn start<R>(survey: impl Fn() -> R + Send + Sync + 'static) -> Surveys
    where
        R: Future<Output = Surveyed> + Send + 'static,
    {
        Surveys(Coalescer::start(INTERVAL, survey))
    }

    /// Those of a member that leads. Those of one that does not fail.
    pub(super) fn of_leader(barrier: &ReadBarrier, reconciler: &Arc<Reconciler>) -> Surveys {
        let (barrier, reconciler) = (barrier.clone(), reconciler.clone());
        Surveys::start(move || lead(barrier.clone(), reconciler.clone()))
    }

    /// What a survey finds that begins after the call. May be cancelled.
    pub(super) async fn answer(&self) -> Surveyed {
        self.0.call().await.unwrap_or_else(|| Err("replication has ended".into()))
    }
}

/// Asks all members, once a quorum has confirmed that this member leads.
async fn lead(barrier: ReadBarrier, reconciler: Arc<Reconciler>) -> Surveyed {
    barrier.wait().await.map_err(|error| error.to_string())?;
    let verdicts = reconciler.stop_verdicts().await;
    verdicts.ok_or_else(|| "this member does not lead any more".into())
}
