//! Verifies a stored checkpoint: both headers, and of each part the chunk table and every chunk. Decodes
//! nothing but which part is before another.

use super::header::{BODY_AT, CHUNK_BYTES, HASH_BYTES, Header, Part};
use super::load::PARTS;
use crate::codec::{Reader, hash};
use crate::io::{BLOCK, OpenFile, Pace, is_zero};

/// A damaged range: offset, length, what is wrong.
pub(crate) type Damage = (u64, u64, String);

/// Reads all of an area's checkpoint. `Ok(None)` if the area holds none.
pub(crate) async fn verify(
    file: &OpenFile,
    incarnation: u64,
    pace: Pace<'_>,
) -> std::result::Result<Option<Header>, Damage> {
    let head = read(file, 0, BODY_AT, pace).await?;
    if is_zero(&head) {
        return Ok(None);
    }
    let headers: Vec<Option<Header>> =
        head.chunks(BLOCK).map(|block| Header::decode(block, file.size())).collect();
    let header =
        headers.first().copied().flatten().filter(|header| header.incarnation == incarnation);
    let Some(header) = header.filter(|header| headers.iter().all(|other| *other == Some(*header)))
    else {
        return Err((0, BODY_AT, "its two headers are not equal and intact".to_owned()));
    };
    let mut part = header.part;
    for _ in 0..PARTS {
        let first = verify_part(file, &part, pace).await?;
        if !part.changes {
            return Ok(Some(header));
        }
        let before = Part::read(&mut Reader::new(&first)).filter(|before| before.fits(part.at));
        part = before.ok_or_else(|| {
            let what = "it does not name the part before it".to_owned();
            (part.at, first.len() as u64, what)
        })?;
    }
    Err((part.at, part.body_bytes, "there are too many parts".to_owned()))
}

/// Returns the first chunk.
async fn verify_part(
    file: &OpenFile,
    part: &Part,
    pace: Pace<'_>,
) -> std::result::Result<Vec<u8>, Damage> {
    let table = read(file, part.table_at(), part.chunks() * HASH_BYTES, pace).await?;
    if hash(&table) != part.table_hash {
        let len = table.len() as u64;
        return Err((part.table_at(), len, "the chunk table does not match its hash".to_owned()));
    }
    let mut hashes = Reader::new(&table);
    let (mut at, mut rest) = (part.at, part.body_bytes);
    let mut first = Vec::new();
    while rest > 0 {
        let len = rest.min(CHUNK_BYTES as u64);
        let chunk = read(file, at, len, pace).await?;
        if hashes.u128() != Some(hash(&chunk)) {
            return Err((at, len, "a chunk does not match its hash".to_owned()));
        }
        if at == part.at {
            first = chunk;
        }
        at += len;
        rest -= len;
    }
    Ok(first)
}

async fn read(
    file: &OpenFile,
    offset: u64,
    len: u64,
    pace: Pace<'_>,
) -> std::result::Result<Vec<u8>, Damage> {
    if len == 0 {
        return Ok(Vec::new());
    }
    pace(len).await;
    let buf = file.read(offset, len as usize).await;
    let buf = buf.map_err(|error| (offset, len, format!("it cannot be read: {error}")))?;
    Ok(buf.get(..len as usize).unwrap_or_default().to_vec())
}
