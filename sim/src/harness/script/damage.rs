//! Flipped bits: in the log and the state of one member, in different values of all members, and
//! where only a stale peer could help.

use super::stage::{Played, Stage};
use super::{Scenario, in_mode, members, three};
use crate::disk::Moment;
use crate::harness::crash_image;
use crate::harness::machine::Death;
use crate::harness::plan::Plan;
use crate::harness::scrub;
use cairn_clients::Violation;
use cairn_disk::Decay;
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{MemberState, Mode};
use rand::RngExt;

/// Blocks that rot in each file.
const MANY: usize = 6;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!(
        "flipped-bits-on-a-minority",
        |seed| Plan {
            log_retain_entries: 20,
            ..members(seed, if seed.is_multiple_of(2) { 3 } else { 5 })
        },
        minority
    )
    .seeds(12)
    .reaches(&[
        "bits flipped in the log",
        "bits flipped in a snapshot",
        "the leader's too",
        "ended while it opened",
        "all active again",
    ]),
    scenario!(
        "journal-erased",
        |seed| {
            if seed.is_multiple_of(2) { three(seed) } else { in_mode(three(seed), Mode::Sync) }
        },
        journal_erased
    )
    .seeds(16)
    .reaches(&["erased", "ended while it opened", "not taken for a torn tail"]),
    scenario!(
        "newest-block-gone",
        |seed| {
            if seed.is_multiple_of(2) { three(seed) } else { in_mode(three(seed), Mode::Sync) }
        },
        newest_block_gone
    )
    .seeds(6)
    .reaches(&["unreadable", "lost while idle", "not taken for a torn tail"]),
    scenario!(
        "damage-overwritten-and-cut",
        |seed| match seed % 3 {
            0 => three(seed),
            1 => in_mode(three(seed), Mode::Sync),
            _ => in_mode(three(seed), Mode::Device),
        },
        overwritten
    )
    .seeds(12)
    .reaches(&["damaged", "ended while it overwrote the damage", "not taken for a torn tail"]),
    scenario!(
        "damaged-majority-without-a-leader",
        |seed| {
            if seed.is_multiple_of(2) { in_mode(three(seed), Mode::Sync) } else { three(seed) }
        },
        majority_without_a_leader
    )
    .reaches(&[
        "a majority cannot read its journal",
        "nothing overwritten",
        "all active without an operator",
    ]),
    scenario!("disjoint-damage-on-all", three, disjoint).reaches(&[
        "each value damaged somewhere",
        "all read right",
        "nothing left to repair",
    ]),
    scenario!("repair-from-a-stale-peer", three, stale_peer)
        .reaches(&["only a stale peer to ask", "repaired by the other"]),
];

/// Bits flip in the log, the checkpoints and the values of one member, and its process is
/// restarted. It must know what it lacks. One round of three damages the leader.
async fn minority(mut stage: Stage) -> Played {
    for round in 0..3 {
        stage.active(&stage.all()).await?;
        let leader = stage.leader().await?;
        let member = if round == 1 {
            leader
        } else {
            stage.others(&[leader]).first().copied().ok_or("a member")?
        };
        stage.acknowledged(40).await?;
        // In some seeds so long that the damaged blocks came after everything that the last start
        // recorded.
        let from = if stage.seed.is_multiple_of(2) { 3_000 } else { 17_000 };
        stage.pass(from, from + 3_000).await;
        let in_log = stage.rot(member, FileKind::Journal, MANY);
        let snapshots = [FileKind::Checkpoint0, FileKind::Checkpoint1];
        let in_snapshot: usize =
            snapshots.into_iter().map(|file| stage.rot(member, file, MANY)).sum();
        stage.rot(member, FileKind::Data, MANY);
        let reached = journal_end(&stage, member);
        stage.reached_if(in_log > 0, "bits flipped in the log");
        stage.reached_if(in_snapshot > 0, "bits flipped in a snapshot");
        stage.reached_if(stage.leads(&[member]).is_some(), "the leader's too");
        stage.kill(member);
        stage.pass(0, 300).await;
        end_while_opening(&mut stage, member).await;
        stage.start(&[member]).await;
        stage.until("a node that serves", || stage.node(member).is_some()).await?;
        if stage.is_active(member) && journal_end(&stage, member) < reached {
            cut_like_a_torn_tail(&stage, member);
        }
        stage.pass(0, 3_000).await;
        stage.active(&[member]).await?;
        stage.read_all(member).await?;
        let machine = stage.machine(member)?;
        scrub::until_clean(&stage.cluster, machine).await.ok_or("a scrub")?;
    }
    stage.reached("all active again");
    stage.acknowledged(5).await
}

/// The journal of one member is overwritten with zeros between two of its lives. If the empty
/// journal counted as one with a torn tail, the member would be active, and vote, with less than it
/// acknowledged.
async fn journal_erased(mut stage: Stage) -> Played {
    for round in 0..2 {
        let (leader, member, _) = stage.cast().await?;
        let member = if stage.seed.is_multiple_of(3) { leader } else { member };
        stage.acknowledged(if round == 0 { 5 } else { 60 }).await?;
        if stage.rng.random_bool(0.5) {
            // After a checkpoint, what its last start recorded does not refer to the journal any
            // more.
            let node = stage.node(member).ok_or("a node")?;
            node.engine().checkpoint().await.map_err(|error| error.to_string())?;
        }
        let death = if stage.seed % 4 < 2 { Death::Killed } else { Death::PowerCut };
        stage.end(member, death);
        stage.machine(member)?.disk.erase(FileKind::Journal);
        stage.machine(member)?.damage();
        stage.reached("erased");
        not_taken_for_a_torn_tail(&mut stage, member).await?;
    }
    stage.acknowledged(5).await
}

/// The newest block that one member synced becomes unreadable, or reverts to its old content, after
/// a power cut that lost nothing.
async fn newest_block_gone(mut stage: Stage) -> Played {
    if stage.cluster.plan.mode == Mode::Replicated {
        stage.ahead(&stage.all()).await?;
    }
    let (_, member, _) = stage.cast().await?;
    stage.acknowledged(10).await?;
    let idle = stage.seed.is_multiple_of(2);
    if idle {
        stage.stop_clients();
        stage.until("a cleared flag", || !stage.has_unsynced_acks(member)).await?;
    }
    let node = stage.node(member).ok_or("a node")?;
    let blocks = stage.cluster.plan.geometry.journal_bytes / BLOCK as u64;
    let newest = || {
        let status = node.engine().status();
        // In mode `sync`, and while the flag is clear, what is only written is not acknowledged.
        let sequence = match stage.cluster.plan.mode {
            Mode::Sync => status.synced_sequence,
            _ if idle => status.synced_sequence,
            _ => status.written_sequence,
        };
        sequence % blocks
    };
    stage.cut(member);
    let disk = stage.machine(member)?.disk.clone();
    let decay = if idle { Decay::Lost } else { Decay::Wear };
    if disk.decay_block(decay, FileKind::Journal, newest()) {
        stage.machine(member)?.damage();
        stage.reached(if idle { "lost while idle" } else { "unreadable" });
        not_taken_for_a_torn_tail(&mut stage, member).await?;
    }
    Ok(())
}

/// A block in the middle of the journal is damaged, after everything that the last start recorded.
/// The member that finds it ends once more, while it overwrites the damage and what follows it.
/// What is left then looks intact, but is less than it acknowledged.
async fn overwritten(mut stage: Stage) -> Played {
    for _ in 0..2 {
        let (leader, follower, _) = stage.cast().await?;
        let member = if stage.rng.random_bool(0.3) { leader } else { follower };
        stage.acknowledged(20).await?;
        let node = stage.node(member).ok_or("a node")?;
        let block = node.engine().status().written_sequence;
        // So that later blocks record that it was synced.
        stage.until("a synced block", || node.engine().status().synced_sequence >= block).await?;
        stage.acknowledged(10).await?;
        let death = death_that_loses_nothing(&mut stage);
        stage.end(member, death);
        let blocks = stage.cluster.plan.geometry.journal_bytes / BLOCK as u64;
        let machine = stage.machine(member)?;
        if !machine.disk.decay_block(Decay::Rot, FileKind::Journal, block % blocks) {
            return Err("a block that rots".into());
        }
        machine.damage();
        stage.reached("damaged");
        stage.start(&[member]).await;
        stage.disk(member, Moment::WriteTo(FileKind::Journal), 1).await?;
        let steps = stage.rng.random_range(1..12);
        stage.disk(member, Moment::Operation, steps).await?;
        let came_back = has_begun(&stage, member);
        stage.reached_if(!came_back, "ended while it overwrote the damage");
        let death = death_that_loses_nothing(&mut stage);
        stage.end(member, death);
        stage.start(&[member]).await;
        stage.until("a node that serves", || stage.node(member).is_some()).await?;
        if stage.is_active(member) && !came_back {
            cut_like_a_torn_tail(&stage, member);
        }
        stage.reached_if(stage.is_recovering(member) && !came_back, "not taken for a torn tail");
        stage.active(&[member]).await?;
    }
    stage.acknowledged(5).await
}

/// One member is away. The processes of the two others end, and each start of theirs misreads a block
/// of the journal, as over a bad cable. Nobody can lead. If they kept what verifies and overwrote the
/// rest, what they acknowledged together would be gone. The cable is exchanged, and they start again.
async fn majority_without_a_leader(mut stage: Stage) -> Played {
    let (leader, away, member) = stage.cast().await?;
    stage.acknowledged(5).await?;
    stage.kill(away);
    stage.acknowledged(20).await?;
    let two = [leader, member];
    for member in two {
        stage.kill(member);
    }
    let journal = |stage: &Stage, member: usize| -> Result<Vec<u8>, String> {
        let disk = &stage.machine(member)?.disk;
        let size = disk.size(FileKind::Journal).ok_or("a journal")?;
        disk.bytes(FileKind::Journal, 0, size as usize).ok_or_else(|| "its bytes".to_owned())
    };
    let mut before = Vec::new();
    let mut misread = 0;
    for member in two {
        before.push(journal(&stage, member)?);
        misread += usize::from(stage.machine(member)?.disk.misread_journal());
        stage.machine(member)?.damage();
    }
    stage.start(&two).await;
    stage.start(&[away]).await;
    let up = |stage: &Stage| stage.all().into_iter().all(|member| stage.node(member).is_some());
    stage.until("nodes that serve", || up(&stage)).await?;
    stage.pass(5_000, 10_000).await;
    let damaged = two.iter().filter_map(|member| stage.node(*member)?.engine().damage());
    stage.reached_if(
        misread == 2 && damaged.count() == 2 && stage.leads(&stage.all()).is_none(),
        "a majority cannot read its journal",
    );
    let mut same = true;
    for (member, before) in two.into_iter().zip(&before) {
        same &= journal(&stage, member)? == *before;
    }
    if misread == 2 && !same {
        let detail = "a journal that could not be read was overwritten without a leader".to_owned();
        let claim = "nothing is overwritten before a leader has it";
        stage.cluster.violation(Violation::new(claim, detail));
    }
    stage.reached_if(misread == 2 && same, "nothing overwritten");
    for member in two {
        stage.kill(member);
        stage.machine(member)?.disk.read_right();
    }
    stage.start(&two).await;
    stage.active(&stage.all()).await?;
    stage.reached_if(misread == 2, "all active without an operator");
    stage.acknowledged(5).await
}

/// A power cut in a mode in which it loses nothing acknowledged, or the end of the process.
fn death_that_loses_nothing(stage: &mut Stage) -> Death {
    let cut = stage.cluster.plan.mode != Mode::Replicated && stage.rng.random_bool(0.5);
    if cut { Death::PowerCut } else { Death::Killed }
}

/// Ends a member, in most cases while it opens, so that its next start judges what is left. Returns
/// whether it was active before it ended.
async fn end_while_opening(stage: &mut Stage, member: usize) -> bool {
    let mut came_back = false;
    if stage.rng.random_bool(0.6) {
        stage.start(&[member]).await;
        let moment = match stage.rng.random_range(0..4) {
            0 => Moment::WriteTo(FileKind::Checkpoint0),
            1 => Moment::WriteTo(FileKind::Checkpoint1),
            _ => Moment::Operation,
        };
        let most = if moment == Moment::Operation { 60 } else { 6 };
        let steps = stage.rng.random_range(1..most);
        // Without damage it writes no checkpoint then; it ends later.
        stage.disk(member, moment, steps).await.ok();
        stage.reached_if(!has_begun(stage, member), "ended while it opened");
        let death = if stage.rng.random_bool(0.5) { Death::Killed } else { Death::PowerCut };
        came_back = stage.is_active(member);
        stage.end(member, death);
    }
    came_back
}

/// Whether a member serves, and has written what it keeps of its directory.
fn has_begun(stage: &Stage, member: usize) -> bool {
    stage.node(member).is_some_and(|node| node.engine().damage().is_none())
}

/// Starts a member that lacks what it acknowledged: it must recover before it is active.
async fn not_taken_for_a_torn_tail(stage: &mut Stage, member: usize) -> Played {
    // At its first start, whatever ends it then.
    let starts = crash_image::starts_as(&stage.cluster, stage.machine(member)?, None).await;
    if starts.is_some_and(|(state, _)| state == MemberState::Active) {
        cut_like_a_torn_tail(stage, member);
    }
    let came_back = end_while_opening(stage, member).await;
    stage.start(&[member]).await;
    stage.until("a node that serves", || stage.node(member).is_some()).await?;
    if stage.is_active(member) && !came_back {
        cut_like_a_torn_tail(stage, member);
    }
    stage.reached_if(stage.is_recovering(member), "not taken for a torn tail");
    stage.active(&[member]).await
}

fn cut_like_a_torn_tail(stage: &Stage, member: usize) {
    let detail =
        format!("member {member} is active, with a journal that lacks what it acknowledged");
    stage.cluster.violation(Violation::new("damage is never taken for a torn tail", detail));
}

/// The last block of a member's journal that is written.
fn journal_end(stage: &Stage, member: usize) -> u64 {
    stage.node(member).map_or(0, |node| node.engine().status().written_sequence)
}

/// Each value is damaged on one member, and each member has its share of the damage: everything is
/// still there.
async fn disjoint(stage: Stage) -> Played {
    let all = stage.all();
    stage.acknowledged(100).await?;
    stage.stop_clients();
    stage.synced(&all).await?;
    let mut damaged = 0;
    for (number, key) in stage.keys() {
        damaged += usize::from(
            all.get(number % all.len()).is_some_and(|member| stage.flip_value(*member, &key)),
        );
    }
    stage.reached_if(damaged > all.len(), "each value damaged somewhere");
    let mut unreadable = 0;
    for member in &all {
        unreadable += stage.read_all(*member).await?;
    }
    stage.reached_if(unreadable == 0, "all read right");
    let mut found = 0;
    for member in &all {
        let scrub =
            scrub::until_clean(&stage.cluster, stage.machine(*member)?).await.ok_or("a scrub")?;
        found += scrub.found + scrub.unrepairable;
    }
    stage.reached_if(found == 0, "nothing left to repair");
    Ok(())
}

/// A member is cut off from the leader and keeps older values. A third member restarts, so that it
/// has no values in memory. All its values are damaged, and the leader is paused. Then the third
/// can answer no read, and must not answer with the values of the stale member. When the leader is
/// back it can answer again.
async fn stale_peer(mut stage: Stage) -> Played {
    let (leader, stale, member) = stage.cast().await?;
    stage.acknowledged(60).await?;
    stage.partition(&[leader], &[stale]);
    stage.acknowledged(60).await?;
    stage.stop_clients();
    stage.pass(2_000, 3_000).await;
    stage.kill(member);
    stage.start(&[member]).await;
    stage.active(&[member]).await?;
    stage.pass(500, 1_000).await;
    let applied = |member: usize| stage.status(member).and_then(|status| status.applied);
    let behind = applied(stale) < applied(member);
    stage.pause(&[leader]);
    let damaged = stage.keys().iter().filter(|(_, key)| stage.flip_value(member, key)).count();
    let unreadable = stage.read_all(member).await?;
    stage.cluster.trace.event(format!("values damaged: {damaged}, unreadable: {unreadable}"));
    stage.reached_if(behind && damaged > 0 && unreadable > 0, "only a stale peer to ask");
    stage.heal();
    stage.resume(&[leader]);
    stage.pass(1_000, 2_000).await;
    let unreadable = stage.read_all(member).await?;
    stage.reached_if(unreadable == 0, "repaired by the other");
    Ok(())
}
