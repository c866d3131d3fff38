//! Watches over a leader's death, behind a snapshot that their member installed, and from a position that an
//! unsafe recovery discarded. What watchers hear is judged as in any other run
//! ([`watchers`](crate::harness::watchers)).

use super::stage::{Played, Stage};
use super::{Scenario, UNSYNCED_LOST, three, three_or_five};
use crate::harness::clients;
use crate::harness::finale::UNSAFE_RECOVERY;
use crate::harness::plan::Plan;
use crate::harness::watcher::{Habit, Next};
use crate::harness::watchers::Watchers;
use crate::harness::watches::Watches;
use cairn_client::Position;
use cairn_clients::check::watched::{self, Begins, End, Scope, Watched};
use cairn_clients::history::{GROUP_KEYS, History};
use cairn_clients::workload::{Profile, Recorder};
use cairn_engine::LogId;
use madsim::runtime::{Handle, NodeHandle};
use std::sync::Arc;
use std::time::Duration;

const IN_ITS_TERM: &str = "each watch tells changes of the leader's term";
const GOES_ON: &str = "each watch that was there tells changes of the next term";
const RESUMED: &str = "another client goes on from a position of an earlier term";
const ALL_TOLD: &str = "the watchers come to the last write";

const SNAPSHOT: &str = "the member of the watch installed a snapshot";
const COMPACTED: &str = "the watch hears there that its position is gone";
const ANEW: &str = "it tells changes behind a list there";

const WAS_TOLD: &str = "a watch told what an unsafe recovery discarded";
const IS_AHEAD: &str = "its position is asked for before the log is there again";
const IS_BEHIND: &str = "its position is asked for once the log is there again";
const DISCARDED: &str = "the watcher hears that its position was discarded";
const LISTED: &str = "it follows what comes behind a list";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("watch-over-a-leaders-death", calm, leader_dies).seeds(8).reaches(&[
        IN_ITS_TERM,
        GOES_ON,
        RESUMED,
        ALL_TOLD,
    ]),
    scenario!(
        "watch-behind-an-installed-snapshot",
        |seed| Plan { log_retain_entries: 60, ..three(seed) },
        snapshot_installed
    )
    .seeds(8)
    .reaches(&[SNAPSHOT, COMPACTED, ANEW, ALL_TOLD]),
    scenario!("watch-from-a-discarded-position", three_or_five, discarded)
        .seeds(16)
        .may_stop()
        .reaches(&[
            UNSYNCED_LOST,
            UNSAFE_RECOVERY,
            WAS_TOLD,
            IS_AHEAD,
            IS_BEHIND,
            DISCARDED,
            LISTED,
        ]),
];

/// Leaders that die one after another.
const ROUNDS: usize = 3;
/// Longer than a client waits for a node of which it hears nothing, and another one takes to begin.
const MOVES: Duration = Duration::from_secs(40);
/// The client numbers of puts of a script; no other client has them.
const FIRST_PUT: u32 = 400;
/// The random numbers of these watchers.
const PART: u64 = 25;

/// Three members, and so few writes that a member keeps them for longer than a watch needs to move.
fn calm(seed: u64) -> Plan {
    let plan = three(seed);
    let think_max = Duration::from_millis(300);
    Plan { profile: Profile { think_max, ..plan.profile.clone() }, ..plan }
}

/// The host of a client.
fn host(stage: &Stage, number: usize) -> Result<NodeHandle, String> {
    let host = stage.clients.get(number).ok_or("a client host")?;
    Handle::current().get_node(*host).ok_or_else(|| "a client host".to_owned())
}

/// The script is over: no client writes any more, and each watcher has to hear of the last write.
async fn finish(stage: &Stage, watchers: Watchers) -> Played {
    stage.quiet().await;
    let goal = stage.recorder().acknowledged_through(u64::MAX).ok_or("acknowledged writes")?;
    watchers.finish(goal).await?;
    stage.reached(ALL_TOLD);
    Ok(())
}

/// Whether the last thing that a watch told is of this term or a later one.
fn tells(watch: &Watched, from: u64) -> bool {
    watch.told.last().is_some_and(|told| told.at.term >= from)
}

/// Whether it goes on over the end of a term, without having begun anew.
fn spans(watch: &Watched, before: u64) -> bool {
    tells(watch, before + 1) && watch.told.iter().any(|told| told.at.term <= before)
}

/// One leader after another is killed, or loses power. Watches that one of them served go on at another member,
/// behind the last entry that was told to its end.
async fn leader_dies(mut stage: Stage) -> Played {
    let watches = stage.cluster.watches.clone();
    let mut watchers = Watchers::new(&stage.cluster, &watches, PART);
    for number in 0..stage.clients.len() {
        watchers.add(&host(&stage, number)?, Scope::All, Habit::Follows, Next::Now)?;
        watchers.add(&host(&stage, number)?, Scope::All, Habit::Restarts, Next::Now)?;
    }
    let count = 2 * stage.clients.len();
    for _ in 0..ROUNDS {
        stage.active(&stage.all()).await?;
        let leader = stage.leader().await?;
        let (term, others) = (stage.term(leader), stage.others(&[leader]));
        let all_tell = |from| watches.all_last(count, |watch| tells(watch, from));
        if !stage.within(MOVES, || all_tell(term)).await {
            return Err("changes of the leader's term".into());
        }
        stage.reached(IN_ITS_TERM);
        if stage.seed.is_multiple_of(2) {
            stage.kill(leader);
        } else {
            stage.cut(leader);
        }
        stage.leader_among(&others, term).await?;
        let goes_on = || all_tell(term + 1) && watches.any(|watch| spans(watch, term));
        if !stage.within(MOVES, goes_on).await {
            return Err("changes of the next term".into());
        }
        stage.reached(GOES_ON);
        stage.start(&[leader]).await;
    }
    let resumed = |watch: &Watched| match watch.begins {
        Begins::Kept(position) => tells(watch, position.term + 1),
        _ => false,
    };
    stage.reached_if(watches.any(resumed), RESUMED);
    finish(&stage, watchers).await
}

/// A watcher reaches one member alone. That is cut off from the others until it needs a snapshot, which does not
/// say what was changed: the member has to tell that it does not know, and goes on behind the snapshot.
async fn snapshot_installed(mut stage: Stage) -> Played {
    let (leader, member, _) = stage.cast().await?;
    let (alone, others) = (stage.clients.len() - 1, stage.others(&[member]));
    let watches = stage.cluster.watches.clone();
    let mut watchers = Watchers::new(&stage.cluster, &watches, PART);
    stage.cut_off_client(alone, &others);
    watchers.add(&host(&stage, alone)?, Scope::All, Habit::Follows, Next::Now)?;
    stage.acknowledged(10).await?;
    let told = || watches.any(|watch| !watch.told.is_empty());
    stage.until("changes told by the member", told).await?;
    stage.isolate(&[member]);
    let end = Some(stage.status(member).and_then(|status| status.last_log).ok_or("a log")?);
    stage.until("a log that was purged", || stage.purged(leader) > end).await?;
    stage.heal();
    stage.cut_off_client(alone, &others);
    stage.until("a snapshot", || stage.purged(member) > end).await?;
    let snapshot = stage.purged(member).ok_or("a snapshot")?;
    stage.reached(SNAPSHOT);
    let is_gone = |watch: &Watched| match watch.end {
        Some((End::Compacted { oldest, .. }, _)) => oldest.index >= snapshot.index,
        _ => false,
    };
    stage.reached_if(stage.within(MOVES, || watches.any(is_gone)).await, COMPACTED);
    let is_anew = |watch: &Watched| match &watch.begins {
        Begins::Listed(position, _) => position.index >= snapshot.index && !watch.told.is_empty(),
        _ => false,
    };
    stage.reached_if(stage.within(MOVES, || watches.any(is_anew)).await, ANEW);
    stage.heal();
    finish(&stage, watchers).await
}

/// All machines lose power at once, with writes unsynced of which watchers were told, and an operator lets the
/// member with the most up-to-date log lead. At the indexes of those writes there are others soon. Whoever asks
/// for what follows them is told that they are gone, also before the log is that long again.
async fn discarded(mut stage: Stage) -> Played {
    let watches = stage.cluster.watches.clone();
    let mut watchers = Watchers::new(&stage.cluster, &watches, PART);
    for number in 0..stage.clients.len() {
        watchers.add(&host(&stage, number)?, Scope::All, Habit::Follows, Next::Now)?;
    }
    stage.ahead(&stage.all()).await?;
    stage.pass(1_000, 3_000).await;
    stage.acknowledged(1).await?;
    let lost_acks = stage.cut_all_and_restart().await? > 0;
    stage.reached_if(lost_acks, UNSYNCED_LOST);
    watchers.abandon().await?;
    let end = stage.decide(&stage.all()).await?.ok_or("a log")?;
    stage.active(&stage.all()).await?;
    let positions = watches.all().into_iter().filter_map(|watch| watch.through());
    let Some(kept) = positions.max_by_key(|position| position.index) else {
        return Err("a watch".into());
    };
    if kept.index <= end.index {
        return Err("a watch that told what was discarded".into());
    }
    stage.reached(WAS_TOLD);
    let asks_first = stage.seed % 4 < 2;
    if !asks_first {
        grow(&mut stage, kept.index).await?;
    }
    let goes_on = Arc::new(Watches::default());
    let mut watchers = Watchers::new(&stage.cluster, &goes_on, PART + 1);
    watchers.add(&host(&stage, 0)?, Scope::All, Habit::Follows, Next::Kept(kept))?;
    let is_answered = || goes_on.any(|watch| watch.end.is_some() || is_followed(watch, kept));
    if asks_first {
        // The log grows once the watcher has its answer: until then it may not have asked.
        let is_told = stage.within(MOVES, is_answered).await;
        let is_there = applied(&stage).is_some_and(|applied| applied.index >= kept.index);
        stage.reached_if(is_told && !is_there, IS_AHEAD);
        grow(&mut stage, kept.index).await?;
    } else {
        stage.reached(IS_BEHIND);
    }
    if !stage.within(MOVES, is_answered).await {
        stage.fails("whoever asks for a discarded position is told", format!("{kept:?}"));
    }
    let mut told = goes_on.all().into_iter();
    let Some(first) = told.find(|watch| watch.end.is_some() || is_followed(watch, kept)) else {
        return watchers.abandon().await;
    };
    if first.end.is_none_or(|(end, _)| end != End::Discarded) {
        let detail = format!("behind {kept:?}, and the log went on behind {end}: {first:?}");
        stage.fails("what was discarded is not followed", detail);
        return watchers.abandon().await;
    }
    stage.reached(DISCARDED);
    follow_list(&stage, watchers, &goes_on).await
}

/// Whether a watch from this position tells something.
fn is_followed(watch: &Watched, position: Position) -> bool {
    let later = watch.through().is_some_and(|through| through != position);
    matches!(watch.begins, Begins::Kept(_)) && (later || !watch.told.is_empty())
}

/// The last entry that any member applied.
fn applied(stage: &Stage) -> Option<LogId> {
    let all = stage.all().into_iter();
    all.filter_map(|member| stage.status(member)?.applied).max()
}

/// Has the leader write until the log is longer than this. These keys have no history.
async fn grow(stage: &mut Stage, beyond: u64) -> Played {
    while applied(stage).is_none_or(|applied| applied.index <= beyond) {
        stage.bulk().await?;
    }
    Ok(())
}

/// Once the watcher has listed its keys, some of them are put, and it has to tell that. The rest of its history is
/// of the new log alone.
async fn follow_list(stage: &Stage, watchers: Watchers, watches: &Watches) -> Played {
    let listed =
        |watch: &Watched| matches!(watch.begins, Begins::Listed(..)) && watch.began.is_some();
    stage.until("a list", || watches.any(listed)).await?;
    let recorder = Recorder::new(stage.cluster.trace.clone());
    let client = clients::client(&stage.cluster, u64::from(FIRST_PUT))?;
    let writer = {
        let recorder = recorder.clone();
        host(stage, 0)?.spawn(async move {
            for (number, key) in (FIRST_PUT..).zip(0..GROUP_KEYS) {
                recorder.put(number, &client, 0, key).await;
            }
        })
    };
    writer.await.map_err(|error| error.to_string())?;
    let goal = recorder.acknowledged_through(u64::MAX).ok_or("acknowledged writes")?;
    watchers.finish(goal).await?;
    let mut heard = watches.all();
    heard.retain(listed);
    let told: usize = heard.iter().map(|watch| watch.told.len()).sum();
    let history = History::new(recorder.records());
    for violation in watched::check(&history, &[], &heard) {
        stage.cluster.violation(violation);
    }
    stage.reached_if(told > 0, LISTED);
    Ok(())
}
