//! An entry of the log as text, and from and to the protocol.
//!
//! What holds here: the text of a position is read back as that position, in any process. No other text is.

use std::fmt;
use std::str::FromStr;

use crate::Error;
use crate::proto;
use crate::shown::excerpt;
use crate::types::Position;

/// The most of a text that an error repeats, in bytes. Two numbers take less.
const SHOWN_BYTES: usize = 64;

/// `term.index`.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}

/// Reads `term.index`.
///
/// ```
/// use cairn_client::Position;
/// let position: Position = "3.17".parse()?;
/// assert_eq!((position.term, position.index), (3, 17));
/// assert_eq!(position.to_string(), "3.17");
/// # Ok::<(), cairn_client::Error>(())
/// ```
impl FromStr for Position {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidRequest`], with the text.
    fn from_str(text: &str) -> Result<Position, Error> {
        let number = |digits: &str| {
            // The standard library takes a sign, too.
            let is_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<u64>().ok().filter(|_| is_digits)
        };
        let read = text.split_once('.').and_then(|(term, index)| {
            Some(Position { term: number(term)?, index: number(index)? })
        });
        read.ok_or_else(|| {
            let text = excerpt(text, SHOWN_BYTES).escape_debug().to_string();
            Error::InvalidRequest(format!(
                "`{text}` is no position: expected the term and the index of an entry, such as 3.17"
            ))
        })
    }
}

impl From<proto::Position> for Position {
    fn from(at: proto::Position) -> Position {
        Position { term: at.term, index: at.index }
    }
}

impl Position {
    pub(crate) fn to_proto(self) -> proto::Position {
        proto::Position { term: self.term, index: self.index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_back_from_its_text_and_nothing_else_is_one() {
        for (term, index) in [(0, 0), (3, 17), (u64::MAX, u64::MAX)] {
            let position = Position { term, index };
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        let long = "7".repeat(5000);
        for text in ["", ".", "3", "3.", ".17", "3.17.1", "+3.17", "3.-1", "3 .17", "a.b", &long] {
            let error = text.parse::<Position>().unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::InvalidRequest(_)), "{said}");
            assert!(said.contains("such as 3.17") && said.len() < 300, "{said}");
        }
    }
}
