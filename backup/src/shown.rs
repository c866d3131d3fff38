//! What others wrote, in errors.
//!
//! What holds here: a text of a target, of a server or of a backup is cut where it is longer than a person reads. Whoever
//! prints it escapes it.

/// The longest text that is shown whole, in bytes.
const TEXT_BYTES: usize = 1000;
/// The longest key that is shown whole, in bytes: each may take four in text.
const KEY_BYTES: usize = 250;

/// A key, as text for a person.
pub(crate) fn key_text(key: &[u8]) -> String {
    match key.get(..KEY_BYTES) {
        Some(begin) if key.len() > KEY_BYTES => format!("`{}…`", begin.escape_ascii()),
        _ => format!("`{}`", key.escape_ascii()),
    }
}

/// The text, or the begin of it.
pub(crate) fn excerpt(text: &str) -> String {
    let begin = text.get(..text.floor_char_boundary(TEXT_BYTES)).unwrap_or_default();
    let more = if begin.len() < text.len() { "…" } else { "" };
    format!("{begin}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_characters_and_a_short_one_is_not() {
        assert_eq!(excerpt("short"), "short");
        let cut = excerpt(&"ß".repeat(TEXT_BYTES));
        assert_eq!(cut, format!("{}…", "ß".repeat(TEXT_BYTES / 2)));
        let odd = excerpt(&format!("a{}", "ß".repeat(TEXT_BYTES)));
        assert_eq!(odd.len(), TEXT_BYTES - 1 + "…".len());
        assert_eq!(key_text(b"a\n"), "`a\\n`");
        assert_eq!(key_text(&[b'k'; KEY_BYTES]).len(), KEY_BYTES + 2);
        let long = key_text(&vec![0; 1 << 20]);
        assert!(long.len() < 5 * KEY_BYTES && long.ends_with("…`"), "{long}");
    }
}
