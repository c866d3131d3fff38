//! What is wrong with the text of a configuration file, by its line and key.
//!
//! What holds here: nothing is shown of a value. The parser's own message shows the whole line, and a secret that
//! stands there without quotes would stay in the log.

use toml::de::Error;

/// No key of ours is longer, and secrets are.
const KEY_BYTES: usize = 32;

/// Where and why.
pub(super) fn reason(text: &str, error: &Error) -> String {
    let at = error.span().map_or(text.len(), |span| span.start);
    let before = text.get(..at).unwrap_or(text);
    let begin = before.rfind('\n').map_or(0, |end| end + 1);
    let line = text.get(begin..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let number = before.matches('\n').count() + 1;
    let key = key_of(line).map_or_else(String::new, |key| format!(", `{key}`"));
    format!("line {number}{key}: {}", error.message())
}

/// What stands before the first `=`, if it has the form of a key.
fn key_of(line: &str) -> Option<&str> {
    let key = line.split_once('=')?.0.trim();
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    ((1..=KEY_BYTES).contains(&key.len()) && key.bytes().all(usual)).then_some(key)
}
