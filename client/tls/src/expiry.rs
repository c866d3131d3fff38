//! When the certificates of this process end.
//!
//! What holds here: the end is found by checking the chain at later times, as the others will check it.
//! So the certificate that ends first counts, and no certificate is parsed by code of our own.

use std::time::Duration;

/// Whatever is valid for longer, about 136 years, has no end.
const LONGEST_SECS: u64 = 1 << 32;

/// The first second since the epoch at which `is_valid` is false, of what is valid at `now`.
pub(crate) fn end_of_validity(
    now: Duration,
    is_valid: impl Fn(Duration) -> bool,
) -> Option<Duration> {
    let mut valid = now.as_secs();
    let mut ended = valid.saturating_add(LONGEST_SECS);
    if is_valid(Duration::from_secs(ended)) {
        return None;
    }
    while ended - valid > 1 {
        let middle = valid + (ended - valid) / 2;
        match is_valid(Duration::from_secs(middle)) {
            true => valid = middle,
            false => ended = middle,
        }
    }
    Some(Duration::from_secs(ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_the_first_second_that_is_not_valid() {
        let now = Duration::from_secs(1_700_000_000);
        for after in [1, 2, 3, 1000, 31_536_000, LONGEST_SECS - 1, LONGEST_SECS] {
            let end = now + Duration::from_secs(after);
            assert_eq!(end_of_validity(now, |at| at < end), Some(end), "{after} s");
        }
        assert_eq!(end_of_validity(now, |_| true), None);
    }
}
