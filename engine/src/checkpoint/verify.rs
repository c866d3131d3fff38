//! Verifies a stored checkpoint: both headers, the chunk table, every chunk. Decodes nothing.

use super::header::{BODY_AT, CHUNK_BYTES, HASH_BYTES, Header};
use crate::codec::{Reader, hash};
use crate::io::{BLOCK, OpenFile, Pace};

/// A damaged range: offset, length, what is wrong.
pub(crate) type Damage = (u64, u64, String);

/// Reads all of an area's checkpoint. `Ok(None)` if the area holds none.
pub(crate) async fn verify(
    file: &OpenFile,
    incarnation: u64,
    pace: Pace<'_>,
) -> std::result::Result<Option<Header>, Damage> {
    let head = read(file, 0, BODY_AT, pace).await?;
    if head.iter().all(|byte| *byte == 0) {
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
    let table = read(file, header.table_at(), header.chunks() * HASH_BYTES, pace).await?;
    if hash(&table) != header.table_hash {
        let len = table.len() as u64;
        return Err((header.table_at(), len, "the chunk table does not match its hash".to_owned()));
    }
    let mut hashes = Reader::new(&table);
    let (mut at, mut rest) = (BODY_AT, header.body_bytes);
    while rest > 0 {
        let len = rest.min(CHUNK_BYTES as u64);
        let chunk = read(file, at, len, pace).await?;
        if hashes.u128() != Some(hash(&chunk)) {
            return Err((at, len, "a chunk does not match its hash".to_owned()));
        }
        at += len;
        rest -= len;
    }
    Ok(Some(header))
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
