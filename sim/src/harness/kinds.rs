//! The kinds of faults, and the names under which each is counted when it was applied.

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
    /// One process stops cleanly; its machine may lose power then.
    Shutdown = "clean stop",
    /// One machine loses power.
    PowerCut = "power cut",
    /// All machines lose power at once.
    PowerCutAll = "power cut of all",
    /// Machines lose power one after another until none is left, with time for the others to notice.
    PowerCutRolling = "power cut, rolling",
    /// A machine ends again, and again, shortly after it was started: while it opens, recovers or comes back.
    EndAgain = "end soon after a start",
    /// One member cannot talk to the others, or to anybody.
    Isolate = "isolation",
    /// The members fall into two parts.
    Split = "split",
    /// Messages get through in one direction only.
    OneWay = "one-way link",
    /// Messages are lost.
    Lossy = "loss",
    /// Messages are late and overtake each other.
    Slow = "delay",
    /// Some requests are late by seconds.
    Late = "late requests",
    /// Messages between members arrive a second time, some much later.
    Repeat = "repeated message",
    /// A call's connection is reset: whoever handles it is dropped where it waits.
    Reset = "reset call",
    /// A clock runs fast or slow.
    Clock = "clock rate",
    /// A device fails a write.
    FailWrite = "failed write",
    /// A device fails a sync.
    FailSync = "failed sync",
    /// A write or sync of a device never returns.
    Hang = "write or sync that never returns",
    /// A disk alone loses power while its machine runs on, and is back at once or gone until the process ends.
    DiskPower = "disk without power",
    /// A device, or one file of it, stalls for seconds; the machine may lose power then.
    Stall = "stalled device",
    /// One journal block is misread while a node opens.
    Misread = "misread block",
    /// A machine's disk is lost, and another one, empty, takes its place.
    LoseDisk = "lost disk",
    /// The same, and when the newcomer votes the lost disk turns up again for a while.
    OldDisk = "lost disk back",
    /// The superblock of a machine's disk cannot be read any more, or is erased: nobody knows what its member promised.
    LoseIdentity = "lost identity",
    /// An older copy of a machine's disk is put in its place for a while.
    StaleDisk = "older copy of a disk",
    /// A member forgets what it acknowledged just when its vote can elect one who never had it.
    Forget = "forgotten acknowledgement used",
    /// A member forgets its vote just when another candidate can use it in the same term.
    Usurp = "forgotten vote used",
    /// A member that comes back is used for an election as soon as it counts itself whole.
    HalfRecovered = "returning member used",
    /// A member loses power while it sets its `lazy` mark, and its vote can elect one who lacks what came meanwhile.
    Unmarked = "power cut amid a mark",
    /// Writes take effect unanswered; before clients repeat them, members start again from a checkpoint taken in between.
    Straddle = "repeat across a restart",
    /// Bits of blocks at rest flip.
    Rot = "bit rot",
    /// Blocks at rest can no longer be read.
    Wear = "unreadable block",
    /// A write is reported as done and was never stored.
    LostWrite = "lost write",
    /// A write is reported as done and went to another place.
    StrayWrite = "misdirected write",
    /// A read returns another place's block, once.
    StrayRead = "misdirected read",
    /// The data area is filled until writes are refused, and emptied again.
    Fill = "full disk",
}

use FaultKind::{
    Clock, EndAgain, Fill, Forget, HalfRecovered, Isolate, Kill, Late, LostWrite, OneWay, Pause, PowerCut,
    PowerCutRolling, Rot, Shutdown, Slow, Split, Straddle, StrayRead, StrayWrite, Unmarked, Usurp, Wear,
};

impl FaultKind {
    /// The arrangements that need several members, a certain order and the right moment.
    pub const CONSPIRACIES: [FaultKind; 5] = [Forget, Usurp, HalfRecovered, Unmarked, Straddle];

    /// The losses of power that a cluster survives without a person, the plainest most often.
    pub const CUTS: [FaultKind; 6] = [PowerCut, PowerCut, PowerCut, PowerCut, PowerCutRolling, EndAgain];

    /// What may happen around them.
    pub const COMPANIONS: [FaultKind; 11] =
        [Kill, Pause, Shutdown, Isolate, Split, OneWay, Slow, Late, Clock, HalfRecovered, Unmarked];

    /// What a storage medium does over time; drawn apart from the others, as [`Atlas`](super::atlas::Atlas) allows.
    pub const DECAYS: [FaultKind; 6] = [Rot, Wear, LostWrite, StrayWrite, StrayRead, Fill];
}
