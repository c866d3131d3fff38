//! Who belongs to the cluster: it is formed once, and then a member takes the place of another.
//!
//! Being reborn: a machine whose disk was lost or replaced comes back in its slot as somebody else.
//!
//! What an identity promised, votes and acknowledgements, is on its disk. With the disk gone nobody may speak for it any
//! more: a data directory made anew has a new random incarnation, and takes the place of the old one like this:
//!
//! 1. The newcomer finds that the members are part of a formed cluster, and asks the leader to be taken in.
//! 2. The leader, when it has not heard of the identity that holds the slot for a while, adds the newcomer as a learner,
//!    and a learner of the slot that was given up is removed.
//! 3. When the newcomer holds what the leader has, *one* change replaces the old identity by the new one, through a joint
//!    configuration. A leader that finds a joint configuration finishes it.
//! 4. The identity that is no member any more is retired, in the replicated state: whoever has applied that refuses its
//!    messages, so that a disk that turns up again does not disturb.
//!
//! A data directory whose identity cannot be read is a lost disk too. Before a byte of it is overwritten a leader must have said that a
//! majority holds, synced, all that the leader has without it ([`await_vacancy`]). So members that lose their identities all at
//! once wait, and whatever can still be read of them is there for a person to look at.
//!
//! Why that is safe: the newcomer promised nothing before, so it is a new server of plain Raft, and its gate is open. Until
//! the change is committed the old identity counts as a voter that is down, so that what it alone held with the leader
//! still needs all the others to be overruled; never is a voter added first and another removed later. If the newcomer loses power
//! with acknowledged writes unsynced it recovers in place like any member, learner or not.

pub(crate) mod forming;
mod newcomer;
mod step;
mod steward;
mod vacancy;

pub(crate) use newcomer::Newcomer;
pub(crate) use steward::Steward;
pub use vacancy::await_vacancy;
