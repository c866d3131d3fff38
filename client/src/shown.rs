//! Text that others wrote, made safe to print.
//!
//! What holds here: what [`one_line`] and [`lines`] return cannot move a cursor, colour or reorder what
//! is around it, and [`one_line`] is one line. A node's texts pass through [`one_line`] when they are
//! decoded, so what this crate hands out may be printed as it is. Keys and values are bytes, and stay as
//! they are.

use std::borrow::Cow;

/// The longest text of a node's answer that is kept, in bytes.
const NODE_TEXT_BYTES: usize = 8 << 10;

/// Whether a terminal, or a program that shows text, could do something else with it than show it:
/// control characters, both blocks of them, and those that reorder the text around them.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character,
            // Marks, embeddings, overrides and isolates of bidirectional text.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
            // Separators of lines and paragraphs; invisible operators; annotations; tags.
            | '\u{2028}' | '\u{2029}' | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text on one line: every unprintable character is escaped as Rust escapes it, such as `\n` and
/// `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_unprintable)
}

/// The same for text of several lines: line ends and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| !matches!(character, '\n' | '\t') && is_unprintable(character))
}

/// JSON text whose strings hold no unprintable character. JSON itself escapes the first block of control
/// characters alone.
pub fn json(json: &str) -> Cow<'_, str> {
    if !json.chars().any(is_unprintable) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        match is_unprintable(character) {
            true => {
                let units = character.encode_utf16(&mut [0; 2]).to_vec();
                escaped.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
            }
            false => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

fn escaped(text: &str, unprintable: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&unprintable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match unprintable(character) {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// At most about `most` bytes of the text: its beginning and its end, and how much is left out between
/// them. The end often says why.
pub fn excerpt(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let (head, rest) = text.split_at(text.floor_char_boundary(most / 2));
    let (left_out, tail) = rest.split_at(rest.ceil_char_boundary(rest.len() - most / 2));
    Cow::Owned(format!("{head}… ({} bytes left out) …{tail}", left_out.len()))
}

/// A text of a node's answer.
pub(crate) fn of_node(text: &str) -> String {
    one_line(&excerpt(text, NODE_TEXT_BYTES)).into_owned()
}

/// The same; `None` if it is empty.
pub(crate) fn some_of_node(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| of_node(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_cursor_or_reorders_text_is_escaped_and_other_text_stays() {
        let hostile = "a\u{1b}[2J\u{9b}2J\u{202e}b\r\n\u{2028}c\td\u{7f}";
        let shown = one_line(hostile);
        assert_eq!(shown, r"a\u{1b}[2J\u{9b}2J\u{202e}b\r\n\u{2028}c\td\u{7f}");
        assert_eq!(lines("a\n\tb\u{1b}"), "a\n\tb\\u{1b}");
        for plain in ["", "Zoë \\ 日本", "شكرا", "עברית", "👩‍🔧"] {
            assert!(matches!(one_line(plain), Cow::Borrowed(same) if same == plain), "{plain}");
        }
    }

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        let long = format!("begin{}end", "ß".repeat(100_000));
        let shown = excerpt(&long, 1000);
        assert!(shown.len() < 1050 && shown.starts_with("begin") && shown.ends_with("end"));
        assert!(shown.contains("bytes left out"), "{shown}");
        assert_eq!(excerpt("short", 5), "short");
        for most in 0..12 {
            let shown = excerpt("日本語日本語", most);
            assert!(shown.contains("left out"), "{shown}");
        }
    }
}
