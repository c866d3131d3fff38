//! Numbers as sentences say them.

/// A figure that a sentence may divide by.
pub(super) fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}

/// A ratio with two digits.
pub(super) fn ratio(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { rounded(value) }
}

/// A rate or a count, rounded to two digits, with commas between thousands.
pub(super) fn rounded(value: f64) -> String {
    let unit = 10f64.powf((value.abs().max(1.0).log10().floor() - 1.0).max(0.0));
    thousands((value / unit).round() * unit)
}

/// A time in microseconds, as precise as two digits.
pub(super) fn micros(value: f64) -> String {
    if value < 9.95 { format!("{value:.1} µs") } else { format!("{} µs", rounded(value)) }
}

/// A whole number with commas between thousands.
pub(super) fn thousands(value: f64) -> String {
    crate::report::thousands(&format!("{value:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_divided_by_what_is_no_positive_number() {
        assert_eq!(positive(0.5), Some(0.5));
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(positive(value), None);
        }
    }

    #[test]
    fn numbers_have_two_digits() {
        assert_eq!(ratio(2.345), "2.3");
        assert_eq!(ratio(9.97), "10");
        assert_eq!(ratio(123.0), "120");
        assert_eq!(rounded(1_234_567.0), "1,200,000");
        assert_eq!(rounded(0.4), "0");
        assert_eq!(micros(3.21), "3.2 µs");
        assert_eq!(micros(4567.0), "4,600 µs");
        assert_eq!(thousands(999.0), "999");
    }
}
