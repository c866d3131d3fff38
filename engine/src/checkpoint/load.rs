//! Reading a checkpoint: every chunk is compared with the table before any byte of it is used. The
//! data area is not read: extents that the checkpoint refers to may have been reused since, which
//! only the journal shows.

use super::header::{CHUNK_BYTES, GONE_KEY, HASH_BYTES, Header, KEY, NO_KEY, Part};
use crate::codec::{Reader, hash};
use crate::group::{Group, Keys, LogEntry};
use crate::io::{OpenFile, Piece, ReadAhead, pieces, yield_once};
use crate::journal::log_id;
use crate::types::{GroupId, LogId, ValueRef};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes read by one request: whole chunks.
const PIECE_BYTES: u64 = 4 * CHUNK_BYTES as u64;

type Result<T> = std::result::Result<T, String>;

/// Told the bytes of the body that are read so far, and all its bytes.
pub(crate) type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// The most parts of a checkpoint.
pub(crate) const PARTS: usize = 64;

/// Reads the checkpoint that `header` describes; `Err` says what does not match.
pub(crate) async fn load(
    file: &OpenFile,
    header: &Header,
    progress: Progress<'_>,
) -> Result<BTreeMap<GroupId, Group>> {
    let parts = parts(file, header).await?;
    let all: u64 = parts.iter().map(|part| part.body_bytes).sum();
    let (mut groups, mut read_before) = (BTreeMap::new(), 0);
    for part in parts.into_iter().rev() {
        let mut of_all = |read, _| progress(read_before + read, all);
        groups = load_part(file, &part, groups, &mut of_all).await?;
        read_before += part.body_bytes;
    }
    Ok(groups)
}

/// The parts of a checkpoint, the newest first.
pub(super) async fn parts(file: &OpenFile, header: &Header) -> Result<Vec<Part>> {
    let mut parts = vec![header.part];
    while let Some(part) = parts.last().filter(|part| part.changes) {
        let before = named_by(file, part).await?;
        if !before.fits(part.at) || parts.len() == PARTS {
            return Err("a part does not lie behind the one that it names".to_owned());
        }
        parts.push(before);
    }
    Ok(parts)
}

/// The part whose changes this one holds.
async fn named_by(file: &OpenFile, part: &Part) -> Result<Part> {
    let table = table(file, part).await?;
    let first = read(file, part.at, part.body_bytes.min(CHUNK_BYTES as u64)).await?;
    if Reader::new(&table).u128() != Some(hash(&first)) {
        return Err("chunk 0 does not match its hash".to_owned());
    }
    Part::read(&mut Reader::new(&first)).ok_or_else(|| "a field cannot be read".to_owned())
}

/// The chunk table, compared with its hash.
async fn table(file: &OpenFile, part: &Part) -> Result<Vec<u8>> {
    let table = read(file, part.table_at(), part.chunks() * HASH_BYTES).await?;
    match hash(&table) == part.table_hash {
        true => Ok(table),
        false => Err("the chunk table does not match its hash".to_owned()),
    }
}

/// The state with this part. `before`: the state that its changes follow.
async fn load_part(
    file: &OpenFile,
    part: &Part,
    mut before: BTreeMap<GroupId, Group>,
    progress: Progress<'_>,
) -> Result<BTreeMap<GroupId, Group>> {
    let table = table(file, part).await?;
    let mut body = BodyReader::new(file, part, &table, progress);
    if part.changes {
        body.next(Part::read).await?;
    }
    let mut groups = BTreeMap::new();
    let count = body.next(|r| r.varint()).await?;
    for _ in 0..count {
        let (id, mut group) = read_group(&mut body).await?;
        group.keys = match part.changes {
            false => read_keys(&mut body).await?,
            true => {
                let keys = before.remove(&id).map(|group| group.keys).unwrap_or_default();
                read_changed_keys(&mut body, keys).await?
            }
        };
        if groups.insert(id, group).is_some() {
            return Err(format!("group {} twice", id.0));
        }
    }
    match body.is_at_end() {
        true => Ok(groups),
        false => Err("bytes behind the last group".to_owned()),
    }
}

async fn read(file: &OpenFile, offset: u64, len: u64) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let buf = file.read(offset, len as usize).await;
    let buf = buf.map_err(|e| format!("reading {len} bytes at {offset}: {e}"))?;
    buf.get(..len as usize).map(<[u8]>::to_vec).ok_or_else(|| "short read".to_owned())
}

async fn read_group(body: &mut BodyReader<'_>) -> Result<(GroupId, Group)> {
    let id = GroupId(body.next(|r| r.varint32()).await?);
    let purged = body.next(option).await?;
    let applied = body.next(option).await?;
    let applied_before = body.next(option).await?;
    let mut group =
        Group { applied, applied_recorded: applied, applied_before, ..Group::default() };
    let image = body.next(|r| sized(r).map(<[u8]>::to_vec)).await?;
    if !image.is_empty() {
        group.image = Some(Arc::new(image));
    }
    let entries = body.next(|r| r.varint()).await?;
    if let Some(purged) = purged.filter(|_| entries == 0) {
        group.log.purge(purged);
    }
    for number in 0..entries {
        let entry = body.next(entry).await?;
        // Entries below the purge position are present if they were not applied yet: then the purge
        // is due.
        if let Some(purged) = purged.filter(|purged| number == 0 && purged.index < entry.id.index) {
            group.log.purge(purged);
        }
        if group.log.next_index().is_some_and(|next| next != entry.id.index) {
            return Err(format!("log entry {} does not follow the one before it", entry.id));
        }
        group.log.push(Arc::new(entry), None, 0);
    }
    if let Some(purged) = purged {
        group.purge_applied(purged);
    }
    Ok((id, group))
}

async fn read_keys(body: &mut BodyReader<'_>) -> Result<Keys> {
    let keys = body.next(|r| r.varint()).await?;
    let mut builder = Keys::builder();
    let mut number = 0;
    while number < keys {
        let pushed = body.next(|r| {
            let mut pushed = 0;
            // As many as the buffer holds.
            let mut next = *r;
            while number + pushed < keys
                && let Some(result) = builder.push_read(&mut next)
            {
                if result.is_err() {
                    return Some(Err(number + pushed));
                }
                *r = next;
                pushed += 1;
            }
            (pushed > 0).then_some(Ok(pushed))
        });
        let pushed = pushed.await?;
        number += pushed.map_err(|key| format!("key {key} is not above the one before it"))?;
    }
    Ok(builder.finish())
}

/// These keys with the changes of a part.
async fn read_changed_keys(body: &mut BodyReader<'_>, mut keys: Keys) -> Result<Keys> {
    loop {
        let last = body.next(|r| {
            // As many as the buffer holds, and at least one.
            let mut read = None;
            let mut next = *r;
            while let Some(last) = change(&mut next, &mut keys) {
                *r = next;
                read = Some(last);
                if last {
                    break;
                }
            }
            read
        });
        if last.await? {
            return Ok(keys);
        }
    }
}

/// Makes the next change. `Some(true)`: there is none any more; `None`: it is not whole.
fn change(r: &mut Reader<'_>, keys: &mut Keys) -> Option<bool> {
    match r.u8()? {
        NO_KEY => return Some(true),
        KEY => keys.insert_read(r)?,
        GONE_KEY => drop(keys.remove(sized(r)?)),
        _ => return None,
    }
    Some(false)
}

/// Bytes behind their length.
fn sized<'a>(r: &mut Reader<'a>) -> Option<&'a [u8]> {
    let len = usize::try_from(r.varint()?).ok()?;
    r.bytes(len)
}

fn flag(r: &mut Reader<'_>) -> Option<bool> {
    match r.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn option(r: &mut Reader<'_>) -> Option<Option<LogId>> {
    Some(if flag(r)? { Some(log_id(r)?) } else { None })
}

fn entry(r: &mut Reader<'_>) -> Option<LogEntry> {
    let id = log_id(r)?;
    let spilled = if flag(r)? { Some(ValueRef::decode(r)?) } else { None };
    LogEntry::from_body(id, sized(r)?, spilled)
}

/// The body as a stream of checked bytes.
struct BodyReader<'a> {
    hashes: Reader<'a>,
    /// Chunks that matched.
    checked: u64,
    pieces: ReadAhead<'a>,
    /// Bytes of the body that are not in `buffer` yet.
    left: u64,
    buffer: Vec<u8>,
    at: usize,
    bytes: u64,
    progress: Progress<'a>,
}

impl<'a> BodyReader<'a> {
    fn new(
        file: &'a OpenFile,
        part: &Part,
        table: &'a [u8],
        progress: Progress<'a>,
    ) -> BodyReader<'a> {
        BodyReader {
            hashes: Reader::new(table),
            checked: 0,
            pieces: ReadAhead::new(file, pieces(part.at..part.table_at(), PIECE_BYTES)),
            left: part.body_bytes,
            buffer: Vec::new(),
            at: 0,
            bytes: part.body_bytes,
            progress,
        }
    }

    /// Reads the next piece and compares each chunk with its hash.
    async fn fill(&mut self) -> Result<()> {
        let Piece { at, bytes } = self.pieces.next().await.ok_or("the body ends early")?;
        let bytes = bytes.map_err(|error| format!("reading the bytes {at:?}: {error}"))?;
        let piece = bytes.get(..bytes.len().min(self.left as usize)).unwrap_or_default();
        for chunk in piece.chunks(CHUNK_BYTES) {
            if self.hashes.u128() != Some(hash(chunk)) {
                return Err(format!("chunk {} does not match its hash", self.checked));
            }
            self.checked += 1;
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        self.left -= piece.len() as u64;
        (self.progress)(self.bytes - self.left, self.bytes);
        self.buffer.extend_from_slice(piece);
        yield_once().await;
        Ok(())
    }

    /// What `decode` reads next. It is called again with more bytes if it wants more than are there.
    async fn next<T>(&mut self, mut decode: impl FnMut(&mut Reader<'_>) -> Option<T>) -> Result<T> {
        loop {
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            let mut r = Reader::new(rest);
            if let Some(found) = decode(&mut r) {
                self.at += rest.len() - r.remaining();
                return Ok(found);
            }
            if self.left == 0 {
                return Err("a field cannot be read".to_owned());
            }
            self.fill().await?;
        }
    }

    fn is_at_end(&self) -> bool {
        self.left == 0 && self.at == self.buffer.len()
    }
}

#[cfg(test)]
mod tests;
