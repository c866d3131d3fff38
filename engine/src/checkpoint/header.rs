//! The bytes of a checkpoint's header: two copies in the first two blocks of its area.

use crate::codec::{Reader, sealed};
use crate::io::{BLOCK, OpenFile};
use bytes::BufMut;

const MAGIC: [u8; 8] = *b"CAIRN.CP";
const VERSION: u32 = 2;
const CHECKSUM_AT: usize = 16;
/// Copies of the header.
pub(crate) const COPIES: u64 = 2;
/// Where the body begins in its area.
pub(crate) const BODY_AT: u64 = COPIES * BLOCK as u64;
/// Bytes of body under one hash of the chunk table.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
/// Bytes of one hash in the chunk table.
pub(crate) const HASH_BYTES: u64 = 16;

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
    pub body_bytes: u64,
    /// The hash of the chunk table, which holds the hash of every chunk of the body.
    pub table_hash: u128,
    /// It is the first to hold a snapshot that replaced the state: no older checkpoint leads to it.
    pub replaces: bool,
}

impl Header {
    pub(crate) fn chunks(&self) -> u64 {
        self.body_bytes.div_ceil(CHUNK_BYTES as u64)
    }

    /// Where the chunk table begins in the area.
    pub(crate) fn table_at(&self) -> u64 {
        BODY_AT + self.body_bytes.next_multiple_of(BLOCK as u64)
    }

    /// Bytes of the area that a checkpoint with this body uses.
    pub(crate) fn area_bytes(&self) -> u64 {
        self.table_at() + (self.chunks() * HASH_BYTES).next_multiple_of(BLOCK as u64)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BLOCK);
        out.put_slice(&MAGIC);
        out.put_u32_le(VERSION);
        out.put_u32_le(0);
        out.put_u128_le(0);
        out.put_u64_le(self.incarnation);
        out.put_u64_le(self.number);
        out.put_u64_le(self.sequence);
        out.put_u128_le(self.chain);
        out.put_u64_le(self.body_bytes);
        out.put_u128_le(self.table_hash);
        out.put_u32_le(u32::from(self.replaces));
        out.resize(BLOCK, 0);
        sealed::seal(&mut out, CHECKSUM_AT);
        out
    }

    /// `None` for anything but an intact header of an area of `capacity` bytes.
    pub(crate) fn decode(block: &[u8], capacity: u64) -> Option<Header> {
        let mut r = Reader::new(block);
        if r.bytes(8)? != MAGIC || r.u32()? != VERSION {
            return None;
        }
        sealed::verify(block, CHECKSUM_AT)?;
        r.u32()?;
        r.u128()?;
        let header = Header {
            incarnation: r.u64()?,
            number: r.u64()?,
            sequence: r.u64()?,
            chain: r.u128()?,
            body_bytes: r.u64()?,
            table_hash: r.u128()?,
            replaces: r.u32()? == 1,
        };
        (header.body_bytes <= capacity && header.area_bytes() <= capacity).then_some(header)
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
            body_bytes: 300_000,
            table_hash: 6,
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
        assert_eq!(example().chunks(), 2);
        assert_eq!(example().table_at(), 8192 + 303_104);
        assert_eq!(example().area_bytes(), 8192 + 303_104 + 4096);
    }

    #[test]
    fn a_body_larger_than_its_area_is_refused() {
        let block = example().encode();
        assert_eq!(Header::decode(&block, example().area_bytes()), Some(example()));
        assert_eq!(Header::decode(&block, example().area_bytes() - 1), None);
        let huge = Header { body_bytes: u64::MAX, ..example() }.encode();
        assert_eq!(Header::decode(&huge, 1 << 40), None);
    }

    #[test]
    fn any_bytes_decode_to_a_header_or_to_nothing() {
        let seed = cairn_fuzz::shortened(example().encode());
        cairn_fuzz::target!("header" => seed).for_each(|bytes| {
            Header::decode(bytes, 1 << 30);
            let forged = sealed::forge(b"CAIRN.CP\x02\0\0\0", bytes, CHECKSUM_AT);
            let capacity = 1 << 30;
            let decoded = cairn_fuzz::within(2 * BLOCK, || Header::decode(&forged, capacity));
            let Some(header) = decoded else { return };
            assert!(header.table_at() >= BODY_AT + header.body_bytes);
            assert!(header.area_bytes() <= capacity);
            let again = header.encode();
            assert_eq!(again[32..96], forged[32..96]);
            assert_eq!(Header::decode(&again, capacity), Some(header));
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
