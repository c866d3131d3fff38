//! The kinds of faults, and the name under which each is counted.

macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident = $name:literal,)+) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FaultKind {
            $($(#[$doc])+ $kind,)+
        }

        impl FaultKind {
            /// All of them.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$kind,)+];

            /// The name under which it is counted.
            pub const fn name(self) -> &'static str {
                match self {
                    $(FaultKind::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// One process is killed.
    Kill = "kill",
    /// All processes are killed at once.
    KillAll = "kill of all",
    /// One process stops running for a while.
    Pause = "pause",
    /// One process stops cleanly; then its machine may lose power.
    Shutdown = "clean stop",
    /// One machine loses power.
    PowerCut = "power cut",
    /// All machines lose power at once.
    PowerCutAll = "power cut of all",
    /// Machines lose power one after another until none is left, with time for the others to
    /// notice.
    PowerCutRolling = "power cut, rolling",
    /// A machine ends repeatedly, shortly after each start: while it opens, recovers or rejoins.
    EndAgain = "end soon after a start",
    /// One member cannot reach the others, or cannot reach anything.
    Isolate = "isolation",
    /// The members are split into two sides.
    Split = "split",
    /// Messages pass in one direction only.
    OneWay = "one-way link",
    /// Some members reach only some of the others: a bridge, a chain, a ring, one neighbour.
    HalfConnected = "half-connected network",
    /// Messages are lost.
    Lossy = "loss",
    /// Messages are delayed and overtake each other.
    Slow = "delay",
    /// Some requests are delayed by seconds.
    Late = "late requests",
    /// Messages between members arrive a second time, some much later.
    Repeat = "repeated message",
    /// A call's connection is reset: its handler is dropped at an await point.
    Reset = "reset call",
    /// A clock runs fast or slow.
    Clock = "clock rate",
    /// A device fails a write.
    FailWrite = "failed write",
    /// A device fails a sync.
    FailSync = "failed sync",
    /// A write or sync of a device never returns.
    Hang = "write or sync that never returns",
    /// A disk loses power while its machine continues. It is back at once, or gone until the
    /// process ends.
    DiskPower = "disk without power",
    /// A device, or one file of it, stalls for seconds; the machine may lose power then.
    Stall = "stalled device",
    /// One journal block is misread while a node opens.
    Misread = "misread block",
    /// A machine's disk is lost, and an empty one takes its place.
    LoseDisk = "lost disk",
    /// The same, and when the new identity votes, the lost disk turns up again for a while.
    OldDisk = "lost disk back",
    /// The superblock of a machine's disk becomes unreadable, or is erased: nothing tells what its
    /// member promised.
    LoseIdentity = "lost identity",
    /// An older copy replaces a machine's disk for a while.
    StaleDisk = "older copy of a disk",
    /// A member loses an entry that it acknowledged just when its vote can elect a candidate that
    /// never had the entry.
    Forget = "lost acknowledgement used",
    /// A member loses its vote just when another candidate can use that in the same term.
    ForgottenVote = "lost vote used",
    /// A returning member is used for an election as soon as it is active.
    HalfRecovered = "returning member's vote used",
    /// A member loses power while it sets its unsynced-ack flag, when its vote can elect a
    /// candidate that lacks the writes made meanwhile.
    CutBeforeFlag = "power cut while the flag is set",
    /// Writes take effect but their answers are lost. Before clients retry them, members restart
    /// from a checkpoint taken in between.
    RetryAcrossRestart = "repeat across a restart",
    /// A member starts again at another address.
    Move = "moved address",
    /// A member is removed, its machine gets an empty disk, and the new identity is added.
    ChangeMembers = "membership change",
    /// The least that an acknowledgement means becomes more, and less again.
    ChangeMode = "mode change",
    /// The leader is asked to hand leadership over.
    MoveLeader = "moved leadership",
    /// A member is asked not to lead for a while.
    Drain = "drained member",
    /// Bits of blocks at rest flip.
    Rot = "bit rot",
    /// Blocks at rest can no longer be read.
    Wear = "unreadable block",
    /// A write is reported as complete and was never stored.
    LostWrite = "lost write",
    /// A write is reported as complete and went to another offset.
    StrayWrite = "misdirected write",
    /// A read returns the block of another offset, once.
    StrayRead = "misdirected read",
    /// The data area is filled until writes are refused, then emptied again.
    Fill = "full disk",
}

use FaultKind::{
    Clock, CutBeforeFlag, EndAgain, Fill, Forget, ForgottenVote, HalfConnected, HalfRecovered,
    Isolate, Kill, Late, Lossy, LostWrite, OneWay, Pause, PowerCut, PowerCutRolling,
    RetryAcrossRestart, Rot, Shutdown, Slow, Split, StrayRead, StrayWrite, Wear,
};

impl FaultKind {
    /// Combined faults: they need several members, a certain order and the right moment.
    pub const COMBINED: [FaultKind; 5] =
        [Forget, ForgottenVote, HalfRecovered, CutBeforeFlag, RetryAcrossRestart];

    /// The power cuts that a cluster survives without an operator, the simplest one most often.
    pub const CUTS: [FaultKind; 6] =
        [PowerCut, PowerCut, PowerCut, PowerCut, PowerCutRolling, EndAgain];

    /// The faults that may happen around them.
    pub const COMPANIONS: [FaultKind; 11] = [
        Kill,
        Pause,
        Shutdown,
        Isolate,
        Split,
        OneWay,
        Slow,
        Late,
        Clock,
        HalfRecovered,
        CutBeforeFlag,
    ];

    /// What happens to links.
    pub const LINKS: [FaultKind; 7] = [Isolate, Split, OneWay, HalfConnected, Lossy, Slow, Late];

    /// What a storage medium does over time; drawn separately from the others, as
    /// [`Atlas`](super::atlas::Atlas) allows.
    pub const DECAYS: [FaultKind; 6] = [Rot, Wear, LostWrite, StrayWrite, StrayRead, Fill];
}
