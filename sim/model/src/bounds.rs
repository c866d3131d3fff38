//! How far a search goes: what a run may contain at most, and where it begins.

/// The bounds of one search. Terms, entries and faults are limited so that the search ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Machines: three or five. With five none is reborn.
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
    /// Whether an operator may be asked for a mandate.
    pub mandates: bool,
    /// Power cuts, of any machines.
    pub cuts: u8,
    /// Process kills, of any machines.
    pub kills: u8,
    /// Slots that have a second identity, as bits: a blank machine that may join in the place of the first.
    pub reborn: u8,
    /// The replacement of slot C is half made: A and B have the joint configuration, and the new C has what they have.
    pub half_made: bool,
    /// Whether a half-made replacement may also be undone.
    pub undo: bool,
    /// Whether a replaced member may be put back, as who it was, in the place of the one that replaced it.
    pub back: bool,
    /// Disks lost by machines that then go on as who they were.
    pub losses: u8,
    /// Whether these recover in place.
    pub losses_recover: bool,
    /// Whether one machine's identity becomes unreadable, and its directory is then overwritten.
    pub overwrites: bool,
    /// Old copies of replaced members' disks that are started.
    pub copies: u8,
    /// Whether the mark takes part: it starts clear, acknowledgements may be synced or not, members may clear it.
    pub marks: bool,
    /// Whether leaders have a thin regime, and machine C goes down for good.
    pub thin: bool,
    /// The last regime of a term; odd ones are thin.
    pub regimes: u8,
    /// Whether leaders may say so of earlier starts of the member.
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
        mandates: false,
        cuts: 0,
        kills: 0,
        reborn: 0,
        half_made: false,
        undo: false,
        back: false,
        losses: 0,
        losses_recover: false,
        overwrites: false,
        copies: 0,
        marks: false,
        thin: false,
        regimes: 3,
        old_requests: true,
    };

    /// Whether B and C are interchangeable.
    pub(crate) fn symmetric(&self) -> bool {
        let [b, c] = [self.reborn >> 1 & 1, self.reborn >> 2 & 1];
        self.members == 3 && self.candidates == EVERY && self.faulty == EVERY && b == c
    }

    /// The slots that voted at the start, as bits.
    pub(crate) fn voters(&self) -> u8 {
        (1 << self.members) - 1
    }
}

const EVERY: u8 = 0b11111;
