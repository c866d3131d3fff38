//! One frame as bytes.
//!
//! ```text
//!  0  crc32 of the rest of the header      16  length of the message without its values
//!  4  crc32 of the message and the table   20  number of values
//!  8  kind                                 24  bytes of all values
//!  9  code                                 32  message
//! 10  zero                                  .  table: the length of each value, 4 bytes
//! 12  number of the call                    .  the values
//! ```
//!
//! All numbers are little-endian. The values come last and as they are: they are sent from where they
//! lie, and what receives them keeps them where they arrived. A checksum of the frame does not cover
//! them: each message holds the hashes of its values, with which they are stored.

use super::methods;
use crate::core::error::Malformed;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::VecDeque;

pub(super) const HEADER_BYTES: usize = 32;
/// Of a value in the table.
const ROW_BYTES: usize = 4;
/// The most values of a frame, twice as many as an append may have: each takes eight times as much in
/// memory as in the table.
const VALUES: usize = 1 << 20;
/// A shorter value is sent with the message: a piece of its own costs more than a copy.
const COPIED_BYTES: usize = 512;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A call; its code is the method.
    Call = 1,
    /// An answer.
    Answer = 2,
    /// In place of an answer, and the last one of its call; its code is the reason's.
    Refusal = 3,
    /// The caller has no more requests, or does not wait any more; or all requests are answered.
    End = 4,
    /// A further request of an append stream.
    More = 5,
    /// The sender is still there.
    Alive = 6,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) code: u8,
    pub(super) call: u32,
    pub(super) message: Bytes,
    pub(super) values: Vec<Bytes>,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    kind: Kind,
    code: u8,
    call: u32,
    message: usize,
    values: usize,
    value_bytes: usize,
    /// Of message and table.
    crc: u32,
}

impl Header {
    /// The header at the beginning of `bytes`, of a frame of at most `most` bytes; `None` while it is
    /// incomplete.
    pub(super) fn read(bytes: &[u8], most: usize) -> Result<Option<Header>, Malformed> {
        let Some(mut bytes) = bytes.get(..HEADER_BYTES) else { return Ok(None) };
        let own = bytes.get_u32_le();
        if crc32fast::hash(bytes) != own {
            return Err(Malformed("a damaged header of a frame"));
        }
        let crc = bytes.get_u32_le();
        let kind = match bytes.get_u8() {
            1 => Kind::Call,
            2 => Kind::Answer,
            3 => Kind::Refusal,
            4 => Kind::End,
            5 => Kind::More,
            6 => Kind::Alive,
            _ => return Err(Malformed("a frame of an unknown kind")),
        };
        let code = bytes.get_u8();
        if bytes.get_u16_le() != 0 {
            return Err(Malformed("a frame with an unknown field"));
        }
        let call = bytes.get_u32_le();
        let [message, values] = [bytes.get_u32_le() as usize, bytes.get_u32_le() as usize];
        let value_bytes = usize::try_from(bytes.get_u64_le()).unwrap_or(usize::MAX);
        let header = Header { kind, code, call, message, values, value_bytes, crc };
        if header.frame_bytes() > most {
            return Err(Malformed("a frame that is too long"));
        }
        if header.values > VALUES {
            return Err(Malformed("a frame of too many values"));
        }
        Ok(Some(header))
    }

    /// Whether it is a request of an append stream.
    pub(super) fn is_append(&self) -> bool {
        self.kind == Kind::More || self.kind == Kind::Call && self.code == methods::APPEND.number()
    }

    /// The bytes of the whole frame.
    pub(super) fn frame_bytes(&self) -> usize {
        let table = self.values.saturating_mul(ROW_BYTES);
        (HEADER_BYTES + self.message).saturating_add(table).saturating_add(self.value_bytes)
    }

    /// The frame with this header, which is at the beginning of `bytes` in full.
    pub(super) fn take_frame(self, bytes: &mut BytesMut) -> Result<Frame, Malformed> {
        let mut frame = bytes.split_to(self.frame_bytes()).freeze();
        frame.advance(HEADER_BYTES);
        let covered = frame.get(..frame.len() - self.value_bytes).unwrap_or_default();
        if crc32fast::hash(covered) != self.crc {
            return Err(Malformed("a damaged message of a frame"));
        }
        let message = frame.split_to(self.message);
        let mut table = frame.split_to(self.values * ROW_BYTES);
        let mut values = Vec::with_capacity(self.values);
        while table.has_remaining() {
            let length = table.get_u32_le() as usize;
            if length > frame.len() {
                return Err(Malformed("a value beyond its frame"));
            }
            values.push(frame.split_to(length));
        }
        if !frame.is_empty() {
            return Err(Malformed("a frame with bytes of no value"));
        }
        let Header { kind, code, call, .. } = self;
        Ok(Frame { kind, code, call, message, values })
    }
}

impl Frame {
    /// Adds the frame's bytes to `pieces`. Returns how many there are.
    pub(super) fn write(self, pieces: &mut VecDeque<Bytes>) -> usize {
        let Frame { kind, code, call, message, values } = self;
        let value_bytes: usize = values.iter().map(Bytes::len).sum();
        let copied: usize =
            values.iter().map(Bytes::len).filter(|length| *length <= COPIED_BYTES).sum();
        let first = HEADER_BYTES + message.len() + values.len() * ROW_BYTES;
        let mut piece = BytesMut::with_capacity(first + copied);
        piece.put_bytes(0, HEADER_BYTES);
        piece.put_slice(&message);
        for value in &values {
            piece.put_u32_le(value.len() as u32);
        }
        let crc = crc32fast::hash(piece.get(HEADER_BYTES..).unwrap_or_default());
        if let Some(mut header) = piece.get_mut(4..HEADER_BYTES) {
            header.put_u32_le(crc);
            header.put_u8(kind as u8);
            header.put_u8(code);
            header.put_u16_le(0);
            header.put_u32_le(call);
            header.put_u32_le(message.len() as u32);
            header.put_u32_le(values.len() as u32);
            header.put_u64_le(value_bytes as u64);
        }
        let own = crc32fast::hash(piece.get(4..HEADER_BYTES).unwrap_or_default());
        if let Some(mut crc) = piece.get_mut(..4) {
            crc.put_u32_le(own);
        }
        for value in values {
            if value.len() <= COPIED_BYTES {
                piece.put_slice(&value);
                continue;
            }
            if !piece.is_empty() {
                pieces.push_back(piece.split().freeze());
            }
            pieces.push_back(value);
        }
        if !piece.is_empty() {
            pieces.push_back(piece.freeze());
        }
        first + value_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1 << 20;

    fn frame(values: &[usize]) -> Frame {
        let value = |length: &usize| Bytes::from(vec![*length as u8; *length]);
        let values = values.iter().map(value).collect();
        Frame { kind: Kind::Call, code: 7, call: 9, message: "message".into(), values }
    }

    fn bytes_of(frame: Frame) -> BytesMut {
        let mut pieces = VecDeque::new();
        let written = frame.write(&mut pieces);
        let bytes = pieces.iter().flatten().copied().collect::<BytesMut>();
        assert_eq!(bytes.len(), written);
        bytes
    }

    fn read(bytes: &mut BytesMut) -> Result<Option<Frame>, Malformed> {
        match Header::read(bytes, MOST)? {
            Some(header) if header.frame_bytes() <= bytes.len() => {
                header.take_frame(bytes).map(Some)
            }
            _ => Ok(None),
        }
    }

    #[test]
    fn a_frame_is_read_back_as_it_was_written() {
        for values in [&[][..], &[0], &[1, 512, 513, 0, 4096, 2], &[4096], &[5000, 600]] {
            let mut bytes = bytes_of(frame(values));
            bytes.extend_from_slice(b"more");
            assert_eq!(read(&mut bytes), Ok(Some(frame(values))), "{values:?}");
            assert_eq!(bytes, "more", "what follows stays");
        }
    }

    /// Large values are not copied.
    #[test]
    fn a_large_value_is_sent_from_where_it_lies() {
        let large = frame(&[4096, 100, 4096]);
        let at: Vec<_> = [0, 2].map(|value: usize| large.values[value].as_ptr()).into();
        let mut pieces = VecDeque::new();
        large.write(&mut pieces);
        let large: Vec<_> =
            pieces.iter().filter(|piece| piece.len() == 4096).map(|piece| piece.as_ptr()).collect();
        assert_eq!(large, at);
    }

    /// The values' bits are for those who know their hashes.
    #[test]
    fn a_flipped_bit_before_the_values_is_refused_wherever_it_is() {
        let sound = bytes_of(frame(&[3, 600]));
        for bit in 0..(sound.len() - 603) * 8 {
            let mut bytes = sound.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&mut bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_at_its_header() {
        let bytes = bytes_of(frame(&[MOST]));
        let header = &bytes[..HEADER_BYTES];
        assert_eq!(Header::read(header, MOST), Err(Malformed("a frame that is too long")));
        assert!(Header::read(header, 2 * MOST).is_ok());
        assert_eq!(Header::read(&bytes[..HEADER_BYTES - 1], MOST), Ok(None));
    }

    #[test]
    fn a_frame_of_too_many_values_is_refused_at_its_header() {
        let header = |values: usize| {
            let values = vec![Bytes::new(); values];
            let bytes = bytes_of(Frame { values, ..frame(&[]) });
            Header::read(&bytes[..HEADER_BYTES], 64 * MOST)
        };
        assert!(header(VALUES).is_ok());
        assert_eq!(header(VALUES + 1), Err(Malformed("a frame of too many values")));
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error() {
        cairn_fuzz::target!(
            "empty" => bytes_of(Frame { message: Bytes::new(), ..frame(&[]) }).to_vec(),
            "values" => bytes_of(frame(&[0, 9, 600])).to_vec(),
        )
        .for_each(|input| {
            let most = 4 * input.len() + 4096;
            let mut bytes = BytesMut::from(input);
            // Besides the input as it is, the same with its checksums put right.
            for sealed in [false, true] {
                if sealed {
                    bytes = BytesMut::from(input);
                    seal(&mut bytes);
                }
                let Ok(Some(frame)) = cairn_fuzz::within(most, || read(&mut bytes)) else {
                    continue;
                };
                let again = bytes_of(frame.clone());
                assert_eq!(again, input_of(input, again.len(), sealed));
                assert_eq!(read(&mut again.clone()), Ok(Some(frame)));
            }
        });
    }

    fn input_of(input: &[u8], length: usize, sealed: bool) -> BytesMut {
        let mut bytes = BytesMut::from(input);
        if sealed {
            seal(&mut bytes);
        }
        bytes.truncate(length);
        bytes
    }

    /// Puts the checksums right, as far as the lengths allow.
    fn seal(bytes: &mut [u8]) {
        let length = |at: usize| -> Option<usize> {
            Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
        };
        let (Some(message), Some(values)) = (length(16), length(20)) else { return };
        let table = HEADER_BYTES.saturating_add(message);
        let data = table.saturating_add(values.saturating_mul(ROW_BYTES));
        if data > bytes.len() {
            return;
        }
        let crc = crc32fast::hash(&bytes[HEADER_BYTES..data]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[4..HEADER_BYTES]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
}
