//! The settings of one replica. None of them is replicated.

use super::error::Error;
use super::ids::{MemberAddress, NodeId};
use super::machine::Machine;
use cairn_engine::Mode;
use cairn_tls::Tls;
use std::collections::BTreeMap;
use std::time::Duration;

/// A replica's settings. `new` has the defaults.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The laxest that an acknowledgement of this member may mean; the same as the engine's.
    pub mode: Mode,
    /// What acknowledgements mean in a cluster whose log does not say so yet, if this member leads.
    pub formation_mode: Mode,
    /// The members by slot, this one included, that form the cluster, once; empty: this one joins a
    /// cluster. Later the log says who belongs, and where.
    pub initial_members: BTreeMap<u16, MemberAddress>,
    /// Peer addresses that are asked for the members while this member knows none, and while it
    /// hears no leader.
    pub seeds: Vec<String>,
    /// Where the others and clients reach this member; empty: as the initial members say.
    pub advertised: MemberAddress,
    /// The interval between a leader's heartbeats.
    pub heartbeat_ms: u64,
    /// Election timeout: a follower without a message from a leader campaigns after a random time,
    /// which is at least this.
    pub election_min_ms: u64,
    /// The end of that random range, exclusive.
    pub election_max_ms: u64,
    /// Keep about this many bytes of applied log, so that a member that was down for a while needs
    /// no snapshot; at most an eighth of the data area.
    pub log_retain_bytes: u64,
    /// At most about this many applied entries are kept.
    pub log_retain_entries: u64,
    /// Changes of about this many bytes in the log can be told to those who follow them; at most an
    /// eighth of the data area, and of no more entries than the log keeps beside so many keys. The keys
    /// of deleted ranges count like bytes of the log.
    pub history_retain_bytes: u64,
    /// They can be told for about this long.
    pub history_retain_time: Duration,
    /// A checkpoint is taken after this many bytes of entries, or more if checkpoints are large; at
    /// most an eighth of the data area.
    pub checkpoint_bytes: u64,
    /// How often the log's and the journal's size are checked.
    pub maintenance_ms: u64,
    /// At most this many entries in one append message; the byte bound is fixed.
    pub append_max_entries: u64,
    /// The largest entry that clients may write, in bytes.
    pub largest_entry_bytes: u64,
    /// The number of clients whose results are kept, so that a retried write is not applied twice.
    pub max_sessions: usize,
    /// The scrubber reads at most this many bytes a second.
    pub scrub_rate_bytes: u64,
    /// The interval between the beginnings of two scrub cycles; a cycle that takes longer delays
    /// the next.
    pub scrub_cycle: Duration,
    /// The machine on which this member runs, for the others to know which voters fail together.
    pub machine: Machine,
    /// The seed of everything random in the replica except the election timeouts of a real runtime.
    pub seed: u64,
    /// The certificates of this member. `None`: connections between members are not authenticated.
    pub tls: Option<Tls>,
}

impl ReplicaConfig {
    /// The defaults for these members.
    pub fn new(mode: Mode, initial_members: BTreeMap<u16, MemberAddress>) -> ReplicaConfig {
        ReplicaConfig {
            mode,
            formation_mode: mode,
            initial_members,
            seeds: Vec::new(),
            advertised: MemberAddress::default(),
            heartbeat_ms: 100,
            election_min_ms: 500,
            election_max_ms: 1000,
            log_retain_bytes: 256 << 20,
            log_retain_entries: 250_000,
            history_retain_bytes: 256 << 20,
            history_retain_time: Duration::from_secs(3600),
            checkpoint_bytes: 1 << 30,
            maintenance_ms: 200,
            append_max_entries: 512,
            largest_entry_bytes: 4 << 20,
            max_sessions: 10_000,
            scrub_rate_bytes: 10 << 20,
            scrub_cycle: Duration::from_secs(30 * 24 * 3600),
            machine: Machine::default(),
            seed: 0,
            tls: None,
        }
    }

    /// Where to ask for members that the log does not tell.
    pub(crate) fn contacts(&self) -> impl Iterator<Item = String> {
        let initial = self.initial_members.values().map(|address| address.peer.clone());
        self.seeds.iter().cloned().chain(initial)
    }

    /// Where this member, of slot `slot`, is reached.
    pub(crate) fn advertised(&self, slot: u16) -> MemberAddress {
        let configured = || self.initial_members.get(&slot).cloned().unwrap_or_default();
        Some(self.advertised.clone()).filter(|own| !own.peer.is_empty()).unwrap_or_else(configured)
    }

    /// The settings for openraft, for this member of this cluster.
    ///
    /// # Errors
    /// `Config`: settings that contradict each other.
    pub(crate) fn for_openraft(
        &self,
        cluster: &str,
        id: NodeId,
    ) -> Result<openraft::Config, Error> {
        if !self.initial_members.is_empty() && !self.initial_members.contains_key(&id.slot()) {
            return Err(Error::Config(format!(
                "slot {} is not among the initial members",
                id.slot()
            )));
        }
        openraft::Config {
            cluster_name: cluster.to_string(),
            heartbeat_interval: self.heartbeat_ms,
            election_timeout_min: self.election_min_ms,
            election_timeout_max: self.election_max_ms,
            max_payload_entries: self.append_max_entries,
            max_append_entries: Some(self.append_max_entries.max(4096)),
            // Checkpoints and purging are driven by maintenance, by bytes.
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            backoff: "100ms".to_string(),
            // A restarted leader would reuse log ids of its own term.
            enable_leader_restore: Some(false),
            enable_pre_vote: Some(true),
            allow_log_reversion: Some(false),
            ..openraft::Config::default()
        }
        .validate()
        .map_err(|error| Error::Config(error.to_string()))
    }
}
