//! Bounds on requests, and how they fit one another.
//!
//! What holds here: a request of the largest size is served. What a running node takes from a new configuration fits
//! what stays until a restart.

use super::{ConfigError, Layers, parse_size};

/// Bounds on requests. The first four are published to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest key, in bytes.
    pub max_key_bytes: usize,
    /// Longest value, in bytes.
    pub max_value_bytes: usize,
    /// Most operations of one write request, and keys of one get of several.
    pub max_batch_operations: usize,
    /// Most bytes of keys and values in one write request.
    pub max_request_bytes: usize,
    /// Most items of one list page.
    pub max_list_items: usize,
    /// Most bytes of keys and values in one list page, and of values in one get of several.
    pub max_list_bytes: u64,
    /// Most write requests under way.
    pub max_in_flight_writes: usize,
    /// Most bytes of write requests under way.
    pub max_in_flight_bytes: usize,
    /// Most memory for values being read and for answers not yet sent to clients, in bytes.
    pub max_read_bytes: usize,
    /// Most client connections at once.
    pub max_connections: usize,
    /// Most client sessions kept by the state machine; the same on every member.
    pub max_sessions: usize,
    /// Most watches at once.
    pub max_watches: usize,
}

impl Limits {
    pub(super) fn read(layers: &Layers) -> Result<Limits, ConfigError> {
        // A count is read like a size without a unit.
        let number = |name| {
            let too_large = |_| "too large for this machine".to_string();
            layers.read(name, |text| usize::try_from(parse_size(text)?).map_err(too_large))
        };
        Ok(Limits {
            max_key_bytes: number("limits.max_key_bytes")?,
            max_value_bytes: number("limits.max_value_bytes")?,
            max_batch_operations: number("limits.max_batch_operations")?,
            max_request_bytes: number("limits.max_request_bytes")?,
            max_list_items: number("limits.max_list_items")?,
            max_list_bytes: layers.read("limits.max_list_bytes", parse_size)?,
            max_in_flight_writes: number("limits.max_in_flight_writes")?,
            max_in_flight_bytes: number("limits.max_in_flight_bytes")?,
            max_read_bytes: number("limits.max_read_bytes")?,
            max_connections: number("limits.max_connections")?,
            max_sessions: number("limits.max_sessions")?,
            max_watches: number("limits.max_watches")?,
        })
    }

    /// Checks that they fit one another.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let conflict = |what: &str| Err(ConfigError::Conflict(what.into()));
        if self.max_request_bytes < self.max_key_bytes + self.max_value_bytes {
            return conflict(
                "limits.max_request_bytes must hold at least one key and one value of the largest size",
            );
        }
        if self.max_in_flight_bytes / 4 < self.max_request_bytes {
            return conflict(
                "limits.max_in_flight_bytes must hold at least four times limits.max_request_bytes",
            );
        }
        // The largest answer is charged twice, and fits while others hold as much.
        let most = self.max_list_bytes.max(self.max_value_bytes as u64);
        if (self.max_read_bytes as u64) / 8 < most {
            return conflict(
                "limits.max_read_bytes must hold at least eight times limits.max_list_bytes and limits.max_value_bytes",
            );
        }
        Ok(())
    }

    /// Those of a node that runs with these and reads `new`: what needs a restart stays.
    ///
    /// # Errors
    /// `Conflict`, if the new ones do not fit what stays.
    pub fn reloaded(&self, new: &Limits) -> Result<Limits, ConfigError> {
        let Limits { max_request_bytes, max_connections, max_sessions, .. } = *self;
        let limits = Limits { max_request_bytes, max_connections, max_sessions, ..*new };
        limits.check().map(|()| limits).map_err(|error| match limits == *new {
            true => error,
            false => ConfigError::Conflict(format!(
                "{error}; limits.max_request_bytes stays {max_request_bytes} bytes until a restart"
            )),
        })
    }
}
