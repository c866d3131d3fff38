//! Forms that few values have: where backups go, who reads them, and lengths of time beyond a day.

use std::time::Duration;

/// The longest time.
const LONGEST: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Where a bucket is.
const SCHEMES: [&str; 3] = ["s3", "gs", "az"];

/// Reads a length of time from so many seconds on.
pub(super) fn parse_period(text: &str, least_seconds: u64) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "expected a length of time such as 90s, 1h or 7d".to_string())?;
    let least = Duration::from_secs(least_seconds);
    match (least..=LONGEST).contains(&time) {
        true => Ok(time),
        false => {
            Err(format!("expected between {} and 3650days", humantime::format_duration(least)))
        }
    }
}

/// The same, or `none`.
pub(super) fn parse_some_period(text: &str, least: u64) -> Result<Option<Duration>, String> {
    match text {
        "none" => Ok(None),
        time => {
            parse_period(time, least).map(Some).map_err(|expected| format!("{expected}, or none"))
        }
    }
}

/// Checks where backups go. What a bucket's name may be is left to those who open it.
pub(super) fn check_target(text: &str) -> Result<(), String> {
    let known = match text.split_once("://") {
        Some((scheme, rest)) => {
            let bucket = rest.split('/').next().unwrap_or_default();
            // A name and a secret before an `@` would be in every line that names the target.
            let is_named = !bucket.is_empty() && !bucket.contains(['@', ':']);
            // So would a token behind a `?`.
            SCHEMES.contains(&scheme) && is_named && !rest.contains('?')
        }
        // Each member may have been started elsewhere.
        None => text.starts_with('/') || text == "none",
    };
    let expected = "expected a folder as /absolute/path, a bucket as s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or \
                    az://CONTAINER/PREFIX, or none; credentials of a bucket stand in the environment";
    known.then_some(()).ok_or_else(|| expected.to_string())
}

/// Checks to whom backups are encrypted. Whether a recipient has a slip is left to those who encrypt.
pub(super) fn check_recipient(text: &str) -> Result<(), String> {
    // Each member may have been started elsewhere.
    let known = text.starts_with("age1") || text.starts_with('/') || text == "none";
    let expected = "expected a recipient of age as age1…, the /absolute/path of a file with one on each line, or none";
    known.then_some(()).ok_or_else(|| expected.to_string())
}
