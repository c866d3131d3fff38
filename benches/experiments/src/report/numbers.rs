//! Numbers as text: the only place that formats them.

use super::Figure;
use std::time::Duration;

/// A number with three digits that count, or all digits before the point.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => whole(value),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 || v == 0.0 => format!("{value:.2}"),
        v if v >= 0.1 => format!("{value:.3}"),
        v => format!("{value:.0$}", (2.0 - v.log10().floor()) as usize),
    }
}

/// A number with at most three digits that count.
pub fn rounded(value: f64) -> String {
    let unit = 10f64.powi((value.abs().max(1.0).log10().floor() as i32 - 2).max(0));
    number(if unit > 1.0 { (value / unit).round() * unit } else { value })
}

/// A number as short as it goes, for an axis: its labels have little space.
pub(super) fn short(value: f64) -> String {
    match value {
        v if v >= 10_000_000.0 => format!("{} M", whole(v / 1e6)),
        v if v >= 1_000_000.0 => format!("{:.1} M", v / 1e6),
        v if v >= 10.0 => whole(v),
        v if v >= 1.0 => format!("{}", (v * 10.0).round() / 10.0),
        v => number(v).trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

/// A number without its fraction, with a comma between thousands.
pub(crate) fn whole(value: f64) -> String {
    let text = format!("{value:.0}");
    let (sign, digits) = text.strip_prefix('-').map_or(("", &*text), |digits| ("-", digits));
    let mut grouped = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// So many of a thing.
pub(crate) fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", whole(number as f64))
}

/// The median, and the spread if there were several rounds.
pub fn cell(figure: Option<Figure>) -> String {
    match figure {
        None => "–".to_owned(),
        Some(Figure { median, rounds: ..2, .. }) => number(median),
        Some(Figure { median, least, most, .. }) => {
            format!("{} ({}–{})", number(median), number(least), number(most))
        }
    }
}

/// Bytes in their largest whole unit.
pub fn size(bytes: u64) -> String {
    [("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .into_iter()
        .find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(|| format!("{bytes} B"), |(unit, shift)| format!("{} {unit}", bytes >> shift))
}

/// A time in seconds, or in milliseconds below one.
pub(crate) fn time(time: Duration) -> String {
    match time.as_millis() {
        ms if ms >= 1000 => format!("{} s", ms as f64 / 1e3),
        ms => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_count() {
        let found = [0.0, 0.1234, 2.345, 23.45, 234.5, -1234.0, 1_234_567.0].map(number);
        assert_eq!(found, ["0.00", "0.123", "2.35", "23.4", "234", "-1,234", "1,234,567"]);
        assert_eq!([999.6, 12_345.0, 9.96].map(rounded), ["1,000", "12,300", "9.96"]);
        let found = [0.0999, 0.0305, 0.0012, 0.000_432_1, -0.01].map(number);
        assert_eq!(found, ["0.0999", "0.0305", "0.00120", "0.000432", "-0.0100"]);
        for (value, text) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (0.0305, "0.0305"),
            (3.0, "3"),
            (3.25, "3.3"),
            (42.4, "42"),
            (999.0, "999"),
            (26_400.0, "26,400"),
            (1_234_567.0, "1.2 M"),
            (12_345_678.0, "12 M"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!(
            [1, 1000].map(|clients| count(clients, "client")),
            ["1 client", "1,000 clients"]
        );
    }

    #[test]
    fn units_are_whole_and_a_spread_needs_two_rounds() {
        let found = [512, 100 << 10, 64 << 20, 1 << 30].map(size);
        assert_eq!(found, ["512 B", "100 KiB", "64 MiB", "1 GiB"]);
        assert_eq!([100, 1500].map(|ms| time(Duration::from_millis(ms))), ["100 ms", "1.5 s"]);
        let figure = |rounds| Some(Figure { median: 2.0, least: 1.0, most: 3.0, rounds });
        assert_eq!([None, figure(1), figure(2)].map(cell), ["–", "2.00", "2.00 (1.00–3.00)"]);
    }
}
