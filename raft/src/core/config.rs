//! The settings of one replica. None of them is replicated.

use super::error::Error;
use super::ids::{MemberAddress, NodeId};
use cairn_engine::Mode;
use cairn_tls::Tls;
use std::collections::BTreeMap;
use std::time::Duration;

/// A replica's settings. `new` has the defaults.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// What an acknowledgement promises; the same as the engine's.
    pub mode: Mode,
    /// The members by slot, this one included, from the configuration. They form the cluster once;
    /// later their addresses take precedence over those in the log.
    pub initial_members: BTreeMap<u16, MemberAddress>,
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
    /// A checkpoint is taken after this many bytes of entries, or more if checkpoints are large; at
    /// most an eighth of the data area.
    pub checkpoint_bytes: u64,
    /// How often the log's and the journal's size are checked.
    pub maintenance_ms: u64,
    /// At most this many entries in one append message; the byte bound is fixed.
    pub append_max_entries: u64,
    /// The number of clients whose results are kept, so that a retried write is not applied twice.
    pub max_sessions: usize,
    /// The scrubber reads at most this many bytes a second.
    pub scrub_rate_bytes: u64,
    /// The interval between the beginnings of two scrub cycles; a cycle that takes longer delays
    /// the next.
    pub scrub_cycle: Duration,
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
            initial_members,
            heartbeat_ms: 100,
            election_min_ms: 500,
            election_max_ms: 1000,
            log_retain_bytes: 256 << 20,
            log_retain_entries: 250_000,
            checkpoint_bytes: 1 << 30,
            maintenance_ms: 200,
            append_max_entries: 512,
            max_sessions: 10_000,
            scrub_rate_bytes: 10 << 20,
            scrub_cycle: Duration::from_secs(30 * 24 * 3600),
            seed: 0,
            tls: None,
        }
    }

    /// Whether a cluster of this many voters may run with these settings. 0 voters: it is not
    /// formed yet.
    ///
    /// # Errors
    /// `Config`, if the log has one voter and the settings name several members: no other member
    /// holds what a cluster of one acknowledged.
    pub(crate) fn fits(&self, voters: usize) -> Result<(), Error> {
        let members = self.initial_members.len();
        if voters == 1 && members > 1 {
            return Err(Error::Config(format!(
                "this data directory belongs to a cluster of one, and `members` names {members}: members cannot be added to a \
                 cluster; correct `members`, or form a new cluster and copy the keys"
            )));
        }
        Ok(())
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
        if self.mode == Mode::Replicated && self.initial_members.len() == 1 {
            return Err(Error::Config(
                "mode `replicated` needs peers that hold what a power cut may lose: a cluster of one runs in `sync` or `device`"
                    .into(),
            ));
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
