//! Tokens: 256 random bits that a client keeps secret. A node knows only their hashes. A hash of so
//! many random bits needs no salt and no slow function: nobody can guess the token.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::RngExt;
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

const RANDOM_BYTES: usize = 32;
/// So that a token is recognised as one where it does not belong.
const TOKEN_PREFIX: &str = "cairn_";

/// The SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

/// A new token.
pub fn random_token() -> String {
    let secret: [u8; RANDOM_BYTES] = rand::rng().random();
    format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(secret))
}

impl TokenHash {
    /// The hash of this token.
    pub fn of(token: &[u8]) -> TokenHash {
        TokenHash(Sha256::digest(token).into())
    }

    /// Reads what [`fmt::Display`] writes: 64 hexadecimal digits.
    ///
    /// # Errors
    /// A sentence that says what was expected.
    pub fn parse(text: &str) -> Result<TokenHash, String> {
        let expected = || {
            "expected the 64 hexadecimal digits of a token's hash, as `cairn access token` prints them"
                .to_string()
        };
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(expected());
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'));
            *byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or_else(expected)?;
        }
        Ok(TokenHash(hash))
    }

    /// Whether both are equal. How long it takes does not depend on where they differ.
    pub(crate) fn is(&self, other: &TokenHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written_and_belongs_to_one_token() {
        let (token, other) = (random_token(), random_token());
        assert_ne!(token, other);
        assert_eq!(token.len(), TOKEN_PREFIX.len() + 43);
        let hash = TokenHash::of(token.as_bytes());
        assert_eq!(TokenHash::parse(&hash.to_string()), Ok(hash));
        assert!(hash.is(&TokenHash::of(token.as_bytes())));
        assert!(!hash.is(&TokenHash::of(other.as_bytes())));
        // The test vector of SHA-256 for `abc`.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(TokenHash::of(b"abc").to_string(), known);
        for bad in ["", "ab", &known[1..], &known.replace("ba", "+a"), &known.replace("ba", "gg")] {
            assert!(TokenHash::parse(bad).is_err(), "{bad}");
        }
    }
}
