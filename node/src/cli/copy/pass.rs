//! Which keys a pass copies, and which it deletes: by what earlier passes did.
//!
//! What holds here: a key is deleted at the target only if this copy wrote it, and only with the version that
//! it has there from this copy. What is remembered of each key is bounded ([`KNOWN_BYTES_MAX`]).

use crate::cli::exit::UsageError;
use cairn_client::{Condition, Version};
use std::collections::BTreeMap;

/// What a remembered key takes beside its own bytes, about.
const KEY_BYTES: u64 = 120;
/// The most memory for what is remembered of the keys, before anything is written.
pub(super) const KNOWN_BYTES_MAX: u64 = 4 << 30;
/// The same at any time: a source may get more keys while it is copied.
const GROWN_BYTES_MAX: u64 = 2 * KNOWN_BYTES_MAX;

/// The log entry that wrote a key at the source: its term and index.
pub(super) type Entry = (u64, u64);

/// What becomes of a key in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is as an earlier pass left it.
    Unchanged,
    /// It is put, if this holds at the target.
    Put(Condition),
}

/// A key that is at the target as it was at the source.
#[derive(Clone, Copy, Debug)]
struct Copied {
    source: Entry,
    target: Version,
    /// By this copy. Else it had the same value before.
    written: bool,
    /// The last pass that found it at the source.
    seen: u32,
}

/// What is known of the keys.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Empty if no pass follows.
    keys: BTreeMap<Vec<u8>, Copied>,
    remembers: bool,
    bytes: u64,
    pass: u32,
    /// The state that the last pass copied.
    through: Option<Entry>,
}

/// Keys that the source does not have any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    /// Those that the copy wrote, with the version that they got.
    pub(super) written: Vec<(Vec<u8>, Version)>,
    /// How many had the same value at the target before. They stay there.
    pub(super) left: u64,
}

/// What is remembered of so many keys of so many bytes, about.
pub(super) fn remembered_bytes(keys: u64, key_bytes: u64) -> u64 {
    keys.saturating_mul(KEY_BYTES).saturating_add(key_bytes)
}

impl Known {
    /// `remembers`: another pass may follow.
    pub(super) fn new(remembers: bool) -> Known {
        Known { remembers, ..Known::default() }
    }

    pub(super) fn begin(&mut self, pass: u32) {
        self.pass = pass;
    }

    /// The state of this entry is copied.
    pub(super) fn end(&mut self, through: Entry) {
        self.through = Some(through);
    }

    /// The last entry of the state that the last pass copied.
    pub(super) fn through(&self) -> Option<Entry> {
        self.through
    }

    /// What this pass does with a key that the source has.
    pub(super) fn step(&mut self, key: &[u8], source: Entry) -> Step {
        match self.keys.get_mut(key) {
            Some(copied) => {
                copied.seen = self.pass;
                match copied.source == source {
                    true => Step::Unchanged,
                    false => Step::Put(Condition::Version(copied.target)),
                }
            }
            // An earlier pass left it as it is at the target.
            None if self.through.is_some_and(|through| source <= through) => Step::Unchanged,
            None => Step::Put(Condition::Absent),
        }
    }

    /// A key is at the target as this entry wrote it at the source.
    ///
    /// # Errors
    /// A [`UsageError`] if that is too much to remember.
    pub(super) fn copied(
        &mut self,
        key: &[u8],
        source: Entry,
        target: Version,
        written: bool,
    ) -> Result<(), UsageError> {
        if !self.remembers {
            return Ok(());
        }
        let copied = Copied { source, target, written, seen: self.pass };
        if let Some(before) = self.keys.get_mut(key) {
            // What had the same value, and then got another one by this copy, is the copy's.
            *before = copied;
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(remembered_bytes(1, key.len() as u64));
        self.keys.insert(key.to_vec(), copied);
        match self.bytes > GROWN_BYTES_MAX {
            true => Err(UsageError(too_many(self.keys.len() as u64))),
            false => Ok(()),
        }
    }

    /// Another client wrote the key at the target, and it stays as it is there.
    pub(super) fn forget(&mut self, key: &[u8]) {
        if self.keys.remove(key).is_some() {
            self.bytes = self.bytes.saturating_sub(remembered_bytes(1, key.len() as u64));
        }
    }

    /// Forgets the keys that this pass has not found at the source, and returns them.
    pub(super) fn gone(&mut self) -> Gone {
        let pass = self.pass;
        let mut gone = Gone::default();
        for (key, copied) in self.keys.extract_if(.., |_, copied| copied.seen != pass) {
            self.bytes = self.bytes.saturating_sub(remembered_bytes(1, key.len() as u64));
            match copied.written {
                true => gone.written.push((key, copied.target)),
                false => gone.left += 1,
            }
        }
        gone
    }
}

/// The sentence for more keys than are remembered.
pub(super) fn too_many(keys: u64) -> String {
    format!(
        "{keys} keys are too many to remember for another pass: copy parts of them with --prefix, or use --passes 1"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABSENT: Step = Step::Put(Condition::Absent);

    #[test]
    fn a_pass_copies_what_changed_since_the_last_one_and_deletes_what_the_copy_wrote() {
        let mut known = Known::new(true);
        known.begin(1);
        for key in [b"a", b"b", b"c", b"d"] {
            assert_eq!(known.step(key, (1, 5)), ABSENT);
        }
        known.copied(b"a", (1, 5), Version(70), true).expect("few");
        known.copied(b"b", (1, 5), Version(70), true).expect("few");
        known.copied(b"c", (1, 5), Version(3), false).expect("few");
        // `d` exists with another value, and stays.
        known.forget(b"d");
        assert_eq!(known.gone(), Gone::default());
        known.end((1, 9));

        known.begin(2);
        assert_eq!(known.through(), Some((1, 9)));
        assert_eq!(known.step(b"a", (1, 5)), Step::Unchanged);
        assert_eq!(known.step(b"d", (1, 5)), Step::Unchanged);
        assert_eq!(known.step(b"e", (1, 12)), ABSENT);
        known.copied(b"e", (1, 12), Version(80), true).expect("few");
        // `b` and `c` are gone at the source, and nobody but the copy wrote `b`.
        assert_eq!(known.gone(), Gone { written: vec![(b"b".to_vec(), Version(70))], left: 1 });
        known.end((1, 20));

        known.begin(3);
        assert_eq!(known.step(b"a", (2, 21)), Step::Put(Condition::Version(Version(70))));
        known.copied(b"a", (2, 21), Version(90), true).expect("few");
        assert_eq!(known.step(b"e", (1, 12)), Step::Unchanged);
        // It came back.
        assert_eq!(known.step(b"b", (2, 22)), ABSENT);
        assert_eq!(known.gone(), Gone::default());
    }

    #[test]
    fn what_had_the_same_value_before_and_changed_since_is_the_copys_own() {
        let mut known = Known::new(true);
        known.begin(1);
        known.copied(b"a", (1, 5), Version(3), false).expect("few");
        known.end((1, 9));
        known.begin(2);
        assert_eq!(known.step(b"a", (1, 10)), Step::Put(Condition::Version(Version(3))));
        known.copied(b"a", (1, 10), Version(8), true).expect("few");
        known.end((1, 11));
        known.begin(3);
        assert_eq!(known.gone(), Gone { written: vec![(b"a".to_vec(), Version(8))], left: 0 });
        assert_eq!(known.bytes, 0, "it is forgotten");
    }

    #[test]
    fn a_single_pass_remembers_nothing() {
        let mut known = Known::new(false);
        known.begin(1);
        known.copied(b"a", (1, 5), Version(3), true).expect("nothing");
        assert_eq!((known.keys.len(), known.bytes), (0, 0));
        assert_eq!(known.gone(), Gone::default());
    }
}
