//! Bits flipped in the files of one machine at a time, under load: while its process runs, and
//! while it is down.
//!
//! What must hold: every read is right, and the machine continues or comes back without an
//! operator. One scrub repairs all damage, so that neither a second scrub nor a read of all the
//! machine's data finds any more. Then the next machine may be damaged.

use crate::figures::Figures;
use crate::load::Load;
use crate::run::{LossyRun, Plan};
use crate::scenario::await_return;
use anyhow::Result;
use cairn_client::{ScrubAction, ScrubStatus};
use rand::RngExt;
use rand::seq::SliceRandom;
use std::ops::Range;

/// The files of a data directory that are not the superblock, and how many bits are flipped in each
/// of them at once.
const FILES: [(&str, usize); 4] =
    [("journal", 6), ("checkpoint.0", 3), ("checkpoint.1", 3), ("data", 24)];

/// The blocks of the superblock's copies.
const COPIES: [u64; 4] = [0, 4, 8, 12];

/// Fast enough that a scrub of a small directory takes seconds.
const SCRUB_RATE: &str = "scrub.rate_bytes = \"512MiB\"";

/// The log line of a machine that opens a directory of which it can keep only a part.
const SALVAGED: &str = "the data directory is damaged";

const ALL: Range<u64> = 0..u64::MAX;

/// Flips bits in rounds, each in another machine than the last one.
///
/// # Errors
/// If the scenario cannot be carried out.
pub async fn flipped_bits(plan: &Plan, rounds: u64) -> Result<Figures> {
    let mut plan = plan.clone();
    plan.setup.more = format!("{}\n{SCRUB_RATE}", plan.setup.more);
    let mut run = LossyRun::begin(&plan, "flipped bits under load").await?;
    let mut last = None;
    for _ in 0..rounds {
        run.figures.rounds += 1;
        let others: Vec<usize> =
            (0..run.cluster.len()).filter(|number| Some(*number) != last).collect();
        let victim = others.get(run.rng.random_range(0..others.len())).copied().unwrap_or_default();
        last = Some(victim);
        round(&mut run, victim).await?;
        if !run.figures.wrong.is_empty() {
            break;
        }
        run.figures.served += 1;
    }
    Ok(run.finish())
}

/// Damages a machine while it runs, and again while it is down.
async fn round(run: &mut LossyRun, victim: usize) -> Result<()> {
    let load = run.load();
    run.wait_unsynced_acks().await?;
    run.warm_up(&load).await?;
    let before = run.scrubber(victim, ScrubAction::Show).await?;
    // Two intact copies of the superblock are enough.
    flip(run, victim, 2, 1.0)?;
    run.warm_up(&load).await?;
    if !repairs_all(run, victim, &before, load).await? {
        return Ok(());
    }
    let load = run.load();
    run.wait_unsynced_acks().await?;
    run.warm_up(&load).await?;
    run.cluster.kill(victim)?;
    // One more copy may be torn by an interrupted update. Not every file is damaged: damage that
    // destroys all the machine's data would hide what it can repair.
    flip(run, victim, 1, 0.5)?;
    run.pause(0..300).await;
    let salvages = run.cluster.log_lines(victim, SALVAGED)?;
    if !await_return(run, &[victim]).await? {
        return run.rest(load).await;
    }
    run.figures.salvaged += run.cluster.log_lines(victim, SALVAGED)? - salvages;
    run.warm_up(&load).await?;
    repairs_all(run, victim, &ScrubStatus::default(), load).await.map(drop)
}

/// Flips bits in copies of the superblock, and in each other file with the given probability.
fn flip(run: &mut LossyRun, victim: usize, copies: usize, probability: f64) -> Result<()> {
    let mut copies_at = COPIES;
    copies_at.shuffle(&mut run.rng);
    for block in copies_at.into_iter().take(copies) {
        run.figures.flips += u64::from(run.cluster.flip(victim, "superblock", block..block + 1)?);
    }
    for (file, bits) in FILES {
        if !run.rng.random_bool(probability) {
            continue;
        }
        for _ in 0..bits {
            run.figures.flips += u64::from(run.cluster.flip(victim, file, ALL)?);
        }
    }
    Ok(())
}

/// Scrubs under load, ends the load, scrubs again and compares everything. Returns whether nothing
/// is wrong.
async fn repairs_all(
    run: &mut LossyRun,
    victim: usize,
    before: &ScrubStatus,
    load: Load,
) -> Result<bool> {
    let first = run.scrub(victim).await?;
    run.goes_on(&load).await;
    run.rest(load).await?;
    let second = run.scrub(victim).await?;
    let mut wrong = run.compare().await?;
    if let Some(reason) = run.cluster.ended(victim)? {
        wrong.push(format!("machine {} stopped over a flipped bit: {reason}", victim + 1));
    } else {
        let last = run.scrubber(victim, ScrubAction::Show).await?;
        wrong.extend(left_over(victim, &first, &second, &last));
        let damaged = last.damaged - before.damaged;
        let repaired = last.repaired - before.repaired;
        let unrepaired = last.unrepairable - before.unrepairable;
        if unrepaired > 0 {
            wrong.push(format!("machine {}: {unrepaired} attempts to repair failed", victim + 1));
        }
        run.figures.damaged += damaged;
        run.figures.repaired += repaired;
        run.figures.unrepaired += unrepaired;
        run.say(|| {
            let (slot, wrong) = (victim + 1, wrong.len());
            format!("machine {slot}: {damaged} found damaged, {repaired} repaired, {unrepaired} not; {wrong} wrong")
        });
    }
    let right = wrong.is_empty();
    run.figures.wrong.extend(wrong);
    Ok(right)
}

/// What a scrub should have repaired and did not.
fn left_over(
    victim: usize,
    first: &ScrubStatus,
    second: &ScrubStatus,
    last: &ScrubStatus,
) -> Vec<String> {
    let slot = victim + 1;
    let mut wrong = Vec::new();
    if second.damaged > first.damaged {
        let left = second.damaged - first.damaged;
        wrong.push(format!(
            "machine {slot}: a second scrub finds {left} damaged that the first scrub left"
        ));
    }
    if last.repaired > second.repaired {
        let left = last.repaired - second.repaired;
        wrong.push(format!("machine {slot}: reads find {left} damaged that two scrubs left"));
    }
    wrong
}
