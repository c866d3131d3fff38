//! The bytes of one commit block.

use crate::codec::{Reader, sealed};
use crate::io::BLOCK;
use bytes::BufMut;

const MAGIC: [u8; 4] = *b"CRNJ";
const VERSION: u16 = 2;
const CHECKSUM_AT: usize = 8;
const HEADER_BYTES: usize = 96;
/// Bytes of records that fit into one block.
pub(crate) const PAYLOAD_BYTES: usize = BLOCK - HEADER_BYTES;

/// The header of a commit block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// The directory's incarnation: a block of another directory is not ours.
    pub incarnation: u64,
    /// The boot epoch that wrote it.
    pub epoch: u64,
    pub sequence: u64,
    /// The checksum of block `sequence - 1`.
    pub previous: u128,
    /// Everything up to this sequence was written when this block was made.
    pub written: u64,
    /// Everything up to this sequence was synced when this block was made.
    pub synced: u64,
    /// The values that blocks up to this sequence carry are at their places once the group commit
    /// of this block is written.
    pub placed: u64,
}

/// What a block holds beside its header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Payload {
    pub bytes: Vec<u8>,
    /// How many of the bytes continue a record that began in an earlier block.
    pub continued: usize,
}

/// A block read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub header: Header,
    pub checksum: u128,
    pub payload: Payload,
}

impl Block {
    /// `None` for anything but an intact block.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Block> {
        let mut r = Reader::new(bytes);
        if r.bytes(4)? != MAGIC || r.u16()? != VERSION {
            return None;
        }
        let used = usize::from(r.u16()?);
        let checksum = sealed::verify(bytes, CHECKSUM_AT)?;
        r.u128()?;
        let mut header = Header {
            incarnation: r.u64()?,
            epoch: r.u64()?,
            sequence: r.u64()?,
            previous: r.u128()?,
            written: r.u64()?,
            synced: r.u64()?,
            placed: 0,
        };
        let continued = usize::from(r.u16()?);
        r.bytes(6)?;
        header.placed = r.u64()?;
        let bytes = bytes.get(HEADER_BYTES..)?.get(..used)?.to_vec();
        let payload = Payload { bytes, continued };
        (continued <= used).then_some(Block { header, checksum, payload })
    }
}

/// Writes `header` and `payload` into `block`, zeros behind them, and returns the checksum.
pub(crate) fn encode_into(block: &mut [u8], header: &Header, payload: &Payload) -> u128 {
    let Payload { bytes, continued } = payload;
    let mut head = Vec::with_capacity(HEADER_BYTES);
    head.put_slice(&MAGIC);
    head.put_u16_le(VERSION);
    head.put_u16_le(bytes.len() as u16);
    head.put_u128_le(0);
    head.put_u64_le(header.incarnation);
    head.put_u64_le(header.epoch);
    head.put_u64_le(header.sequence);
    head.put_u128_le(header.previous);
    head.put_u64_le(header.written);
    head.put_u64_le(header.synced);
    head.put_u16_le(*continued as u16);
    head.put_bytes(0, 6);
    head.put_u64_le(header.placed);
    assert!(head.len() == HEADER_BYTES, "a header of {} bytes", head.len());
    assert!(bytes.len() <= PAYLOAD_BYTES, "a journal payload of {} bytes", bytes.len());
    let mut rest = &mut *block;
    for part in [head.as_slice(), bytes] {
        let (place, behind) = rest.split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = behind;
    }
    rest.fill(0);
    sealed::seal(block, CHECKSUM_AT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            incarnation: 1,
            epoch: 2,
            sequence: 3,
            previous: 4,
            written: 5,
            synced: 6,
            placed: 7,
        }
    }

    fn payload(bytes: &[u8], continued: usize) -> Payload {
        Payload { bytes: bytes.to_vec(), continued }
    }

    #[test]
    fn the_bytes_are_those_of_the_format_document() {
        let mut block = vec![0xff; BLOCK];
        block[HEADER_BYTES..].fill(0);
        let checksum = encode_into(&mut block, &header(), &payload(b"records", 2));
        assert_eq!(&block[0..4], b"CRNJ");
        assert_eq!(block[4..6], 2u16.to_le_bytes(), "version");
        assert_eq!(block[6..8], 7u16.to_le_bytes(), "payload length");
        assert_eq!(block[8..24], checksum.to_le_bytes(), "checksum");
        assert_eq!(block[24..32], 1u64.to_le_bytes(), "incarnation");
        assert_eq!(block[32..40], 2u64.to_le_bytes(), "epoch");
        assert_eq!(block[40..48], 3u64.to_le_bytes(), "sequence");
        assert_eq!(block[48..64], 4u128.to_le_bytes(), "previous");
        assert_eq!(block[64..72], 5u64.to_le_bytes(), "written");
        assert_eq!(block[72..80], 6u64.to_le_bytes(), "synced");
        assert_eq!(block[80..82], 2u16.to_le_bytes(), "bytes that continue a record");
        assert_eq!(&block[82..88], [0; 6]);
        assert_eq!(block[88..96], 7u64.to_le_bytes(), "placed");
        assert_eq!(&block[96..103], b"records");
    }

    #[test]
    fn nothing_stays_in_a_block_of_what_it_held_before() {
        let mut block = vec![0xee; BLOCK];
        encode_into(&mut block, &header(), &payload(b"records", 0));
        assert!(block[HEADER_BYTES + 7..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn any_bytes_decode_to_a_block_or_to_nothing() {
        let mut block = vec![0; BLOCK];
        encode_into(&mut block, &header(), &payload(b"records", 2));
        let full =
            |block: &mut [u8]| encode_into(block, &header(), &payload(&[7; PAYLOAD_BYTES], 9));
        let seed = cairn_fuzz::shortened(block.clone());
        cairn_fuzz::target!("block" => seed, "full" => { full(&mut block); block }).for_each(
            |bytes| {
                Block::decode(bytes);
                let forged = sealed::forge(b"CRNJ\x02\0", bytes, CHECKSUM_AT);
                let decoded = cairn_fuzz::within(3 * BLOCK, || Block::decode(&forged));
                let used = usize::from(u16::from_le_bytes([forged[6], forged[7]]));
                let continued = usize::from(u16::from_le_bytes([forged[80], forged[81]]));
                assert_eq!(decoded.is_some(), used <= PAYLOAD_BYTES && continued <= used);
                let Some(block) = decoded else { return };
                let mut again = vec![0; BLOCK];
                let checksum = encode_into(&mut again, &block.header, &block.payload);
                assert_eq!(again[24..82], forged[24..82], "the header");
                assert_eq!(
                    again[HEADER_BYTES..][..used],
                    forged[HEADER_BYTES..][..used],
                    "the payload"
                );
                assert_eq!(Block::decode(&again), Some(Block { checksum, ..block }));
            },
        );
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(bytes in prop::collection::vec(any::<u8>(), 0..PAYLOAD_BYTES)) {
            let payload = payload(&bytes, bytes.len() / 2);
            let mut block = vec![0; BLOCK];
            let checksum = encode_into(&mut block, &header(), &payload);
            prop_assert_eq!(Block::decode(&block), Some(Block { header: header(), checksum, payload }));
        }

        #[test]
        fn any_flipped_bit_is_noticed(bit in 0usize..BLOCK * 8) {
            let mut block = vec![0; BLOCK];
            encode_into(&mut block, &header(), &payload(b"abc", 0));
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Block::decode(&block), None);
        }
    }
}
