//! Sessions: a retry gets the first result, is never applied a second time, and an evicted session
//! says so.

use super::super::image::Image;
use super::*;
use crate::core::command::OperationResult;
use cairn_engine::MachineImage;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn stored(
    client_id: u128,
    sequence: u64,
    lowest_pending: u64,
    base_index: u64,
    max: u64,
) -> StoredSession {
    StoredSession {
        session: Session { client_id, sequence, lowest_pending, base_index },
        max_sessions: max,
    }
}

fn recorded(index: u64) -> Arc<WriteOutcome> {
    let results = vec![OperationResult {
        condition_held: true,
        existed: index.is_multiple_of(2),
        version: index,
        ..OperationResult::default()
    }];
    Arc::new(WriteOutcome { log_id: LogId { term: 1, index }, applied: true, results })
}

/// Checks a command, and records it if it is new, as apply does.
fn write(sessions: &mut Sessions, index: u64, stored: StoredSession) -> SessionCheck {
    let check = sessions.check(index, &stored);
    if check == SessionCheck::New {
        sessions.record(&stored, recorded(index));
    }
    check
}

#[test]
fn a_repeat_is_answered_with_the_first_result() {
    let mut sessions = Sessions::default();
    assert_eq!(write(&mut sessions, 10, stored(1, 1, 1, 9, 100)), SessionCheck::New);
    assert_eq!(write(&mut sessions, 11, stored(1, 2, 1, 9, 100)), SessionCheck::New);
    assert_eq!(
        write(&mut sessions, 12, stored(1, 1, 1, 9, 100)),
        SessionCheck::Repeated(recorded(10))
    );
    assert_eq!(
        write(&mut sessions, 13, stored(1, 2, 1, 9, 100)),
        SessionCheck::Repeated(recorded(11))
    );
}

#[test]
fn sequences_may_come_out_of_order() {
    let mut sessions = Sessions::default();
    assert_eq!(write(&mut sessions, 10, stored(1, 5, 1, 9, 100)), SessionCheck::New);
    assert_eq!(write(&mut sessions, 11, stored(1, 3, 1, 9, 100)), SessionCheck::New);
    assert_eq!(
        write(&mut sessions, 12, stored(1, 5, 1, 9, 100)),
        SessionCheck::Repeated(recorded(10))
    );
    assert_eq!(
        write(&mut sessions, 13, stored(1, 3, 1, 9, 100)),
        SessionCheck::Repeated(recorded(11))
    );
}

#[test]
fn a_result_below_lowest_pending_is_dropped_and_its_write_is_never_applied_again() {
    let mut sessions = Sessions::default();
    assert_eq!(write(&mut sessions, 10, stored(1, 1, 1, 9, 100)), SessionCheck::New);
    assert_eq!(write(&mut sessions, 11, stored(1, 2, 2, 9, 100)), SessionCheck::New);
    assert_eq!(write(&mut sessions, 12, stored(1, 1, 1, 9, 100)), SessionCheck::Expired);
}

/// The story: few clients, and each one's last writes had many results that it did not let the
/// table drop. The table was below its limit of thousands of clients, but no longer fitted into a
/// message: no snapshot could be sent.
#[test]
fn the_table_is_bounded_in_bytes_and_evicts_the_least_recently_used() {
    let many = |index| {
        let result = OperationResult {
            condition_held: true,
            existed: true,
            version: u64::MAX,
            ..OperationResult::default()
        };
        Arc::new(WriteOutcome {
            log_id: LogId { term: u64::MAX, index },
            applied: true,
            results: vec![result; 128],
        })
    };
    let mut sessions = Sessions::default();
    for index in 1..=20_000_u64 {
        let (client, sequence) = (u128::from(index % 40), index / 40 + 1);
        let stored = stored(client, sequence, 1, index - 1, 1000);
        if sessions.check(index, &stored) == SessionCheck::New {
            sessions.record(&stored, many(index));
        }
    }
    let encoded: usize = sessions.to_proto().1.iter().map(prost::Message::encoded_len).sum();
    assert!(encoded as u64 <= sessions.bytes() && sessions.bytes() <= 1000 * BYTES_PER_SESSION);
    assert!(encoded as u64 > sessions.bytes() / 4 * 3, "{encoded} of {}", sessions.bytes());
    assert!(sessions.evicted_through > 0, "a session was evicted");
    assert_eq!(
        sessions.check(20_001, &stored(0, 600, 1, 20_000, 1000)),
        SessionCheck::New,
        "the last to write"
    );
    let (evicted_through, clients) = sessions.to_proto();
    assert_eq!(Sessions::from_proto(evicted_through, clients), Ok(sessions));
}

/// If every result counted for more since it may have two more fields, a member that runs the build before
/// would count less. It would keep a session that the others evict, and answer its retry otherwise.
#[test]
fn a_result_of_a_range_is_counted_with_what_it_adds_and_any_other_one_as_by_the_build_before() {
    let counted = |results: Vec<OperationResult>| {
        let log_id = LogId { term: u64::MAX, index: u64::MAX };
        let mut sessions = Sessions::default();
        let stored = stored(u128::MAX, u64::MAX, u64::MAX, 1, 100);
        assert_eq!(sessions.check(u64::MAX, &stored), SessionCheck::New);
        sessions.record(&stored, Arc::new(WriteOutcome { log_id, applied: true, results }));
        let encoded: usize = sessions.to_proto().1.iter().map(prost::Message::encoded_len).sum();
        assert!(encoded as u64 <= sessions.bytes(), "{encoded} of {}", sessions.bytes());
        sessions.bytes()
    };
    let one = OperationResult {
        condition_held: true,
        existed: true,
        version: u64::MAX,
        ..Default::default()
    };
    let alone = counted(vec![]);
    assert_eq!(counted(vec![one; 3]), alone + 3 * 20);
    let range = OperationResult { deleted: u32::MAX, more: true, ..one };
    assert_eq!(counted(vec![one, range]), alone + 2 * 20 + 8);
    let refused = OperationResult { more: true, ..Default::default() };
    assert_eq!(counted(vec![refused]), alone + 20 + 8);
}

#[test]
fn a_sequence_below_its_own_lowest_pending_is_refused() {
    let mut sessions = Sessions::default();
    assert_eq!(write(&mut sessions, 10, stored(1, 1, 2, 9, 100)), SessionCheck::Expired);
}

#[test]
fn more_results_than_are_kept_expire_from_the_lowest_on() {
    let mut sessions = Sessions::default();
    for sequence in 1..=MAX_RESULTS as u64 + 1 {
        assert_eq!(
            write(&mut sessions, sequence, stored(1, sequence, 1, 0, 100)),
            SessionCheck::New
        );
    }
    assert_eq!(write(&mut sessions, 5000, stored(1, 1, 1, 0, 100)), SessionCheck::Expired);
    assert_eq!(
        write(&mut sessions, 5001, stored(1, 2, 1, 0, 100)),
        SessionCheck::Repeated(recorded(2))
    );
}

#[test]
fn the_least_recently_used_session_is_evicted_and_its_repeat_is_not_applied() {
    let mut sessions = Sessions::default();
    assert_eq!(write(&mut sessions, 10, stored(1, 1, 1, 9, 2)), SessionCheck::New);
    assert_eq!(write(&mut sessions, 11, stored(2, 1, 1, 9, 2)), SessionCheck::New);
    assert_eq!(write(&mut sessions, 12, stored(1, 2, 1, 9, 2)), SessionCheck::New);
    // The third client evicts client 2, last used at 11.
    assert_eq!(write(&mut sessions, 13, stored(3, 1, 1, 12, 2)), SessionCheck::New);
    assert_eq!(sessions.len(), 2);
    assert_eq!(write(&mut sessions, 14, stored(2, 1, 1, 9, 2)), SessionCheck::Expired);
    assert_eq!(
        write(&mut sessions, 15, stored(1, 2, 1, 9, 2)),
        SessionCheck::Repeated(recorded(12))
    );
}

#[test]
fn an_expired_client_leaves_no_trace() {
    let mut sessions = Sessions::default();
    for client in 1..=3 {
        write(&mut sessions, 10 + client as u64, stored(client, 1, 1, 9 + client as u64, 2));
    }
    let before = sessions.clone();
    assert_eq!(write(&mut sessions, 20, stored(1, 2, 1, 5, 2)), SessionCheck::Expired);
    assert_eq!(sessions, before);
}

#[test]
fn an_evicted_client_can_begin_a_new_session() {
    let mut sessions = Sessions::default();
    write(&mut sessions, 10, stored(1, 1, 1, 9, 1));
    write(&mut sessions, 11, stored(2, 1, 1, 10, 1));
    assert_eq!(write(&mut sessions, 12, stored(1, 7, 7, 11, 1)), SessionCheck::New);
}

/// The story: a client saw index 1000, an unsafe recovery discarded what came after 900, and the
/// client's write was applied at 905, but its answer was lost. The client was evicted. Its base lay
/// after every eviction, and its retry was applied again.
#[test]
fn a_base_in_a_discarded_history_expires_writes_until_the_log_has_passed_it() {
    let mut sessions = Sessions::default();
    let before = sessions.clone();
    for index in [905, 1000] {
        assert_eq!(write(&mut sessions, index, stored(1, 1, 1, 1000, 1)), SessionCheck::Expired);
        assert_eq!(sessions, before, "it leaves no trace");
    }
    // The log has passed the base: an eviction from here on is newer than the base.
    assert_eq!(write(&mut sessions, 1001, stored(1, 1, 1, 1000, 1)), SessionCheck::New);
    assert_eq!(write(&mut sessions, 1002, stored(2, 1, 1, 1001, 1)), SessionCheck::New);
    assert_eq!(write(&mut sessions, 1003, stored(1, 1, 1, 1000, 1)), SessionCheck::Expired);
}

#[derive(Clone, Debug)]
struct Attempt {
    client: u128,
    sequence: u64,
    advance: u64,
}

fn attempts() -> impl Strategy<Value = Vec<Attempt>> {
    let attempt = (0u128..6, 0u64..8, 0u64..3).prop_map(|(client, sequence, advance)| Attempt {
        client,
        sequence,
        advance,
    });
    proptest::collection::vec(attempt, 0..200)
}

proptest! {
    /// Whatever is retried, dropped and evicted: no (client, sequence) is ever new twice.
    #[test]
    fn nothing_is_applied_twice(attempts in attempts(), max in 1u64..5, lost in 0u64..20) {
        let mut sessions = Sessions::default();
        let mut first = BTreeMap::new();
        // A client's base is an applied index from before its first command, and stays. It may
        // belong to a history of which the last `lost` entries were discarded since.
        let mut base = BTreeMap::new();
        let mut lowest = BTreeMap::new();
        for (index, attempt) in attempts.into_iter().enumerate() {
            let index = index as u64 + 1;
            let base_index = *base.entry(attempt.client).or_insert(index - 1 + lost);
            let lowest = lowest.entry(attempt.client).or_insert(1u64);
            *lowest += attempt.advance / 2;
            let sequence = *lowest + attempt.sequence;
            match write(&mut sessions, index, stored(attempt.client, sequence, *lowest, base_index, max)) {
                SessionCheck::New => {
                    prop_assert_eq!(first.insert((attempt.client, sequence), index), None, "applied twice");
                }
                SessionCheck::Repeated(before) => {
                    prop_assert_eq!(first.get(&(attempt.client, sequence)), Some(&before.log_id.index));
                }
                SessionCheck::Expired => {}
            }
            prop_assert!(sessions.len() as u64 <= max);
        }
    }

    #[test]
    fn an_image_is_read_back_as_it_was_written(attempts in attempts(), max in 1u64..9) {
        let mut image = Image::default();
        for (index, attempt) in attempts.into_iter().enumerate() {
            let sequence = attempt.sequence + attempt.advance;
            let session = stored(attempt.client, sequence, attempt.sequence, index as u64, max);
            write(&mut image.sessions, index as u64 + 1, session);
        }
        let bytes = image.encode();
        prop_assert_eq!(Image::decode(&bytes).unwrap(), image);
    }

    #[test]
    fn no_bytes_make_the_image_decoder_panic(bytes: Vec<u8>) {
        let _ = Image::decode(&bytes);
    }
}
