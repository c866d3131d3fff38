//! The faults of a game day, and what is expected of each.

use super::processes::Act;

/// A fault, in the order in which they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Fault {
    /// The leader is stopped cleanly
    Stop,
    /// The leader is killed
    Kill,
    /// The leader's process is paused
    Pause,
    /// Keys are put until the cluster refuses them
    Fill,
    /// The leader is cut from the network
    Cut,
    /// A follower loses its disk
    Disk,
}

/// All of them.
pub(super) const FAULTS: [Fault; 6] =
    [Fault::Stop, Fault::Kill, Fault::Pause, Fault::Fill, Fault::Cut, Fault::Disk];

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::Stop => "stop",
            Fault::Kill => "kill",
            Fault::Pause => "pause",
            Fault::Fill => "fill",
            Fault::Cut => "cut",
            Fault::Disk => "disk",
        }
    }

    /// What is done to one member; `None`: it is done by a client.
    pub(super) fn act(self) -> Option<Act> {
        match self {
            Fault::Stop => Some(Act::Stop),
            Fault::Kill => Some(Act::Kill),
            Fault::Pause => Some(Act::Pause),
            Fault::Cut => Some(Act::Cut),
            Fault::Disk => Some(Act::LoseDisk),
            Fault::Fill => None,
        }
    }

    /// Whether the member that leads has it, and not another one.
    pub(super) fn is_of_leader(self) -> bool {
        self != Fault::Disk
    }

    pub(super) fn what(self) -> &'static str {
        match self {
            Fault::Stop => "the leader was asked to stop, and started again later.",
            Fault::Kill => "the leader's process was killed, and started again later.",
            Fault::Pause => {
                "the leader's process was paused, so that it answered nobody, and went on later."
            }
            Fault::Fill => {
                "keys were put until the cluster had no space for more, and then deleted."
            }
            Fault::Cut => "the leader was cut from the network, and connected again later.",
            Fault::Disk => "a follower was killed, and started again with an empty disk.",
        }
    }

    pub(super) fn expected(self) -> &'static str {
        match self {
            Fault::Stop => {
                "the leader hands over before it stops; then the cluster is well again and takes writes, and what \
                 was acknowledged is not lost."
            }
            Fault::Kill | Fault::Pause | Fault::Cut => {
                "the others elect another leader; then the cluster is well again and takes writes, and what was \
                 acknowledged is not lost."
            }
            Fault::Fill => {
                "puts are refused, and a key that was put before can be read meanwhile; after the deletes the \
                 cluster is well again and takes writes, and what was acknowledged is not lost."
            }
            Fault::Disk => {
                "the member joins with its empty disk; then the cluster is well again and takes writes, and what \
                 was acknowledged is not lost."
            }
        }
    }
}
