//! The shipped rules, made quicker: nobody waits a day for an alert.
//!
//! What holds here: expressions, thresholds, windows, labels and annotations are those of the file. Only the time for
//! which an expression must hold is shorter, so a rule that fires here would fire with the file's time too, later and
//! if its cause stays for that long. `alerts_test.yml` shows that the file's times are kept.

use crate::alerts::{deploy, read, values};
use std::collections::BTreeMap;

/// By which number each `for` is divided.
const QUICKER: u64 = 60;
/// No `for` is longer, in seconds.
const FOR_MAX_S: u64 = 10;
/// How far an expression looks back that is asked whether its cause is gone. Some scrapes are within that time.
const WINDOW: &str = "[60s]";

/// The text of the shipped file.
pub fn shipped() -> String {
    read(&deploy("alerts.yml"))
}

/// The expression of each alert of the shipped file.
pub fn expressions() -> BTreeMap<String, String> {
    let text = shipped();
    let expressions = values(&text, "expr").into_iter().map(str::to_owned);
    values(&text, "alert").into_iter().map(str::to_owned).zip(expressions).collect()
}

fn seconds(time: &str) -> u64 {
    let (number, unit) = time.split_at(time.len() - 1);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => panic!("{time} has no unit that is known here"),
    };
    number.parse::<u64>().expect("a number") * unit
}

/// The same rules with a sixtieth of each `for`, and ten seconds at most.
pub fn quicker(rules: &str) -> String {
    let line = |line: &str| match line.split_once("for: ") {
        Some((indent, time)) if indent.trim().is_empty() => {
            format!("{indent}for: {}s\n", (seconds(time) / QUICKER).clamp(1, FOR_MAX_S))
        }
        _ => format!("{line}\n"),
    };
    rules.lines().map(line).collect()
}

/// The expression, looking back for a moment where it looks back for long.
pub fn of_now(expression: &str) -> String {
    let mut parts = expression.split('[');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, behind) = part.split_once(']').expect("a window");
        text += WINDOW;
        text += behind;
    }
    text
}

#[test]
fn quicker_rules_differ_in_the_time_for_which_they_must_hold_and_in_nothing_else() {
    let shipped = shipped();
    let quicker = quicker(&shipped);
    assert_eq!(shipped.lines().count(), quicker.lines().count());
    let mut changed = 0;
    for (before, after) in shipped.lines().zip(quicker.lines()) {
        if before != after {
            let of = |line: &str| line.trim().strip_prefix("for: ").map(seconds);
            let (before, after) = (of(before).expect(before), of(after).expect(after));
            assert!((1..=FOR_MAX_S).contains(&after) && after < before, "{before} {after}");
            changed += 1;
        }
    }
    assert_eq!(changed, values(&shipped, "for").len());
    assert!(changed > 10, "{quicker}");
}

#[test]
fn an_expression_of_now_has_short_windows_and_the_same_threshold() {
    let text = "increase(a_total[1h]) > 0 or increase(b_total[15m]) > 5";
    let now = "increase(a_total[60s]) > 0 or increase(b_total[60s]) > 5";
    assert_eq!(of_now(text), now);
    assert_eq!(of_now("a{b=\"c\"} == 1"), "a{b=\"c\"} == 1");
}
