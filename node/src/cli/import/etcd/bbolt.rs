//! Reads a bbolt database, the file of etcd: buckets of keys with values, each a B+ tree of pages. It writes
//! nothing, and needs no library.
//!
//! ```text
//! page      id u64, flags u16 (1 branch, 2 leaf, 4 meta), count u16, overflow u32: so many more pages belong
//!           to it; then as many elements as `count` says, then what they point at, in their order
//! branch    element: position u32, key length u32, page u64
//! leaf      element: flags u32 (1: a bucket), position u32, key length u32, value length u32
//! bucket    root page u64, sequence u64; root 0: its only page follows
//! meta      pages 0 and 1: magic, version, page size, flags, root bucket, free list, pages, transaction,
//!           FNV-1a of all that. The greater transaction that verifies counts
//! ```
//!
//! Numbers are little-endian, and a position counts from its element. What holds here: the file is hostile.
//! Every number is checked before it is used. No page is read twice, as part of whatever, and what the
//! elements of a page point at ascends, so reading ends after as many bytes as the file has. In memory are
//! a bit for each page, one window, and one table of elements for each level of the tree.

use std::io::{self, Read, Seek, SeekFrom};

const PAGE_HEADER_BYTES: u64 = 16;
const ELEMENT_BYTES: u64 = 16;
const BUCKET_BYTES: u64 = 16;
const META_BYTES: u64 = 64;
/// Where the checksum begins in the meta.
const META_SUMMED_BYTES: usize = 56;
const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const META: u16 = 4;
const IS_BUCKET: u32 = 1;
/// The sizes of pages that bbolt makes.
const PAGE_SIZES: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 16;
/// The deepest tree. One of the largest file has fewer than ten levels.
const DEPTH_MAX: usize = 32;
/// So much is read ahead, up to the end of the page.
const WINDOW_BYTES: u64 = 128 << 10;

/// Why a database cannot be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli::import) enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is no bbolt database: {0}")]
    Foreign(&'static str),
    #[error("it is damaged: page {page}: {what}")]
    Damaged { page: u64, what: String },
}

pub(super) type Result<T> = std::result::Result<T, Error>;

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) at: u64,
    pub(super) length: u64,
}

/// A key with its value, or with a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) is_bucket: bool,
    pub(super) key: Span,
    pub(super) value: Span,
    page: u64,
    page_end: u64,
}

impl Element {
    /// The error that this element is wrong.
    pub(super) fn damaged(&self, what: impl Into<String>) -> Error {
        damaged(self.page, what)
    }
}

/// Where the keys of a bucket are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bucket {
    /// Below this page.
    Root(u64),
    /// In a page of its own form, inside a value.
    Inline { page: u64, span: Span },
}

/// A file with a part of it in memory.
struct Window<S> {
    source: S,
    length: u64,
    at: u64,
    bytes: Vec<u8>,
}

impl<S: Read + Seek> Window<S> {
    /// The bytes of a span, read ahead up to `ahead_to`.
    fn get(&mut self, span: Span, ahead_to: u64) -> io::Result<&[u8]> {
        let behind = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = span.at.checked_add(span.length).filter(|end| *end <= self.length);
        let end = end.ok_or_else(behind)?;
        let held = self.at..=self.at.saturating_add(self.bytes.len() as u64);
        if !held.contains(&span.at) || !held.contains(&end) {
            let ahead = ahead_to.min(self.length).saturating_sub(span.at).min(WINDOW_BYTES);
            self.bytes.clear();
            self.at = span.at;
            self.source.seek(SeekFrom::Start(span.at))?;
            let mut part = self.source.by_ref().take(span.length.max(ahead));
            part.read_to_end(&mut self.bytes)?;
        }
        let from = usize::try_from(span.at - self.at).map_err(|_| behind())?;
        let length = usize::try_from(span.length).map_err(|_| behind())?;
        let found = from.checked_add(length).and_then(|to| self.bytes.get(from..to));
        found.ok_or_else(behind)
    }
}

/// A database that can be read.
pub(super) struct Database<S> {
    window: Window<S>,
    page_bytes: u64,
    /// How many pages the file has.
    pages: u64,
    root: Bucket,
}

impl<S: Read + Seek> Database<S> {
    /// Looks at the meta pages of a database that is the first `length` bytes of the file.
    pub(super) fn open(source: S, length: u64) -> Result<Database<S>> {
        let mut window = Window { source, length, at: 0, bytes: Vec::new() };
        let first = Meta::read(&mut window, 0)?;
        // The first one may be damaged: then the second one stands where its own page size says. Else it stands at one place,
        // and what looks like one elsewhere is a part of a value.
        let sizes = first.as_ref().map_or(PAGE_SIZES, |meta| meta.page_bytes..=meta.page_bytes);
        let (mut second, mut size) = (None, *sizes.start());
        while sizes.contains(&size) && second.is_none() {
            second = Meta::read(&mut window, size)?.filter(|meta| meta.page_bytes == size);
            size *= 2;
        }
        let newest = first.into_iter().chain(second).max_by_key(|meta| meta.transaction);
        let meta = newest.ok_or(Error::Foreign("no meta page verifies"))?;
        let pages = length / meta.page_bytes;
        if pages < meta.pages {
            let what = format!("the file was cut: it has {pages} of {} pages", meta.pages);
            return Err(damaged(0, what));
        }
        let root = Bucket::Root(meta.root);
        Ok(Database { window, page_bytes: meta.page_bytes, pages: meta.pages, root })
    }

    /// The bucket of this path, from the root.
    pub(super) fn bucket(&mut self, path: &[&[u8]]) -> Result<Option<Bucket>> {
        let mut bucket = self.root;
        for name in path {
            let mut walk = Walk::new(self, bucket)?;
            let mut found = None;
            while let Some(element) = walk.next(self)? {
                let is_it = element.key.length == name.len() as u64
                    && self.bytes(&element, element.key)? == *name;
                if element.is_bucket && is_it {
                    found = Some(self.bucket_of(&element)?);
                    break;
                }
            }
            let Some(found) = found else { return Ok(None) };
            bucket = found;
        }
        Ok(Some(bucket))
    }

    fn bucket_of(&mut self, element: &Element) -> Result<Bucket> {
        let Span { at, length } = element.value;
        let inside = length.checked_sub(BUCKET_BYTES);
        let inside = inside.ok_or_else(|| element.damaged("a bucket has no root"))?;
        let header = self.bytes(element, Span { at, length: BUCKET_BYTES })?;
        Ok(match u64_at(header, 0) {
            Some(root) if root > 0 => Bucket::Root(root),
            _ => {
                let span = Span { at: at + BUCKET_BYTES, length: inside };
                Bucket::Inline { page: element.page, span }
            }
        })
    }

    /// Bytes of an element, which are in memory at once.
    pub(super) fn bytes(&mut self, element: &Element, span: Span) -> Result<&[u8]> {
        Ok(self.window.get(span, element.page_end)?)
    }

    /// Bytes that were found by an element before.
    pub(super) fn read(&mut self, span: Span) -> Result<&[u8]> {
        Ok(self.window.get(span, 0)?)
    }
}

/// The way through the elements of a bucket, in the order of its keys.
pub(super) struct Walk {
    /// From the root to the page where it is.
    levels: Vec<Level>,
    /// A bit for each page that was read.
    seen: Vec<u64>,
}

/// A page, and which of its elements is next.
struct Level {
    page: u64,
    is_leaf: bool,
    /// The elements that are left, and where the next one is in the file.
    table: std::vec::IntoIter<[u8; ELEMENT_BYTES as usize]>,
    at: u64,
    /// The end of what the elements before point at, and of the page.
    behind: u64,
    end: u64,
}

/// What an element leads to.
enum Next {
    Page(u64),
    Element(Element),
}

impl Walk {
    pub(super) fn new<S: Read + Seek>(database: &mut Database<S>, bucket: Bucket) -> Result<Walk> {
        let words = usize::try_from(database.pages.div_ceil(64));
        let words = words.map_err(|_| Error::Foreign("it has more pages than memory"))?;
        let mut walk = Walk { levels: Vec::new(), seen: vec![0; words] };
        match bucket {
            Bucket::Root(page) => walk.enter(database, page)?,
            Bucket::Inline { page, span } => {
                let end = span.at.saturating_add(span.length);
                let level = Level::read(database, (page, None), span.at, end)?;
                if !level.is_leaf {
                    return Err(damaged(page, "a bucket inside a value has branches"));
                }
                walk.levels.push(level);
            }
        }
        Ok(walk)
    }

    /// The next element; `None` behind the last one.
    pub(super) fn next<S: Read + Seek>(
        &mut self,
        database: &mut Database<S>,
    ) -> Result<Option<Element>> {
        while let Some(level) = self.levels.last_mut() {
            match level.next()? {
                None => drop(self.levels.pop()),
                Some(Next::Element(element)) => return Ok(Some(element)),
                Some(Next::Page(page)) => self.enter(database, page)?,
            }
        }
        Ok(None)
    }

    fn enter<S: Read + Seek>(&mut self, database: &mut Database<S>, page: u64) -> Result<()> {
        if self.levels.len() >= DEPTH_MAX {
            return Err(damaged(page, format!("the tree is deeper than {DEPTH_MAX} levels")));
        }
        // The first two are the meta pages.
        if page < 2 || page >= database.pages {
            return Err(damaged(page, format!("the file has {} pages", database.pages)));
        }
        let at = page * database.page_bytes;
        let header = Span { at, length: PAGE_HEADER_BYTES };
        let header = database.window.get(header, at.saturating_add(database.page_bytes))?;
        let overflow = u64::from(u32_at(header, 12).unwrap_or_default());
        let end = page + 1 + overflow;
        if end > database.pages {
            let what = format!("{overflow} more pages belong to it than the file has");
            return Err(damaged(page, what));
        }
        for part in page..end {
            let word = usize::try_from(part / 64).ok().and_then(|word| self.seen.get_mut(word));
            let bit = 1_u64 << (part % 64);
            match word {
                Some(word) if *word & bit == 0 => *word |= bit,
                _ => return Err(damaged(part, "two pages, or a circle of them, lead to it")),
            }
        }
        let level = Level::read(database, (page, Some(page)), at, end * database.page_bytes)?;
        self.levels.push(level);
        Ok(())
    }
}

impl Level {
    /// Reads the elements of a page that is in this part of the file. `id`: what it must say that it is.
    fn read<S: Read + Seek>(
        database: &mut Database<S>,
        (page, id): (u64, Option<u64>),
        at: u64,
        end: u64,
    ) -> Result<Level> {
        let window = &mut database.window;
        if end.saturating_sub(at) < PAGE_HEADER_BYTES {
            return Err(damaged(page, "a page inside a value has no header"));
        }
        let header = window.get(Span { at, length: PAGE_HEADER_BYTES }, end)?;
        let (found, flags) = (u64_at(header, 0), u16_at(header, 8).unwrap_or_default());
        let count = u64::from(u16_at(header, 10).unwrap_or_default());
        if id.is_some() && id != found {
            return Err(damaged(page, "it says that it is another one"));
        }
        if flags != BRANCH && flags != LEAF {
            return Err(damaged(page, format!("it is neither branch nor leaf, but {flags:#x}")));
        }
        let table = Span { at: at + PAGE_HEADER_BYTES, length: count * ELEMENT_BYTES };
        let behind = table.at + table.length;
        if behind > end {
            return Err(damaged(page, format!("it has no room for {count} elements")));
        }
        let bytes = window.get(table, end)?;
        let (elements, _) = bytes.as_chunks::<{ ELEMENT_BYTES as usize }>();
        let table = Vec::from(elements).into_iter();
        Ok(Level { page, is_leaf: flags == LEAF, table, at: at + PAGE_HEADER_BYTES, behind, end })
    }

    fn next(&mut self) -> Result<Option<Next>> {
        let Some(element) = self.table.next() else { return Ok(None) };
        let number = |at| u32_at(&element, at).unwrap_or_default();
        let page = self.page;
        if !self.is_leaf {
            self.at += ELEMENT_BYTES;
            return Ok(u64_at(&element, 8).map(Next::Page));
        }
        let key = Span { at: self.at.saturating_add(number(4).into()), length: number(8).into() };
        let value = Span { at: key.at.saturating_add(key.length), length: number(12).into() };
        let behind = value.at.saturating_add(value.length);
        if key.at < self.behind || behind > self.end || key.length == 0 {
            let what = format!("a key is at {} and ends with its value at {behind}", key.at);
            return Err(damaged(page, what));
        }
        (self.at, self.behind) = (self.at + ELEMENT_BYTES, behind);
        let is_bucket = number(0) & IS_BUCKET != 0;
        Ok(Some(Next::Element(Element { is_bucket, key, value, page, page_end: self.end })))
    }
}

/// What a meta page says.
struct Meta {
    page_bytes: u64,
    root: u64,
    pages: u64,
    transaction: u64,
}

impl Meta {
    /// The meta page at this place, if it is one and verifies.
    fn read<S: Read + Seek>(window: &mut Window<S>, at: u64) -> Result<Option<Meta>> {
        let length = PAGE_HEADER_BYTES + META_BYTES;
        if window.length < at + length {
            return Ok(None);
        }
        let bytes = window.get(Span { at, length }, at + length)?;
        Ok(Meta::of(bytes))
    }

    fn of(bytes: &[u8]) -> Option<Meta> {
        let (header, meta) = bytes.split_at_checked(PAGE_HEADER_BYTES as usize)?;
        let page_bytes = u64::from(u32_at(meta, 8)?);
        let sum =
            meta.get(..META_SUMMED_BYTES)?.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
                (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let verifies = u16_at(header, 8)? == META
            && u32_at(meta, 0)? == MAGIC
            && u32_at(meta, 4)? == VERSION
            && PAGE_SIZES.contains(&page_bytes)
            && page_bytes.is_power_of_two()
            && u64_at(meta, META_SUMMED_BYTES)? == sum;
        let [root, pages, transaction] = [16, 40, 48].map(|at| u64_at(meta, at));
        let meta = Meta { page_bytes, root: root?, pages: pages?, transaction: transaction? };
        verifies.then_some(meta)
    }
}

fn damaged(page: u64, what: impl Into<String>) -> Error {
    Error::Damaged { page, what: what.into() }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
