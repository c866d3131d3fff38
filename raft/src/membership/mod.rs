//! Who belongs to the cluster, and where: it is formed once, later an operator adds and removes
//! members, a new identity can replace a lost one, and a member can move to another address.
//!
//! **Adding and removing.** A node of a slot that the cluster lacks asks to join, and the leader adds
//! it when an operator says so ([`MemberChange::Add`]): first as a learner, and when it has caught
//! up, by itself, as a voter. A removal is one joint change. It begins only where it leaves a
//! majority of voters active and reachable. The removed identity is refused for good.
//!
//! **The mode.** The log holds the least that an acknowledgement means; the first leader logs the mode
//! of its configuration. `replicated` needs three voters, since with fewer there may be nobody who
//! holds what a power cut takes from one. So before a change to fewer, its end is committed, and
//! every voter that stays has synced everything up to there and cleared its unsynced-ack flag. The
//! story without that: of three members two stay, both with unsynced acknowledgements; one loses
//! power, cannot tell what it lost, and recovers for ever, since the other one is no majority.
//!
//! **Replacement.** A machine whose disk was lost or replaced comes back in its slot with a new
//! identity.
//!
//! The promises of an identity, its votes and acknowledgements, are on its disk. When the disk is
//! gone, no other node may speak for that identity. A new data directory has a new random
//! incarnation, and replaces the old identity like this:
//!
//! 1. The joining node finds that the members are part of a formed cluster, and asks the leader to
//!    add it.
//! 2. When the leader has had no contact with the identity that holds the slot for a while, it adds
//!    the joining node as a learner. It first removes an abandoned learner of the same slot.
//! 3. When the learner has caught up with the leader, *one* change replaces the old identity by the
//!    new one, through a joint configuration. A leader that finds a joint configuration finishes
//!    it.
//! 4. The replicated state names the old identity as removed: a member that has applied that
//!    refuses its messages, so a disk that turns up again does not disturb.
//!
//! A data directory whose identity cannot be read is a lost disk too. It is overwritten only after
//! a leader confirms that a majority without it has synced everything that the leader has
//! ([`await_replaceable`]). So members that lose their identities all at once wait, and what can
//! still be read of them is left for an operator.
//!
//! Why that is safe: the new identity promised nothing before, so it is a new server of plain Raft,
//! and it is active. Until the change is committed, the old identity counts as a voter that is
//! down: an entry that only it and the leader hold can be overwritten only with the votes of all
//! others. Never is a voter added in one change and the other removed in a later one. If the
//! learner loses power with acknowledged writes unsynced, it recovers in place like any member.
//!
//! **Versions.** The log says which version each member's build speaks, and which one the cluster
//! has. The first leader of a new cluster and an operator raise it, to what every member runs at least. No membership changes while that
//! is under way.
//!
//! **Addresses.** The log says where each member is reached. A member that starts elsewhere
//! announces its new addresses to all that it knows, to the seeds, and to those of which they tell.
//! Whoever hears it asks it there, and uses the addresses once it has answered. The leader logs
//! them: one change of the membership, which depends on the membership that the leader saw. So
//! members of which no two are where they were find one another through one seed.

mod change;
mod contact;
mod forced;
pub(crate) mod forming;
mod health;
mod heard;
mod leader_change;
mod mode_change;
mod reconciler;
mod replaceable_voter;
mod request;
mod restored;
mod safe_to_stop;
mod seen;
mod step;
mod upgrade;

pub use change::MemberChange;
pub(crate) use contact::Outreach;
pub use forced::{Survivor, force_new_cluster};
pub(crate) use reconciler::Reconciler;
pub use replaceable_voter::await_replaceable;
pub use request::ChangeError;
pub use restored::Restored;
pub(crate) use seen::leaves_configuration;
#[cfg(test)]
pub(crate) use step::Step;
