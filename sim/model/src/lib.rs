//! An exhaustive search of Cairn's protocol, in which members acknowledge entries before they sync
//! them. It shows what a power cut can take, and why no committed entry is lost. Each rule of the
//! protocol can be left out; the search then finds the shortest counterexample, or that there is
//! none.
//!
//! ```text
//! cargo model                                  every search, as a table
//! cargo model replacement                      searches whose names contain "replacement"
//! cargo model replacement-follower --terms 3   one search with other bounds; --help lists them
//! cargo model --trace fresh_nonce              what happens without a rule, step by step
//! cargo test --release -p cairn-model
//! ```
//!
//! # What is modelled
//!
//! Three machines (five in the searches with the bounds of `five`), and Raft with one leader per
//! term.
//!
//! - *The network.* Messages are late, lost, duplicated and reordered without limit. None is ever
//!   removed.
//! - *The disk.* Entries are written, and synced whenever the adversary chooses. A power cut leaves
//!   any state that the log had since the last sync; it can undo truncations too. A process kill
//!   loses only writes of a leader that are in flight.
//! - *The start.* A member decides by its recorded state, the kernel boot id and its unsynced-ack
//!   flag whether it recovers.
//! - *Recovery.* The gate, nonces, boot-epoch records in the log, and records of earlier boot
//!   epochs that a leader logs late.
//! - *Replacement.* See below.
//! - *The unsynced-ack flag.* Members set and clear it at any time that the rules allow. Any
//!   acknowledgement may come before the sync or after it, whatever the leader asks for: safety
//!   must not depend on the leader's ack mode.
//! - *A degraded quorum.* Ack modes numbered within a term, late appends of an earlier number, and
//!   answers to the present number. Here the search checks the promise about power cuts one after
//!   another, and not only safety.
//!
//! # Replacement
//!
//! A blank machine with its own identity asks for the slot of A or C. In one search two blank
//! machines ask for the slots of B and C. A blank machine exists from the first step, sends nothing
//! before it receives a message, and is like any blank Raft server: it votes for any candidate
//! whose configuration contains it, takes entries from any leader, and recovers if it loses its
//! tail. A leader that has committed an entry of its own term proposes the joint configuration once
//! the blank machine has everything committed, and then the final configuration. Any leader that
//! finds the joint configuration committed may propose the final one, or (`half-made-undone`)
//! return to the old one.
//!
//! The replaced member is not gone. It was only silent for a while: it votes, campaigns and leads
//! by what it knows, and all messages that it ever sent may still arrive. A disk that is really
//! lost behaves the same, without those later steps.
//!
//! Two things are left out. In the protocol a leader replaces a member only after it has had no
//! contact with it for a while; here it may replace any member at any time, itself too. In the
//! protocol the leader adds the learner with a log entry; such an entry changes no quorum.
//!
//! A member that has applied the replacement refuses messages of the replaced identity. No rule of
//! the model covers that. A refused message is a lost message, and the search loses messages
//! everywhere, so no committed entry can depend on the refusal. It does no harm even to put the
//! replaced member back under its old identity, as long as its disk is intact (`replacement-back`).
//! The refusal spares the others the campaigns of a member that does not know of its replacement.
//!
//! Safety does not need two other rules either, and there are searches without them:
//!
//! - `own_term_first`: a leader first commits an entry of its own term. Changes of one member at a
//!   time need that; joint changes do not.
//! - `caught_up`: the learner catches up before it becomes a voter. That spares clients the wait.
//!
//! `membership_synced` and `learner_recovers` cover for each other: a machine that has synced no
//! membership in which it votes has acknowledged nothing that counts. Keep both. The argument holds
//! while a machine is a learner by the membership in its log. It fails if the membership that it
//! has applied decides (`joining_recovers`).
//!
//! An unsafe recovery opens the gates of the recovering members that the operator reached. It must
//! not make a second cluster beside one that continues. For that, two votes would be enough: one of
//! a member that lost the replacement entry or entries after it, and one of a member that never
//! received the replacement entry. Two rules prevent it. `membership_synced` keeps the replacement
//! entry itself. `unsafe_recovery_newest` is needed because the most up-to-date log may be that of
//! a leader that was alone in its term and never received the replacement entry: that log can be
//! longer than what a member kept that lost its tail. Votes are granted and counted as in any other
//! election: by the configuration in the candidate's log, which must be at least as up to date as
//! the voter's.
//!
//! A lost disk is a power cut that the leader noticed. From then on the quorum is degraded, and one
//! more power cut must not stop the cluster. So the leader stays in safe mode until the final
//! configuration is committed (`half-made-degraded`, `return_needs_commit`). While only the leader
//! has the final configuration, the others elect by the joint one, and without the leader they are
//! no majority of its old half.
//!
//! An old copy of a replaced member's disk (`copy`) lacks the member's later votes and acknowledged
//! entries, and nothing on it says so. It does no harm once every voter has the replacement in its
//! log. Before that it does, and no rule of the protocol helps: a voter that lags still counts the
//! copy as a voter.
//!
//! # Fewer voters
//!
//! In `shrinks` a leader ends mode `replicated` and then removes C, through a joint configuration.
//! With two voters there is nobody who holds what a power cut takes from one: if one of them recovers,
//! it recovers for ever. So the change begins only when the end of the mode is committed, both
//! members that stay have acknowledged it, and with it synced all before, and their flags are clear.
//!
//! # What must hold
//!
//! - A term has at most one leader, and a log id has one content.
//! - A leader has everything that was committed in earlier terms. No committed entry is replaced,
//!   and every committed entry is on some disk.
//! - With one machine lost, the two others can commit. One power cut during a replacement leaves
//!   active members that can elect a leader.
//! - Once safe mode is established with one machine down, the others stay active and their flags
//!   stay clear.
//! - An unsafe recovery makes no second cluster.
//! - A power cut of one of two voters never leaves it recovering.
//!
//! A search that finds no violation must also have reached its witnesses (such as "a replacement
//! member is elected"). They show that it explored what it is about.
//!
//! # What that leaves out
//!
//! - Pre-vote, leadership transfer and reads.
//! - Snapshots: an installed snapshot is an acknowledgement of all that it covers.
//! - What follows an unsafe recovery.
//! - Restored disks and clones of members, which the fence refuses; devices that lie; damaged
//!   blocks.
//! - A replacement among five members, and a second replacement of the same slot.
//! - Time: a leader may take any member for healthy or not.
//! - Liveness, except for the promises above: a cluster whose majority recovers finds no leader.
//!
//! The bounds are small: few terms, entries and faults. One client write is mostly enough to show a
//! loss. Members receive entries one by one: a batch is several such steps with nothing in between.
//! A member that sees a higher term while it refuses a vote keeps its own term, so that a deposed
//! leader continues for as long as it can.
//!
//! # Why the searches end
//!
//! States that differ only by an exchange of B and C count once where nothing tells B and C apart.
//! The search drops what can no longer matter: votes of campaigns that are over and, once no power
//! cut can come, acknowledgements to former leaders and what a power cut would take. It leaves out
//! votes that would never be counted. Some searches begin in the middle of a replacement
//! (`half-made`). The table takes under a minute of processor time; searches with larger bounds
//! explore a few million states a minute.
//!
//! # Why not a library
//!
//! `stateright` was considered. Its breadth-first search has no symmetry reduction, gives shortest
//! counterexamples on one thread only, and keeps a path with every waiting state. The search here
//! is 200 lines and has all three.
#![forbid(unsafe_code)]
#![allow(
    clippy::indexing_slicing,
    reason = "states are fixed arrays indexed by what the model itself made; a slip must stop the search"
)]

mod actions;
mod bounds;
mod forget;
mod log;
mod membership;
mod properties;
mod report;
mod rules;
mod scenarios;
mod search;
mod start;
mod state;
mod steps;
mod violation;

pub use report::{Deeper, names, table, trace};
