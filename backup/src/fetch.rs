//! One object of a backup, read and checked.
//!
//! What holds here: no more is read than the object has, and no more is decompressed than it had. An
//! object of an encrypted backup is decrypted, or refused: one that was put in its place is none.

use crate::encryption::decrypt;
use crate::error::{Error, Result};
use crate::keys::Identities;
use crate::manifest::Object;
use crate::paths::manifest_path;
use crate::target::Target;
use bytes::Bytes;
use real_tokio::task::{JoinHandle, spawn_blocking};
use std::io::{self, Read};
use zstd::stream::read::Decoder;

/// The largest window of a compressed object, as a power of two: 16 MiB, since no object has more. A hostile one asks for
/// memory for 128 MiB, which is what zstd allows.
const WINDOW_LOG_MAX: u32 = 24;

/// Where the objects of a backup are, and what reads them.
#[derive(Clone)]
pub(crate) struct Reader {
    pub(crate) target: Target,
    pub(crate) name: String,
    /// `None`: they are not encrypted.
    pub(crate) identities: Option<Identities>,
}

impl Reader {
    /// That an object is not as the manifest says.
    fn damaged(&self, object: &Object, what: &str) -> Error {
        let what = format!("object `{}` {what}", object.path);
        Error::Damaged { name: self.name.clone(), what }
    }
}

/// An object that is being read, for as long as somebody may want it.
pub(crate) struct Loading(JoinHandle<Result<Bytes>>);

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) async fn joined(mut loading: Loading) -> Result<Bytes> {
    (&mut loading.0).await?
}

pub(crate) fn spawn_fetch(reader: &Reader, object: Object) -> Loading {
    let reader = reader.clone();
    Loading(real_tokio::spawn(async move { fetch(&reader, &object).await }))
}

/// An object's bytes, decrypted and decompressed, once they have their checksum.
async fn fetch(reader: &Reader, object: &Object) -> Result<Bytes> {
    let Object { raw_bytes, zstd, crc32, .. } = *object;
    let (stored, identities) = (stored(reader, object).await?, reader.identities.clone());
    let raw = spawn_blocking(move || {
        check(&stored, crc32)?;
        unpack(stored, identities.as_ref(), zstd, raw_bytes)
    });
    let raw = raw.await?.map_err(|what| reader.damaged(object, &what))?;
    match raw.len() as u64 == raw_bytes {
        true => Ok(raw),
        false => Err(reader.damaged(object, &format!("holds {} of {raw_bytes} bytes", raw.len()))),
    }
}

/// Whether an object is at the target as it was stored. Returns how many bytes it has.
pub(crate) async fn check_stored(reader: &Reader, object: &Object) -> Result<u64> {
    let (stored, crc32) = (stored(reader, object).await?, object.crc32);
    let checked = spawn_blocking(move || check(&stored, crc32)).await;
    checked?.map_err(|what| reader.damaged(object, &what))?;
    Ok(object.bytes)
}

/// An object's bytes as they are at the target, if they are as many as the manifest says.
async fn stored(reader: &Reader, object: &Object) -> Result<Bytes> {
    let Reader { target, name, .. } = reader;
    let Object { path, bytes: length, .. } = object;
    let has = |bytes: u64| reader.damaged(object, &format!("has {bytes} of {length} bytes"));
    let stored = match target.get(path, *length).await {
        Err(Error::TooLong { bytes, .. }) => return Err(has(bytes)),
        stored => stored?,
    };
    let Some(stored) = stored else {
        return Err(match target.has(&manifest_path(name)).await? {
            true => reader.damaged(object, "is not there"),
            false => Error::Removed(name.clone()),
        });
    };
    match stored.len() as u64 {
        bytes if bytes == *length => Ok(stored),
        bytes => Err(has(bytes)),
    }
}

fn check(stored: &[u8], crc32: u32) -> std::result::Result<(), String> {
    match crc32fast::hash(stored) == crc32 {
        true => Ok(()),
        false => Err("does not have its checksum".into()),
    }
}

/// What was stored in an object, at most so many bytes.
pub(crate) fn unpack(
    stored: Bytes,
    identities: Option<&Identities>,
    zstd: bool,
    most: u64,
) -> std::result::Result<Bytes, String> {
    let packed: Bytes = match identities {
        Some(identities) => decrypt(&stored, identities)?.into(),
        None => stored.clone(),
    };
    drop(stored);
    if zstd { decompress(&packed, most) } else { Ok(packed) }
}

/// At most so many bytes, however many a hostile object would make.
fn decompress(stored: &[u8], most: u64) -> std::result::Result<Bytes, String> {
    let refused = |error: io::Error| format!("cannot be decompressed: {error}");
    // What is held of an object is as long as it is: a vector that grows takes up to twice as much.
    let mut raw = Vec::with_capacity(usize::try_from(most).unwrap_or_default());
    let mut decoder = Decoder::with_buffer(stored).map_err(refused)?;
    decoder.window_log_max(WINDOW_LOG_MAX).map_err(refused)?;
    decoder.take(most.saturating_add(1)).read_to_end(&mut raw).map_err(refused)?;
    if raw.len() as u64 > most {
        return Err(format!("holds more than {most} bytes"));
    }
    raw.shrink_to_fit();
    Ok(raw.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(raw: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(raw, 1).unwrap()
    }

    /// A frame with nothing in it, whose window has 2 to the power of `window_log` bytes.
    fn frame(window_log: u8) -> Vec<u8> {
        vec![0x28, 0xb5, 0x2f, 0xfd, 0, (window_log - 10) << 3, 1, 0, 0]
    }

    /// The story: the vector of an object grew while that was decompressed. It took up to twice the bytes that counted as
    /// held.
    #[test]
    fn an_object_takes_as_much_memory_as_it_has_bytes() {
        let raw = vec![7; (9 << 20) + 1];
        let (stored, most) = (Bytes::from(packed(&raw)), raw.len());
        let unpacked =
            cairn_fuzz::within(most + (64 << 10), || unpack(stored, None, true, most as u64));
        assert!(unpacked.unwrap() == raw);
    }

    #[test]
    fn a_window_that_no_object_needs_is_refused() {
        assert_eq!(unpack(frame(24).into(), None, true, 100), Ok(Bytes::new()));
        let refused = unpack(frame(25).into(), None, true, 100).unwrap_err();
        assert!(refused.contains("cannot be decompressed"), "{refused}");
    }

    #[test]
    fn any_bytes_are_unpacked_to_what_an_object_may_have_or_are_refused() {
        const MOST: usize = 4 << 10;
        cairn_fuzz::target!(
            "packed" => packed(b"keys and values"),
            "frames" => [packed(b"keys"), packed(b" and values")].concat(),
            "most" => packed(&[7; MOST]),
            "more" => packed(&[7; MOST + 1]),
            "window" => frame(24),
        )
        .for_each(|bytes| {
            let stored = Bytes::copy_from_slice(bytes);
            let unpacked = || unpack(stored.clone(), None, true, MOST as u64);
            if let Ok(raw) = cairn_fuzz::within(4 * MOST, unpacked) {
                assert!(raw.len() <= MOST);
                let again = unpack(packed(&raw).into(), None, true, raw.len() as u64);
                assert_eq!(again, Ok(raw));
            }
            assert_eq!(unpack(stored.clone(), None, false, 0), Ok(stored));
        });
    }
}
