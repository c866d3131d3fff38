//! What was written and what came of it, and what a reader may therefore find.
//!
//! Each key has one writer, which waits for each write's outcome before the next. So a key holds what was last
//! acknowledged, or what one write of unknown outcome would have left; after such a write the key gets no more writes, and
//! nothing else can ever be right. Each write of a key has a number, and each value can be made again from key and number.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a key holds: the number of the write that put its value; `None` if it holds nothing.
pub type Content = Option<u64>;

/// One value in so many is large.
const LARGE_ONE_IN: u64 = 32;
const SMALL_BYTES: std::ops::Range<u64> = 100..4096;
const LARGE_BYTES: std::ops::Range<u64> = 16_384..65_536;

/// What is known of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Register {
    acknowledged: Content,
    /// What a write of unknown outcome would have left.
    unknown: Option<Content>,
    /// What was acknowledged, and when, in order. Before that the key held nothing.
    log: Vec<(Content, Instant)>,
}

impl Register {
    /// A write was acknowledged.
    pub fn acknowledge(&mut self, content: Content) {
        self.acknowledged = content;
        self.log.push((content, Instant::now()));
    }

    /// A write's outcome stays unknown. The key must not be written any more.
    pub fn leave_open(&mut self, content: Content) {
        self.unknown = Some(content);
    }

    /// Whether the key may be written.
    pub fn writable(&self) -> bool {
        self.unknown.is_none()
    }

    /// Acknowledged writes.
    pub fn writes(&self) -> u64 {
        self.log.len() as u64
    }

    /// Takes what a read found after an operator gave up what no machine held any more: what [`Register::observe`] takes,
    /// or an older content, if everything acknowledged after it was acknowledged since `since`. Gives whether something
    /// was lost.
    ///
    /// # Errors
    /// A sentence, where neither explains what was found.
    pub fn fall_back(&mut self, found: Content, since: Instant) -> Result<bool, String> {
        let Err(reason) = self.observe(found) else { return Ok(false) };
        let kept = match self.log.iter().rposition(|(content, _)| *content == found) {
            Some(last) => last + 1,
            None if found.is_none() => 0,
            None => return Err(reason),
        };
        match self.log.get(kept) {
            Some((_, time)) if *time < since => {
                Err(format!("{reason}, which is older than what may be lost"))
            }
            _ => {
                self.log.truncate(kept);
                self.acknowledged = found;
                Ok(true)
            }
        }
    }

    /// Takes what a read found. What was seen stays true: a write of unknown outcome that was seen is as good as
    /// acknowledged.
    ///
    /// # Errors
    /// A sentence, where no order of the writes explains what was found.
    pub fn observe(&mut self, found: Content) -> Result<(), String> {
        if found == self.acknowledged {
            return Ok(());
        }
        if self.unknown == Some(found) {
            self.acknowledge(found);
            self.unknown = None;
            return Ok(());
        }
        let open = self.unknown.map_or_else(String::new, |open| format!(", or perhaps {}", describe(open)));
        Err(format!("holds {}; acknowledged was {}{open}", describe(found), describe(self.acknowledged)))
    }
}

fn describe(content: Content) -> String {
    content.map_or_else(|| "nothing".to_owned(), |number| format!("write {number}"))
}

/// The value that write `number` puts under `key`.
pub fn value(key: &str, number: u64) -> Bytes {
    let seed = xxh3_64_with_seed(key.as_bytes(), number);
    let range = if seed.is_multiple_of(LARGE_ONE_IN) { LARGE_BYTES } else { SMALL_BYTES };
    let length = range.start + (seed >> 8) % (range.end - range.start);
    let mut bytes = format!("{key}#{number}\n").into_bytes();
    let mut state = seed;
    while (bytes.len() as u64) < length {
        // SplitMix64: no part of a value repeats, so a mixture of two blocks never looks like one.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bytes.extend((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb).to_le_bytes());
    }
    bytes.into()
}

/// The number of the write that put this value.
///
/// # Errors
/// A sentence, where it is no value of this key, whole and unchanged.
pub fn number_of(key: &str, found: &[u8]) -> Result<u64, String> {
    let line = found.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let text = String::from_utf8_lossy(line);
    let number = text.strip_prefix(&format!("{key}#")).and_then(|number| number.parse().ok());
    match number {
        Some(number) if value(key, number) == found => Ok(number),
        Some(number) => {
            Err(format!("write {number} is damaged: {} bytes that are not what was written", found.len()))
        }
        None => {
            Err(format!("holds a value of {} bytes that nobody wrote under it: `{text:.40}`", found.len()))
        }
    }
}

/// All keys ever written.
#[derive(Clone, Debug, Default)]
pub struct History {
    keys: BTreeMap<String, Register>,
}

impl History {
    /// The key's register, made when first asked for.
    pub fn register(&mut self, key: &str) -> &mut Register {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), Register::default());
        }
        self.keys.entry(key.to_owned()).or_default()
    }

    /// Acknowledged writes of all keys.
    pub fn acknowledged(&self) -> u64 {
        self.keys.values().map(Register::writes).sum()
    }

    /// Keys ever written.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// As [`History::compare`], of what the cluster holds after an operator gave up what no machine held any more: keys may
    /// hold what [`Register::fall_back`] takes. Gives what is wrong, and how many keys lost something.
    pub fn compare_after_loss(
        &mut self,
        found: &BTreeMap<String, Bytes>,
        since: Instant,
    ) -> (Vec<String>, u64) {
        let (mut wrong, mut lost) = (Vec::new(), 0);
        for (key, register) in &mut self.keys {
            let content = found.get(key).map(|value| number_of(key, value)).transpose();
            match content.and_then(|content| register.fall_back(content, since)) {
                Ok(fell) => lost += u64::from(fell),
                Err(reason) => wrong.push(format!("{key}: {reason}")),
            }
        }
        (wrong, lost)
    }

    /// Compares everything that a node holds with everything known. Gives one sentence for each key that is wrong: lost,
    /// damaged, or never written.
    pub fn compare(&mut self, found: &BTreeMap<String, Bytes>) -> Vec<String> {
        let mut wrong = Vec::new();
        for key in found.keys().filter(|key| !self.keys.contains_key(*key)) {
            wrong.push(format!("{key}: nobody ever wrote this key"));
        }
        for (key, register) in &mut self.keys {
            let content = found.get(key).map(|value| number_of(key, value)).transpose();
            if let Err(reason) = content.and_then(|content| register.observe(content)) {
                wrong.push(format!("{key}: {reason}"));
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(key: &str, number: u64) -> BTreeMap<String, Bytes> {
        BTreeMap::from([(key.to_owned(), value(key, number))])
    }

    #[test]
    fn a_value_tells_its_write_and_shows_each_changed_byte() {
        for number in 0..200 {
            let bytes = value("w0/k1", number);
            assert_eq!(number_of("w0/k1", &bytes), Ok(number));
            assert!(number_of("w0/k2", &bytes).is_err());
            let mut damaged = bytes.to_vec();
            let at = number as usize * 7 % damaged.len();
            damaged[at] ^= 1;
            assert!(number_of("w0/k1", &damaged).is_err(), "{number}");
            assert!(number_of("w0/k1", &bytes[..bytes.len() - 1]).is_err());
        }
        assert!(number_of("k", b"").is_err());
    }

    #[test]
    fn an_acknowledged_write_that_is_not_there_is_told() {
        let mut history = History::default();
        history.register("k").acknowledge(Some(1));
        history.register("k").acknowledge(Some(2));
        assert!(history.compare(&holding("k", 2)).is_empty());
        assert_eq!(history.compare(&BTreeMap::new()), ["k: holds nothing; acknowledged was write 2"]);
        assert_eq!(history.compare(&holding("k", 1)), ["k: holds write 1; acknowledged was write 2"]);
        assert_eq!(history.compare(&holding("k", 3)), ["k: holds write 3; acknowledged was write 2"]);
        history.register("k").acknowledge(None);
        assert_eq!(history.compare(&holding("k", 2)), ["k: holds write 2; acknowledged was nothing"]);
    }

    #[test]
    fn a_write_of_unknown_outcome_may_be_there_or_not_and_once_seen_stays() {
        let mut history = History::default();
        history.register("k").acknowledge(Some(1));
        history.register("k").leave_open(Some(2));
        assert!(!history.register("k").writable());
        assert!(history.compare(&holding("k", 1)).is_empty());
        assert!(history.compare(&holding("k", 2)).is_empty());
        assert_eq!(history.compare(&holding("k", 1)), ["k: holds write 1; acknowledged was write 2"]);
    }

    #[test]
    fn what_an_operator_gave_up_may_be_gone_if_it_is_young_enough() {
        let start = Instant::now();
        let mut history = History::default();
        history.register("k").acknowledge(Some(1));
        history.register("k").acknowledge(Some(2));
        assert_eq!(history.compare_after_loss(&holding("k", 2), start), (vec![], 0));
        let (wrong, lost) = history.compare_after_loss(&holding("k", 1), Instant::now());
        assert_eq!((wrong.len(), lost), (1, 0), "{wrong:?}");
        assert_eq!(history.compare_after_loss(&holding("k", 1), start), (vec![], 1));
        assert!(history.compare(&holding("k", 1)).is_empty());
        assert_eq!(history.compare_after_loss(&holding("k", 2), start).0.len(), 1, "what is lost stays lost");
        assert_eq!(history.compare_after_loss(&BTreeMap::new(), start), (vec![], 1));
    }

    #[test]
    fn a_key_that_nobody_wrote_is_told() {
        assert_eq!(History::default().compare(&holding("ghost", 1)), ["ghost: nobody ever wrote this key"]);
    }
}
