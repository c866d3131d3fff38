//! The kinds of faults, and the names under which each is counted when it was applied.

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// One process is killed.
    Kill,
    /// All processes are killed at once.
    KillAll,
    /// One process stops running for a while.
    Pause,
    /// One process stops cleanly; its machine may lose power then.
    Shutdown,
    /// One machine loses power.
    PowerCut,
    /// All machines lose power at once.
    PowerCutAll,
    /// Machines lose power one after another until none is left, with time for the others to notice.
    PowerCutRolling,
    /// A machine ends again, and again, shortly after it was started: while it opens, recovers or comes back.
    EndAgain,
    /// One member cannot talk to the others, or to anybody.
    Isolate,
    /// The members fall into two parts.
    Split,
    /// Messages get through in one direction only.
    OneWay,
    /// Messages are lost.
    Lossy,
    /// Messages are late and overtake each other.
    Slow,
    /// Some requests are late by seconds.
    Late,
    /// A clock runs fast or slow.
    Clock,
    /// A device fails a write.
    FailWrite,
    /// A device fails a sync.
    FailSync,
    /// A device, or one file of it, stalls for seconds; the machine may lose power then.
    Stall,
    /// One journal block is misread while a node opens.
    Misread,
    /// A member forgets what it acknowledged just when its vote can elect one who never had it.
    Forget,
    /// A member forgets its vote just when another candidate can use it in the same term.
    Usurp,
    /// A member that comes back is used for an election as soon as it counts itself whole.
    HalfRecovered,
    /// A member loses power while it sets its `lazy` mark, and its vote can elect one who lacks what came meanwhile.
    Unmarked,
    /// Writes take effect unanswered; before clients repeat them, members start again from a checkpoint taken in between.
    Straddle,
}

use FaultKind::*;

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 24] = [
        Kill,
        KillAll,
        Pause,
        Shutdown,
        PowerCut,
        PowerCutAll,
        PowerCutRolling,
        EndAgain,
        Isolate,
        Split,
        OneWay,
        Lossy,
        Slow,
        Late,
        Clock,
        FailWrite,
        FailSync,
        Stall,
        Misread,
        Forget,
        Usurp,
        HalfRecovered,
        Unmarked,
        Straddle,
    ];

    /// The arrangements that need several members, a certain order and the right moment.
    pub const CONSPIRACIES: [FaultKind; 5] = [Forget, Usurp, HalfRecovered, Unmarked, Straddle];

    /// The name under which it is counted.
    pub const fn name(self) -> &'static str {
        match self {
            Kill => "kill",
            KillAll => "kill of all",
            Pause => "pause",
            Shutdown => "clean stop",
            PowerCut => "power cut",
            PowerCutAll => "power cut of all",
            PowerCutRolling => "power cut, rolling",
            EndAgain => "end soon after a start",
            Isolate => "isolation",
            Split => "split",
            OneWay => "one-way link",
            Lossy => "loss",
            Slow => "delay",
            Late => "late requests",
            Clock => "clock rate",
            FailWrite => "failed write",
            FailSync => "failed sync",
            Stall => "stalled device",
            Misread => "misread block",
            Forget => "forgotten acknowledgement used",
            Usurp => "forgotten vote used",
            HalfRecovered => "returning member used",
            Unmarked => "power cut amid a mark",
            Straddle => "repeat across a restart",
        }
    }
}
