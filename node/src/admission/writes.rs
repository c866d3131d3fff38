//! Bounds the writes under way, in number and in bytes. Load beyond the cluster's capacity is
//! refused at once instead of queued without limit. A client holds at most as much of either as
//! remains free ([`super::shares`]), so that one alone cannot take all.

use super::refusal;
use super::shares::{Owner, Shares};
use crate::config::Limits;
use parking_lot::Mutex;
use std::sync::Arc;
use tonic::Status;

/// The writes under way.
pub(crate) struct Admission {
    under_way: Arc<Mutex<UnderWay>>,
}

struct UnderWay {
    writes: Shares,
    bytes: Shares,
}

/// Admission of one write. Dropping it frees its capacity.
pub(crate) struct WritePermit {
    under_way: Arc<Mutex<UnderWay>>,
    owner: Owner,
    bytes: usize,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Admission {
        let under_way = UnderWay {
            writes: Shares::new(limits.max_in_flight_writes),
            bytes: Shares::new(limits.max_in_flight_bytes),
        };
        Admission { under_way: Arc::new(Mutex::new(under_way)) }
    }

    /// Changes the bounds. What is under way stays admitted.
    pub(crate) fn resize(&self, limits: &Limits) {
        let mut under_way = self.under_way.lock();
        under_way.writes.set_most(limits.max_in_flight_writes);
        under_way.bytes.set_most(limits.max_in_flight_bytes);
    }

    /// Admits a write of `bytes`, or refuses it with OVERLOADED at once.
    pub(crate) fn enter(&self, owner: Owner, bytes: usize) -> Result<WritePermit, Status> {
        let mut under_way = self.under_way.lock();
        let UnderWay { writes, bytes: held } = &mut *under_way;
        if !writes.fits(owner, 1) {
            return Err(refusal::overloaded("requests", writes.held(), writes.most()));
        }
        if !held.fits(owner, bytes) {
            return Err(refusal::overloaded("bytes", held.held(), held.most()));
        }
        writes.take(owner, 1);
        held.take(owner, bytes);
        drop(under_way);
        Ok(WritePermit { under_way: Arc::clone(&self.under_way), owner, bytes })
    }
}

impl Drop for WritePermit {
    fn drop(&mut self) {
        let mut under_way = self.under_way.lock();
        under_way.writes.release(self.owner, 1);
        under_way.bytes.release(self.owner, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;

    const ADA: Owner = Owner::Name(1);
    const BEN: Owner = Owner::Connection(1);

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
        let admission = admission(4, 1 << 20);
        let first = admission.enter(ADA, 1).expect("one");
        let _second = admission.enter(ADA, 1).expect("two");
        let status = admission.enter(ADA, 1).err().expect("half of them are one client's");
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert!(status.message().contains("2 of at most 4 requests"), "{}", status.message());
        drop(admission.enter(BEN, 1).expect("another client's"));
        drop(first);
        assert!(admission.enter(ADA, 1).is_ok());
    }

    #[test]
    fn more_bytes_than_the_bound_are_overloaded_and_take_no_capacity() {
        let admission = admission(8, 100);
        let held = admission.enter(ADA, 50).expect("half");
        for _ in 0..3 {
            let status = admission.enter(ADA, 1).err().expect("no more than half");
            assert!(status.message().contains("50 of at most 100 bytes"), "{}", status.message());
            assert!(admission.enter(BEN, 26).is_err());
        }
        drop(admission.enter(BEN, 25).expect("half of the rest"));
        drop(held);
        assert!(admission.enter(ADA, 101).is_ok(), "alone");
    }

    /// The story: one client filled the bound with writes that waited for a quorum, and the puts of
    /// all others were refused.
    #[test]
    fn a_small_put_is_admitted_however_many_writes_other_clients_have_under_way() {
        let admission = admission(4096, 64 << 20);
        let mut held = Vec::new();
        for greedy in 0..3 {
            while let Ok(permit) = admission.enter(Owner::Name(greedy), 1 << 10) {
                held.push(permit);
            }
        }
        let small = (0..16).map(|_| admission.enter(BEN, 100)).collect::<Result<Vec<_>, _>>();
        assert!(small.is_ok(), "beside {} writes of others", held.len());
    }
}
