//! What a part of a scan may hold.
//!
//! What holds here: its keys are counted before they are decoded. The server may be another one than the client takes it
//! for, and an empty key has two encoded bytes: the longest message would be gigabytes of them.

use real_tonic::Status;

use super::{Bounded, fields, too_many};
use crate::proto;

/// Most keys of one part. A server sends up to 8192.
const MOST_ITEMS: usize = 16_384;

/// Numbers of the fields that hold them.
const SCAN_ITEMS: u64 = 2;
const ITEMS: u64 = 1;

impl Bounded for proto::ScanPart {
    fn check(encoded: &[u8]) -> Result<(), Status> {
        let count = items(encoded);
        match count <= MOST_ITEMS {
            true => Ok(()),
            false => Err(too_many("keys", count, MOST_ITEMS)),
        }
    }
}

/// How many keys it has at most.
fn items(encoded: &[u8]) -> usize {
    let mut count = 0;
    fields(encoded, |field, items| {
        if field == SCAN_ITEMS {
            fields(items, |field, _| count += usize::from(field == ITEMS));
        }
    });
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::scan_part::Kind;
    use prost::Message;
    use real_tonic::Code;

    fn encoded(kind: Kind) -> Vec<u8> {
        proto::ScanPart { kind: Some(kind) }.encode_to_vec()
    }

    fn piece(keys: usize) -> Vec<u8> {
        encoded(Kind::Items(proto::ScanItems { items: vec![proto::KeyValue::default(); keys] }))
    }

    #[test]
    fn a_part_with_more_keys_than_a_server_sends_is_refused_before_it_is_decoded() {
        let judged = |bytes: &[u8]| proto::ScanPart::check(bytes).map_err(|status| status.code());
        assert_eq!(judged(&piece(MOST_ITEMS)), Ok(()));
        assert_eq!(judged(&piece(MOST_ITEMS + 1)), Err(Code::InvalidArgument));
        let repeated = [piece(MOST_ITEMS), piece(1)].concat();
        assert_eq!(judged(&repeated), Err(Code::InvalidArgument), "a field may be there twice");
    }

    /// Counting allocates nothing but the error at bytes that are not a message.
    const PROST_ERROR: usize = 256;

    #[test]
    fn any_bytes_hold_no_more_keys_of_a_scan_than_were_counted() {
        cairn_fuzz::target!(
            "items" => piece(3),
            "position" => encoded(Kind::At(proto::Position { term: 2, index: 9 })),
            "end" => encoded(Kind::End(proto::ScanEnd { keys: 7 })),
        )
        .for_each(|bytes| {
            let counted = cairn_fuzz::within(PROST_ERROR, || items(bytes));
            let most = 256 * bytes.len() + 4096;
            let part = cairn_fuzz::within(most, || proto::ScanPart::decode(bytes).ok());
            let held = match part.and_then(|part| part.kind) {
                Some(Kind::Items(items)) => items.items.len(),
                _ => 0,
            };
            assert!(counted >= held);
            assert_eq!(proto::ScanPart::check(bytes).is_ok(), counted <= MOST_ITEMS);
        });
    }
}
