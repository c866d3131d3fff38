//! The log of events that all paths replay: uploads, downloads and deletes of pieces.
//!
//! What holds here: the log follows from its seed. A download or a delete names a piece that lives
//! then, and a piece is uploaded once. The live pieces never take more than the bound.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const KIB: u32 = 1 << 10;

/// The largest piece of [`Pieces::Mixed`].
const LARGE_BYTES: u32 = 256 * KIB;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A new piece.
    Upload { piece: u64, bytes: u32 },
    /// A live piece, with the size that it must have.
    Download { piece: u64, bytes: u32 },
    /// A live piece, which is gone then.
    Delete { piece: u64 },
}

/// The sizes of the pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    /// 40 % of 2 to 4 KiB, 40 % of 4 to 64 KiB, 20 % of 256 KiB.
    Mixed,
    /// 40 % of 2 to 4 KiB, 60 % of 4 to 16 KiB.
    Small,
}

impl Pieces {
    fn draw(self, rng: &mut StdRng) -> u32 {
        match (self, rng.random_range(0..100u32)) {
            (_, ..40) => rng.random_range(2 * KIB..=4 * KIB),
            (Pieces::Small, _) => rng.random_range(4 * KIB..=self.most_bytes()),
            (Pieces::Mixed, 40..80) => rng.random_range(4 * KIB..=64 * KIB),
            (Pieces::Mixed, _) => self.most_bytes(),
        }
    }

    /// The largest piece.
    pub(super) fn most_bytes(self) -> u32 {
        match self {
            Pieces::Mixed => LARGE_BYTES,
            Pieces::Small => 16 * KIB,
        }
    }
}

/// What a piece takes on a filesystem: whole blocks, an inode and a name.
pub(super) fn footprint(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(4096) + 512
}

/// `count` events: 50 % uploads, 30 % downloads, 20 % deletes. An upload that does not fit below
/// `live_bytes` is a delete instead. A download or a delete without a live piece is an upload
/// instead. One piece always fits.
pub(super) fn log(seed: u64, count: usize, pieces: Pieces, live_bytes: u64) -> Vec<Event> {
    let bound = live_bytes.max(footprint(pieces.most_bytes()));
    let mut rng = StdRng::seed_from_u64(seed);
    let mut live: Vec<(u64, u32)> = Vec::new();
    let (mut used, mut next) = (0, 0);
    let mut events = Vec::with_capacity(count);
    for _ in 0..count {
        let kind = rng.random_range(0..100u32);
        let new = pieces.draw(&mut rng);
        let at = rng.random_range(0..live.len().max(1));
        let fits = used + footprint(new) <= bound;
        events.push(match (kind, live.get(at).copied()) {
            (50..80, Some((piece, bytes))) => Event::Download { piece, bytes },
            (_, Some((piece, bytes))) if kind >= 80 || !fits => {
                live.swap_remove(at);
                used -= footprint(bytes);
                Event::Delete { piece }
            }
            _ => {
                let piece = next;
                next += 1;
                live.push((piece, new));
                used += footprint(new);
                Event::Upload { piece, bytes: new }
            }
        });
    }
    events
}

/// Uploads, downloads and deletes among the events, in percent.
pub(super) fn shares(events: &[Event]) -> [f64; 3] {
    let mut counts = [0u32; 3];
    let [uploads, downloads, deletes] = &mut counts;
    for event in events {
        match event {
            Event::Upload { .. } => *uploads += 1,
            Event::Download { .. } => *downloads += 1,
            Event::Delete { .. } => *deletes += 1,
        }
    }
    counts.map(|count| f64::from(count) * 100.0 / events.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_log_names_only_live_pieces_and_keeps_below_its_bound() {
        for (pieces, bound) in [(Pieces::Mixed, 2 << 20), (Pieces::Small, 1 << 20)] {
            for seed in 0..20 {
                let mut live = BTreeMap::new();
                let mut uploaded = 0;
                for event in log(seed, 3000, pieces, bound) {
                    match event {
                        Event::Upload { piece, bytes } => {
                            assert_eq!(piece, uploaded, "each piece is uploaded once");
                            uploaded += 1;
                            assert!((2 * KIB..=pieces.most_bytes()).contains(&bytes));
                            live.insert(piece, bytes);
                        }
                        Event::Download { piece, bytes } => assert_eq!(live[&piece], bytes),
                        Event::Delete { piece } => assert!(live.remove(&piece).is_some()),
                    }
                    let used: u64 = live.values().map(|bytes| footprint(*bytes)).sum();
                    assert!(used <= bound, "{used} of {bound}");
                }
            }
        }
    }

    #[test]
    fn a_log_follows_from_its_seed() {
        let of = |seed| log(seed, 500, Pieces::Mixed, 8 << 20);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn a_log_without_a_bound_has_the_shares_and_sizes_it_says() {
        let events = log(1, 20_000, Pieces::Mixed, u64::MAX / 2);
        for (found, meant) in shares(&events).into_iter().zip([50.0, 30.0, 20.0]) {
            assert!((found - meant).abs() < 2.0, "{found} {meant}");
        }
        let sizes: Vec<u32> = events
            .iter()
            .filter_map(|event| match event {
                Event::Upload { bytes, .. } => Some(*bytes),
                _ => None,
            })
            .collect();
        let share = |of: &dyn Fn(u32) -> bool| {
            sizes.iter().filter(|bytes| of(**bytes)).count() as f64 / sizes.len() as f64
        };
        assert!((share(&|bytes| bytes <= 4 * KIB) - 0.4).abs() < 0.03);
        assert!((share(&|bytes| bytes == LARGE_BYTES) - 0.2).abs() < 0.03);
    }

    #[test]
    fn a_bound_below_one_piece_still_allows_one() {
        let events = log(1, 200, Pieces::Small, 0);
        assert!(shares(&events).into_iter().all(|share| share > 0.0));
    }
}
