//! From rounds to a figure: the median, and the least and the most of them.

use crate::report::Figure;

/// The median; not a number if there is no value.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => at(n / 2),
        n => (at(n / 2 - 1) + at(n / 2)) / 2.0,
    }
}

/// The figure of some rounds, each with one value. None if a value is not a finite number, or if
/// there is none: JSON has no such numbers.
pub fn spread(values: &[f64]) -> Option<Figure> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    Some(Figure {
        median: median(values),
        least: values.iter().copied().fold(f64::INFINITY, f64::min),
        most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        rounds: values.len(),
    })
}

/// The figure of some rounds, of each of which one value counts.
pub(crate) fn spread_of<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> Option<Figure> {
    spread(&rounds.iter().map(of).collect::<Vec<_>>())
}

/// The figure of one value.
pub(crate) fn figure(value: f64) -> Option<Figure> {
    spread(&[value])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn the_spread_of_rounds_is_their_least_and_their_most() {
        let found = spread(&[5.0, 1.0, 3.0]).expect("rounds");
        assert_eq!((found.least, found.median, found.most, found.rounds), (1.0, 3.0, 5.0, 3));
    }

    #[test]
    fn what_is_not_a_number_is_missing() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[1.0, f64::NAN]), None);
        assert_eq!(figure(f64::INFINITY), None);
    }
}
