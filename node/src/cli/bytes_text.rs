//! Keys and values between bytes and text.
//!
//! What holds here: [`unescape`] of [`escape`] is the identity, so a key can be copied from
//! `cairn list` into `cairn get --escaped`.

use super::exit::UsageError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cairn_client::Version;
use cairn_client::shown::is_unprintable;
use cairn_node::config::VALUE_BYTES_MAX;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;

/// Text without unprintable characters stays as it is, except for the backslash. Other bytes are
/// escaped one by one.
pub(crate) fn escape(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(is_unprintable) => text.replace('\\', "\\\\"),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// Reads `\\`, `\n`, `\r`, `\t`, `\'`, `\"` and `\xNN`.
pub(crate) fn unescape(text: &[u8]) -> Result<Vec<u8>, UsageError> {
    let bad = || {
        UsageError(format!(
            "`{}` has an escape other than \\\\ \\n \\r \\t \\' \\\" \\xNN",
            text.escape_ascii()
        ))
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().ok_or_else(bad)? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            same @ (b'\\' | b'\'' | b'"') => same,
            b'x' => {
                let mut digit =
                    || rest.next().and_then(|digit| char::from(digit).to_digit(16)).ok_or_else(bad);
                let number = digit()? * 16 + digit()?;
                u8::try_from(number).map_err(|_| bad())?
            }
            _ => return Err(bad()),
        });
    }
    Ok(bytes)
}

/// A key or prefix as given on the command line.
pub(crate) fn key_bytes(text: OsString, escaped: bool) -> Result<Vec<u8>, UsageError> {
    let bytes = text.into_vec();
    if escaped { unescape(&bytes) } else { Ok(bytes) }
}

/// A value as given on the command line: itself, `-` for standard input, `@FILE` for a file.
pub(crate) fn value_bytes(text: OsString, literal: bool) -> anyhow::Result<Vec<u8>> {
    let bytes = text.into_vec();
    if literal {
        return Ok(bytes);
    }
    if bytes == b"-" {
        return Ok(bounded(std::io::stdin().lock(), "standard input")?);
    }
    if let Some(path) = bytes.strip_prefix(b"@") {
        if path.is_empty() {
            let message = "the value `@` names no file; --literal takes it as it is";
            return Err(UsageError(message.into()).into());
        }
        let path = std::path::PathBuf::from(OsString::from_vec(path.to_vec()));
        let name = path.display().to_string();
        let file = std::fs::File::open(&path).map_err(|error| unreadable(&name, &error))?;
        return Ok(bounded(file, &name)?);
    }
    Ok(bytes)
}

/// Reads a value up to the largest size that any server accepts, since the input may have no end.
fn bounded(from: impl Read, name: &str) -> Result<Vec<u8>, UsageError> {
    let mut value = Vec::new();
    from.take(VALUE_BYTES_MAX + 1)
        .read_to_end(&mut value)
        .map_err(|error| unreadable(name, &error))?;
    if value.len() as u64 > VALUE_BYTES_MAX {
        return Err(UsageError(format!(
            "the value from {name} has more than {VALUE_BYTES_MAX} bytes, which no server accepts; split it over several keys"
        )));
    }
    Ok(value)
}

fn unreadable(name: &str, error: &std::io::Error) -> UsageError {
    UsageError(format!("cannot read the value from {name}: {error}"))
}

/// A line for a key, and for its value if it was asked for: both escaped, with a tab between them.
pub(crate) fn item_text(key: &[u8], value: Option<&[u8]>) -> String {
    let value = value.map(|value| format!("\t{}", escape(value)));
    escape(key) + &value.unwrap_or_default()
}

/// A key with its version, or `null` if it does not exist, and, if it was asked for, its value. What is not UTF-8
/// gets a name that ends in `_base64`.
pub(crate) fn item_json(
    key: &[u8],
    value: Option<&[u8]>,
    version: impl Into<Option<Version>>,
) -> Value {
    let mut map = Map::new();
    let mut insert = |name: &str, bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => map.insert(name.to_string(), Value::from(text)),
        Err(_) => map.insert(format!("{name}_base64"), Value::from(STANDARD.encode(bytes))),
    };
    insert("key", key);
    if let Some(value) = value {
        insert("value", value);
    }
    let version = version.into().map_or(Value::Null, |version| Value::from(version.0));
    map.insert("version".into(), version);
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_escaping() {
        for byte in 0..=255_u8 {
            for bytes in [vec![byte], vec![b'a', byte, b'\\', b'1']] {
                assert_eq!(unescape(escape(&bytes).as_bytes()).expect("our own"), bytes);
            }
        }
        let reordered = "a\u{202e}b\u{85}".as_bytes();
        assert!(escape(reordered).is_ascii(), "{}", escape(reordered));
        assert_eq!(unescape(escape(reordered).as_bytes()).expect("our own"), reordered);
        let text = "Zoë \\ 日本";
        assert_eq!(escape(text.as_bytes()), "Zoë \\\\ 日本");
        assert_eq!(unescape(escape(text.as_bytes()).as_bytes()).expect("our own"), text.as_bytes());
    }

    #[test]
    fn a_value_without_end_is_refused() {
        let error = bounded(std::io::repeat(7), "standard input").expect_err("too long");
        assert!(error.0.contains("standard input") && error.0.contains("16777216"), "{error}");
        assert_eq!(bounded(&b"v"[..], "standard input").expect("short").as_slice(), b"v");
    }

    #[test]
    fn a_bad_escape_is_refused() {
        for bad in ["\\", "\\q", "\\x1", "\\xgg"] {
            assert!(unescape(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_base64_in_json() {
        assert_eq!(
            item_json("Zoë".as_bytes(), Some(&[0xff, 0x00]), Version(7)).to_string(),
            r#"{"key":"Zoë","value_base64":"/wA=","version":7}"#
        );
        let missing = item_json(&[0xff], None, None::<Version>).to_string();
        assert_eq!(missing, r#"{"key_base64":"/w==","version":null}"#);
    }
}
