//! How long the node works on a request: as its `grpc-timeout` says, but not longer than the node's
//! own bound.

use std::time::Duration;
use tonic::metadata::MetadataMap;

/// Time for the answer to travel, so that a client gets the reason and not only its own timeout.
const TRAVEL: Duration = Duration::from_millis(10);

/// How long to work on a request.
pub(crate) fn budget(metadata: &MetadataMap, default: Duration) -> Duration {
    let given = metadata.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(parse);
    within(given, default)
}

/// The same for a request that carries its timeout in its message.
pub(crate) fn within(given: Option<Duration>, default: Duration) -> Duration {
    match given {
        Some(given) => given.min(default).saturating_sub(TRAVEL).max(given.min(default) / 2),
        None => default,
    }
}

/// At most eight digits and a unit, as gRPC defines it.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number.checked_mul(3600)?)),
        "M" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_the_protocol_are_read() {
        assert_eq!(parse("2S"), Some(Duration::from_secs(2)));
        assert_eq!(parse("150m"), Some(Duration::from_millis(150)));
        assert_eq!(parse("5u"), Some(Duration::from_micros(5)));
        for bad in ["", "S", "5", "x5S", "5ß", "99999999999999999999H"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_request_gets_its_own_time_up_to_the_nodes_bound() {
        let bound = Duration::from_secs(10);
        let with = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().expect("ascii"));
            budget(&metadata, bound)
        };
        assert_eq!(budget(&MetadataMap::new(), bound), bound);
        assert_eq!(with("1S"), Duration::from_millis(990));
        assert_eq!(with("10m"), Duration::from_millis(5));
        assert_eq!(with("1H"), Duration::from_millis(9990));
    }

    #[test]
    fn any_bytes_are_a_time_within_the_nodes_bound() {
        cairn_fuzz::target!("hours" => *b"99999999H", "nanoseconds" => *b"5n", "many" => *b"99999999999999999999S")
            .for_each(|bytes| {
                let bound = Duration::from_secs(10);
                let Ok(value) = bytes.try_into() else { return };
                let mut metadata = MetadataMap::new();
                metadata.insert("grpc-timeout", value);
                assert!(budget(&metadata, bound) <= bound);
                let text = std::str::from_utf8(bytes).ok();
                if let Some(given) = text.and_then(parse) {
                    assert!(budget(&metadata, bound) <= given);
                }
            });
    }
}
