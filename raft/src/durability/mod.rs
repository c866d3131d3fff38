//! What a member may do in its state: it votes, leads and acknowledges only if it can keep those
//! promises.
//!
//! **Recovery in place.** A machine loses power with acknowledged writes that were not yet synced,
//! or its journal or checkpoints are damaged, however much of the log that took. Its votes are safe
//! in the superblock. Such a member may have lost entries that it acknowledged, and its vote could
//! elect a leader that never had them. So it recovers in place:
//!
//! 1. It starts as recovering ([`Standing`]): it grants no vote and no pre-vote, does not campaign, takes
//!    over no leadership and serves no reads. It takes appends and snapshots only from a leader
//!    that agreed to help it.
//! 2. It asks the leader that sends it appends for help. That leader lets the member's log revert
//!    once, since it ends below what the member acknowledged, and proposes a record of the member's
//!    boot epoch, if it has not done so yet.
//! 3. It acknowledges the entries that it takes. These acknowledgements are true, and count.
//! 4. When its own state machine has applied the record of its own boot epoch, it syncs, records
//!    that it is active, and is.
//!
//! Why that is safe: the record was proposed after this boot began. So in the log of the leader
//! that proposed it, every entry that an earlier boot acknowledged and that can still be committed
//! lies before the record, and the member holds again what it has applied. To leave earlier would
//! not be safe, neither on the leader's commit index nor on the record of an earlier boot: a second
//! power cut in between takes back what was acknowledged since.
//!
//! A running member recovers in the same way when its leader sends it an entry that it acknowledged
//! and its log lacks that entry: an older copy of its disk was put in place, and nothing at its
//! start could show that. A vote that was under way then is neither given nor counted.
//!
//! **Unsafe recovery.** If so many members recover that none can be elected, all of them wait.
//! Together they may lack acknowledged writes, and no rule can tell. An operator decides, and names
//! the member with the most up-to-date log in an unsafe-recovery grant ([`UnsafeRecovery`]). That
//! member asks the voters that answer whether one of them has a longer log. The others may then
//! vote for that one boot epoch alone, for a minute. The elected member logs an unsafe-recovery
//! record, and it and the others recover behind that record as above.

mod ack_modes;
mod check_quorum;
mod commit_progress;
pub(crate) mod ended_leader;
mod epoch_records;
mod lag;
pub(crate) mod leadership;
mod member;
mod most_up_to_date;
mod recovery;
mod send_policy;
mod standing;

pub(crate) use ack_modes::AckModes;
pub(crate) use check_quorum::{CheckQuorum, QUORUM_TIMEOUTS};
pub(crate) use commit_progress::{CommitProgress, longest_turn, stuck_after};
pub(crate) use epoch_records::EpochRecords;
pub(crate) use lag::Lag;
pub(crate) use member::LocalMember;
pub(crate) use most_up_to_date::is_most_up_to_date;
pub(crate) use send_policy::Policy;
pub use standing::UnsafeRecovery;
pub(crate) use standing::{Act, Drain, Event, LEADER_ALIVE, Refusal, Standing};
