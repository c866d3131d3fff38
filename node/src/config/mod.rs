//! What a node is told: the typed [`NodeConfig`], and how it is put together from file, environment and flags.
//!
//! What holds here: an unknown key is refused wherever it is given; every value remembers its source; a
//! [`NodeConfig`] that [`NodeConfig::validate`] accepted can be started.

mod error;
mod keys;
mod layers;
mod members;

pub use error::ConfigError;
pub use keys::{KEY_BYTES_MAX, VALUE_BYTES_MAX, format_size, parse_size};
pub use layers::{Layers, Setting, Source};

use cairn_engine::Mode;
use cairn_raft::{MemberAddress, NodeId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that one node needs to know.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The cluster's name.
    pub cluster: String,
    /// This member's slot.
    pub slot: u16,
    /// The data directory.
    pub data_directory: PathBuf,
    /// What an acknowledgement promises; `None`: the strongest mode that is justified where the node runs.
    pub mode: Option<Mode>,
    /// Where clients are served, `host:port`.
    pub client_address: String,
    /// Where the other members are served, `host:port`.
    pub peer_address: String,
    /// Where HTTP is served, if anywhere.
    pub http_address: Option<String>,
    /// The initial members with the addresses under which others reach them; contains `slot`.
    pub members: BTreeMap<u16, MemberAddress>,
    /// Bounds on requests.
    pub limits: Limits,
    /// Intervals and time-outs.
    pub timing: Timing,
    /// How the engine runs.
    pub storage: StorageConfig,
    /// How the scrubber runs.
    pub scrub: ScrubConfig,
    /// Whether a loss is accepted without a person, with every voter there.
    pub recover_automatically: bool,
}

/// Bounds on requests. The first four are published to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest key, in bytes.
    pub max_key_bytes: usize,
    /// Longest value, in bytes.
    pub max_value_bytes: usize,
    /// Most operations of one write request.
    pub max_batch_operations: usize,
    /// Most bytes of keys and values in one write request.
    pub max_request_bytes: usize,
    /// Most items of one list page.
    pub max_list_items: usize,
    /// Most bytes of keys and values in one list page.
    pub max_list_bytes: u64,
    /// Most write requests under way.
    pub max_in_flight_writes: usize,
    /// Most bytes of write requests under way.
    pub max_in_flight_bytes: usize,
    /// Most memory for values being read and for answers that clients have not taken, in bytes.
    pub max_read_bytes: usize,
    /// Most connections of clients at once.
    pub max_connections: usize,
    /// Most client sessions kept by the state machine; the same on every member.
    pub max_sessions: usize,
}

/// Intervals and time-outs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between a leader's signs of life.
    pub heartbeat: Duration,
    /// Least silence before a follower campaigns.
    pub election_min: Duration,
    /// Most silence before a follower campaigns.
    pub election_max: Duration,
    /// For a request without a deadline of its own.
    pub request: Duration,
    /// Given to requests under way when the node stops.
    pub shutdown: Duration,
}

/// How the engine and the log run.
#[derive(Clone, Debug)]
pub struct StorageConfig {
    /// Bytes of a data directory to be formatted.
    pub size_bytes: u64,
    /// How real files are driven.
    pub backend: DiskBackend,
    /// Whether a data directory that is missing or empty is formatted when the node starts.
    pub format_empty: bool,
    /// Whether the operator states that the device keeps completed writes through a power cut and writes 4 KiB whole.
    pub assert_device_contract: bool,
    /// A file of the form of `/proc/sys/kernel/random/boot_id`: how the death of a machine is told from that of a process.
    pub boot_id_file: PathBuf,
    /// Longest time between a write and the sync that covers it.
    pub sync_interval: Duration,
    /// Most written bytes before a background sync begins.
    pub sync_bytes: u64,
    /// Memory for log entries on their way to followers, in bytes.
    pub log_cache_bytes: u64,
    /// Applied log kept, in bytes.
    pub log_retain_bytes: u64,
    /// Applied log kept, in entries.
    pub log_retain_entries: u64,
}

/// How the scrubber runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubConfig {
    /// Bytes read in a second, at most.
    pub rate_bytes: u64,
    /// From the beginning of one cycle to the next.
    pub cycle: Duration,
}

/// How real files are driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskBackend {
    /// io_uring, or threads where the system forbids it.
    Auto,
    /// io_uring.
    IoUring,
    /// A pool of threads.
    Threads,
}

/// How a server process writes its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Filter directives.
    pub level: String,
    /// One JSON object per line instead of text.
    pub json: bool,
}

impl NodeConfig {
    /// A node with default limits and timings that listens where its entry in `members` says.
    ///
    /// # Errors
    /// `Conflict` where [`NodeConfig::validate`] would refuse it.
    pub fn new(
        cluster: &str,
        slot: u16,
        data_directory: PathBuf,
        members: BTreeMap<u16, MemberAddress>,
    ) -> Result<NodeConfig, ConfigError> {
        let mut layers = Layers::new();
        let source = || Source::Flag("code".into());
        layers.set("cluster", cluster.into(), source())?;
        layers.set("slot", slot.to_string(), source())?;
        layers.set("data_dir", data_directory.display().to_string(), source())?;
        layers.set("members", members::format(&members), source())?;
        layers.set("listen.http", "none".into(), source())?;
        if let Some(own) = members.get(&slot) {
            layers.set("listen.client", own.client.clone(), source())?;
            layers.set("listen.peer", own.peer.clone(), source())?;
        }
        NodeConfig::from_layers(&layers)
    }

    /// The typed configuration.
    ///
    /// # Errors
    /// `Missing` and `Conflict`.
    pub fn from_layers(layers: &Layers) -> Result<NodeConfig, ConfigError> {
        let slot = layers.read("slot", members::parse_slot)?;
        let client_address = layers.text("listen.client")?;
        let peer_address = layers.text("listen.peer")?;
        let mut members = layers.read("members", members::parse)?;
        if members.is_empty() {
            let own = MemberAddress { peer: peer_address.clone(), client: client_address.clone() };
            members.insert(slot, own);
        }
        let mode = match layers.text("mode")?.as_str() {
            "auto" => None,
            _ => Some(layers.read("mode", |text| text.parse::<Mode>())?),
        };
        let config = NodeConfig {
            cluster: layers.text("cluster")?,
            slot,
            data_directory: PathBuf::from(layers.text("data_dir")?),
            mode,
            client_address,
            peer_address,
            http_address: Some(layers.text("listen.http")?).filter(|address| address != "none"),
            members,
            limits: read_limits(layers)?,
            timing: read_timing(layers)?,
            storage: read_storage(layers)?,
            scrub: read_scrub(layers)?,
            recover_automatically: layers.text("recover.automatic")? == "true",
        };
        config.validate()?;
        Ok(config)
    }

    /// Checks what single values cannot show.
    ///
    /// # Errors
    /// `Conflict`, naming both sides and the way out.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let conflict = |message: String| Err(ConfigError::Conflict(message));
        if self.cluster.len() > 64 {
            return conflict(format!(
                "cluster name `{}` has {} bytes; at most 64",
                self.cluster,
                self.cluster.len()
            ));
        }
        if !self.members.contains_key(&self.slot) {
            let slots: Vec<String> = self.members.keys().map(u16::to_string).collect();
            return conflict(format!(
                "slot {} is not among the members ({}); add [members.{}] or correct `slot`",
                self.slot,
                slots.join(", "),
                self.slot
            ));
        }
        if self.mode == Some(Mode::Replicated) && self.members.len() < 3 {
            return conflict(format!(
                "mode `replicated` relies on the other members after a power cut, and {} initial member{} cannot \
                 give back what one forgot; use mode = \"sync\", or three members or more",
                self.members.len(),
                if self.members.len() == 1 { "" } else { "s" }
            ));
        }
        let ports = [&self.client_address, &self.peer_address].into_iter().chain(&self.http_address);
        let mut seen = Vec::new();
        for address in ports.filter(|address| !address.ends_with(":0")) {
            if seen.contains(&address) {
                return conflict(format!(
                    "{address} is given to two of listen.client, listen.peer, listen.http"
                ));
            }
            seen.push(address);
        }
        let timing = &self.timing;
        if timing.election_min < 2 * timing.heartbeat || timing.election_max <= timing.election_min {
            return conflict(
                "timing.election_min must be at least twice timing.heartbeat, and timing.election_max greater than \
                 timing.election_min"
                    .into(),
            );
        }
        let limits = &self.limits;
        if limits.max_request_bytes < limits.max_key_bytes + limits.max_value_bytes {
            return conflict(
                "limits.max_request_bytes must hold at least one key and one value of the greatest size"
                    .into(),
            );
        }
        if limits.max_in_flight_bytes < limits.max_request_bytes {
            return conflict("limits.max_in_flight_bytes must hold at least limits.max_request_bytes".into());
        }
        let most = limits.max_list_bytes.max(limits.max_value_bytes as u64);
        if (limits.max_read_bytes as u64) / 4 < most {
            return conflict(
                "limits.max_read_bytes must hold at least four times limits.max_list_bytes and limits.max_value_bytes"
                    .into(),
            );
        }
        Ok(())
    }

    /// Where a member is reached: as configured here, since an operator who moves one says so there; else as the log has it.
    pub(crate) fn address_of<'a>(&'a self, id: NodeId, logged: &'a MemberAddress) -> &'a MemberAddress {
        self.members.get(&id.slot()).unwrap_or(logged)
    }

    /// The addresses under which other machines reach this node.
    pub fn advertised(&self) -> Option<&MemberAddress> {
        self.members.get(&self.slot)
    }
}

impl LogConfig {
    /// How to log.
    ///
    /// # Errors
    /// None beyond those of adding the values.
    pub fn from_layers(layers: &Layers) -> Result<LogConfig, ConfigError> {
        Ok(LogConfig { level: layers.text("log.level")?, json: layers.text("log.format")? == "json" })
    }
}

fn read_limits(layers: &Layers) -> Result<Limits, ConfigError> {
    let size = |name| layers.read(name, |text| usize_of(parse_size(text)?));
    let count = |name| layers.read(name, |text| text.parse::<usize>().map_err(|error| error.to_string()));
    Ok(Limits {
        max_key_bytes: size("limits.max_key_bytes")?,
        max_value_bytes: size("limits.max_value_bytes")?,
        max_batch_operations: count("limits.max_batch_operations")?,
        max_request_bytes: size("limits.max_request_bytes")?,
        max_list_items: count("limits.max_list_items")?,
        max_list_bytes: layers.read("limits.max_list_bytes", parse_size)?,
        max_in_flight_writes: count("limits.max_in_flight_writes")?,
        max_in_flight_bytes: size("limits.max_in_flight_bytes")?,
        max_read_bytes: size("limits.max_read_bytes")?,
        max_connections: count("limits.max_connections")?,
        max_sessions: count("limits.max_sessions")?,
    })
}

fn usize_of(number: u64) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| "too large for this machine".to_string())
}

fn read_timing(layers: &Layers) -> Result<Timing, ConfigError> {
    let time = |name| layers.read(name, keys::parse_time);
    Ok(Timing {
        heartbeat: time("timing.heartbeat")?,
        election_min: time("timing.election_min")?,
        election_max: time("timing.election_max")?,
        request: time("timing.request")?,
        shutdown: time("timing.shutdown")?,
    })
}

fn read_scrub(layers: &Layers) -> Result<ScrubConfig, ConfigError> {
    const DAY_SECONDS: u64 = 24 * 3600;
    let days =
        layers.read("scrub.cycle_days", |text| text.parse::<u64>().map_err(|error| error.to_string()))?;
    Ok(ScrubConfig {
        rate_bytes: layers.read("scrub.rate_bytes", parse_size)?,
        cycle: Duration::from_secs(days.saturating_mul(DAY_SECONDS)),
    })
}

fn read_storage(layers: &Layers) -> Result<StorageConfig, ConfigError> {
    Ok(StorageConfig {
        size_bytes: layers.read("storage.size", parse_size)?,
        backend: match layers.text("storage.backend")?.as_str() {
            "io_uring" => DiskBackend::IoUring,
            "threads" => DiskBackend::Threads,
            _ => DiskBackend::Auto,
        },
        format_empty: layers.text("storage.format_empty")? == "true",
        assert_device_contract: layers.text("storage.assert_device_contract")? == "true",
        boot_id_file: PathBuf::from(layers.text("storage.boot_id_file")?),
        sync_interval: layers.read("storage.sync_interval", keys::parse_time)?,
        sync_bytes: layers.read("storage.sync_bytes", parse_size)?,
        log_cache_bytes: layers.read("storage.log_cache_bytes", parse_size)?,
        log_retain_bytes: layers.read("storage.log_retain_bytes", parse_size)?,
        log_retain_entries: layers.read("storage.log_retain_entries", |text| {
            text.parse::<u64>().map_err(|error| error.to_string())
        })?,
    })
}

#[cfg(test)]
mod tests;
