//! The configuration of a node: the typed [`NodeConfig`], and how it is read from file, environment
//! and flags.
//!
//! What holds here: an unknown key is refused wherever it is given. Every value keeps its source. A
//! [`NodeConfig`] that [`NodeConfig::validate`] accepts can be started.

mod backup;
mod error;
mod forms;
mod keys;
mod layers;
mod limits;
mod members;
mod security;
mod storage;
mod syntax;
mod watch;

pub use backup::{BackupConfig, BackupVerify};
pub use error::ConfigError;
pub use keys::{KEY_BYTES_MAX, VALUE_BYTES_MAX, format_rounded, format_size, parse_size};
pub use layers::{Layers, Setting, Source};
pub use limits::Limits;
pub(crate) use members::{check_address, is_wildcard};
pub use security::{Security, exposed_secret};
pub use storage::{ScrubConfig, StorageConfig};
pub use watch::WatchConfig;

use crate::access::Entries;
use cairn_engine::Mode;
use cairn_raft::{Machine, MemberAddress};
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
    /// What an acknowledgement promises in a cluster that this member forms; `None`: the strongest
    /// mode that is justified on the machine. Later the log says it.
    pub mode: Option<Mode>,
    /// The address that serves clients, `host:port`.
    pub client_address: String,
    /// The address that serves the other members, `host:port`.
    pub peer_address: String,
    /// The address that serves HTTP, if any.
    pub http_address: Option<String>,
    /// Where clients reach this member; `None`: where it listens.
    pub advertise_client: Option<String>,
    /// Where the other members reach this one; `None`: where it listens.
    pub advertise_peer: Option<String>,
    /// Peer addresses that are asked for the members.
    pub join: Vec<String>,
    /// The members that form the cluster, once, with the addresses at which others reach them.
    /// Contains `slot`, or is empty: then this member joins a cluster.
    pub members: BTreeMap<u16, MemberAddress>,
    /// Who may do what; empty: everybody may do everything.
    pub access: Entries,
    /// Bounds on requests.
    pub limits: Limits,
    /// Intervals and timeouts.
    pub timing: Timing,
    /// How the engine runs.
    pub storage: StorageConfig,
    /// Threads that serve client connections; 0: the thread that replicates and stores serves them
    /// too; `None`: by the number of processors.
    pub client_threads: Option<usize>,
    /// What else fails when this member's machine does; empty: nothing that is known.
    pub failure_domain: String,
    /// How the scrubber runs.
    pub scrub: ScrubConfig,
    /// How much of the history of changes is kept.
    pub watch: WatchConfig,
    /// When this member saves backups while it leads; `None`: never.
    pub backup: Option<BackupConfig>,
    /// Whether the members accept data loss without an operator once every voter answers.
    pub unsafe_recovery_automatic: bool,
    /// How connections are authenticated; `None`: nobody has decided, and the node does not start.
    pub security: Option<Security>,
}

/// Intervals and timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Interval between heartbeats.
    pub heartbeat: Duration,
    /// Shortest election timeout.
    pub election_min: Duration,
    /// Longest election timeout.
    pub election_max: Duration,
    /// Deadline of a request that has none of its own.
    pub request: Duration,
    /// Time for requests under way to finish when the node stops.
    pub shutdown: Duration,
}

/// How a server process writes its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Filter directives.
    pub level: String,
    /// Write one JSON object per line instead of text.
    pub json: bool,
}

impl NodeConfig {
    /// A node with default limits and timings that listens where its entry in `members` says,
    /// without certificates.
    ///
    /// # Errors
    /// `Conflict` if [`NodeConfig::validate`] refuses the configuration.
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
        layers.set("insecure", "true".into(), source())?;
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
        let join = layers.read("join", members::parse_addresses)?;
        if members.is_empty() && join.is_empty() {
            let own = MemberAddress { peer: peer_address.clone(), client: client_address.clone() };
            members.insert(slot, own);
        }
        let mode = layers.read("mode", |text| match text {
            "auto" => Ok(None),
            mode => mode.parse::<Mode>().map(Some),
        })?;
        let config = NodeConfig {
            cluster: layers.text("cluster")?,
            slot,
            data_directory: PathBuf::from(layers.text("data_dir")?),
            mode,
            client_address,
            peer_address,
            advertise_client: advertised(layers, "advertise.client")?,
            advertise_peer: advertised(layers, "advertise.peer")?,
            join,
            http_address: Some(layers.text("listen.http")?).filter(|address| address != "none"),
            members,
            access: layers.read("access", keys::parse_access)?,
            limits: Limits::read(layers)?,
            timing: read_timing(layers)?,
            storage: StorageConfig::read(layers)?,
            client_threads: layers.read("threads.clients", keys::parse_threads)?,
            failure_domain: Some(layers.text("failure_domain")?)
                .filter(|domain| domain != "none")
                .unwrap_or_default(),
            scrub: ScrubConfig::read(layers)?,
            watch: WatchConfig::read(layers)?,
            backup: BackupConfig::read(layers)?,
            unsafe_recovery_automatic: layers.text("unsafe_recovery.automatic")? == "true",
            security: Security::read(layers)?,
        };
        config.validate()?;
        Ok(config)
    }

    /// Checks the values against each other.
    ///
    /// # Errors
    /// `Conflict`, which names both sides and what to do.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let conflict = |message: String| Err(ConfigError::Conflict(message));
        if self.cluster.len() > 64 {
            return conflict(format!(
                "cluster name `{}` has {} bytes; at most 64",
                self.cluster,
                self.cluster.len()
            ));
        }
        if self.failure_domain.len() > Machine::DOMAIN_BYTES_MAX {
            return conflict(format!(
                "failure_domain `{}` has {} bytes; at most {}",
                self.failure_domain,
                self.failure_domain.len(),
                Machine::DOMAIN_BYTES_MAX
            ));
        }
        if !self.members.is_empty() && !self.members.contains_key(&self.slot) {
            let slots: Vec<String> = self.members.keys().map(u16::to_string).collect();
            return conflict(format!(
                "slot {} is not among the members ({}); add [members.{}] or correct `slot`",
                self.slot,
                slots.join(", "),
                self.slot
            ));
        }
        if self.unsafe_recovery_automatic
            && !self.access.is_empty()
            && self.security == Some(Security::Insecure)
        {
            return conflict(
                "unsafe_recovery.automatic needs members that can prove who they are: with `access`, give certificates \
                 (`tls.…`) instead of insecure = true"
                    .into(),
            );
        }
        if self.mode == Some(Mode::Replicated) && self.voters() < 3 {
            return conflict(format!(
                "mode `replicated` relies on the other members after a power cut, and {} initial member{} cannot \
                 restore what one of them lost; use mode = \"sync\", or three members or more",
                self.members.len(),
                if self.members.len() == 1 { "" } else { "s" }
            ));
        }
        let reached = [
            ("client", &self.client_address, &self.advertise_client),
            ("peer", &self.peer_address, &self.advertise_peer),
        ];
        for (name, listen, advertised) in reached {
            let at = advertised.as_ref().unwrap_or(listen);
            if members::is_wildcard(at) {
                return conflict(format!(
                    "nobody reaches this member at {at}: give advertise.{name} the address at which others do"
                ));
            }
        }
        self.check_backup()?;
        self.check_distinct()?;
        let ports =
            [&self.client_address, &self.peer_address].into_iter().chain(&self.http_address);
        let mut seen = Vec::new();
        for address in ports.filter(|address| !address.ends_with(":0")) {
            if seen.contains(&address) {
                return conflict(format!(
                    "{address} is given to two of listen.client, listen.peer and listen.http"
                ));
            }
            seen.push(address);
        }
        let timing = &self.timing;
        if timing.election_min < 2 * timing.heartbeat || timing.election_max <= timing.election_min
        {
            return conflict(
                "timing.election_min must be at least twice timing.heartbeat, and timing.election_max greater than \
                 timing.election_min"
                    .into(),
            );
        }
        self.limits.check()
    }

    /// Checks that no two members, nor the two ports of one, are reached at one address.
    fn check_distinct(&self) -> Result<(), ConfigError> {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        let of_members = self.members.iter().flat_map(|(slot, member)| {
            let key = |kind: &str| format!("members.{slot}.{kind}");
            [(key("client"), &member.client), (key("peer"), &member.peer)]
        });
        let mut repeated = |key: String, address: &str| {
            let known = seen.insert(address.to_lowercase(), key.clone());
            // Port 0 is any free port.
            known.filter(|_| !address.ends_with(":0")).map(|known| {
                ConfigError::Conflict(format!(
                    "{address} is both {known} and {key}: each member has an address for clients and another one for members, and \
                     shares none with another member"
                ))
            })
        };
        for (key, address) in of_members {
            repeated(key, address).map_or(Ok(()), Err)?;
        }
        match (&self.advertise_client, &self.advertise_peer) {
            (Some(client), Some(peer)) if client.eq_ignore_ascii_case(peer) => {
                Err(ConfigError::Conflict(format!(
                    "{peer} is both advertise.client and advertise.peer: clients and members reach this member at two addresses"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Whether this member belongs to a cluster of several, as far as the configuration tells.
    pub fn has_peers(&self) -> bool {
        self.members.len() > 1 || !self.join.is_empty()
    }

    /// What a new directory becomes, if the configuration names no other node.
    pub fn alone(&self) -> Option<&'static str> {
        let words = "an empty directory becomes a cluster of its own: neither [members] nor `join` names another node";
        (!self.has_peers()).then_some(words)
    }

    /// The number of voters that this configuration plans for. Later the log says how many there are,
    /// and what acknowledgements mean.
    pub fn voters(&self) -> usize {
        match self.members.len() {
            0 => JOINED_VOTERS,
            members => members,
        }
    }

    /// Where to ask for the members: `join`, and where the cluster was formed.
    pub(crate) fn seeds(&self) -> Vec<String> {
        let initial = self.members.iter().filter(|(slot, _)| **slot != self.slot);
        let initial = initial.map(|(_, address)| address.peer.clone());
        self.join.iter().cloned().chain(initial).collect()
    }
}

/// The voters of a cluster that a member joins, as long as it knows none.
const JOINED_VOTERS: usize = 3;

fn advertised(layers: &Layers, key: &'static str) -> Result<Option<String>, ConfigError> {
    Ok(Some(layers.text(key)?).filter(|address| address != "auto"))
}

impl LogConfig {
    /// The logging configuration.
    ///
    /// # Errors
    /// None beyond those of adding the values.
    pub fn from_layers(layers: &Layers) -> Result<LogConfig, ConfigError> {
        Ok(LogConfig {
            level: layers.text("log.level")?,
            json: layers.text("log.format")? == "json",
        })
    }
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

#[cfg(test)]
mod tests;
