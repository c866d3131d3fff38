//! Which keys a pass copies, and which it deletes: by what earlier passes did.
//!
//! What holds here: a key is deleted at the target only if this copy wrote it, and only with the version that
//! it has there from this copy. A key that no pass has met is put, whichever entry wrote it. What is remembered of
//! each key is bounded ([`KNOWN_BYTES_MAX`]).

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

/// What the target has of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    /// The value of the source, which this copy wrote as this version.
    Written(Version),
    /// The same value, which it had before.
    Same(Version),
    /// Another value, which stays.
    Kept,
}

/// A key that a pass has met.
#[derive(Clone, Copy, Debug)]
struct Met {
    source: Entry,
    there: There,
    /// The last pass that found it at the source.
    seen: u32,
}

/// What is known of the keys.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Empty if no pass follows.
    keys: BTreeMap<Vec<u8>, Met>,
    remembers: bool,
    bytes: u64,
    /// How many of the source's keys have another value at the target, which stays.
    kept: u64,
    pass: u32,
    /// The state that the last pass copied.
    through: Option<Entry>,
}

/// Keys that the source does not have any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    /// Those that the copy wrote, with the version that they got.
    pub(super) written: Vec<(Vec<u8>, Version)>,
    /// How many have a value at the target that the copy did not write. They stay there.
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
    ///
    /// The story: between two passes an unsafe recovery took the source back to an earlier state. It had a key
    /// again that it had deleted before the first pass. Since its entry was older than that pass, the key was
    /// taken for one that had been copied, and the copy was said to have caught up without it.
    pub(super) fn step(&mut self, key: &[u8], source: Entry) -> Step {
        let Some(met) = self.keys.get_mut(key) else { return Step::Put(Condition::Absent) };
        met.seen = self.pass;
        match met.there {
            _ if met.source == source => Step::Unchanged,
            There::Written(version) | There::Same(version) => {
                Step::Put(Condition::Version(version))
            }
            // It may be gone there since.
            There::Kept => Step::Put(Condition::Absent),
        }
    }

    /// Whether the source leaves out the value of this entry: the last pass copied a state behind it.
    pub(super) fn is_left_out(&self, source: Entry) -> bool {
        self.through.is_some_and(|through| source <= through)
    }

    /// How many of the source's keys have another value at the target, which stays.
    pub(super) fn kept(&self) -> u64 {
        self.kept
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
        // What had the same value, and then got another one by this copy, is the copy's.
        let there = if written { There::Written(target) } else { There::Same(target) };
        self.remember(key, source, there)
    }

    /// A key has another value at the target than this entry wrote at the source, and it stays.
    ///
    /// # Errors
    /// A [`UsageError`] if that is too much to remember.
    pub(super) fn keep(&mut self, key: &[u8], source: Entry) -> Result<(), UsageError> {
        self.kept = self.kept.saturating_add(1);
        self.remember(key, source, There::Kept)
    }

    fn remember(&mut self, key: &[u8], source: Entry, there: There) -> Result<(), UsageError> {
        if !self.remembers {
            return Ok(());
        }
        let met = Met { source, there, seen: self.pass };
        if let Some(before) = self.keys.get_mut(key) {
            if before.there == There::Kept {
                self.kept = self.kept.saturating_sub(1);
            }
            *before = met;
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(remembered_bytes(1, key.len() as u64));
        self.keys.insert(key.to_vec(), met);
        match self.bytes > GROWN_BYTES_MAX {
            true => Err(UsageError(too_many(self.keys.len() as u64))),
            false => Ok(()),
        }
    }

    /// Forgets the keys that this pass has not found at the source, and returns them.
    pub(super) fn gone(&mut self) -> Gone {
        let pass = self.pass;
        let mut gone = Gone::default();
        for (key, met) in self.keys.extract_if(.., |_, met| met.seen != pass) {
            self.bytes = self.bytes.saturating_sub(remembered_bytes(1, key.len() as u64));
            match met.there {
                There::Written(version) => gone.written.push((key, version)),
                There::Same(_) => gone.left += 1,
                There::Kept => {
                    self.kept = self.kept.saturating_sub(1);
                    gone.left += 1;
                }
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
        known.keep(b"d", (1, 5)).expect("few");
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
        // `d` is gone at the source, and its other value stays.
        assert_eq!(known.gone(), Gone { written: Vec::new(), left: 1 });
        assert_eq!(known.gone(), Gone::default());
    }

    #[test]
    fn a_key_that_came_back_by_an_older_entry_is_put_and_its_value_is_missed() {
        let mut known = Known::new(true);
        known.begin(1);
        assert_eq!(known.step(b"a", (1, 5)), ABSENT);
        known.copied(b"a", (1, 5), Version(70), true).expect("few");
        assert!(!known.is_left_out((1, 4)), "the first pass gets all values");
        known.end((1, 9));
        known.begin(2);
        assert_eq!(known.step(b"a", (1, 5)), Step::Unchanged);
        // It was deleted by entry 8, and an unsafe recovery went back to entry 7.
        assert_eq!(known.step(b"b", (1, 4)), ABSENT);
        assert!(known.is_left_out((1, 4)) && known.is_left_out((1, 9)));
        assert!(!known.is_left_out((1, 10)) && !known.is_left_out((2, 3)));
    }

    #[test]
    fn a_key_that_stays_with_another_value_is_counted_once_until_it_is_written_or_gone() {
        let mut known = Known::new(true);
        known.begin(1);
        for key in [b"a", b"b", b"c"] {
            known.keep(key, (1, 5)).expect("few");
        }
        known.end((1, 9));
        known.begin(2);
        assert_eq!(known.step(b"a", (1, 5)), Step::Unchanged);
        assert_eq!(known.step(b"b", (1, 10)), ABSENT);
        known.keep(b"b", (1, 10)).expect("few");
        assert_eq!(known.kept(), 3);
        // `c` is gone at the source.
        assert_eq!(known.gone(), Gone { written: Vec::new(), left: 1 });
        assert_eq!(known.kept(), 2);
        known.end((1, 11));
        known.begin(3);
        assert_eq!(known.step(b"a", (1, 12)), ABSENT);
        known.copied(b"a", (1, 12), Version(80), true).expect("few");
        assert_eq!(known.kept(), 1);
        let mut single = Known::new(false);
        single.keep(b"a", (1, 5)).expect("nothing");
        assert_eq!((single.kept(), single.bytes), (1, 0));
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
