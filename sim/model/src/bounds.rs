//! How far a search goes: what a run may contain at most, and where it begins.

/// The bounds of one search. Three machines; terms, entries and faults are limited so that the search ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The highest term; the first is led by A from the start.
    pub terms: u8,
    /// The longest log, the first leader's blank entry included.
    pub entries: u8,
    /// Client writes.
    pub values: u8,
    /// Power cuts, of any machines.
    pub cuts: u8,
    /// Process kills, of any machines.
    pub kills: u8,
    /// Machines whose identity is lost.
    pub losses: u8,
    /// Whether the mark takes part: it starts clear, acknowledgements may be synced or not, members may clear it.
    pub marks: bool,
    /// Whether leaders have a thin regime, and machine C goes down for good.
    pub thin: bool,
    /// Whether leaders may answer requests for a mark from an earlier start of the member.
    pub old_requests: bool,
}

impl Bounds {
    /// Two terms, nothing else: scenarios name what they add.
    pub(crate) const BASE: Bounds = Bounds {
        terms: 2,
        entries: 3,
        values: 1,
        cuts: 0,
        kills: 0,
        losses: 0,
        marks: false,
        thin: false,
        old_requests: true,
    };
}
