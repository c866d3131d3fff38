//! Builds the files that the tests read: bbolt databases page by page, and snapshots of etcd.

use sha2::{Digest, Sha256};

pub const PAGE: usize = 4096;
const HEADER: usize = 16;
const ELEMENT: usize = 16;
/// A meta with its checksum, behind the header of its page.
const META: usize = 64;
const BUCKET: u32 = 1;

/// A key with its value, or with a bucket.
pub struct Item {
    flags: u32,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Item {
    /// The same with the first bytes of its value alone.
    pub fn truncate(&mut self, length: usize) {
        self.value.truncate(length);
    }
}

pub fn item(key: &[u8], value: &[u8]) -> Item {
    Item { flags: 0, key: key.to_vec(), value: value.to_vec() }
}

/// A bucket below this page.
pub fn bucket(name: &[u8], root: u64) -> Item {
    let value = [root.to_le_bytes(), 0_u64.to_le_bytes()].concat();
    Item { flags: BUCKET, key: name.to_vec(), value }
}

/// A bucket inside its value.
pub fn inline(name: &[u8], items: &[Item]) -> Item {
    let mut bucket = bucket(name, 0);
    bucket.value.extend(leaf_bytes(0, items, PAGE));
    bucket
}

fn header(id: u64, flags: u16, count: usize, overflow: usize) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend(flags.to_le_bytes());
    bytes.extend((count as u16).to_le_bytes());
    bytes.extend((overflow as u32).to_le_bytes());
    bytes
}

fn leaf_bytes(id: u64, items: &[Item], page: usize) -> Vec<u8> {
    let data: usize = items.iter().map(|item| item.key.len() + item.value.len()).sum();
    let length = HEADER + items.len() * ELEMENT + data;
    let mut bytes = header(id, 2, items.len(), (length - 1) / page);
    let mut behind = HEADER + items.len() * ELEMENT;
    for (number, item) in items.iter().enumerate() {
        let position = behind - (HEADER + number * ELEMENT);
        let [key, value] = [item.key.len(), item.value.len()];
        for number in [item.flags, position as u32, key as u32, value as u32] {
            bytes.extend(number.to_le_bytes());
        }
        behind += key + value;
    }
    for item in items {
        bytes.extend(&item.key);
        bytes.extend(&item.value);
    }
    bytes
}

/// A database under construction. Pages get their numbers in order, from 2 on.
pub struct Builder {
    bytes: Vec<u8>,
    page: usize,
}

impl Builder {
    pub fn new() -> Builder {
        Builder::of_pages(PAGE)
    }

    /// With pages of so many bytes.
    pub fn of_pages(page: usize) -> Builder {
        Builder { bytes: vec![0; 2 * page], page }
    }

    fn add(&mut self, bytes: Vec<u8>) {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(self.page), 0);
    }

    /// The number of the next page.
    pub fn next(&self) -> u64 {
        (self.bytes.len() / self.page) as u64
    }

    pub fn leaf(&mut self, items: &[Item]) -> u64 {
        let id = self.next();
        self.add(leaf_bytes(id, items, self.page));
        id
    }

    /// A page that leads to these pages, each with its first key.
    pub fn branch(&mut self, children: &[(&[u8], u64)]) -> u64 {
        let id = self.next();
        let mut bytes = header(id, 1, children.len(), 0);
        let mut behind = HEADER + children.len() * ELEMENT;
        for (number, (key, child)) in children.iter().enumerate() {
            let position = behind - (HEADER + number * ELEMENT);
            bytes.extend((position as u32).to_le_bytes());
            bytes.extend((key.len() as u32).to_le_bytes());
            bytes.extend(child.to_le_bytes());
            behind += key.len();
        }
        for (key, _) in children {
            bytes.extend(*key);
        }
        self.add(bytes);
        id
    }

    /// A page of these numbers.
    pub fn raw(&mut self, flags: u16, count: u16, numbers: &[u32]) {
        let mut bytes = header(self.next(), flags, usize::from(count), 0);
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self.add(bytes);
    }

    /// The file, with this page as the root of its buckets.
    pub fn finish(self, root: u64) -> Vec<u8> {
        let pages = self.next();
        let Builder { mut bytes, page: page_bytes } = self;
        for (id, transaction) in [(0, 8_u64), (1, 7)] {
            let mut meta = Vec::new();
            for number in [0xED0C_DAED_u32, 2, page_bytes as u32, 0] {
                meta.extend(number.to_le_bytes());
            }
            for number in [root, 0, u64::MAX, pages, transaction] {
                meta.extend(number.to_le_bytes());
            }
            meta.extend(fnv(&meta).to_le_bytes());
            let page = [header(id, 4, 0, 0), meta].concat();
            let at = id as usize * page_bytes;
            bytes[at..at + page.len()].copy_from_slice(&page);
        }
        bytes
    }
}

fn fnv(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Puts the right checksums into the meta pages of a database with pages of so many bytes, as far as it has them.
pub fn sum_metas(database: &mut [u8], page: usize) {
    for at in [HEADER, page + HEADER] {
        if let Some(meta) = database.get_mut(at..at + META) {
            let (summed, sum) = meta.split_at_mut(META - 8);
            sum.copy_from_slice(&fnv(summed).to_le_bytes());
        }
    }
}

/// A put, or a delete, of this revision.
pub fn revision(main: u64, sub: u64, deleted: bool) -> Vec<u8> {
    let mut key = main.to_be_bytes().to_vec();
    key.push(b'_');
    key.extend(sub.to_be_bytes());
    key.extend(deleted.then_some(b't'));
    key
}

fn varint(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// The message that etcd stores under a revision.
pub fn key_value(key: &[u8], value: &[u8], lease: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut field = |tag: u8, content: &[u8]| {
        bytes.push(tag);
        varint(content.len() as u64, &mut bytes);
        bytes.extend(content);
    };
    field(0x0a, key);
    if !value.is_empty() {
        field(0x2a, value);
    }
    // The revisions and the count of writes, which the reader passes over.
    bytes.extend([0x10, 2, 0x18, 3, 0x20, 1]);
    if lease > 0 {
        bytes.push(0x30);
        varint(lease, &mut bytes);
    }
    bytes
}

/// A put of this revision, as an element of the bucket `key`.
pub fn put(main: u64, key: &[u8], value: &[u8], lease: u64) -> Item {
    item(&revision(main, 0, false), &key_value(key, value, lease))
}

/// A delete of this revision.
pub fn delete(main: u64, key: &[u8]) -> Item {
    item(&revision(main, 0, true), &key_value(key, b"", 0))
}

/// The database with its SHA-256 behind it.
pub fn snapshot(mut database: Vec<u8>) -> Vec<u8> {
    let hash = Sha256::digest(&database);
    database.extend(hash);
    database
}

/// A snapshot of an etcd with these revisions, in order.
pub fn snapshot_of(revisions: &[Item]) -> Vec<u8> {
    snapshot(database_of(revisions))
}

/// The same without its SHA-256.
pub fn database_of(revisions: &[Item]) -> Vec<u8> {
    let mut builder = Builder::new();
    let leaf = builder.leaf(revisions);
    let root = builder.leaf(&[inline(b"alarm", &[]), bucket(b"key", leaf)]);
    builder.finish(root)
}
