//! What can be wrong with a configuration. Each error names the key, where it was given, and what
//! to do. It shows what was given, but not where that may be a secret by a slip: it would stay in the log.

use super::keys;
use cairn_client::shown;

/// The most bytes of one thing that was given.
const QUOTED_BYTES: usize = 300;
/// How a secret key of age begins.
const SECRET_KEY: &str = "AGE-SECRET-KEY-";
/// How an error shows a list and a table, whatever is in them.
pub(super) const FORMS: [&str; 2] = ["[…]", "{}"];

/// A configuration that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration file {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// The system's message.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{path} is not valid TOML: {reason}")]
    Syntax {
        /// The file.
        path: String,
        /// Where and why.
        reason: String,
    },
    /// No such key.
    #[error("{location}: unknown key `{}`{}", quoted(key), hint(.nearest.as_deref()))]
    UnknownKey {
        /// As it was given.
        key: String,
        /// File and line, variable or flag.
        location: String,
        /// The known key that was probably meant.
        nearest: Option<String>,
    },
    /// The value does not fit the key.
    #[error(
        "{location}: `{}` is not a value for `{}`: {}",
        quoted(value),
        quoted(key),
        quoted(reason)
    )]
    BadValue {
        /// The key.
        key: String,
        /// File and line, variable or flag.
        location: String,
        /// As it was given.
        value: String,
        /// What was expected.
        reason: String,
    },
    /// A key without a default was not given.
    #[error(
        "`{key}` is not set; give it in the configuration file, as {variable}, or with --set {key}=…"
    )]
    Missing {
        /// The key.
        key: String,
        /// The environment variable that sets it.
        variable: String,
    },
    /// Values that exclude each other.
    #[error("{0}")]
    Conflict(String),
}

impl ConfigError {
    pub(super) fn bad_value(
        key: &str,
        location: &impl ToString,
        value: String,
        reason: String,
    ) -> ConfigError {
        let is_form = FORMS.contains(&value.as_str());
        let value = if is_secret_key(&value) {
            format!("{SECRET_KEY}…")
        } else if keys::hides_value(key) && !is_form {
            "…".into()
        } else {
            value
        };
        ConfigError::BadValue { key: key.into(), location: location.to_string(), value, reason }
    }
}

fn is_secret_key(given: &str) -> bool {
    let begin = given.trim_start().get(..SECRET_KEY.len());
    begin.is_some_and(|begin| begin.eq_ignore_ascii_case(SECRET_KEY))
}

/// What was given, on one line, and no more of it than a person reads.
fn quoted(given: &str) -> String {
    shown::one_line(&shown::excerpt(given, QUOTED_BYTES)).into_owned()
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || "; `cairn config print` shows every key".to_string(),
        |name| format!("; did you mean `{name}`?"),
    )
}
