//! What a status names: a node's role and part in the cluster, and what acknowledgements mean.

use std::fmt;
use std::str::FromStr;

use crate::proto;
use crate::shown::one_line;

/// An enum of the protocol with the name that people read. A number that this release does not know
/// is `Unknown`.
macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($(#[$of:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $type {
            /// The server does not say, or says what this release does not know.
            #[default]
            Unknown,
            $($(#[$of])* $variant,)+
        }

        impl $type {
            /// The name used in configuration, status and JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $type::Unknown => "unknown",
                    $($type::$variant => $name,)+
                }
            }

            /// The one of a message's number.
            pub(crate) fn of(number: i32) -> $type {
                proto::$type::try_from(number).map_or($type::Unknown, $type::from)
            }
        }

        impl From<proto::$type> for $type {
            fn from(told: proto::$type) -> $type {
                match told {
                    $(proto::$type::$variant => $type::$variant,)+
                    proto::$type::Unspecified => $type::Unknown,
                }
            }
        }

        impl From<$type> for proto::$type {
            fn from(named: $type) -> proto::$type {
                match named {
                    $type::Unknown => proto::$type::Unspecified,
                    $($type::$variant => proto::$type::$variant,)+
                }
            }
        }

        impl From<$type> for i32 {
            fn from(named: $type) -> i32 {
                proto::$type::from(named) as i32
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(name: &str) -> Result<$type, String> {
                let all = [$($type::$variant),+];
                let names = || all.map($type::name).join(", ");
                let found = all.into_iter().find(|one| one.name() == name);
                found.ok_or_else(|| format!("`{}`: expected one of {}", one_line(name), names()))
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }
    };
}

named! {
    /// What a node does in the cluster.
    Role {
        /// Takes writes and replicates them.
        Leader = "leader",
        /// Follows a leader, or waits for one.
        Follower = "follower",
        /// Asks for votes.
        Candidate = "candidate",
        /// Receives the log and does not vote.
        Learner = "learner",
        /// Has stopped.
        Stopped = "stopped",
    }
}

named! {
    /// A node's part in the cluster.
    MemberState {
        /// It votes and holds everything that it acknowledged.
        Active = "active",
        /// Its machine lost power with acknowledged writes unsynced, or its journal or checkpoints
        /// were damaged: it neither votes nor serves until it has caught up with a leader.
        Recovering = "recovering",
        /// It is not a voter yet.
        Joining = "joining",
        /// Another identity has taken its slot, or its slot was removed.
        Removed = "removed",
    }
}

named! {
    /// What an acknowledgement means. The strictest is `Sync`, the laxest `Replicated`.
    Mode {
        /// On the devices of a majority, which keep completed writes through a power cut.
        Device = "device",
        /// On the devices of a majority, synced in the background.
        Replicated = "replicated",
        /// Synced on a majority.
        Sync = "sync",
    }
}

named! {
    /// Who chose a node's mode.
    Chosen {
        /// Its configuration.
        Configured = "configured",
        /// The node itself, by what its machine shows.
        Auto = "auto",
        /// The cluster, which asks for more than the node would do.
        Cluster = "cluster",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_a_later_release_is_unknown_and_a_known_one_comes_back() {
        for number in -1..9 {
            let known = (1..5).contains(&number);
            assert_eq!(MemberState::of(number) != MemberState::Unknown, known);
            let back = i32::from(MemberState::of(number));
            assert_eq!(back, if known { number } else { 0 });
        }
    }

    #[test]
    fn a_name_is_read_back_and_another_one_is_named_in_the_error() {
        for mode in [Mode::Device, Mode::Replicated, Mode::Sync] {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        let refused = Mode::from_str("fa\u{1b}st").unwrap_err();
        assert_eq!(refused, r"`fa\u{1b}st`: expected one of device, replicated, sync");
        assert!(Mode::from_str("unknown").is_err(), "nobody asks for it");
    }
}
