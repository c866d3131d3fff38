//! Scans that are open: each keeps the space of what is deleted meanwhile, and memory for a piece.
//!
//! What holds here: a node has a bounded number of them, and a client a smaller one, so that no client keeps all others
//! from theirs. A scan is counted until its reading has ended, whoever reads it.

use super::refusal;
use super::shares::Owner;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;

/// The most of one node.
const MOST: usize = 16;
/// The most of one client at a node.
const MOST_OF_ONE: usize = 4;

/// How many each client has open. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Scans(Arc<Mutex<BTreeMap<Owner, usize>>>);

/// A scan that is open. It ends when this is dropped.
pub(crate) struct OpenScan {
    scans: Scans,
    owner: Owner,
}

impl Scans {
    /// Opens a scan of this client.
    ///
    /// # Errors
    /// OVERLOADED, if the client or the node has as many as it may have.
    pub(crate) fn begin(&self, owner: Owner) -> Result<OpenScan, Status> {
        let mut open = self.0.lock();
        let own = open.get(&owner).copied().unwrap_or(0);
        if own >= MOST_OF_ONE {
            return Err(refusal::scans_overloaded("this client has", own));
        }
        let all: usize = open.values().sum();
        if all >= MOST {
            return Err(refusal::scans_overloaded("its clients have", all));
        }
        open.insert(owner, own + 1);
        Ok(OpenScan { scans: self.clone(), owner })
    }

    /// How many are open.
    pub(crate) fn open(&self) -> usize {
        self.0.lock().values().sum()
    }
}

impl Drop for OpenScan {
    fn drop(&mut self) {
        let mut open = self.scans.0.lock();
        if let Some(own) = open.get_mut(&self.owner) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                open.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::proto::ErrorDetail;
    use cairn_client::proto::error_detail::Reason;

    #[test]
    fn a_client_has_few_scans_open_and_leaves_some_for_others_until_the_node_has_its_most() {
        let scans = Scans::default();
        let refused = |owner| {
            let status = scans.begin(owner).err().expect("one too many");
            let reason = ErrorDetail::of(&status).map(|detail| detail.reason());
            assert_eq!(reason, Some(Reason::Overloaded), "{status}");
            status.message().to_owned()
        };
        let mut open = Vec::new();
        for number in 0..4 {
            for _ in 0..MOST_OF_ONE {
                open.push(scans.begin(Owner::Name(number)).expect("it may"));
            }
            assert!(refused(Owner::Name(number)).contains("this client has 4 scans"));
        }
        assert_eq!(scans.open(), MOST);
        assert!(refused(Owner::Name(9)).contains("its clients have 16 scans"));
        drop(open.pop());
        open.push(scans.begin(Owner::Name(9)).expect("one has ended"));
        drop(open);
        assert_eq!(scans.open(), 0);
        assert!(scans.0.lock().is_empty(), "no client is kept");
    }
}
