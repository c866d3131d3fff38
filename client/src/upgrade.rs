//! The versions of the cluster and of its members, for upgrades.

use crate::proto;
use crate::shown::some_of_node;

/// Which version a node's build speaks, and what it knows of the others. A release is a build of some
/// version; several releases may speak the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct VersionStatus {
    /// What the node's build speaks.
    #[cfg_attr(feature = "serde", serde(rename = "version"))]
    pub own: u32,
    /// The cluster's version, as the node knows it. No build of a lower one runs in the cluster, and
    /// what later ones brought is not used.
    #[cfg_attr(feature = "serde", serde(rename = "cluster_version"))]
    pub cluster: u32,
    /// What the log says of each member's latest start, as the node knows it.
    #[cfg_attr(feature = "serde", serde(rename = "member_versions"))]
    pub members: Vec<MemberVersion>,
}

/// What the log says of a member's latest start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemberVersion {
    /// The member's identity.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::json::node_id"))]
    pub node_id: u64,
    /// What its build speaks; 0: a release before versions.
    pub version: u32,
    /// Its release; `None` in a cluster whose log does not name releases.
    pub release: Option<String>,
}

pub(crate) fn version_status(versions: proto::Versions) -> VersionStatus {
    let member = |member: proto::MemberVersion| MemberVersion {
        node_id: member.node_id,
        version: member.version,
        release: some_of_node(&member.release),
    };
    VersionStatus {
        own: versions.own,
        cluster: versions.cluster,
        members: versions.members.into_iter().map(member).collect(),
    }
}
