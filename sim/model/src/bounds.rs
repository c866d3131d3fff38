//! How far a search goes: the most that may happen in it, and where it begins.

/// The bounds of one search. Terms, entries and faults are limited so that the search ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Machines: three or five. With five there are no replacements.
    pub members: u8,
    /// With five machines: D and E have elected C leader of term 2. A, which leads term 1, and B do
    /// not know it yet.
    pub deposed: bool,
    /// Machines that may campaign, as bits by their index in `State::nodes`.
    pub candidates: u8,
    /// Machines that may lose power, as bits by their index in `State::nodes`.
    pub faulty: u8,
    /// The highest term. A leads the first term from the start.
    pub terms: u8,
    /// The longest log, the first leader's blank entry included.
    pub entries: u8,
    /// Client writes.
    pub values: u8,
    /// Whether the search checks what an unsafe recovery could do.
    pub unsafe_recovery_grants: bool,
    /// Power cuts, of any machines.
    pub cuts: u8,
    /// Process kills, of any machines.
    pub kills: u8,
    /// Slots with a second identity, as bits: a blank machine that may replace the first identity.
    pub replacement: u8,
    /// The search begins in the middle of the replacement of slot C: A and B have the joint
    /// configuration, and the new C has what they have.
    pub half_made: bool,
    /// Whether a leader may also undo a half-made replacement.
    pub undo: bool,
    /// Whether a replaced member may be put back under its old identity, instead of its
    /// replacement.
    pub back: bool,
    /// Whether a leader may end mode `replicated` and then remove C.
    pub shrinks: bool,
    /// Lost disks of machines that continue under their old identity.
    pub lost_disks: u8,
    /// Whether those machines recover.
    pub lost_disks_recover: bool,
    /// Whether one machine's identity becomes unreadable and its directory is then overwritten.
    pub overwrites: bool,
    /// Old copies of replaced members' disks that are started.
    pub copies: u8,
    /// Whether the search covers the unsynced-ack flag: it is clear at the start, members
    /// acknowledge before or after a sync, and they may clear the flag.
    pub flags: bool,
    /// Whether leaders switch ack modes, and one machine goes down for good.
    pub degraded: bool,
    /// The highest ack mode number of a term. Odd numbers are safe mode, even ones fast mode.
    pub ack_modes: u8,
    /// Whether leaders may also log records of a member's earlier boot epochs.
    pub old_requests: bool,
}

impl Bounds {
    /// Two terms and no faults. Scenarios name what they add.
    pub(crate) const BASE: Bounds = Bounds {
        members: 3,
        deposed: false,
        candidates: EVERY,
        faulty: EVERY,
        terms: 2,
        entries: 3,
        values: 1,
        unsafe_recovery_grants: false,
        cuts: 0,
        kills: 0,
        replacement: 0,
        half_made: false,
        undo: false,
        back: false,
        shrinks: false,
        lost_disks: 0,
        lost_disks_recover: false,
        overwrites: false,
        copies: 0,
        flags: false,
        degraded: false,
        ack_modes: 3,
        old_requests: true,
    };

    /// Whether nothing tells B and C apart.
    pub(crate) fn symmetric(&self) -> bool {
        let [b, c] = [self.replacement >> 1 & 1, self.replacement >> 2 & 1];
        self.members == 3
            && !self.shrinks
            && self.candidates == EVERY
            && self.faulty == EVERY
            && b == c
    }

    /// The slots that voted at the start, as bits.
    pub(crate) fn voters(&self) -> u8 {
        (1 << self.members) - 1
    }
}

const EVERY: u8 = 0b11111;
