//! When the certificates of this process end, and their CA.
//!
//! What holds here: the end is found by checking the chain at later times, as the others will check it.
//! So the certificate that ends first counts, and no certificate is parsed by code of our own. That check
//! never looks at the validity of a CA, so a CA is checked like any other certificate.

use rustls::pki_types::{CertificateDer, UnixTime};
use std::time::Duration;
use webpki::{EndEntityCert, KeyUsage};

/// Whatever is valid for longer, about 136 years, has no end.
const LONGEST_SECS: u64 = 1 << 32;

/// When the own certificates end, since the epoch; `None`: never.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ends {
    /// The first one of the own chain.
    pub(crate) chain: Option<Duration>,
    /// The CA that signed it.
    pub(crate) ca: Option<Duration>,
}

/// How much longer certificates of a process are valid; zero: no longer. `None`: it has no end, or nobody
/// has looked at the files again since they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The own certificate, and what lies between it and the CA.
    pub certificate: Option<Duration>,
    /// The CA that signed it. No process of Cairn checks that; other programs do.
    pub ca: Option<Duration>,
}

impl Ends {
    /// How much longer they are valid at `now`, since the epoch.
    pub(crate) fn left(&self, now: Duration) -> Left {
        let left = |end: Duration| end.saturating_sub(now);
        Left { certificate: self.chain.map(left), ca: self.ca.map(left) }
    }
}

/// The first second since the epoch at which `is_valid` is false, of what is valid at `from`.
pub(crate) fn end_of_validity(
    from: Duration,
    is_valid: impl Fn(Duration) -> bool,
) -> Option<Duration> {
    let mut valid = from.as_secs();
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

/// The first second since the epoch at which all of these certificates have ended. `None`: there is none, or
/// one of them has no end.
pub(crate) fn last_end<'c>(
    certificates: impl Iterator<Item = &'c CertificateDer<'static>>,
) -> Option<Duration> {
    let ends = certificates.map(|certificate| end_of(certificate).unwrap_or(Duration::MAX));
    ends.max().filter(|end| *end < Duration::MAX)
}

/// The first second since the epoch at which the certificate has ended, whoever signed it.
fn end_of(certificate: &CertificateDer<'_>) -> Option<Duration> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    // It passes at no time, since no CA is given. Its validity is what is checked first.
    let has_ended = |at| {
        let (at, usage) = (UnixTime::since_unix_epoch(at), KeyUsage::client_auth());
        matches!(
            parsed.verify_for_usage(&[], &[], &[], at, usage, None, None),
            Err(webpki::Error::CertExpired { .. })
        )
    };
    // Before its first second it has not ended: an end that is past is found, too.
    end_of_validity(Duration::ZERO, |at| !has_ended(at))
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
