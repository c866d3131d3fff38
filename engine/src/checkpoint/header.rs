//! The bytes of a checkpoint's header: two copies in the first two blocks of its area.

use crate::codec::{Reader, sealed};
use crate::io::{BLOCK, OpenFile};
use bytes::BufMut;

const MAGIC: [u8; 8] = *b"CAIRN.CP";
/// A checkpoint whose body is all of the state.
const WHOLE_VERSION: u32 = 2;
/// A checkpoint whose body is what changed since the part that it names.
const CHANGES_VERSION: u32 = 3;
const CHECKSUM_AT: usize = 16;
/// Copies of the header.
pub(crate) const COPIES: u64 = 2;
/// Where the body begins in its area.
pub(crate) const BODY_AT: u64 = COPIES * BLOCK as u64;
/// Bytes of body under one hash of the chunk table.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
/// Before each record of a part of changes: the end, a key with its entry, a key that is gone.
pub(crate) const NO_KEY: u8 = 0;
pub(crate) const KEY: u8 = 1;
pub(crate) const GONE_KEY: u8 = 2;
/// Bytes of one hash in the chunk table.
pub(crate) const HASH_BYTES: u64 = 16;

/// A body in an area, followed by its chunk table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where it begins.
    pub at: u64,
    pub body_bytes: u64,
    /// The hash of the chunk table, which holds the hash of every chunk of the body.
    pub table_hash: u128,
    /// Its body is what changed since another part, which it names.
    pub changes: bool,
}

impl Default for Part {
    fn default() -> Part {
        Part { at: BODY_AT, body_bytes: 0, table_hash: 0, changes: false }
    }
}

impl Part {
    pub(crate) fn chunks(&self) -> u64 {
        self.body_bytes.div_ceil(CHUNK_BYTES as u64)
    }

    /// Where the chunk table begins in the area.
    pub(crate) fn table_at(&self) -> u64 {
        self.at + self.body_bytes.next_multiple_of(BLOCK as u64)
    }

    /// Where it ends in the area.
    pub(crate) fn end(&self) -> u64 {
        self.table_at() + (self.chunks() * HASH_BYTES).next_multiple_of(BLOCK as u64)
    }

    /// Adds what names this part in the one behind it.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.at);
        out.put_u64_le(self.body_bytes);
        out.put_u128_le(self.table_hash);
        out.put_u8(u8::from(self.changes));
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Option<Part> {
        let (at, body_bytes, table_hash) = (r.u64()?, r.u64()?, r.u128()?);
        let changes = match r.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Part { at, body_bytes, table_hash, changes })
    }

    /// Whether it lies in an area of so many bytes.
    pub(crate) fn fits(&self, capacity: u64) -> bool {
        self.body_bytes <= capacity
            && (BODY_AT..=capacity).contains(&self.at)
            && self.at.is_multiple_of(BLOCK as u64)
            && self.end() <= capacity
    }
}

/// The header of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub incarnation: u64,
    /// Counts checkpoints; the highest intact one is the state.
    pub number: u64,
    /// The checkpoint covers every journal block up to here.
    pub sequence: u64,
    /// The checksum of that block, where the chain continues.
    pub chain: u128,
    /// The newest part.
    pub part: Part,
    /// It is the first to hold a snapshot that replaced the state: no older checkpoint leads to it.
    pub replaces: bool,
}

impl Header {
    /// Bytes of the area that the checkpoint uses.
    pub(crate) fn area_bytes(&self) -> u64 {
        self.part.end()
    }

    /// Bytes that were written to make this checkpoint. A whole one makes the header void before.
    pub(crate) fn written_bytes(&self) -> u64 {
        let headers = if self.part.changes { BODY_AT } else { 2 * BODY_AT };
        self.part.end() - self.part.at + headers
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.put_slice(&MAGIC);
        out.put_u32_le(if self.part.changes { CHANGES_VERSION } else { WHOLE_VERSION });
        out.put_u32_le(0);
        out.put_u128_le(0);
        out.put_u64_le(self.incarnation);
        out.put_u64_le(self.number);
        out.put_u64_le(self.sequence);
        out.put_u128_le(self.chain);
        out.put_u64_le(self.part.body_bytes);
        out.put_u128_le(self.part.table_hash);
        out.put_u32_le(u32::from(self.replaces));
        if self.part.changes {
            out.put_u64_le(self.part.at);
        }
        out.resize(BLOCK, 0);
        sealed::seal(&mut out, CHECKSUM_AT);
        out
    }

    /// `None` for anything but an intact header of an area of `capacity` bytes.
    pub(crate) fn decode(block: &[u8], capacity: u64) -> Option<Header> {
        let mut r = Reader::new(block);
        if r.bytes(8)? != MAGIC {
            return None;
        }
        let changes = match r.u32()? {
            WHOLE_VERSION => false,
            CHANGES_VERSION => true,
            _ => return None,
        };
        sealed::verify(block, CHECKSUM_AT)?;
        r.u32()?;
        r.u128()?;
        let (incarnation, number, sequence) = (r.u64()?, r.u64()?, r.u64()?);
        let (chain, body_bytes, table_hash) = (r.u128()?, r.u64()?, r.u128()?);
        let replaces = r.u32()? == 1;
        let at = if changes { r.u64()? } else { BODY_AT };
        let part = Part { at, body_bytes, table_hash, changes };
        let header = Header { incarnation, number, sequence, chain, part, replaces };
        part.fits(capacity).then_some(header)
    }
}

/// The area's header: the newest intact copy.
pub(crate) async fn read_headers(file: &OpenFile, incarnation: u64) -> Option<Header> {
    let mut newest: Option<Header> = None;
    for copy in 0..COPIES {
        // One read for each: a copy that cannot be read must not hide the other.
        let block = file.read(copy * BLOCK as u64, BLOCK).await.ok();
        let intact = block.and_then(|block| Header::decode(&block, file.size()));
        let intact = intact.filter(|h| h.incarnation == incarnation);
        if intact.is_some_and(|h| newest.is_none_or(|other| other.number < h.number)) {
            newest = intact;
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Header {
        Header {
            incarnation: 1,
            number: 2,
            sequence: 3,
            chain: 4,
            part: Part { body_bytes: 300_000, table_hash: 6, ..Part::default() },
            replaces: true,
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_format_document() {
        let block = example().encode();
        assert_eq!(&block[0..8], b"CAIRN.CP");
        assert_eq!(block[8..12], 2u32.to_le_bytes(), "version");
        assert_eq!(block[32..40], 1u64.to_le_bytes(), "incarnation");
        assert_eq!(block[40..48], 2u64.to_le_bytes(), "number");
        assert_eq!(block[48..56], 3u64.to_le_bytes(), "sequence");
        assert_eq!(block[56..72], 4u128.to_le_bytes(), "chain");
        assert_eq!(block[72..80], 300_000u64.to_le_bytes(), "body bytes");
        assert_eq!(block[80..96], 6u128.to_le_bytes(), "table hash");
        assert_eq!(block[96..100], 1u32.to_le_bytes(), "replaces");
        assert_eq!(example().part.chunks(), 2);
        assert_eq!(example().part.table_at(), 8192 + 303_104);
        assert_eq!(example().area_bytes(), 8192 + 303_104 + 4096);
        let block = of_changes().encode();
        assert_eq!(block[8..12], 3u32.to_le_bytes(), "version");
        assert_eq!(block[32..100], example().encode()[32..100]);
        assert_eq!(block[100..108], 40_960u64.to_le_bytes(), "where the newest part begins");
        assert_eq!(of_changes().area_bytes(), 40_960 + 303_104 + 4096);
        assert_eq!(Header::decode(&block, of_changes().area_bytes()), Some(of_changes()));
        assert_eq!(Header::decode(&block, of_changes().area_bytes() - 1), None);
    }

    /// The same with a newest part of changes.
    fn of_changes() -> Header {
        let part = Part { at: 40_960, changes: true, ..example().part };
        Header { part, ..example() }
    }

    #[test]
    fn a_body_larger_than_its_area_is_refused() {
        let block = example().encode();
        assert_eq!(Header::decode(&block, example().area_bytes()), Some(example()));
        assert_eq!(Header::decode(&block, example().area_bytes() - 1), None);
        let whole = Part { body_bytes: u64::MAX, ..Part::default() };
        let changes = Part { at: u64::MAX - 4095, ..of_changes().part };
        for part in [whole, changes, Part { at: 40_961, ..changes }, Part { at: 4096, ..changes }] {
            let block = Header { part, ..example() }.encode();
            assert_eq!(Header::decode(&block, 1 << 40), None, "{part:?}");
        }
    }

    #[test]
    fn any_bytes_decode_to_a_header_or_to_nothing() {
        let [whole, changes] =
            [example(), of_changes()].map(|header| cairn_fuzz::shortened(header.encode()));
        cairn_fuzz::target!("header" => whole, "changes" => changes).for_each(|bytes| {
            Header::decode(bytes, 1 << 30);
            for begins in [b"CAIRN.CP\x02\0\0\0", b"CAIRN.CP\x03\0\0\0"] {
                let forged = sealed::forge(begins, bytes, CHECKSUM_AT);
                let capacity = 1 << 30;
                let decoded = cairn_fuzz::within(2 * BLOCK, || Header::decode(&forged, capacity));
                let Some(header) = decoded else { continue };
                assert!(header.part.table_at() >= BODY_AT + header.part.body_bytes);
                assert!(header.area_bytes() <= capacity);
                let again = header.encode();
                assert_eq!(again[32..96], forged[32..96]);
                assert_eq!(Header::decode(&again, capacity), Some(header));
            }
        });
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(bit in 0usize..BLOCK * 8) {
            let mut block = example().encode();
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&block, 1 << 30), None);
        }
    }
}
