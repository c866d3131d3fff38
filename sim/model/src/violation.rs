//! The broken properties, by name.

use std::fmt;

/// A broken property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Violation {
    /// Two members lead one term.
    TwoLeaders,
    /// One log id has two contents.
    IdReused,
    /// An elected leader lacks an entry that an earlier term committed.
    LeaderLacksCommitted,
    /// An entry was committed that conflicts with a committed one.
    CommittedReplaced,
    /// One machine is lost, and the two others cannot commit without it.
    SurvivorsBlocked,
    /// An unsafe recovery of some members could elect a leader, and the others continue without it.
    UnsafeRecoverySplits,
    /// A disk is lost, then another machine loses power, and no active member can be elected.
    SecondLossStops,
    /// Safe mode was established with one machine down, and then another member recovers or has its
    /// flag set.
    DegradedPromiseBroken,
    /// A directory with an unreadable identity was overwritten, then a machine lost power, and a
    /// committed entry is on no disk any more.
    CommittedNowhere,
    /// One of two voters lost power and cannot tell what it lost: it recovers for ever, since the other
    /// one alone elects nobody.
    FewCannotTell,
    /// Not a violation of the protocol: the search reached a bound of the model's representation.
    ModelTooSmall,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::TwoLeaders => "two leaders in one term",
            Violation::IdReused => "one log id, two contents",
            Violation::LeaderLacksCommitted => "committed entry lost (a leader lacks it)",
            Violation::CommittedReplaced => "committed entry replaced",
            Violation::SurvivorsBlocked => "two healthy machines cannot commit",
            Violation::UnsafeRecoverySplits => "an unsafe recovery would make a second cluster",
            Violation::SecondLossStops => "one power cut during a replacement stops the cluster",
            Violation::DegradedPromiseBroken => {
                "a second cut, after the first was survived, would stop the cluster"
            }
            Violation::CommittedNowhere => "a committed entry is on no disk any more",
            Violation::FewCannotTell => "one of two voters recovers for ever",
            Violation::ModelTooSmall => "the model's representation is too small for these bounds",
        })
    }
}
