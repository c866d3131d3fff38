//! Encrypting what a backup stores, and reading that again: by age, to X25519 keys.
//!
//! What holds here: an object is encrypted as a whole, once it is compressed, and before it is first
//! sent: a call that is made again has the same bytes. What is read is the whole object as it was
//! encrypted, or an error. Age hides what is stored. It does not say who stored it: whoever knows a
//! recipient can encrypt to it.

use crate::error::{Error, Result};
use crate::keys::{Identities, Recipients};
use age::x25519::{Identity, Recipient};
use age::{DecryptError, Decryptor, Encryptor};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use std::io::{self, Read, Write};

/// The most bytes of age's header: the recipients that are served take half of it. A hostile one of
/// 16 MiB has a hundred thousand. Each would be tried, and age parses a header anew at each of its lines.
const HEADER_BYTES_MAX: usize = 4 << 10;
/// What the last line of a header begins with. No other line of one does.
const HEADER_END: &[u8] = b"\n---";
/// The most bytes by which an object grows: a header, a nonce, and 16 bytes for each 64 KiB.
pub(crate) const MORE_BYTES_MAX: usize = 16 << 10;

/// How a new backup is encrypted, and what reads those that it builds on.
pub struct Encryption {
    recipients: Recipients,
    identities: Identities,
    /// Known to this process alone. It reads the records that the process wrote, so that a save goes on
    /// with another member where the first one broke off, though nobody gave it a secret key.
    own: Identity,
    readers: Identities,
}

impl Encryption {
    /// To these recipients. The identities may be none, if the backup builds on no other one.
    pub fn new(recipients: Recipients, identities: Identities) -> Encryption {
        let own = Identity::generate();
        let readers = identities.and(own.clone());
        Encryption { recipients, identities, own, readers }
    }

    /// To whom, as a head names them.
    pub fn recipients(&self) -> &[String] {
        self.recipients.texts()
    }

    /// What reads the records of other backups.
    pub(crate) fn readers(&self) -> &Identities {
        &self.readers
    }

    /// What reads the records that this process wrote, and no others: nobody else can encrypt to its key.
    pub(crate) fn own_identity(&self) -> Identities {
        Identities::default().and(self.own.clone())
    }

    /// Encrypts an object with values.
    pub(crate) fn values(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        encrypt(bytes, self.recipients.keys())
    }

    /// Encrypts an object with records.
    pub(crate) fn records(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        encrypt(bytes, self.recipients.keys().chain([&self.own.to_public()]))
    }

    /// Encrypts a short text, as text.
    pub(crate) fn text(&self, text: &str) -> io::Result<String> {
        self.values(text.as_bytes()).map(|bytes| BASE64_STANDARD.encode(bytes))
    }

    /// Whether the records of a finished backup can be read.
    pub(crate) fn reads(&self, name: &str, recipients: &[String]) -> Result<()> {
        may_read(name, recipients, &self.identities)
    }
}

/// Whether a new backup may name the objects of this one. All that it names are encrypted to the same, or
/// none is: whoever can read one object of a backup can read all of it.
pub(crate) fn may_build_on(
    name: &str,
    recipients: &[String],
    encryption: Option<&Encryption>,
) -> Result<()> {
    let own = encryption.map(Encryption::recipients).unwrap_or_default();
    if own == recipients {
        return Ok(());
    }
    let base = name.to_owned();
    Err(Error::Mixed { base, its: shown(recipients), own: shown(own) })
}

/// Whether one of these identities reads a backup that is encrypted to these recipients.
pub(crate) fn may_read(name: &str, recipients: &[String], identities: &Identities) -> Result<()> {
    let given = identities.recipients();
    if given.iter().any(|one| recipients.contains(one)) {
        return Ok(());
    }
    let (name, recipients) = (name.to_owned(), recipients.join(", "));
    match given.is_empty() {
        true => Err(Error::NoIdentity { name, recipients }),
        false => Err(Error::WrongIdentity { name, recipients, given: given.join(", ") }),
    }
}

/// To whom a backup is encrypted, in words.
fn shown(recipients: &[String]) -> String {
    match recipients {
        [] => "not encrypted".into(),
        some => format!("encrypted to {}", some.join(", ")),
    }
}

fn encrypt<'a>(bytes: &[u8], to: impl Iterator<Item = &'a Recipient>) -> io::Result<Vec<u8>> {
    let encryptor = Encryptor::with_recipients(to.map(|one| one as &dyn age::Recipient));
    let encryptor = encryptor.map_err(|error| io::Error::other(error.to_string()))?;
    let mut encrypted = Vec::with_capacity(bytes.len() + MORE_BYTES_MAX);
    let mut writer = encryptor.wrap_output(&mut encrypted)?;
    writer.write_all(bytes)?;
    writer.finish()?;
    Ok(encrypted)
}

/// The bytes that were encrypted, if all of them are as they were; else what is wrong.
pub(crate) fn decrypt(
    bytes: &[u8],
    identities: &Identities,
) -> std::result::Result<Vec<u8>, String> {
    const NO_HEADER: &str = "is not encrypted as its backup is, or is damaged";
    let begin = bytes.get(..HEADER_BYTES_MAX).unwrap_or(bytes);
    if !begin.windows(HEADER_END.len()).any(|at| at == HEADER_END) {
        return Err(NO_HEADER.into());
    }
    let why = |error: DecryptError| match error {
        DecryptError::NoMatchingKeys => {
            "is encrypted to others than its backup is, or is damaged".to_owned()
        }
        DecryptError::Io(error) => format!("cannot be decrypted: {error}"),
        _ => NO_HEADER.to_owned(),
    };
    let decryptor = Decryptor::new_buffered(bytes).map_err(why)?;
    let identities = identities.iter().map(|one| one as &dyn age::Identity);
    let mut reader = decryptor.decrypt(identities).map_err(why)?;
    let mut raw = Vec::with_capacity(bytes.len());
    reader.read_to_end(&mut raw).map_err(|error| why(error.into()))?;
    Ok(raw)
}

/// A short text that was encrypted as text.
pub(crate) fn decrypt_text(
    text: &str,
    identities: &Identities,
) -> std::result::Result<String, String> {
    let bytes = BASE64_STANDARD.decode(text).map_err(|_| "is not encrypted, or is damaged")?;
    String::from_utf8(decrypt(&bytes, identities)?).map_err(|_| "is no text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::RECIPIENTS_MAX;

    /// What encrypts to so many, and what reads it.
    fn keys(recipients: usize) -> (Encryption, Identities) {
        let keys: Vec<Identity> = (0..recipients).map(|_| Identity::generate()).collect();
        let texts: Vec<String> = keys.iter().map(|key| key.to_public().to_string()).collect();
        let recipients = Recipients::read(&texts).unwrap();
        let reader = Identities::default().and(keys[recipients.texts().len() - 1].clone());
        (Encryption::new(recipients, Identities::default()), reader)
    }

    fn header_bytes(encrypted: &[u8]) -> usize {
        encrypted.windows(4).position(|at| at == HEADER_END).unwrap() + HEADER_END.len() + 45
    }

    #[test]
    fn what_is_encrypted_is_read_by_each_recipient_and_by_nobody_else() {
        let (encryption, reader) = keys(3);
        let (_, stranger) = keys(1);
        // Around the 64 KiB that age encrypts at a time.
        for bytes in [0, 1, 65_535, 65_536, 65_537, 131_072] {
            let plain = vec![7; bytes];
            let values = encryption.values(&plain).unwrap();
            assert!(values.len() <= plain.len() + MORE_BYTES_MAX);
            assert_eq!(decrypt(&values, &reader), Ok(plain.clone()));
            let refused = decrypt(&values, &stranger).unwrap_err();
            assert!(refused.contains("is encrypted to others"), "{refused}");
            // The saving process reads its own records, and no values.
            assert!(decrypt(&values, encryption.readers()).is_err());
            let records = encryption.records(&plain).unwrap();
            assert_eq!(decrypt(&records, &reader), Ok(plain.clone()));
            assert_eq!(decrypt(&records, encryption.readers()), Ok(plain.clone()));
            // What others encrypt to the same recipients is not taken for its own.
            assert_eq!(decrypt(&records, &encryption.own_identity()), Ok(plain));
            assert!(decrypt(&values, &encryption.own_identity()).is_err());
        }
        let text = encryption.text("a hash").unwrap();
        assert_eq!(decrypt_text(&text, &reader), Ok("a hash".into()));
        assert!(decrypt_text("a hash", &reader).is_err());
    }

    /// One bit of each byte: age checks a checksum of the header, and one of each part of the content.
    #[test]
    fn every_flipped_byte_and_every_cut_is_found() {
        let (encryption, reader) = keys(1);
        let encrypted = encryption.values(b"keys and values").unwrap();
        for at in 0..encrypted.len() {
            let mut flipped = encrypted.clone();
            flipped[at] ^= 1 << (at & 7);
            assert!(decrypt(&flipped, &reader).is_err(), "byte {at}");
            assert!(decrypt(&encrypted[..at], &reader).is_err(), "{at} bytes");
        }
        let longer = [&encrypted[..], b"\n"].concat();
        assert!(decrypt(&longer, &reader).is_err());
        // What ends where a part of the content does.
        let two = encryption.values(&[7; 2 << 16]).unwrap();
        let part = two.len() - ((1 << 16) + 16);
        let refused = decrypt(&two[..part], &reader).unwrap_err();
        assert!(refused.contains("cannot be decrypted"), "{refused}");
    }

    #[test]
    fn what_is_not_encrypted_is_refused() {
        let (_, reader) = keys(1);
        for plain in [&b""[..], b"plain", &[0; 100_000], b"a\n--- b\n", &b"\n---".repeat(2000)] {
            let refused = decrypt(plain, &reader).unwrap_err();
            assert!(refused.contains("is not encrypted as its backup is"), "{refused}");
        }
    }

    /// A hostile object of 16 MiB names a hundred thousand recipients, and each would be tried.
    #[test]
    fn a_header_of_more_recipients_than_are_served_is_refused_before_they_are_tried() {
        let (most, reader) = keys(RECIPIENTS_MAX);
        for _ in 0..20 {
            // Age adds one that is nobody's, of another length each time.
            let encrypted = most.records(b"keys").unwrap();
            assert!(header_bytes(&encrypted) <= HEADER_BYTES_MAX);
            assert_eq!(decrypt(&encrypted, &reader), Ok(b"keys".to_vec()));
        }
        let keys: Vec<Recipient> = (0..50).map(|_| Identity::generate().to_public()).collect();
        let more = encrypt(b"keys", keys.iter()).unwrap();
        assert!(header_bytes(&more) > HEADER_BYTES_MAX);
        let refused = decrypt(&more, &reader).unwrap_err();
        assert!(refused.contains("is not encrypted as its backup is"), "{refused}");
    }

    /// `keys and values`, encrypted to the known identity by other code than age's.
    const KNOWN: &str = concat!(
        "YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSBNZFNyYXM3c2xoRTNrWEEzazI1Z2NX",
        "K3NWenIrbE5uYWhLZ0NCRWpmd1JJCm1sVkxlUEREdUFyamtON2hKTjhDb2RzeVJPc2VzSjIv",
        "dWVyU0YwOGV3WWcKLS0tIFJxbVVzbUJEN1hjU2hJZWdJMnF4emFLRzB2S0dSZTNZRkljbEdB",
        "N3VEOFUKBQUFBQUFBQUFBQUFBQUFBc9WTpAR7UH/RxqzWpEi+4GyjUW2SAfC3mJv3HNc5PI=",
    );

    /// Nobody changes what is encrypted so that it can be read, in its header or behind it.
    #[test]
    fn any_bytes_are_what_was_encrypted_or_are_refused() {
        let (whole, reader) = (BASE64_STANDARD.decode(KNOWN).unwrap(), Identities::known());
        assert_eq!(decrypt(&whole, &reader), Ok(b"keys and values".to_vec()));
        cairn_fuzz::target!("whole" => whole.clone(), "text" => KNOWN.as_bytes().to_vec())
            .for_each(|bytes| {
                let most = 4 * bytes.len() + (512 << 10);
                match cairn_fuzz::within(most, || decrypt(bytes, &reader)) {
                    Ok(_) => assert_eq!(bytes, whole),
                    Err(why) => assert!(why.len() < 200, "{why}"),
                }
                let Ok(text) = std::str::from_utf8(bytes) else { return };
                assert!(decrypt_text(text, &reader).is_err() || text == KNOWN);
            });
    }
}
