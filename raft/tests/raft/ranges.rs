//! Ranges of one state are read and counted piece by piece, whatever is written meanwhile.

use crate::support::Cluster;
use cairn_raft::{KeyRange, StateReader};

fn names(range: &KeyRange) -> Vec<String> {
    let names = range.items.iter().map(|item| String::from_utf8_lossy(&item.key).into_owned());
    names.collect()
}

/// All keys of a range, in pieces of so many keys and bytes, and how many pieces there were.
async fn pieces(
    state: &StateReader,
    (start, end): (&str, &str),
    most: (usize, u64),
) -> (Vec<String>, usize) {
    let (mut from, mut keys, mut pieces) = (start.as_bytes().to_vec(), Vec::new(), 0);
    loop {
        let listed = state.listed_between((&from, end.as_bytes()), most, true);
        assert!(listed.items.iter().all(|item| item.value.is_none()), "nothing is read yet");
        let range = state.with_values(listed).await.unwrap();
        assert!(range.items.len() <= most.0);
        for item in &range.items {
            assert_eq!(item.value.as_deref(), Some(&b"value"[..]));
        }
        keys.extend(names(&range));
        pieces += 1;
        match range.items.last() {
            Some(last) if !range.last => from = [&last.key[..], &[0]].concat(),
            _ => return (keys, pieces),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_of_a_state_stays_as_it_was_in_pieces_of_any_size() {
    let cluster = Cluster::started(1, |_| ()).await;
    for number in 0..9 {
        cluster.put(&format!("k{number}"), "value").await;
    }
    let state = cluster.leader().await.state();
    for number in 3..12 {
        cluster.overwrite(&format!("k{number}"), "a later value").await;
    }
    let all: Vec<String> = (0..9).map(|number| format!("k{number}")).collect();
    for (most, expected) in [((100, 1 << 20), 1), ((4, 1 << 20), 3), ((100, 14), 5), ((100, 1), 9)]
    {
        assert_eq!(pieces(&state, ("", ""), most).await, (all.clone(), expected), "{most:?}");
    }
    let (some, _) = pieces(&state, ("k2", "k5"), (2, 1 << 20)).await;
    assert_eq!(some, all[2..5]);
    let (none, count) = pieces(&state, ("k9", ""), (2, 1 << 20)).await;
    assert_eq!((none.len(), count), (0, 1));
    let keys = state.listed_between((b"k7", b""), (100, 4), false);
    assert_eq!(names(&keys), all[7..], "without the bytes of their values");
    assert!(keys.last && keys.items.iter().all(|item| item.value.is_none()));

    assert_eq!(state.count_between(b"", b"", 100), (9, None));
    assert_eq!(state.count_between(b"k2", b"k5", 3), (3, None));
    assert_eq!(state.count_between(b"k2", b"k5", 2), (2, Some("k4".into())));
    assert_eq!(state.count_between(b"k9", b"", 2), (0, None));
}
