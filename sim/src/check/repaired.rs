//! At the end of a run, after the faults, nothing is left damaged: a scrub of every member finds
//! nothing, and every key has the same readable bytes on all of them.

use cairn_clients::Violation;
use std::collections::BTreeMap;

/// The property's name.
pub const NAME: &str = "a healed cluster repairs all damage";

/// The result of a complete scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrub {
    /// Damaged values, blocks, checkpoints and copies.
    pub found: u64,
    /// What could not be repaired, found by the scrub or by reads during it.
    pub unrepairable: u64,
}

/// A member's read of a key: version and hash of the value, or the error.
pub type Read = Result<Option<(u64, u128)>, String>;

/// Checks each member's last scrub, which follows the scrubs that repaired. `None`: it did not end.
pub fn check_scrubs(scrubs: &BTreeMap<u16, Option<Scrub>>) -> Vec<Violation> {
    let clean = Scrub { found: 0, unrepairable: 0 };
    let left = scrubs.iter().filter(|(_, scrub)| **scrub != Some(clean));
    left.map(|(slot, scrub)| match scrub {
        Some(scrub) => {
            Violation::new(NAME, format!("the last scrub of node {slot} found {scrub:?}"))
        }
        None => Violation::new(NAME, format!("a scrub of node {slot} does not end")),
    })
    .collect()
}

/// Checks what all members read of one key once their states are equal.
pub fn check_key(key: &[u8], reads: &BTreeMap<u16, Read>) -> Option<Violation> {
    let first = reads.values().next()?;
    (first.is_err() || reads.values().any(|read| read != first))
        .then(|| Violation::new(NAME, format!("key `{}` reads as {reads:?}", key.escape_ascii())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_last_scrub_must_end_and_find_nothing() {
        let scrub = |found, unrepairable| Some(Scrub { found, unrepairable });
        assert!(check_scrubs(&BTreeMap::from([(1, scrub(0, 0)), (2, scrub(0, 0))])).is_empty());
        let found = check_scrubs(&BTreeMap::from([(1, scrub(1, 0)), (2, scrub(0, 1)), (3, None)]));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn members_must_read_a_key_alike_and_at_all() {
        let good: Read = Ok(Some((7, 9)));
        let all = |one: &Read, other: &Read| {
            check_key(b"k", &BTreeMap::from([(1, one.clone()), (2, other.clone())]))
        };
        assert_eq!(all(&good, &good), None);
        assert_eq!(all(&Ok(None), &Ok(None)), None);
        assert!(all(&good, &Ok(None)).is_some());
        assert!(all(&good, &Ok(Some((7, 8)))).is_some());
        assert!(all(&Err("damaged".into()), &Err("damaged".into())).is_some());
    }
}
