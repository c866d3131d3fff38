//! The version of a build, the version of a cluster, and what is used from which version on.
//!
//! The story: members are upgraded one after another, and meanwhile old and new ones are one
//! cluster. What an old one cannot read, in the log, in a snapshot or in a message, must not be
//! written while it is a member, nor while an operator may still go back to it.
//!
//! What holds here: a build reads everything of the versions before its own. The cluster's version
//! is in the log, and never falls. The first leader of a new cluster and an operator raise it,
//! and only to what every member runs. A feature is used from its version of the cluster on. A process of a lower version than the
//! cluster's does not run.

use super::ids::NodeId;

/// The version of a cluster of which the log says nothing.
pub(crate) const FIRST: u32 = 1;

/// The number as a literal, for texts that are made at compile time.
#[cfg(not(feature = "next-version"))]
macro_rules! version {
    () => {
        3
    };
}
/// A build for tests of upgrades: what the next version will use is in it already.
#[cfg(feature = "next-version")]
macro_rules! version {
    () => {
        4
    };
}

/// The version that this build speaks. It rises by one with the first feature that the build before
/// it could not read.
pub const VERSION: u32 = version!();

/// The name of this release.
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The longest name of a release, in bytes.
pub(crate) const RELEASE_BYTES_MAX: usize = 64;

/// An entry that this build cannot read.
pub(crate) const UNREADABLE_ENTRY: &str = concat!(
    "version ",
    version!(),
    " does not know this kind of entry: a later release wrote it, and is needed to read it"
);

/// What is used from a version of the cluster on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// A checkpoint may hold only what changed since another one.
    CheckpointsOfChanges,
    /// The state names the newest unsafe recoveries one by one. An older build skips them, and its state would
    /// be another one.
    UnsafeRecoveryRecords,
    /// A command may have operations that are more than a put, a delete or a check of one key.
    Operations,
    /// The log names the release that each member runs: it is known of those that are down, too.
    Releases,
}

impl Feature {
    /// The version of a cluster that uses it first.
    pub(crate) const fn since(self) -> u32 {
        match self {
            Feature::CheckpointsOfChanges | Feature::UnsafeRecoveryRecords => 2,
            Feature::Operations => 3,
            Feature::Releases => 4,
        }
    }

    /// Whether this build reads what the feature writes.
    pub(crate) const fn is_known(self) -> bool {
        self.since() <= VERSION
    }

    /// Whether a cluster of this version uses it.
    pub(crate) const fn is_used(self, cluster: u32) -> bool {
        self.since() <= cluster
    }
}

/// This build speaks less than the cluster's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster's version is {cluster}, and this release, {}, speaks version {}: start a release of version {cluster} or \
     later on this directory; an upgrade that is finished is not taken back",
    RELEASE,
    VERSION
)]
pub struct TooOld {
    /// The cluster's version.
    pub cluster: u32,
}

/// Whether this build may run in a cluster of this version.
pub(crate) fn check(cluster: u32) -> Result<(), TooOld> {
    match cluster <= VERSION {
        true => Ok(()),
        false => Err(TooOld { cluster }),
    }
}

/// The versions of a cluster and its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// What this build speaks.
    pub own: u32,
    /// The cluster's, as far as the log is applied here.
    pub cluster: u32,
    /// What the log says of each member's latest start, by id. One that is not logged yet is absent.
    pub members: Vec<MemberVersion>,
}

/// What the log says of a member's latest start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberVersion {
    /// The member.
    pub id: NodeId,
    /// What its build speaks; 0: a release before versions.
    pub version: u32,
    /// Its release; empty in a cluster that does not log releases.
    pub release: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_runs_in_clusters_up_to_its_own_version_and_names_both_in_others() {
        for cluster in 0..=VERSION {
            assert_eq!(check(cluster), Ok(()));
        }
        let refusal = check(VERSION + 1).unwrap_err().to_string();
        for part in [
            format!("the cluster's version is {}", VERSION + 1),
            format!("speaks version {VERSION}"),
            format!("start a release of version {}", VERSION + 1),
        ] {
            assert!(refusal.contains(&part), "{refusal}");
        }
    }

    #[test]
    fn a_feature_is_used_from_its_version_on_and_never_by_a_build_that_cannot_read_it() {
        for feature in [
            Feature::CheckpointsOfChanges,
            Feature::UnsafeRecoveryRecords,
            Feature::Operations,
            Feature::Releases,
        ] {
            assert!(!feature.is_used(feature.since() - 1) && feature.is_used(feature.since()));
            assert!(!feature.is_used(FIRST));
            // The cluster's version is at most that of each build that runs in it.
            let used = (0..=VERSION).any(|cluster| feature.is_used(cluster));
            assert_eq!(used, feature.is_known());
        }
    }
}
