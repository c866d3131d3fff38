//! A member whose directory is damaged: until when it is left as it is.

use super::members::Members;
use super::*;
use crate::core::types;
use crate::durability::is_most_up_to_date;
use crate::storage::log_store::encode_vote;
use crate::storage::tests::{HeldDirectory, Hold};
use cairn_engine::{Engine, GroupId, KernelBootId, MemberState, NewEntry, Options, Promise};
use std::sync::Arc;

const VOTED: u64 = 5;

fn leadership(term: u64) -> types::Vote {
    types::Vote::new_committed(term, other())
}

/// Member 1.1, which voted for the leader of term 5. Neither of its checkpoints can be used.
async fn damaged() -> (TempDir, Replica) {
    let (folder, replica, _hold) = damaged_to_hold().await;
    (folder, replica)
}

async fn damaged_to_hold() -> (TempDir, Replica, Hold) {
    let folder = tempfile::tempdir().unwrap();
    {
        let engine = engine(&folder).await;
        engine.save_vote(GROUP, &encode_vote(&leadership(VOTED))).await.unwrap();
        engine.close().await.unwrap();
    }
    for area in ["checkpoint.0", "checkpoint.1"] {
        damage(&folder, area, 8192);
    }
    let (replica, hold) = salvaged(&folder).await;
    (folder, replica, hold)
}

fn damage(folder: &TempDir, file: &str, at: usize) {
    let path = folder.path().join(file);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at..at + 8].fill(0x5a);
    std::fs::write(&path, bytes).unwrap();
}

async fn salvaged(folder: &TempDir) -> (Replica, Hold) {
    let (directory, hold) = HeldDirectory::open(folder.path());
    let options = Options { salvage: true, ..Options::new(Mode::Device, KernelBootId(1), 2) };
    let engine = Engine::open(Arc::new(directory), None, options).await.unwrap();
    assert_eq!(engine.member_state(), MemberState::Recovering);
    (of_two(engine).await.0, hold)
}

fn files(folder: &TempDir) -> Vec<Vec<u8>> {
    let files = ["journal", "checkpoint.0", "checkpoint.1", "data"];
    files.map(|file| std::fs::read(folder.path().join(file)).unwrap()).to_vec()
}

/// A leader that an earlier term elected may lack what this member acknowledged to a later one.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_directory_is_overwritten_for_no_leader_of_an_earlier_term_than_its_vote() {
    let (folder, replica) = damaged().await;
    let (member, before) = (&replica.inner.member, files(&folder));
    // It goes on, and openraft refuses that leader and tells it the later term.
    assert!(member.begins_to_write(other(), &leadership(VOTED - 1)).await);
    assert!(replica.engine().damage().is_some());
    assert!(files(&folder) == before);
    assert!(member.begins_to_write(other(), &leadership(VOTED)).await);
    assert_eq!(replica.engine().damage(), None);
    assert!(files(&folder) != before);
    let copy = folder.path().join("set-aside.2");
    assert!(std::fs::read(copy.join("journal")).unwrap() == before[0], "the copy");
}

/// An operator, or the configuration, accepts what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn the_candidate_of_an_unsafe_recovery_begins_to_write_its_damaged_directory() {
    let (folder, replica) = damaged().await;
    let before = files(&folder);
    let of = |candidate| UnsafeRecovery { candidate, epoch: replica.engine().boot_epoch() };
    replica.unsafe_recovery(of(other())).await.unwrap();
    assert!(replica.engine().damage().is_some() && files(&folder) == before);
    replica.unsafe_recovery(of(replica.node_id())).await.unwrap();
    assert_eq!(replica.engine().damage(), None);
}

/// The story: the candidate looked for a longer log and for a leader, and then copied its damaged
/// directory for seconds. What returned meanwhile was outvoted.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_returns_while_the_candidate_copies_its_directory_ends_the_unsafe_recovery() {
    let (_folder, replica, hold) = damaged_to_hold().await;
    let grant =
        UnsafeRecovery { candidate: replica.node_id(), epoch: replica.engine().boot_epoch() };
    let member = &replica.inner.member;
    hold.begin();
    let meanwhile = async {
        hold.holds_something().await;
        member.takes_appends(other(), leadership(VOTED)).unwrap_err();
        hold.end();
    };
    let (answer, ()) = tokio::join!(replica.unsafe_recovery(grant), meanwhile);
    assert!(answer.unwrap_err().contains("a leader is alive"));
    assert_eq!(member.standing().grant(runtime::now()), None);
}

/// The story: as above, but it is a voter that returns, and holds what was written since.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_grows_while_the_candidate_copies_its_directory_ends_the_unsafe_recovery() {
    let members = Members::started().await;
    let leader = members.leader();
    let last = |one: &Replica| one.engine().log_bounds(GROUP).last;
    members.settled().await;
    let mut candidates = members.replicas.iter().enumerate().take(2);
    let (number, lost) = candidates.find(|(_, one)| one.node_id() != leader.node_id()).unwrap();
    // The last block but one of its journal is damaged, and holds nothing of the log.
    let append_elsewhere = async |index| {
        let (done, synced) = futures::channel::oneshot::channel();
        let done = Box::new(move |result| drop(done.send(result)));
        let id = LogId { term: 1, index };
        let entry = NewEntry { id, meta: "elsewhere".into(), values: Vec::new() };
        lost.engine().append(GroupId(1), vec![entry], Promise::Synced, done).await.unwrap();
        synced.await.unwrap().unwrap();
    };
    let before = members.copy_of(number);
    append_elsewhere(0).await;
    let written = first_difference(&before, &members.copy_of(number));
    append_elsewhere(1).await;
    let folder = members.copy_of(number);
    lost.shutdown().await.unwrap();
    damage(&folder, "journal", written);
    let (candidate, hold) = salvaged(&folder).await;
    assert_eq!(last(&candidate), last(leader), "it lacks nothing yet");
    is_most_up_to_date(&candidate.inner.member).await.expect("the others' logs are no longer");
    let grant =
        UnsafeRecovery { candidate: candidate.node_id(), epoch: candidate.engine().boot_epoch() };
    hold.begin();
    let meanwhile = async {
        hold.holds_something().await;
        super::hand_over::takes_a_write(leader).await;
        hold.end();
    };
    let (answer, ()) = tokio::join!(candidate.unsafe_recovery(grant), meanwhile);
    assert!(answer.unwrap_err().contains("its log is more up to date"));
    assert_eq!(candidate.inner.member.standing().grant(runtime::now()), None);
}

/// Where their journals differ first.
fn first_difference(one: &TempDir, other: &TempDir) -> usize {
    let [one, other] = [one, other].map(|of| std::fs::read(of.path().join("journal")).unwrap());
    one.iter().zip(&other).position(|(one, other)| one != other).unwrap()
}
