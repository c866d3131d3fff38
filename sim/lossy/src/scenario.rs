//! The scenarios: what is done to the machines, and what must hold afterwards.

use crate::disk::{Behaviour, CutStyle};
use crate::figures::Figures;
use crate::run::{LossyRun, Plan, Returned};
use anyhow::Result;
use rand::RngExt;
use rand::seq::SliceRandom;
use std::time::Duration;

/// Within this time a leader under load has noticed that a machine is gone. Until then it may use
/// the fast ack mode, and cleared flags may be set again.
const NOTICED: Duration = Duration::from_millis(1500);

/// What may be lost in `replicated` mode when all machines lose power at once: the interval of the
/// background sync, and the time that such a sync takes on a busy machine.
const WINDOW: Duration = Duration::from_millis(2500);

/// A cluster that stopped acknowledges nothing for this long.
const STOPPED: Duration = Duration::from_secs(1);

/// Cuts the power of one machine at a time while clients write. Nothing may be lost, the others
/// continue, and the machine comes back without an operator.
///
/// # Errors
/// If the scenario cannot be carried out.
pub async fn one_machine(plan: &Plan, cuts: u64) -> Result<Figures> {
    let mut run = LossyRun::begin(plan, "power cut of one machine under load").await?;
    for _ in 0..cuts {
        run.figures.rounds += 1;
        let load = run.load();
        run.wait_unsynced_acks().await?;
        run.warm_up(&load).await?;
        let victim = run.rng.random_range(0..run.cluster.len());
        let cut_at = run.now();
        let damage = run.cluster.cut_power(&[victim], None)?;
        run.figures.damage.add(damage);
        run.pause(0..400).await;
        let back = await_return(&mut run, &[victim]).await?;
        run.goes_on(&load).await;
        let gap = load.longest_gap_since(cut_at);
        run.figures.add_gap(gap);
        run.rest(load).await?;
        let wrong = run.compare().await?;
        run.say(|| {
            format!("machine {}: {damage:?}, back: {back}, {} wrong", victim + 1, wrong.len())
        });
        let lost = !wrong.is_empty();
        run.figures.wrong.extend(wrong);
        if lost || !back {
            break;
        }
        run.figures.served += 1;
    }
    Ok(run.finish())
}

/// Restarts these machines. False, with the reason added to what is wrong, if one does not become
/// active.
pub(crate) async fn await_return(run: &mut LossyRun, numbers: &[usize]) -> Result<bool> {
    for number in numbers {
        run.cluster.start(*number)?;
    }
    let mut all = true;
    for (number, returned) in numbers.iter().zip(run.wait_active(numbers).await?) {
        match returned {
            Returned::Active(time) => run.figures.add_recovery(time),
            Returned::Not { reason, .. } => {
                run.figures
                    .wrong
                    .push(format!("machine {} did not come back: {reason}", number + 1));
                all = false;
            }
        }
    }
    Ok(all)
}

/// Cuts the power of all machines at the same moment, with nothing written since they all cleared
/// their unsynced-ack flags. Nothing may be lost, and all come back without an operator.
///
/// # Errors
/// If the scenario cannot be carried out.
pub async fn all_idle(plan: &Plan, cuts: u64) -> Result<Figures> {
    let mut run = LossyRun::begin(plan, "power cut of all machines while idle").await?;
    let all: Vec<usize> = (0..run.cluster.len()).collect();
    for _ in 0..cuts {
        run.figures.rounds += 1;
        let load = run.load();
        run.warm_up(&load).await?;
        run.rest(load).await?;
        run.wait_all_acks_synced(&all, Duration::ZERO).await?;
        let damage = run.cluster.cut_power(&all, None)?;
        run.figures.damage.add(damage);
        if !await_return(&mut run, &all).await? {
            break;
        }
        let wrong = run.compare().await?;
        run.say(|| format!("{damage:?}, {} wrong", wrong.len()));
        let lost = !wrong.is_empty();
        run.figures.wrong.extend(wrong);
        if lost {
            break;
        }
        run.figures.served += 1;
    }
    Ok(run.finish())
}

/// Cuts the power of all machines under load, one after another; none comes back before all are
/// cut. The second is cut when the others have cleared their unsynced-ack flags. Nothing may be
/// lost, and all come back without an operator.
///
/// # Errors
/// If the scenario cannot be carried out.
pub async fn one_after_another(plan: &Plan, cuts: u64) -> Result<Figures> {
    let mut run =
        LossyRun::begin(plan, "power cuts of all machines one after another under load").await?;
    for _ in 0..cuts {
        run.figures.rounds += 1;
        let load = run.load();
        run.warm_up(&load).await?;
        let mut order: Vec<usize> = (0..run.cluster.len()).collect();
        order.shuffle(&mut run.rng);
        let cut_at = run.now();
        let mut left = order.clone();
        while let Some(victim) = left.pop() {
            let damage = run.cluster.cut_power(&[victim], None)?;
            run.figures.damage.add(damage);
            if left.len() * 2 > order.len() {
                run.goes_on(&load).await;
                run.wait_all_acks_synced(&left, NOTICED).await?;
            }
            run.pause(0..300).await;
        }
        if !await_return(&mut run, &order).await? {
            run.rest(load).await?;
            break;
        }
        run.goes_on(&load).await;
        run.figures.add_gap(load.longest_gap_since(cut_at));
        run.rest(load).await?;
        let wrong = run.compare().await?;
        run.say(|| format!("in reverse order {order:?}: {} wrong", wrong.len()));
        run.figures.wrong.extend(wrong);
        if !run.figures.wrong.is_empty() {
            break;
        }
        run.figures.served += 1;
    }
    Ok(run.finish())
}

/// Cuts the power of all machines at the same moment while clients write. In `sync` and `device`
/// mode nothing may be lost. In `replicated` mode either the cluster serves, all machines are back
/// and nothing is lost, or it does not serve and says why.
///
/// # Errors
/// If the scenario cannot be carried out.
pub async fn all_under_load(plan: &Plan, cuts: u64) -> Result<Figures> {
    let mut run = LossyRun::begin(plan, "power cut of all machines under load").await?;
    let all: Vec<usize> = (0..run.cluster.len()).collect();
    for _ in 0..cuts {
        run.figures.rounds += 1;
        let load = run.load();
        if run.plan.setup.mode == "replicated" {
            // What may be lost must be younger than what the last comparison saw.
            tokio::time::sleep(WINDOW).await;
        }
        run.wait_unsynced_acks().await?;
        run.warm_up(&load).await?;
        let cut_at = run.now();
        let damage = run.cluster.cut_power(&all, None)?;
        run.figures.damage.add(damage);
        run.pause(0..300).await;
        let Return { reasons, explained } = start_all(&mut run).await?;
        if reasons.is_empty() {
            run.goes_on(&load).await;
            run.figures.add_gap(load.longest_gap_since(cut_at));
            run.rest(load).await?;
            let wrong = run.compare().await?;
            run.say(|| format!("{damage:?}, serves, {} wrong", wrong.len()));
            let lost = !wrong.is_empty();
            run.figures.wrong.extend(wrong);
            if lost {
                break;
            }
            run.figures.served += 1;
            continue;
        }
        let serves = load.wait_for(1, STOPPED).await;
        run.rest(load).await?;
        run.say(|| format!("{damage:?}, stopped: {reasons:?}"));
        if run.plan.setup.mode != "replicated" || serves || !explained {
            run.figures.wrong.extend(reasons);
            break;
        }
        run.figures.reported += 1;
        if !operator_decides(&mut run, cut_at).await? {
            break;
        }
    }
    Ok(run.finish())
}

/// Does an unsafe recovery. False if the cluster does not then serve all but the newest writes,
/// with all machines equal.
async fn operator_decides(run: &mut LossyRun, cut_at: Duration) -> Result<bool> {
    run.cluster.accept_data_loss()?;
    let all: Vec<usize> = (0..run.cluster.len()).collect();
    for (slot, returned) in (1..).zip(run.wait_active(&all).await?) {
        if let Returned::Not { reason, .. } = returned {
            run.figures
                .wrong
                .push(format!("machine {slot} after `cairn unsafe-recovery`: {reason}"));
            return Ok(false);
        }
    }
    let (wrong, lost) = run.compare_after_unsafe_recovery(cut_at.saturating_sub(WINDOW)).await?;
    run.say(|| format!("the operator discarded writes of {lost} keys: {} wrong", wrong.len()));
    run.figures.given_up += lost;
    run.figures.wrong.extend(wrong);
    Ok(run.figures.wrong.is_empty())
}

/// The result of restarting all machines.
struct Return {
    /// The reason of each machine that did not become active.
    reasons: Vec<String>,
    /// Whether one of the reasons explains it.
    explained: bool,
}

async fn start_all(run: &mut LossyRun) -> Result<Return> {
    run.cluster.start_all()?;
    let mut returned = Return { reasons: Vec::new(), explained: false };
    let all: Vec<usize> = (0..run.cluster.len()).collect();
    for (slot, one) in (1..).zip(run.wait_active(&all).await?) {
        match one {
            Returned::Active(time) => run.figures.add_recovery(time),
            Returned::Not { reason, explained } => {
                returned.reasons.push(format!("machine {slot}: {reason}"));
                returned.explained |= explained;
            }
        }
    }
    Ok(returned)
}

/// A canary breaks an assumption without which no store can keep its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Disks that report syncs that they do not do.
    LyingDisks,
    /// Machines that keep their boot id over a power cut, and so do not know that they may have
    /// lost something.
    HiddenCuts,
}

/// Cuts the power of all machines under load where no promise can be kept. A loss must be found, or
/// reported by the machines: else this harness would miss losses.
///
/// # Errors
/// If the scenario cannot be carried out.
pub async fn canary(plan: &Plan, canary: Canary, cuts: u64) -> Result<Figures> {
    let mut plan = plan.clone();
    let name = match canary {
        Canary::LyingDisks => "canary: disks that lie about syncs",
        Canary::HiddenCuts => {
            "replicated".clone_into(&mut plan.setup.mode);
            "canary: power cuts that the boot id hides"
        }
    };
    let mut run = LossyRun::begin(&plan, name).await?;
    for round in 0..cuts {
        if round > 0 {
            run.replace_cluster().await?;
        }
        run.figures.rounds += 1;
        cut_without_protection(&mut run, canary, round).await?;
    }
    if run.figures.caught == 0 {
        run.figures.wrong.push("no loss was found where there must have been one".to_owned());
    }
    Ok(run.finish())
}

async fn cut_without_protection(run: &mut LossyRun, canary: Canary, round: u64) -> Result<()> {
    let all: Vec<usize> = (0..run.cluster.len()).collect();
    let load = run.load();
    run.warm_up(&load).await?;
    match canary {
        Canary::LyingDisks => run.cluster.behave(Behaviour::Lie),
        Canary::HiddenCuts => run.cluster.hide_cuts(),
    }
    run.wait_unsynced_acks().await?;
    run.warm_up(&load).await?;
    // Nothing unsynced survives, or a part of it does.
    let style = if round.is_multiple_of(2) { CutStyle::Nothing } else { CutStyle::Scattered };
    let damage = run.cluster.cut_power(&all, Some(style))?;
    run.figures.damage.add(damage);
    run.cluster.behave(run.plan.setup.behaviour());
    let Return { reasons, .. } = start_all(run).await?;
    run.rest(load).await?;
    // A wrong answer to a client under load is one of the losses that must be found.
    let mut found = std::mem::take(&mut run.figures.wrong);
    if reasons.is_empty() {
        found.extend(run.compare().await?);
        run.figures.served += 1;
    } else {
        found.extend(run.check());
    }
    run.say(|| {
        format!("{damage:?}, {} lost: {:?}, stopped: {reasons:?}", found.len(), found.first())
    });
    if !found.is_empty() {
        run.figures.caught += 1;
    } else if !reasons.is_empty() {
        run.figures.reported += 1;
    }
    Ok(())
}
