//! How many connections each port has, by the slots that are taken.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The slots of each port. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<BTreeMap<&'static str, Slots>>>);

struct Slots {
    free: Arc<Semaphore>,
    most: usize,
}

impl Connections {
    /// The port of this configuration key, such as `listen.client`, has so many slots, of which those
    /// are free that the semaphore has.
    #[cfg_attr(madsim, allow(dead_code, reason = "the simulated world has no ports"))]
    pub(crate) fn watch(&self, key: &'static str, free: &Arc<Semaphore>, most: usize) {
        let port = key.trim_start_matches("listen.");
        self.0.lock().insert(port, Slots { free: Arc::clone(free), most });
    }

    /// For each port: its connections, and the most that it may have.
    pub(super) fn open(&self) -> Vec<(&'static str, u64, u64)> {
        let ports = self.0.lock();
        let open = |(port, slots): (&&'static str, &Slots)| {
            let taken = slots.most.saturating_sub(slots.free.available_permits());
            (*port, taken as u64, slots.most as u64)
        };
        ports.iter().map(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_slot_is_an_open_connection() {
        let (connections, free) = (Connections::default(), Arc::new(Semaphore::new(3)));
        connections.watch("listen.client", &free, 3);
        assert_eq!(connections.open(), [("client", 0, 3)]);
        let taken = Arc::clone(&free).try_acquire_owned().expect("a slot");
        assert_eq!(connections.open(), [("client", 1, 3)]);
        drop(taken);
        assert_eq!(connections.open(), [("client", 0, 3)]);
    }
}
