//! How often the members are asked which of them may be stopped.

use super::members::{Members, leads};
use super::*;
use crate::transport::StopVerdict;
use futures::future::join_all;

const CALLERS: usize = 64;

/// How often other members have asked this one so.
fn asked(replica: &Replica, method: &str) -> u64 {
    let mut requests = replica.inner.service.requests();
    requests.find(|(name, _)| *name == method).map_or(0, |(_, count)| count)
}

fn of_all(answers: &[Result<Vec<StopVerdict>, String>]) -> bool {
    let of_all = |answer: &Result<Vec<_>, _>| answer.as_ref().is_ok_and(|of| of.len() == 3);
    answers.len() == CALLERS && answers.iter().all(of_all)
}

/// The story: whoever reached the HTTP port of a follower had it open a connection to the leader with
/// each request, and the leader one to each member, all on the threads that replicate.
#[tokio::test(flavor = "multi_thread")]
async fn callers_share_a_survey_and_so_do_the_members_that_ask_the_leader() {
    let members = Members::started().await;
    let leader = members.leader();
    let follower = members.replicas.iter().find(|one| !leads(one)).unwrap();
    let hears = |one: &Replica| one.node_id() == follower.node_id() && one.leader_contact().is_ok();
    members.until("it hears the leader", |one| hears(one).then_some(())).await;

    // An answer of the leader may come too late on a busy machine.
    loop {
        let before = asked(leader, "SAFE_TO_STOP");
        let answers = join_all((0..CALLERS).map(|_| follower.stop_verdicts())).await;
        // One, unless this test was kept from enqueuing them at once.
        let questions = asked(leader, "SAFE_TO_STOP") - before;
        if of_all(&answers) {
            assert!(questions < 10, "the leader was asked {questions} times");
            break;
        }
    }
    loop {
        let before = asked(follower, "HELLO");
        let surveys = &leader.inner.service.surveys;
        let answers = join_all((0..CALLERS).map(|_| surveys.answer())).await;
        // Other tasks say hello now and then.
        let questions = asked(follower, "HELLO") - before;
        if of_all(&answers) {
            assert!(questions < 32, "a member was asked {questions} times");
            break;
        }
    }
}
