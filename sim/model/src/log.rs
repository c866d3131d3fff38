//! A replicated log of at most eight entries in one word.
//!
//! An entry is a byte: two bits of term, six of content. An entry is never zero, so the word
//! implies the length, and two logs are equal if their words are.

use std::fmt;

/// The most entries that a log holds.
pub(crate) const MAX_LEN: u8 = 8;

/// What an entry carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Content {
    /// The first entry of each leader.
    Blank,
    /// A client's write. Each has its own number.
    Value(u8),
    /// The boot-epoch record of a recovering member. Any leader that learns of the boot epoch logs
    /// it.
    BootEpoch { id: u8, nonce: u8 },
    /// Joint configuration: the slot's first identity in the old half, its replacement in the new
    /// half.
    Joint(u8),
    /// The new half alone.
    Final(u8),
    /// Not Cairn's: adds the new identity, as the first of two changes.
    Add(u8),
    /// Not Cairn's: removes the old identity, as the second of two changes.
    Remove(u8),
    /// Not Cairn's: replaces the old identity by the new one without a joint configuration.
    Direct(u8),
    /// The old half alone: undoes a change that was begun.
    Undo(u8),
    /// Joint configuration the other way: the slot's first identity comes back, its replacement
    /// goes.
    Back(u8),
    /// Joint configuration: the new half lacks the slot's first identity.
    Shrink(u8),
    /// The end of mode `replicated`: from here on members sync before they acknowledge.
    Strict,
}

impl Content {
    fn code(self) -> u8 {
        match self {
            Content::Blank => 0,
            Content::Value(v) => v,
            Content::BootEpoch { id, nonce } => 7 + 4 * id + nonce,
            Content::Joint(slot) => 32 + slot,
            Content::Final(slot) => 35 + slot,
            Content::Add(slot) => 38 + slot,
            Content::Remove(slot) => 41 + slot,
            Content::Direct(slot) => 44 + slot,
            Content::Undo(slot) => 47 + slot,
            Content::Back(slot) => 50 + slot,
            Content::Shrink(slot) => 53 + slot,
            Content::Strict => 56,
        }
    }

    fn from_code(code: u8) -> Content {
        match code {
            0 => Content::Blank,
            1..=7 => Content::Value(code),
            8..=31 => Content::BootEpoch { id: (code - 8) / 4, nonce: (code - 8) % 4 + 1 },
            32..=34 => Content::Joint(code - 32),
            35..=37 => Content::Final(code - 35),
            38..=40 => Content::Add(code - 38),
            41..=43 => Content::Remove(code - 41),
            44..=46 => Content::Direct(code - 44),
            47..=49 => Content::Undo(code - 47),
            50..=52 => Content::Back(code - 50),
            53..=55 => Content::Shrink(code - 53),
            _ => Content::Strict,
        }
    }

    /// The same content with slots B and C exchanged.
    fn mirrored(self) -> Content {
        match self {
            Content::Blank | Content::Value(_) | Content::Strict => self,
            Content::BootEpoch { id, nonce } => Content::BootEpoch { id: mirror(id), nonce },
            Content::Joint(slot) => Content::Joint(mirror(slot)),
            Content::Final(slot) => Content::Final(mirror(slot)),
            Content::Add(slot) => Content::Add(mirror(slot)),
            Content::Remove(slot) => Content::Remove(mirror(slot)),
            Content::Direct(slot) => Content::Direct(mirror(slot)),
            Content::Undo(slot) => Content::Undo(mirror(slot)),
            Content::Back(slot) => Content::Back(mirror(slot)),
            Content::Shrink(slot) => Content::Shrink(mirror(slot)),
        }
    }

    /// Whether it defines the voters.
    pub(crate) fn is_membership(self) -> bool {
        !matches!(
            self,
            Content::Blank | Content::Value(_) | Content::BootEpoch { .. } | Content::Strict
        )
    }
}

/// The identity (or slot) that this one becomes when slots B and C are exchanged.
pub(crate) fn mirror(id: u8) -> u8 {
    match id {
        1 => 2,
        2 => 1,
        4 => 5,
        5 => 4,
        same => same,
    }
}

/// An entry: term and content. Its index is its position in the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Entry(u8);

impl Entry {
    pub(crate) fn new(term: u8, content: Content) -> Entry {
        Entry(term << 6 | content.code())
    }

    pub(crate) fn term(self) -> u8 {
        self.0 >> 6
    }

    pub(crate) fn content(self) -> Content {
        Content::from_code(self.0 & 63)
    }
}

/// A log. Indices count from 1.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Log(u64);

impl Log {
    pub(crate) fn len(self) -> u8 {
        (64 - self.0.leading_zeros()).div_ceil(8) as u8
    }

    /// The entry at an index that the log has.
    pub(crate) fn get(self, index: u8) -> Entry {
        Entry((self.0 >> (8 * (index - 1))) as u8)
    }

    pub(crate) fn entries(self) -> impl Iterator<Item = Entry> {
        (1..=self.len()).map(move |index| self.get(index))
    }

    /// The log with one more entry. It must have fewer than [`MAX_LEN`].
    pub(crate) fn pushed(self, entry: Entry) -> Log {
        Log(self.0 | u64::from(entry.0) << (8 * self.len()))
    }

    pub(crate) fn prefix(self, len: u8) -> Log {
        if len >= MAX_LEN { self } else { Log(self.0 & ((1 << (8 * len)) - 1)) }
    }

    /// The length of the longest common prefix.
    pub(crate) fn common(self, other: Log) -> u8 {
        let equal = ((self.0 ^ other.0).trailing_zeros() / 8) as u8;
        equal.min(self.len()).min(other.len())
    }

    pub(crate) fn starts_with(self, other: Log) -> bool {
        self.common(other) == other.len()
    }

    pub(crate) fn last_term(self) -> u8 {
        if self.len() == 0 { 0 } else { self.get(self.len()).term() }
    }

    /// Raft's order of logs: last term, then length.
    pub(crate) fn rank(self) -> u8 {
        self.last_term() << 4 | self.len()
    }

    /// Term and index of the last membership entry.
    pub(crate) fn last_membership(self) -> (u8, u8) {
        let last = (1..=self.len()).rev().find(|index| self.get(*index).content().is_membership());
        last.map_or((0, 0), |index| (self.get(index).term(), index))
    }

    /// The index of this content, if the log has it.
    pub(crate) fn find(self, content: Content) -> Option<u8> {
        (1..=self.len()).find(|index| self.get(*index).content() == content)
    }

    /// The same log with slots B and C exchanged.
    pub(crate) fn mirrored(self) -> Log {
        const NAMES_A_MEMBER: u64 = 0x3838_3838_3838_3838;
        if self.0 & NAMES_A_MEMBER == 0 {
            return self;
        }
        self.entries()
            .fold(Log::default(), |log, e| log.pushed(Entry::new(e.term(), e.content().mirrored())))
    }
}

/// The letter of an identity: A, B, C, and their replacements A', B', C'.
pub(crate) struct Id(pub u8);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = char::from(b'A' + self.0 % 3);
        write!(f, "{letter}{}", if self.0 >= 3 { "'" } else { "" })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.term())?;
        match self.content() {
            Content::Blank => write!(f, "blank"),
            Content::Value(v) => write!(f, "v{v}"),
            Content::BootEpoch { id, nonce } => write!(f, "epoch({},{nonce})", Id(id)),
            Content::Joint(slot) => write!(f, "joint({}->{})", Id(slot), Id(slot + 3)),
            Content::Final(slot) => write!(f, "final({})", Id(slot)),
            Content::Add(slot) => write!(f, "add({})", Id(slot + 3)),
            Content::Remove(slot) => write!(f, "remove({})", Id(slot)),
            Content::Direct(slot) => write!(f, "direct({}->{})", Id(slot), Id(slot + 3)),
            Content::Undo(slot) => write!(f, "undo({})", Id(slot)),
            Content::Back(slot) => write!(f, "joint({}->{})", Id(slot + 3), Id(slot)),
            Content::Shrink(slot) => write!(f, "joint(without {})", Id(slot)),
            Content::Strict => write!(f, "sync from here on"),
        }
    }
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[")?;
        for (i, entry) in self.entries().enumerate() {
            write!(f, "{}{entry}", if i > 0 { " " } else { "" })?;
        }
        write!(f, "]")
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_returns_what_was_pushed() {
        let contents = [
            Content::Blank,
            Content::Value(7),
            Content::BootEpoch { id: 0, nonce: 1 },
            Content::Back(1),
            Content::Joint(2),
            Content::Final(0),
            Content::BootEpoch { id: 5, nonce: 4 },
            Content::Undo(2),
        ];
        let log = contents.iter().fold(Log::default(), |log, c| log.pushed(Entry::new(3, *c)));
        assert_eq!(log.len(), MAX_LEN);
        for (i, content) in contents.iter().enumerate() {
            let entry = log.get(i as u8 + 1);
            assert_eq!((entry.term(), entry.content()), (3, *content));
        }
        assert_eq!(log.mirrored().mirrored(), log);
        assert_eq!(log.prefix(3).len(), 3);
        assert_eq!(log.common(log.prefix(5)), 5);
        assert!(log.starts_with(log.prefix(0)));
    }
}
