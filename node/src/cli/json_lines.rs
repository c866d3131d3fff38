//! Keys and values as lines of JSON: what `cairn export` writes and `cairn import` reads.
//!
//! A line is a key with its value, in the form that `-o json` of `get` and `list` has, or the end, which
//! says how many keys there were. What holds here: a line that is written is read back as the same bytes,
//! and nothing in it can do anything to a terminal. What is read is bounded: a line that is longer than any
//! that can be written is passed over piece by piece.

use super::bytes_text::item_json;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cairn_client::{Version, shown};
use cairn_node::config::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use serde::Deserialize;
use std::io::{self, BufRead, Read};

/// A byte of text takes at most six in JSON: a zero is `\u0000`.
const JSON_BYTES_PER_BYTE: u64 = 6;
/// Names of members, the version, punctuation, and spaces that another tool puts between them.
const AROUND_BYTES: u64 = 4 << 10;
/// The longest line that is read, in bytes without its end.
pub(crate) const LINE_BYTES_MAX: u64 =
    JSON_BYTES_PER_BYTE * (KEY_BYTES_MAX + VALUE_BYTES_MAX) + AROUND_BYTES;

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A key and its value. The version is that of another cluster.
    Item { key: Bytes, value: Bytes },
    /// The end of an export.
    End(End),
}

/// What an export had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct End {
    /// Lines with keys.
    pub(crate) keys: u64,
    /// All of them are the state at this log index; absent, if they were read page by page.
    pub(crate) index: Option<u64>,
}

/// Everything that a line may have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Members {
    key: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_base64: Option<String>,
    version: Option<u64>,
    end: Option<End>,
}

/// A key with its value as a line, with its end.
pub(crate) fn item_line(key: &[u8], value: &[u8], version: Version) -> String {
    let item = item_json(key, Some(value), version).to_string();
    let mut line = shown::json(&item).into_owned();
    line.push('\n');
    line
}

/// The last line, with its end.
pub(crate) fn end_line(end: End) -> String {
    let index = end.index.map(|index| format!(",\"index\":{index}"));
    format!("{{\"end\":{{\"keys\":{}{}}}}}\n", end.keys, index.unwrap_or_default())
}

/// Reads a line.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read(line: &[u8]) -> Result<Line, String> {
    // The parser takes a list of the values too.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err("expected an object, such as {\"key\":\"a\",\"value\":\"b\"}".to_owned());
    }
    let members: Members = serde_json::from_slice(line).map_err(|error| wrong(&error))?;
    let (item, version) = (
        [&members.key, &members.key_base64, &members.value, &members.value_base64],
        members.version,
    );
    if let Some(end) = members.end {
        let alone = item.iter().all(|member| member.is_none()) && version.is_none();
        let other = || "`end` stands beside another member".to_owned();
        return alone.then_some(Line::End(end)).ok_or_else(other);
    }
    Ok(Line::Item {
        key: bytes("key", members.key, members.key_base64)?,
        value: bytes("value", members.value, members.value_base64)?,
    })
}

/// One of the two forms of a key or value.
fn bytes(name: &str, text: Option<String>, base64: Option<String>) -> Result<Bytes, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into()),
        (None, Some(text)) => {
            let bad = |error| format!("`{name}_base64` is no base64: {error}");
            STANDARD.decode(text).map(Bytes::from).map_err(bad)
        }
        (None, None) => Err(format!("neither `{name}` nor `{name}_base64` is there")),
        (Some(_), Some(_)) => Err(format!("both `{name}` and `{name}_base64` are there")),
    }
}

/// The parser's words. It counts lines in what it is given, which is one.
fn wrong(error: &serde_json::Error) -> String {
    let (text, column) = (error.to_string(), error.column());
    match text.rsplit_once(" at line ") {
        Some((what, _)) if column > 0 => format!("{what} at byte {column}"),
        _ => text,
    }
}

/// The next line of an input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is in the buffer, without its end.
    Line {
        /// Whether it has an end. The last line of a file that was cut has none.
        ended: bool,
    },
    /// It is longer than [`LINE_BYTES_MAX`], and was passed over.
    TooLong,
    /// There is none.
    Nothing,
}

/// Reads the next line into the buffer.
///
/// # Errors
/// If the input cannot be read.
pub(crate) fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Next> {
    next_within(LINE_BYTES_MAX, input, line)
}

fn next_within(most: u64, input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Next> {
    line.clear();
    // A line may be the longest that there is, and its end.
    let read = input.by_ref().take(most.saturating_add(1)).read_until(b'\n', line)?;
    if read == 0 {
        return Ok(Next::Nothing);
    }
    let ended = line.pop_if(|byte| *byte == b'\n').is_some();
    if !ended && read as u64 > most {
        line.clear();
        input.skip_until(b'\n')?;
        return Ok(Next::TooLong);
    }
    Ok(Next::Line { ended })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(key: &[u8], value: &[u8]) -> Line {
        Line::Item { key: Bytes::copy_from_slice(key), value: Bytes::copy_from_slice(value) }
    }

    #[test]
    fn a_line_has_the_form_of_get_and_list() {
        let line = item_line("Zoë".as_bytes(), &[0xff, 0x00], Version(7));
        assert_eq!(line, "{\"key\":\"Zoë\",\"value_base64\":\"/wA=\",\"version\":7}\n");
        let end = End { keys: 3, index: Some(9) };
        assert_eq!(end_line(end), "{\"end\":{\"keys\":3,\"index\":9}}\n");
        let paged = End { keys: 3, index: None };
        assert_eq!(end_line(paged), "{\"end\":{\"keys\":3}}\n");
        for end in [end, paged] {
            assert_eq!(read(end_line(end).as_bytes()), Ok(Line::End(end)));
        }
    }

    #[test]
    fn what_reorders_or_clears_a_terminal_is_escaped_and_comes_back() {
        let hostile = "a\u{1b}[2J\u{202e}b\n\u{e0041}";
        let line = item_line(hostile.as_bytes(), hostile.as_bytes(), Version(1));
        assert!(line.trim_end_matches('\n').chars().all(|c| !shown::is_unprintable(c)), "{line}");
        assert_eq!(read(line.as_bytes()), Ok(item(hostile.as_bytes(), hostile.as_bytes())));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        for (line, says) in [
            ("", "expected an object"),
            ("nothing", "expected an object"),
            ("[\"a\",null,\"b\",null,1,null]", "expected an object"),
            ("{\"key\":a}", "expected value at byte"),
            ("{\"key\":\"a\",\"value\":\"b\"", "EOF while parsing an object"),
            ("{\"key\":\"a\",\"value\":\"b\"} x", "trailing characters"),
            ("{\"value\":\"b\"}", "neither `key` nor `key_base64`"),
            ("{\"key\":\"a\"}", "neither `value` nor `value_base64`"),
            (
                "{\"key\":\"a\",\"key_base64\":\"YQ==\",\"value\":\"\"}",
                "both `key` and `key_base64`",
            ),
            ("{\"key\":\"a\",\"key\":\"b\",\"value\":\"\"}", "duplicate field `key`"),
            ("{\"key\":\"a\",\"value_base64\":\"%\"}", "`value_base64` is no base64"),
            ("{\"key\":\"a\",\"value\":7}", "invalid type: integer `7`, expected a string"),
            ("{\"key\":\"a\",\"value\":\"\",\"ttl\":1}", "unknown field `ttl`"),
            ("{\"key\":\"\\ud800\",\"value\":\"\"}", "at byte"),
            ("{\"end\":{\"keys\":1},\"key\":\"a\"}", "`end` stands beside another member"),
            ("{\"end\":{\"keys\":-1}}", "invalid value"),
        ] {
            let error = read(line.as_bytes()).expect_err(line);
            assert!(error.contains(says) && !error.contains("line 1"), "{line}: {error}");
        }
        assert!(read(b"{\"key\":\"\xff\",\"value\":\"\"}").is_err(), "not UTF-8");
        assert_eq!(read(b"{\"value\":\"b\",\"key\":\"a\"}\r"), Ok(item(b"a", b"b")), "any order");
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_and_the_next_one_is_read() {
        let (mut input, mut line) = (&b"1234\n12345\n\n1"[..], Vec::new());
        let mut next = || {
            let next = next_within(4, &mut input, &mut line).expect("memory");
            (next, String::from_utf8(line.clone()).expect("text"))
        };
        assert_eq!(next(), (Next::Line { ended: true }, "1234".into()));
        assert_eq!(next(), (Next::TooLong, String::new()));
        assert_eq!(next(), (Next::Line { ended: true }, String::new()));
        assert_eq!(next(), (Next::Line { ended: false }, "1".into()));
        assert_eq!(next(), (Next::Nothing, String::new()));
        let mut longest = &b"1234"[..];
        let cut = next_within(4, &mut longest, &mut line).expect("memory");
        assert_eq!(cut, Next::Line { ended: false });
    }

    #[test]
    fn any_bytes_are_lines_that_are_read_as_they_are_written_or_are_refused() {
        const MOST: u64 = 100;
        let line = item_line(b"a\xff", "b\u{202e}".as_bytes(), Version(7));
        let [whole, paged] = [Some(9), None].map(|index| end_line(End { keys: 1, index }));
        cairn_fuzz::target!(
            "export" => format!("{line}{whole}").into_bytes(),
            "pages" => format!("\n{line}{paged}").into_bytes(),
            "cut" => line.trim_end().as_bytes(),
            "long" => format!("{}\n{line}", " ".repeat(101)).into_bytes(),
        )
        .for_each(|bytes| {
            let (mut input, mut line) = (bytes, Vec::new());
            for expected in bytes.split_inclusive(|byte| *byte == b'\n') {
                let next = next_within(MOST, &mut input, &mut line).expect("memory");
                let ended = expected.ends_with(b"\n");
                let text = expected.strip_suffix(b"\n").unwrap_or(expected);
                if text.len() as u64 > MOST {
                    assert_eq!(next, Next::TooLong);
                    continue;
                }
                assert_eq!((next, line.as_slice()), (Next::Line { ended }, text));
                match cairn_fuzz::within(64 * text.len() + (4 << 10), || read(text)) {
                    Ok(Line::Item { key, value }) => {
                        let written = item_line(&key, &value, Version(1));
                        assert_eq!(read(written.as_bytes()), Ok(item(&key, &value)));
                    }
                    Ok(Line::End(end)) => {
                        assert_eq!(read(end_line(end).as_bytes()), Ok(Line::End(end)));
                    }
                    Err(what) => assert!(!what.is_empty()),
                }
            }
            let behind = next_within(MOST, &mut input, &mut line).expect("memory");
            assert_eq!(behind, Next::Nothing);
        });
    }

    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        let text = prop::collection::vec(any::<char>(), 0..20)
            .prop_map(|text| text.into_iter().collect::<String>().into_bytes());
        // Nothing takes more bytes in JSON.
        let controls = prop::collection::vec(0..32_u8, 0..2000);
        prop_oneof![prop::collection::vec(any::<u8>(), 0..40), text, controls]
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_back_from_their_line(
            key in any_bytes(), value in any_bytes(), version: u64,
        ) {
            let line = item_line(&key, &value, Version(version));
            prop_assert_eq!(line.matches('\n').count(), 1);
            let most = JSON_BYTES_PER_BYTE * (key.len() + value.len()) as u64 + AROUND_BYTES;
            prop_assert!(line.len() as u64 <= most);
            prop_assert_eq!(read(line.as_bytes()), Ok(item(&key, &value)));
        }

        #[test]
        fn no_line_does_harm(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&line);
        }

        #[test]
        fn a_line_with_a_changed_byte_does_no_harm(
            key in any_bytes(), value in any_bytes(), at: prop::sample::Index, with: u8,
        ) {
            let mut line = item_line(&key, &value, Version(1)).into_bytes();
            let at = at.index(line.len());
            line[at] = with;
            let _ = read(&line);
        }
    }
}
