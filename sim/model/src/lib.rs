//! An exhaustive search of Cairn's protocol: what a cluster that takes no sync on its write path may forget, and why
//! nothing committed is lost all the same. Each rule can be left out, to see the shortest story in which it is missed.
//!
//! ```text
//! cargo model                             every search, as a table
//! cargo model reborn                      those whose names contain "reborn"
//! cargo model reborn-follower --terms 3   one search further than the table goes: see --help for all bounds
//! cargo model --trace fresh_nonce         what happens without a rule, step by step
//! cargo test --release -p cairn-model
//! ```
//!
//! # What is modelled
//!
//! Three machines (five in one corner), Raft with one leader per term. *The network*: messages are late, lost, doubled,
//! reordered without limit; none is ever removed. *The disk*: entries are written, and synced when it suits the
//! adversary; a power cut leaves any state of the log since the last sync, undone truncations included; a process kill
//! loses only a leader's writes in flight. *Start*: the classification by state, boot id and mark. *Recovery in place*:
//! the gate, nonces, starts through the log, and such as arrive late. *Rebirth*: see below. *The mark
//! `lazy`*: set and cleared at any time that the rules allow, acknowledgements lazy or synced at any time: what a
//! leader says of laziness does not matter for safety, and the search does not let it. *The thin regime*: numbered
//! regimes, late appends of older ones, answers within one; here the promise is searched, not only safety.
//!
//! # Rebirth
//!
//! A blank machine with an identity of its own asks to take the place of A or C, or one each those of B and C. It is
//! there from the first step, says nothing until it is spoken to, and is no different from any blank Raft server: it
//! votes for whoever counts its vote, learns from whoever leads, and recovers in place if it loses its tail. A leader
//! that committed an entry of its own term proposes the joint configuration when the blank machine has what is
//! committed, then the final one; whichever leader finds the joint configuration committed may go on, or (`undone`) go
//! back. The member that is replaced is not gone, only silent for a while: it votes, campaigns and leads by what it
//! knows, and all that it ever said is still on its way. A disk that is really lost is the same without its later
//! steps. That a leader replaces only who was not heard of for a while is not modelled: it may replace whom it likes,
//! itself too. That it adds the learner through an entry of its own is not either: such an entry changes no quorum.
//!
//! A replaced identity is refused by whoever applied the replacement. No rule stands for that here: a refused message
//! is a lost one, which the search allows everywhere, so that nothing committed can depend on it; even to put the
//! replaced member back as who it was does no harm, while its disk is whole (`back`). It spares the others the
//! campaigns of one who does not know that it was replaced. Two rules turn out to be of this kind too, and are searched
//! without: that a leader first commits an entry of its own term (which changes of one member at a time need, and joint
//! ones do not), and that the new member has caught up (it spares clients the wait). Two rules cover for each other,
//! `membership_synced` and `learner_recovers`: a machine that synced no membership in which it votes has acknowledged
//! nothing that counts. Keep both: this holds for "in its log", and not for "applied" (`joining_recovers`).
//!
//! An operator's mandate opens the gates of those that it finds recovering. It must not make a second cluster beside
//! one that goes on: with the votes of a member that forgot the replacement, or what followed it, and of another that
//! never heard of it. Two rules see to that. `membership_synced` keeps the replacement itself. And the log that reaches
//! furthest may be that of a leader who was alone in its term and never heard of the replacement, longer than what a
//! forgetful member kept: so `mandate_newest`. The votes are counted and given as any others: by the configuration in
//! the candidate's log, which must reach as far as the voter's.
//!
//! A disk that is lost is a cut that was noticed: from then on the group is thin, and one more cut must not stop it. So
//! it has to stay until the final configuration is committed (`half-made-thin`, `return_needs_commit`): as long as the
//! leader alone has it, the others elect by the joint one, in whose old half they are no majority without the leader.
//!
//! An old copy of a replaced member's disk (`copy`) forgot what it voted and acknowledged, and nothing on it says so.
//! It does no harm once every voter has the replacement in its log. Before that it does, and no rule of the protocol
//! helps: a voter that lags counts it still.
//!
//! # What must hold
//!
//! At most one leader per term; a log id stands for one content; a leader has everything committed in earlier terms,
//! and nothing committed is replaced; with one machine lost the two others can commit; once the thin regime is
//! established with one machine down, the others stay clear and active; a mandate makes no second cluster. A search
//! that finds nothing must also have met its witnesses ("a reborn member is elected"), so that it is known to have gone
//! somewhere.
//!
//! # What that leaves out
//!
//! Pre-vote, leadership transfer, reads, snapshots (an installed snapshot is an acknowledgement of all that it covers),
//! what follows a mandate, restored disks and clones of members (the handshake's fence), lying devices, damaged blocks,
//! a replacement in five members, a second one of the same slot, and time: a leader's view of who is healthy is any
//! view. Nothing is said of liveness, but for the promises above: a cluster whose majority forgot simply finds no
//! leader. The bounds are small: few terms, entries, faults; one client write is mostly enough to lose one. Entries
//! reach a member one by one, since a batch is several of these without anything between them. A member that hears of a
//! higher term while refusing a vote keeps its own, so that a deposed leader goes on for as long as it can.
//!
//! # Why the searches end
//!
//! B and C are exchanged where nothing tells them apart. What can no longer matter is forgotten: votes of campaigns
//! that are over, acknowledgements to leaders that are none any more and what is not synced once there can be no more
//! power cuts. Votes that nobody would count are not given. Some searches begin in the middle (`half-made`). The table
//! takes under a minute of processor time; further searches are made with options, a few million states a minute.
//!
//! # Why not a library
//!
//! `stateright` was looked at. Its breadth-first search has no symmetry reduction, gives shortest counterexamples on
//! one thread only, and keeps a path with every waiting state. The search here is 200 lines and has all three.
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

pub use report::{Deeper, names, table, trace};
