//! How far a search goes: what a run may contain at most, and where it begins.

/// The bounds of one search. Terms, entries and faults are limited so that the search ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Machines: three or five. With five no identity is lost.
    pub members: u8,
    /// Of five: C was elected leader of term 2 by D and E, and neither A, who leads term 1, nor B knows of it yet.
    pub deposed: bool,
    /// Slots that may campaign, as bits.
    pub candidates: u8,
    /// Slots that may lose power, as bits.
    pub faulty: u8,
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
    /// The last regime of a term; odd ones are thin.
    pub regimes: u8,
    /// Whether leaders may answer requests for a mark from an earlier start of the member.
    pub old_requests: bool,
}

impl Bounds {
    /// Two terms, nothing else: scenarios name what they add.
    pub(crate) const BASE: Bounds = Bounds {
        members: 3,
        deposed: false,
        candidates: EVERY,
        faulty: EVERY,
        terms: 2,
        entries: 3,
        values: 1,
        cuts: 0,
        kills: 0,
        losses: 0,
        marks: false,
        thin: false,
        regimes: 3,
        old_requests: true,
    };

    /// Whether B and C are interchangeable.
    pub(crate) fn symmetric(&self) -> bool {
        self.members == 3 && self.candidates == EVERY && self.faulty == EVERY
    }

    /// The slots that voted at the start, as bits.
    pub(crate) fn voters(&self) -> u8 {
        (1 << self.members) - 1
    }
}

const EVERY: u8 = 0b11111;
