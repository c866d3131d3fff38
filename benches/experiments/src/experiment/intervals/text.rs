//! Numbers as text.

use std::time::Duration;

/// A positive number with two or three significant digits.
pub(super) fn digits(value: f64) -> String {
    match value {
        value if value >= 99.5 => whole(value),
        value if value >= 9.95 => format!("{value:.0}"),
        value if value >= 0.095 => format!("{value:.2}"),
        value if value >= 0.0095 => format!("{value:.3}"),
        value => format!("{value:.4}"),
    }
}

/// A number without its fraction, with a comma before each three digits.
fn whole(value: f64) -> String {
    let text = format!("{value:.0}");
    let mut grouped = String::new();
    for (at, digit) in text.chars().enumerate() {
        if at > 0 && (text.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Microseconds as milliseconds.
pub(super) fn ms(us: f64) -> String {
    format!("{} ms", digits(us / 1e3))
}

/// Bytes in their largest whole unit.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes > 0 && bytes % (1 << 30) == 0 => format!("{} GiB", bytes >> 30),
        bytes if bytes > 0 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} KiB", bytes >> 10),
    }
}

/// A time in seconds, or in milliseconds below one.
pub(super) fn time(time: Duration) -> String {
    match time.as_millis() {
        ms if ms >= 1000 => format!("{} s", ms as f64 / 1e3),
        ms => format!("{ms} ms"),
    }
}

/// A number of clients.
pub(super) fn clients(count: usize) -> String {
    match count {
        1 => "1 client".to_owned(),
        count => format!("{} clients", whole(count as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_units_are_whole() {
        let found = [0.00123, 0.0123, 0.123, 1.234, 12.34, 123.4, 12_345.6, 1e6].map(digits);
        let expected = ["0.0012", "0.012", "0.12", "1.23", "12", "123", "12,346", "1,000,000"];
        assert_eq!(found, expected);
        assert_eq!(
            [16 << 10, 100 << 10, 64 << 20, 1 << 30].map(size),
            ["16 KiB", "100 KiB", "64 MiB", "1 GiB"]
        );
        assert_eq!(
            [100, 1000, 1500].map(|ms| time(Duration::from_millis(ms))),
            ["100 ms", "1 s", "1.5 s"]
        );
        assert_eq!([1, 10, 1000].map(clients), ["1 client", "10 clients", "1,000 clients"]);
        assert_eq!(ms(1234.0), "1.23 ms");
    }
}
