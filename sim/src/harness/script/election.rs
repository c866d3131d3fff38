//! Votes and leaders at the wrong moment.

use super::stage::{Played, Stage};
use super::{Scenario, five, in_mode, three_or_five};
use crate::disk::Moment;
use crate::harness::clock::virtual_time;
use crate::harness::plan::Plan;
use cairn_clients::Violation;
use cairn_engine::Mode;
use cairn_engine::io::FileKind;
use std::time::Duration;

/// Within this time the others acknowledge new writes after the leader was killed: three elections
/// with the longest timeout, since votes may split, and no lease before them.
const OUTAGE_MAX: Duration = Duration::from_secs(3);
/// The lease of a leader, and the longest election timeout: so long that no election ends before the
/// lease has run out if the members wait for it.
const LEASE: Duration = Duration::from_secs(10);
/// The longest time without an acknowledgement when the leader stops cleanly. Messages take up to
/// tens of milliseconds here, and a hand-over with the first write after it takes about twenty of
/// them, one after another. Without a hand-over the lease of the old leader and an election come
/// before that, each at least half a second.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// More writes than are in flight at the same time: some of them were sent after the leader was
/// killed.
const WRITES: usize = 30;
const OLD_ON_MAJORITY: &str = "an entry of an old term on a majority";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("leader-killed", three_or_five, leader_killed)
        .seeds(12)
        .reaches(&["writes continue"]),
    scenario!(
        "leader-killed-with-a-long-lease",
        |seed| Plan { election: Some((LEASE / 20, LEASE)), ..three_or_five(seed) },
        leader_killed_with_a_long_lease
    )
    .reaches(&["writes continue"]),
    scenario!("leader-stopped", three_or_five, leader_stopped)
        .reaches(&["another one leads", "writes continue"]),
    scenario!("vote-lost", five, vote_lost)
        .seeds(6)
        .reaches(&["a voter is cut", "two candidates of one vote"]),
    scenario!("figure-8-then-total-outage", five, figure_8).may_stop().reaches(&[
        "an entry on two of five",
        "a later one on one of five",
        OLD_ON_MAJORITY,
        "all cut",
    ]),
    scenario!(
        "figure-8-then-total-outage-in-mode-sync",
        |seed| in_mode(five(seed), Mode::Sync),
        figure_8
    )
    .reaches(&[
        "an entry on two of five",
        "a later one on one of five",
        OLD_ON_MAJORITY,
        "all cut",
    ]),
];

/// The leader's process is killed under load. The others elect a new leader and continue.
async fn leader_killed(mut stage: Stage) -> Played {
    stage.acknowledged(20).await?;
    let leader = stage.leader().await?;
    stage.kill(leader);
    let killed = virtual_time();
    let continued = stage.acknowledged(WRITES).await;
    let outage = virtual_time() - killed;
    if continued.is_err() || outage > OUTAGE_MAX {
        let detail = format!("{WRITES} writes took {outage:?} without member {leader}, which led");
        stage
            .cluster
            .violation(Violation::new("writes go on soon after the leader is gone", detail));
    }
    stage.reached("writes continue");
    stage.pass(0, 500).await;
    stage.start(&[leader]).await;
    stage.active(&stage.all()).await
}

/// The leader's process is killed, and its machine stays up. The others see that its ports are closed,
/// and elect a new leader before its lease could have run out.
async fn leader_killed_with_a_long_lease(mut stage: Stage) -> Played {
    stage.acknowledged(20).await?;
    let leader = stage.leader().await?;
    let term = stage.term(leader);
    stage.kill(leader);
    let killed = virtual_time();
    let others = stage.others(&[leader]);
    let next = stage.leader_among(&others, term).await;
    let took = virtual_time() - killed;
    if next.is_err() || took > LEASE {
        let detail = format!("{took:?} after member {leader} was killed, which led");
        let what = "nobody waits for the lease of a leader whose process has ended";
        stage.cluster.violation(Violation::new(what, detail));
    }
    stage.acknowledged(WRITES).await?;
    stage.reached("writes continue");
    stage.start(&[leader]).await;
    stage.active(&stage.all()).await
}

/// The leader is asked to stop under load, again and again, whoever leads. It hands leadership over
/// before it does anything else, so that no client waits for an election.
async fn leader_stopped(mut stage: Stage) -> Played {
    for _ in 0..3 {
        stage.active(&stage.all()).await?;
        stage.acknowledged(20).await?;
        let leader = stage.leader().await?;
        let asked = stage.recorder().now();
        if !stage.stop(&[leader]).await {
            let detail = format!("member {leader} did not stop cleanly");
            stage.cluster.violation(Violation::new("a leader stops cleanly", detail));
        }
        stage.kill(leader);
        let others = stage.others(&[leader]);
        stage.reached_if(stage.leads(&others).is_some(), "another one leads");
        stage.acknowledged(WRITES).await?;
        let pause = stage.longest_pause(asked);
        if pause > PAUSE_MAX {
            let detail = format!("no write for {pause:?} when member {leader}, which led, stopped");
            let what = "a clean stop of the leader interrupts nobody";
            stage.cluster.violation(Violation::new(what, detail));
        }
        stage.reached("writes continue");
        stage.start(&[leader]).await;
    }
    stage.active(&stage.all()).await
}

/// The leader is paused, and another member asks for votes. A member that grants its vote loses
/// power in that instant, and the candidate it voted for is cut off. The voter comes back together
/// with the old leader, and another candidate asks for its vote. It must not vote twice in one
/// term, nor follow the old leader in a term that it left.
async fn vote_lost(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let leader = stage.leader().await?;
    let before = stage.term(leader);
    let others = stage.others(&[leader]);
    stage.pause(&[leader]);
    let voter = match stage.seed.is_multiple_of(2) {
        // While its vote is being written.
        true => {
            let voter = others.first().copied().ok_or("members")?;
            let vote = Moment::WriteTo(FileKind::Superblock);
            while stage.term(voter) <= before && stage.leads(&others).is_none() {
                stage.disk(voter, vote, 1).await?;
                // Clearing the flag writes there too.
                if others.iter().any(|other| stage.term(*other) > before) {
                    break;
                }
            }
            voter
        }
        // As soon as it has voted.
        false => {
            let voted = || others.iter().copied().find(|other| stage.term(*other) > before);
            stage.until("a vote", || voted().is_some()).await?;
            voted().ok_or("a vote")?
        }
    };
    let asked = others.iter().any(|other| stage.term(*other) > before);
    stage.cut(voter);
    stage.reached_if(asked, "a voter is cut");
    let candidate = stage.leads(&others).map(|(_, candidate)| candidate);
    let candidate = candidate.or_else(|| {
        let highest = others.iter().filter(|other| **other != voter);
        highest.copied().max_by_key(|other| stage.term(*other))
    });
    let candidate = candidate.ok_or("a candidate")?;
    stage.isolate(&[candidate]);
    stage.resume(&[leader]);
    stage.pass(0, 60).await;
    stage.start(&[voter]).await;
    let rest: Vec<usize> = stage.all().into_iter().filter(|member| *member != candidate).collect();
    stage.leader_among(&rest, before).await?;
    stage.reached("two candidates of one vote");
    stage.pass(0, 1_500).await;
    stage.heal();
    stage.active(&stage.all()).await?;
    stage.acknowledged(5).await
}

/// Figure 8 of the Raft paper. S1 leads and has an entry on S2 only; it is killed. S5 is elected,
/// has an entry of its own term on no other member, and is killed. S1 is back, leads again, and
/// sends its old entry to S3. The entry is on a majority, but S5's entry may still replace it as
/// long as no entry of a later term is there. Now all machines lose power.
async fn figure_8(mut stage: Stage) -> Played {
    let s1 = stage.leader().await?;
    stage.acknowledged(20).await?;
    let others = stage.others(&[s1]);
    let (s2, rest) = others.split_first().ok_or("members")?;
    let (s2, rest) = (*s2, rest.to_vec());
    let term = stage.term(s1);
    let end =
        |stage: &Stage, member: usize| stage.status(member).and_then(|status| status.last_log);

    stage.partition(&[s1, s2], &rest);
    let most_up_to_date =
        |stage: &Stage| rest.iter().map(|other| end(stage, *other)).max().flatten();
    stage.until("an entry on two", || end(&stage, s2) > most_up_to_date(&stage)).await?;
    // So that both have synced it.
    stage.pass(100, 200).await;
    stage.kill(s1);
    let old = end(&stage, s2);
    let spread = most_up_to_date(&stage) >= old || old.map(|id| id.term) != Some(term);
    stage.reached_if(!spread, "an entry on two of five");

    let s5 = stage.leader_among(&rest, term).await?;
    stage.isolate(&[s5]);
    let next = stage.term(s5);
    stage.pass(0, 3).await;
    let alone = !rest
        .iter()
        .any(|other| *other != s5 && end(&stage, *other).is_some_and(|id| id.term >= next));
    stage.kill(s5);
    stage.reached_if(alone, "a later one on one of five");

    stage.heal();
    stage.isolate(&[s5]);
    stage.start(&[s1]).await;
    stage.leader_among(&[s1, s2], next).await?;
    let third = |stage: &Stage| {
        let mut all = rest.iter().filter(|other| **other != s5);
        all.any(|other| end(stage, *other).map(|id| id.index) >= old.map(|id| id.index))
    };
    stage.until("the old entry on a third", || third(&stage)).await?;
    stage.pass(0, 3).await;
    stage.reached_if(alone && !spread, OLD_ON_MAJORITY);
    stage.cut_all();
    stage.reached("all cut");
    stage.heal();
    stage.pass(0, 300).await;
    // S5 first, with those that can elect it.
    stage.start(&[s5]).await;
    stage.start(&stage.all()).await;
    Ok(())
}
