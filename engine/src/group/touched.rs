//! Which keys changed without a later version, for a checkpoint of what changed.
//!
//! What holds here: a key that was deleted, or whose value moved, after the capture before the last one
//! is in one of the lists, or the lists say that they do not know. Two checkpoint areas are used in turn,
//! so each is two captures behind.

use crate::codec::{Reader, put_varint};
use bytes::BufMut;
use std::sync::Arc;

/// Fewer keys than this are always kept.
const KEPT: usize = 4096;
/// Of all keys, at most one of so many is kept in a list: a whole checkpoint is hardly longer then.
const PART: usize = 16;
/// Bytes of a list that are allocated at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Keys, in the order in which they were added; one may be there more than once.
#[derive(Default)]
pub(crate) struct KeyList {
    /// Each key behind its length.
    pieces: Vec<Vec<u8>>,
    count: usize,
}

/// Keys of one interval between two captures; `None`: there were too many, or it is not known.
pub(crate) type Interval = Option<Arc<KeyList>>;

/// The keys since the last capture, and those of the interval before it. By default nothing is known, as
/// after an open.
#[derive(Default)]
pub(crate) struct Touched {
    now: Option<KeyList>,
    before: Interval,
}

impl KeyList {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn push(&mut self, key: &[u8]) {
        let needed = key.len() + size_of::<u64>();
        if self.pieces.last().is_none_or(|piece| piece.capacity() - piece.len() < needed) {
            self.pieces.push(Vec::with_capacity(needed.max(PIECE_BYTES)));
        }
        let Some(piece) = self.pieces.last_mut() else { return };
        put_varint(piece, key.len() as u64);
        piece.put_slice(key);
        self.count += 1;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().flat_map(|piece| {
            let mut r = Reader::new(piece);
            std::iter::from_fn(move || r.varint().and_then(|len| r.bytes(len as usize)))
        })
    }
}

impl Touched {
    /// A key was deleted, or its value moved. There are so many keys.
    pub(crate) fn add(&mut self, key: &[u8], keys: usize) {
        let Some(now) = &mut self.now else { return };
        match now.len() > KEPT.max(keys / PART) {
            true => self.now = None,
            false => now.push(key),
        }
    }

    /// A capture is taken: what both intervals touched.
    pub(crate) fn captured(&mut self) -> [Interval; 2] {
        let now = self.now.replace(KeyList::default()).map(Arc::new);
        let before = std::mem::replace(&mut self.before, now.clone());
        [before, now]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(interval: &Interval) -> Option<Vec<&[u8]>> {
        interval.as_ref().map(|keys| keys.iter().collect())
    }

    #[test]
    fn a_capture_has_what_was_touched_since_the_one_before_the_last() {
        let mut touched = Touched::default();
        touched.add(b"a", 100);
        assert_eq!(touched.captured().map(|interval| interval.is_none()), [true, true]);
        touched.add(b"b", 100);
        touched.add(b"", 100);
        let [before, now] = touched.captured();
        assert!(before.is_none(), "the interval with the open");
        assert_eq!(keys(&now), Some(vec![&b"b"[..], b""]));
        touched.add(b"d", 100);
        let [before, now] = touched.captured();
        assert_eq!(keys(&before), Some(vec![&b"b"[..], b""]));
        assert_eq!(keys(&now), Some(vec![&b"d"[..]]));
    }

    #[test]
    fn too_many_keys_are_not_kept_and_the_next_interval_is() {
        let mut touched = Touched::default();
        touched.captured();
        for key in 0..=KEPT as u32 + 1 {
            touched.add(&key.to_be_bytes(), 0);
        }
        touched.add(b"later", 0);
        assert!(touched.captured()[1].is_none());
        touched.add(b"again", 0);
        let [before, now] = touched.captured();
        assert!(before.is_none());
        assert_eq!(keys(&now), Some(vec![&b"again"[..]]));
    }

    #[test]
    fn a_list_holds_keys_of_every_length_over_many_pieces() {
        let all: Vec<Vec<u8>> = (0..3_000).map(|n| vec![n as u8; n % 300]).collect();
        let long = vec![7; 2 * PIECE_BYTES];
        let mut list = KeyList::default();
        for key in all.iter().chain([&long]).chain(&all) {
            list.push(key);
        }
        assert!(list.pieces.len() > 10);
        assert_eq!(list.len(), 2 * all.len() + 1);
        assert!(list.iter().eq(all.iter().chain([&long]).chain(&all)));
    }
}
