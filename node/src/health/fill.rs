//! How full a node's storage is, and whether it refuses puts for that.
//!
//! What holds here: `cairn health`, the status page and the metrics go by this alone. The engine decides about each
//! write by what that write needs. A node counts as full here when it would refuse a value of the mean length, or
//! one more key.

use cairn_client::StorageStatus;
use cairn_engine::{EngineStatus, data_reserve_bytes};

/// The least that a put needs: one block for its value, and this of a checkpoint area for its key, its entry of the
/// log and its session.
const VALUE_BYTES_MIN: u64 = 4 << 10;
const KEY_BYTES_MIN: u64 = 1 << 10;

/// What a node says of its storage.
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    data_bytes: u64,
    free_bytes: u64,
    /// Of keys and values, and how many there are.
    live_bytes: u64,
    keys: u64,
    /// The keys in a checkpoint, and where puts are refused; 0: it is not known.
    index_bytes: u64,
    index_limit_bytes: u64,
}

impl From<&StorageStatus> for Fill {
    fn from(storage: &StorageStatus) -> Fill {
        Fill {
            data_bytes: storage.data_bytes,
            free_bytes: storage.free_bytes,
            live_bytes: storage.live_bytes,
            keys: storage.keys,
            index_bytes: storage.index_bytes,
            index_limit_bytes: storage.index_limit_bytes,
        }
    }
}

impl From<&EngineStatus> for Fill {
    fn from(engine: &EngineStatus) -> Fill {
        Fill {
            data_bytes: engine.data_bytes,
            free_bytes: engine.free_bytes,
            live_bytes: engine.live_bytes,
            keys: engine.keys,
            index_bytes: engine.index_bytes.saturating_sub(engine.index_log_bytes),
            index_limit_bytes: engine.index_limit_bytes,
        }
    }
}

impl Fill {
    /// Whether the data area has no space for one more value: what is free beyond the reserve is used up.
    pub(crate) fn refuses_values(self) -> bool {
        let mean = self.live_bytes.checked_div(self.keys).unwrap_or_default();
        let writable = self.free_bytes.saturating_sub(data_reserve_bytes(self.data_bytes));
        self.data_bytes > 0 && writable < mean.max(VALUE_BYTES_MIN)
    }

    /// Whether the checkpoint areas have no space for one more key.
    pub(crate) fn refuses_keys(self) -> bool {
        let free = self.index_limit_bytes.saturating_sub(self.index_bytes);
        self.index_limit_bytes > 0 && free < KEY_BYTES_MIN
    }

    /// Whether a leader like this refuses puts.
    pub(crate) fn refuses_puts(self) -> bool {
        self.refuses_values() || self.refuses_keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVE: u64 = (100 << 20) / 32;

    /// Of 100 MiB, with so much free.
    fn fill(free_bytes: u64) -> Fill {
        let (data_bytes, index_limit_bytes) = (100 << 20, 1 << 20);
        Fill { data_bytes, free_bytes, live_bytes: 0, keys: 0, index_bytes: 0, index_limit_bytes }
    }

    #[test]
    fn an_area_is_full_once_what_is_free_is_the_reserve_and_less_than_a_mean_value() {
        assert!(fill(0).refuses_values() && fill(RESERVE).refuses_values());
        assert!(fill(RESERVE + VALUE_BYTES_MIN - 1).refuses_values());
        assert!(!fill(RESERVE + VALUE_BYTES_MIN).refuses_puts());
        let large = |free| Fill { live_bytes: 10 << 20, keys: 10, ..fill(free) };
        assert!(large(RESERVE + (1 << 20) - 1).refuses_puts());
        assert!(!large(RESERVE + (1 << 20)).refuses_puts());
    }

    #[test]
    fn keys_are_full_at_their_limit_whatever_is_free_for_values() {
        let keys = |index_bytes| Fill { index_bytes, ..fill(50 << 20) };
        assert!(keys(1 << 20).refuses_puts() && keys(2 << 20).refuses_keys());
        assert!(keys((1 << 20) - KEY_BYTES_MIN + 1).refuses_keys());
        assert!(!keys((1 << 20) - KEY_BYTES_MIN).refuses_puts());
    }

    #[test]
    fn what_a_node_does_not_say_is_not_full() {
        let silent = Fill { data_bytes: 0, free_bytes: 0, index_limit_bytes: 0, ..fill(0) };
        assert!(!silent.refuses_puts());
    }
}
