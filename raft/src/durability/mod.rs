//! Who may speak: a member votes, leads and acknowledges only as far as it can keep its word.
//!
//! Coming back: what a member may do whose machine lost power with acknowledged writes that were not yet synced, or whose
//! journal or checkpoints were damaged, however much of the log that took: its votes are in the superblock.
//!
//! Such a member may have forgotten what it acknowledged, and its vote for a candidate could elect a leader that never
//! had it. So it recovers in place:
//!
//! 1. It starts with the gate closed: it grants no vote and no pre-vote, does not campaign, takes over no leadership and
//!    serves no reads. It takes appends and snapshots only from a leader that has admitted it.
//! 2. It asks whoever sends it appends to admit it. That leader lets its log fall back once, since it ends below what it
//!    acknowledged, and proposes the record that this very run began, if it has not done so yet.
//! 3. It acknowledges what it takes, truthfully, and these acknowledgements count.
//! 4. When its own state machine has applied the record of its own run, it syncs, records that it is active, and opens the gate.
//!
//! Why that is safe: the record was proposed after the run began, so whatever an earlier run acknowledged and can still be committed
//! lies before it in the log of the leader that proposed it, and what the member has applied it holds again. Leaving earlier, on the
//! leader's commit index or on the record of an earlier run, is not: a second power cut in between takes back what was acknowledged since.
//!
//! A member that runs takes the same way when its leader tells it of an acknowledgement of its own that its log does not
//! hold: an older copy of its disk was put in place, and nothing at its start could tell. A vote that was under way when the
//! gate closed is neither given nor counted.
//!
//! Where so many members forgot that none can be elected, all of them wait. What they hold together may lack writes that
//! were acknowledged, and no rule can tell; an operator decides, and names the member whose log reaches furthest in a
//! [`Mandate`]. That member asks the voters that answer it whether none reaches further. The others then vote for that one run alone, for a minute; it leads, puts the record of the loss
//! into the log, and brings itself and them back behind it, as above.

mod furthest;
mod gate;
pub(crate) mod leadership;
mod member;
mod policy;
mod recovery;
mod redundancy;
mod start_records;

pub(crate) use furthest::reaches_furthest;
pub(crate) use gate::Gate;
pub use gate::Mandate;
pub(crate) use member::LocalMember;
pub(crate) use policy::Policy;
pub(crate) use redundancy::Redundancy;
pub(crate) use start_records::StartRecords;
