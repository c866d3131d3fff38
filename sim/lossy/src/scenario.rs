//! What is done to the machines, and what must hold afterwards.

use crate::disk::{Behaviour, CutStyle};
use crate::figures::Figures;
use crate::run::{Plan, Returned, Run};
use anyhow::Result;
use rand::RngExt;
use rand::seq::SliceRandom;
use std::time::Duration;

/// Within this a leader under load has noticed that a machine is gone. Until then it may let acknowledgements run ahead,
/// and marks that are clear may be set again.
const NOTICED: Duration = Duration::from_millis(1500);

/// What may be lost in `replicated` mode when all machines lose power at once: the interval of the background sync, and
/// what such a sync takes on a busy machine.
const WINDOW: Duration = Duration::from_millis(2500);

/// A cluster that stopped acknowledges nothing for so long.
const STOPPED: Duration = Duration::from_secs(1);

/// Cuts of one machine at a time while clients write. Nothing may be lost, the others go on, and the machine comes back
/// by itself.
///
/// # Errors
/// Where the scenario cannot be carried out.
pub async fn one_machine(plan: &Plan, cuts: u64) -> Result<Figures> {
    let mut run = Run::begin(plan, "power cut of one machine under load").await?;
    for _ in 0..cuts {
        run.figures.rounds += 1;
        let load = run.load();
        run.wait_lazy().await?;
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
        run.say(|| format!("machine {}: {damage:?}, back: {back}, {} wrong", victim + 1, wrong.len()));
        let lost = !wrong.is_empty();
        run.figures.wrong.extend(wrong);
        if lost || !back {
            break;
        }
        run.figures.served += 1;
    }
    Ok(run.finish())
}

/// Starts these machines again. False, with the reason among what is wrong, if one does not become active.
pub(crate) async fn await_return(run: &mut Run, numbers: &[usize]) -> Result<bool> {
    for number in numbers {
        run.cluster.start(*number)?;
    }
    let mut all = true;
    for (number, returned) in numbers.iter().zip(run.wait_active(numbers).await?) {
        match returned {
            Returned::Active(time) => run.figures.add_recovery(time),
            Returned::Not { reason, .. } => {
                run.figures.wrong.push(format!("machine {} did not come back: {reason}", number + 1));
                all = false;
            }
        }
    }
    Ok(all)
}

/// Cuts of all machines at the same moment, with nothing written since they all cleared their `lazy` marks. Nothing may be
/// lost and all come back by themselves.
///
/// # Errors
/// Where the scenario cannot be carried out.
pub async fn all_idle(plan: &Plan, cuts: u64) -> Result<Figures> {
    let mut run = Run::begin(plan, "power cut of all machines while idle").await?;
    let all: Vec<usize> = (0..run.cluster.len()).collect();
    for _ in 0..cuts {
        run.figures.rounds += 1;
        let load = run.load();
        run.warm_up(&load).await?;
        run.rest(load).await?;
        run.wait_not_lazy(&all, Duration::ZERO).await?;
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

/// Cuts of all machines under load, one after another, none of which comes back before all are cut: the second when those
/// that are left have cleared their `lazy` marks. Nothing may be lost and all come back by themselves.
///
/// # Errors
/// Where the scenario cannot be carried out.
pub async fn one_after_another(plan: &Plan, cuts: u64) -> Result<Figures> {
    let mut run = Run::begin(plan, "power cuts of all machines one after another under load").await?;
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
                run.wait_not_lazy(&left, NOTICED).await?;
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

/// Cuts of all machines at the same moment while clients write. In `sync` and `device` mode nothing may be lost. In `replicated` mode
/// the cluster either serves, and then all machines are back and nothing is lost, or it does not serve and says why.
///
/// # Errors
/// Where the scenario cannot be carried out.
pub async fn all_under_load(plan: &Plan, cuts: u64) -> Result<Figures> {
    let mut run = Run::begin(plan, "power cut of all machines under load").await?;
    let all: Vec<usize> = (0..run.cluster.len()).collect();
    for _ in 0..cuts {
        run.figures.rounds += 1;
        let load = run.load();
        if run.plan.setup.mode == "replicated" {
            // What may be lost is younger than what the last comparison saw.
            tokio::time::sleep(WINDOW).await;
        }
        run.wait_lazy().await?;
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

/// Accepts the loss. False if the cluster does not then serve, everywhere alike, all but the newest writes.
async fn operator_decides(run: &mut Run, cut_at: Duration) -> Result<bool> {
    run.cluster.accept_loss()?;
    let all: Vec<usize> = (0..run.cluster.len()).collect();
    for (slot, returned) in (1..).zip(run.wait_active(&all).await?) {
        if let Returned::Not { reason, .. } = returned {
            run.figures.wrong.push(format!("machine {slot} after `cairn recover`: {reason}"));
            return Ok(false);
        }
    }
    let (wrong, lost) = run.compare_after_loss(cut_at.saturating_sub(WINDOW)).await?;
    run.say(|| format!("the operator gave up writes of {lost} keys: {} wrong", wrong.len()));
    run.figures.given_up += lost;
    run.figures.wrong.extend(wrong);
    Ok(run.figures.wrong.is_empty())
}

/// How all machines came back.
struct Return {
    /// Of each machine that did not become active, what it says.
    reasons: Vec<String>,
    /// Whether one of them says why.
    explained: bool,
}

async fn start_all(run: &mut Run) -> Result<Return> {
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

/// What a canary is made of: an assumption without which no store can keep its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Disks that report syncs which they do not do.
    LyingDisks,
    /// Machines that keep their boot id over a power cut, and so take what they forgot for what never was.
    HiddenCuts,
}

/// Power cuts of all machines under load where no promise can be kept. A loss must be found, or reported by the machines:
/// else it is this harness that sees nothing.
///
/// # Errors
/// Where the scenario cannot be carried out.
pub async fn canary(plan: &Plan, canary: Canary, cuts: u64) -> Result<Figures> {
    let mut plan = plan.clone();
    let name = match canary {
        Canary::LyingDisks => "canary: disks that lie about syncs",
        Canary::HiddenCuts => {
            "replicated".clone_into(&mut plan.setup.mode);
            "canary: power cuts that the boot id hides"
        }
    };
    let mut run = Run::begin(&plan, name).await?;
    for round in 0..cuts {
        if round > 0 {
            run.begin_anew().await?;
        }
        run.figures.rounds += 1;
        cut_where_nothing_helps(&mut run, canary, round).await?;
    }
    if run.figures.caught == 0 {
        run.figures.wrong.push("no loss was found where there must have been one".to_owned());
    }
    Ok(run.finish())
}

async fn cut_where_nothing_helps(run: &mut Run, canary: Canary, round: u64) -> Result<()> {
    let all: Vec<usize> = (0..run.cluster.len()).collect();
    let load = run.load();
    run.warm_up(&load).await?;
    match canary {
        Canary::LyingDisks => run.cluster.behave(Behaviour::Lie),
        Canary::HiddenCuts => run.cluster.hide_cuts(),
    }
    run.wait_lazy().await?;
    run.warm_up(&load).await?;
    // All that is not synced comes to nothing, as if it had never been; or a part of it.
    let style = if round.is_multiple_of(2) { CutStyle::Nothing } else { CutStyle::Scattered };
    let damage = run.cluster.cut_power(&all, Some(style))?;
    run.figures.damage.add(damage);
    run.cluster.behave(run.plan.setup.behaviour());
    let Return { reasons, .. } = start_all(run).await?;
    run.rest(load).await?;
    // What a client under load was told is one of the losses that are wanted.
    let mut found = std::mem::take(&mut run.figures.wrong);
    if reasons.is_empty() {
        found.extend(run.compare().await?);
        run.figures.served += 1;
    } else {
        found.extend(run.judge());
    }
    run.say(|| format!("{damage:?}, {} lost: {:?}, stopped: {reasons:?}", found.len(), found.first()));
    if !found.is_empty() {
        run.figures.caught += 1;
    } else if !reasons.is_empty() {
        run.figures.reported += 1;
    }
    Ok(())
}
