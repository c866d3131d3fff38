//! One thing that is not well in a cluster, by what its nodes answered.
//!
//! What holds here: each thing is one finding, with what to do. A finding is critical while clients are
//! not served, or if some will not be in a few days; a warning while they are, and somebody should act; a
//! note if it is as an operator chose it, or nothing is left to do. The names of kinds and severities stay: scripts read them.

use cairn_client::{Error, NodeStatus};
use serde::Serialize;

/// A node's address and its answer, or why it has none.
pub(in crate::cli) type Answer = (String, Result<NodeStatus, Error>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum Severity {
    Critical,
    Warning,
    Note,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum Kind {
    NoLeader,
    ElectionBlocked,
    Unreachable,
    NotAllowed,
    Removed,
    Stopped,
    Recovering,
    NotReady,
    FarBehind,
    Damaged,
    SuspectDisk,
    DataNearlyFull,
    KeysNearlyFull,
    SlowSync,
    StricterMode,
    ScrubPaused,
    CertificateEnds,
    CaEnds,
    VotersFailTogether,
    EvenVoters,
    MixedVersions,
    UnfinishedUpgrade,
    Insecure,
    Drained,
    NotShown,
}

impl Kind {
    fn severity(self) -> Severity {
        match self {
            Kind::NoLeader | Kind::ElectionBlocked => Severity::Critical,
            // What somebody chose, in the configuration or by a command that ends by itself.
            Kind::UnfinishedUpgrade | Kind::Insecure | Kind::Drained | Kind::NotShown => {
                Severity::Note
            }
            _ => Severity::Warning,
        }
    }
}

/// One thing that is not well, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct Finding {
    pub(in crate::cli) severity: Severity,
    #[serde(rename = "code")]
    pub(in crate::cli) kind: Kind,
    /// `host:port` of the nodes that it is about; none: of the cluster.
    pub(super) nodes: Vec<String>,
    pub(super) what: String,
    /// What to do; empty where `what` says it.
    pub(super) action: String,
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
    pub(in crate::cli) fn line(&self) -> String {
        let Finding { nodes, what, action, .. } = self;
        let of = if nodes.is_empty() { "" } else { " " };
        let then = if action.is_empty() { "" } else { "; " };
        format!("{}{of}{what}{then}{action}", nodes.join(", "))
    }
}
