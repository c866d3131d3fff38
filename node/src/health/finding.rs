//! One thing that is not well in a cluster, by what its nodes answered.
//!
//! What holds here: each thing is one finding, with what to do. A finding is critical while clients are
//! not served, or their puts are not, or if some will not be in a few days; a warning while they are, and
//! somebody should act; a note if it is as an operator chose it, or nothing is left to do. The names of kinds and severities stay: scripts read them.

use cairn_client::{Error, NodeStatus};
use serde::Serialize;

/// What a node is called, such as its `host:port`, and its answer, or why it has none.
pub type Answer = (String, Result<NodeStatus, Error>);

/// How grave a finding is, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Severity {
    /// Clients, or their puts, are not served.
    Critical,
    /// Clients are served, and somebody should act.
    Warning,
    /// As somebody chose it, or nothing is left to do.
    Note,
}

impl Severity {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// What a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// No node that answers knows a leader.
    NoLeader,
    /// No leader can be elected by waiting alone.
    ElectionBlocked,
    /// A member does not answer.
    Unreachable,
    /// A member does not allow the question.
    NotAllowed,
    /// Another identity has taken the member's slot.
    Removed,
    /// A member stopped serving, as for its disk.
    Stopped,
    /// A member may have lost acknowledged writes, and copies what the others have.
    Recovering,
    /// A member serves no client for another reason.
    NotReady,
    /// A member lacks more entries than one may that counts as caught up.
    FarBehind,
    /// A data directory is damaged, and nothing of it is overwritten yet.
    Damaged,
    /// A disk returned what was not written.
    SuspectDisk,
    /// Little is free for values; critical if that is nothing, at the leader.
    DataNearlyFull,
    /// Little is free for keys; critical if that is nothing, at the leader.
    KeysNearlyFull,
    /// Syncs do not keep up with writes.
    SlowSync,
    /// A member's acknowledgements wait for more than the cluster asks.
    StricterMode,
    /// An operator paused the scrubber.
    ScrubPaused,
    /// A member's certificate ends soon, or has ended.
    CertificateEnds,
    /// The CA of members' certificates ends soon, or has ended.
    CaEnds,
    /// Voters share a machine or a failure domain.
    VotersFailTogether,
    /// There is one voter more than what survives as many failures.
    EvenVoters,
    /// Members run different releases.
    MixedVersions,
    /// The cluster does not use yet what its members' build brought.
    UnfinishedUpgrade,
    /// Connections have no certificates.
    Insecure,
    /// An operator keeps a member from leading.
    Drained,
    /// A promise relies on something that the machine does not show.
    NotShown,
    /// A node that asks nobody has not heard, a moment after an election or its start, what it would find.
    NotKnownYet,
}

impl Kind {
    fn severity(self) -> Severity {
        match self {
            Kind::NoLeader | Kind::ElectionBlocked => Severity::Critical,
            // What somebody chose, in the configuration or by a command that ends by itself.
            // Not known yet: nothing is to be done but to wait a moment.
            Kind::UnfinishedUpgrade
            | Kind::Insecure
            | Kind::Drained
            | Kind::NotShown
            | Kind::NotKnownYet => Severity::Note,
            _ => Severity::Warning,
        }
    }
}

/// One thing that is not well, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How grave it is.
    pub severity: Severity,
    /// What it is.
    #[serde(rename = "code")]
    pub kind: Kind,
    /// The nodes that it is about, named as in their answers; none: it is about the cluster.
    pub nodes: Vec<String>,
    /// What is so. It goes on behind the nodes, if there are any.
    pub what: String,
    /// What to do; empty where `what` says it.
    pub action: String,
}

impl Finding {
    /// About the whole cluster.
    pub(super) fn of_cluster(kind: Kind, what: impl Into<String>, action: &str) -> Finding {
        let (what, action) = (what.into(), action.to_owned());
        Finding { severity: kind.severity(), kind, nodes: Vec::new(), what, action }
    }

    /// About this node; `what` goes on behind its address.
    pub(super) fn of_node(
        kind: Kind,
        endpoint: &str,
        what: impl Into<String>,
        action: impl Into<String>,
    ) -> Finding {
        Finding {
            severity: kind.severity(),
            kind,
            nodes: vec![endpoint.to_owned()],
            what: what.into(),
            action: action.into(),
        }
    }

    /// The same, where it is as it should be.
    pub(super) fn noted(self) -> Finding {
        Finding { severity: Severity::Note, ..self }
    }

    /// The same, where it cannot wait.
    pub(super) fn critical(self) -> Finding {
        Finding { severity: Severity::Critical, ..self }
    }

    /// The finding as one sentence.
    pub fn line(&self) -> String {
        let Finding { nodes, what, action, .. } = self;
        let of = if nodes.is_empty() { "" } else { " " };
        let then = if action.is_empty() { "" } else { "; " };
        format!("{}{of}{what}{then}{action}", nodes.join(", "))
    }
}
