//! Bounds the writes under way, in number and in bytes. Load beyond the cluster's capacity is
//! refused at once instead of queued without limit.

use super::refusal;
use crate::config::Limits;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Bytes are counted in units of this many, because a semaphore counts to `u32`.
const UNIT_BYTES: usize = 1024;

/// The writes under way.
pub(crate) struct Admission {
    writes: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    max_writes: usize,
    max_bytes: usize,
}

/// Admission of one write. Dropping it frees its capacity.
pub(crate) struct WritePermit {
    _write: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Admission {
        let units = (limits.max_in_flight_bytes / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Admission {
            writes: Arc::new(Semaphore::new(limits.max_in_flight_writes)),
            bytes: Arc::new(Semaphore::new(units)),
            max_writes: limits.max_in_flight_writes,
            max_bytes: limits.max_in_flight_bytes,
        }
    }

    /// Admits a write of `bytes`, or refuses it with OVERLOADED at once.
    pub(crate) fn enter(&self, bytes: usize) -> Result<WritePermit, Status> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let write = Arc::clone(&self.writes)
            .try_acquire_owned()
            .map_err(|_| refusal::overloaded("requests", self.max_writes))?;
        let bytes = Arc::clone(&self.bytes)
            .try_acquire_many_owned(units)
            .map_err(|_| refusal::overloaded("bytes", self.max_bytes))?;
        Ok(WritePermit { _write: write, _bytes: bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;

    fn admission(writes: usize, bytes: usize) -> Admission {
        let members =
            [(1, cairn_raft::MemberAddress { peer: "a:2".into(), client: "a:1".into() })].into();
        let limits =
            NodeConfig::new("c", 1, "d".into(), members).expect("a good configuration").limits;
        Admission::new(&Limits {
            max_in_flight_writes: writes,
            max_in_flight_bytes: bytes,
            ..limits
        })
    }

    #[test]
    fn more_writes_than_the_bound_are_overloaded_until_one_ends() {
        let admission = admission(2, 1 << 20);
        let (first, _second) = (admission.enter(1).expect("one"), admission.enter(1).expect("two"));
        let status = admission.enter(1).err().expect("three");
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert!(status.message().contains("2 requests"), "{}", status.message());
        drop(first);
        assert!(admission.enter(1).is_ok());
    }

    #[test]
    fn more_bytes_than_the_bound_are_overloaded_and_take_no_capacity() {
        let admission = admission(2, 1 << 20);
        for _ in 0..3 {
            assert!(admission.enter((1 << 20) + 1).is_err());
        }
        assert!(admission.enter(1 << 20).is_ok());
    }
}
