//! Asks again and again what a loss of power at this very moment would leave, and cuts nothing.
//!
//! The disks' contents, as a cut would leave them, are copied in one step for all machines, and each copy is opened by the shipped
//! engine under another boot. What must be there is known from outside: what each member has counted as stored, as
//! openraft heard it, what anybody has applied, and how long each machine has been away. So a member that excuses a loss
//! by its own record is found out, and no election has to come at the right moment.

use super::cluster::{CLUSTER, Cluster, virtual_time};
use super::machine::{Condition, Machine};
use crate::check::crash_image::{self, CrashImage};
use crate::disk::{Files, SimDisk};
use cairn_clients::Violation;
use cairn_engine::{BootId, Engine, LogId, Mode, Options};
use cairn_raft::GROUP;
use madsim::runtime::{Handle, NodeHandle};
use rand::RngExt;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;

/// The time between two looks, in milliseconds.
const INTERVAL_MS: std::ops::Range<u64> = 500..4_000;
/// A machine that has been away for so long is missed by everybody, and all that was acknowledged before is synced; longer than
/// the longest sync interval, the patience of a leader, and an election, on a slow clock.
const NOTICED: Duration = Duration::from_secs(12);
/// A boot that no machine ever has.
const BOOT: BootId = BootId(u128::MAX);

/// A machine's disk as a cut would leave it, and what was known at that moment.
struct Taken {
    machine: usize,
    files: Files,
    counted: Option<LogId>,
    votes: bool,
    up: bool,
    may_forget: bool,
}

/// Looks until the run ends, or a person gives something up.
pub(super) async fn watch(cluster: Arc<Cluster>) {
    let host = Handle::current().create_node().name("crash images").build();
    let mut rng = cluster.plan.rng(12);
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(INTERVAL_MS))).await;
        if cluster.decided() {
            return;
        }
        look(&cluster, &host, &mut rng).await;
    }
}

async fn look(cluster: &Arc<Cluster>, host: &NodeHandle, rng: &mut StdRng) {
    let nodes = cluster.machines.iter().filter_map(Machine::node);
    let Some(applied) = nodes.filter_map(|(_, node)| node.engine().applied(GROUP)).max() else { return };
    let (bare, worst) = (bare(cluster), rng.random_bool(0.5));
    let taken: Vec<Taken> =
        (0..cluster.machines.len()).filter_map(|machine| take(cluster, machine, worst, rng)).collect();
    let mut images = Vec::new();
    for one in taken {
        let Some(machine) = cluster.machines.get(one.machine) else { continue };
        let disk = SimDisk::of(format!("crash image of disk-{}", machine.slot), one.files, host.clone());
        let known = (one.counted, applied);
        match host
            .spawn(open(disk, cluster.plan.mode, machine.slot, known, [one.votes, one.up, one.may_forget]))
            .await
        {
            Ok(Ok(image)) => images.push(image),
            Ok(Err(error)) => {
                let detail = format!("node {} would not start: {error}", machine.slot);
                cluster.violation(Violation::new(crash_image::NAME, detail));
            }
            Err(_) => return,
        }
    }
    cluster.count_event("crash images opened");
    if bare {
        cluster.count_event("crash images of a bare majority");
    }
    let all = crash_image::check_all(&images, cluster.machines.len(), applied, bare);
    for violation in images.iter().filter_map(crash_image::check).chain(all) {
        cluster.violation(violation);
    }
}

/// Copies a machine's disk, unless something other than writes and cuts was done to it.
fn take(cluster: &Cluster, number: usize, worst: bool, rng: &mut StdRng) -> Option<Taken> {
    let machine = cluster.machines.get(number)?;
    // A person may have chosen a mode that this disk does not keep.
    let configured = machine.state.lock().mode.is_some();
    let away =
        machine.is_stale() || machine.is_lost() || machine.condition() == Condition::Open || configured;
    if away || machine.damaged() || machine.device_failed() || machine.disk.decayed() > 0 {
        return None;
    }
    let files = machine.disk.after_a_cut(worst, rng);
    let may_forget = cluster.plan.mode == Mode::Replicated || machine.forgetful();
    let (counted, votes, up) = (machine.counted(), machine.votes(), machine.condition() == Condition::Up);
    Some(Taken { machine: number, files, counted, votes, up, may_forget })
}

async fn open(
    disk: SimDisk,
    mode: Mode,
    slot: u16,
    (counted, applied): (Option<LogId>, LogId),
    [votes, up, may_forget]: [bool; 3],
) -> Result<CrashImage, String> {
    let options = Options { salvage: true, ..Options::new(mode, BOOT, 1) };
    let engine = Engine::open(disk.directory(), Some((CLUSTER.into(), slot)), options)
        .await
        .map_err(|error| error.to_string())?;
    let holds = |id: LogId| {
        let purged = engine.log_bounds(GROUP).purged.is_some_and(|purged| purged.index >= id.index);
        purged || engine.log_id_at(GROUP, id.index) == Some(id)
    };
    Ok(CrashImage {
        slot,
        standing: engine.standing(),
        counted,
        holds_counted: counted.is_none_or(holds),
        holds_applied: holds(applied),
        votes,
        up,
        may_forget,
    })
}

/// Whether a bare majority has run for so long, and the others have been down for so long, that everybody knows.
fn bare(cluster: &Cluster) -> bool {
    let now = virtual_time();
    let long = |machine: &&Machine| now.saturating_sub(machine.changed_at()) >= NOTICED;
    // Who did not run, or could not sync, has not noticed yet. Who starts is strict until a leader says otherwise.
    let held_up = |machine: &Machine| {
        let stalled =
            machine.disk.stalled_until().is_some_and(|until| tokio::time::Instant::now() < until + NOTICED);
        stalled || machine.resumed_at().is_some_and(|at| now.saturating_sub(at) < NOTICED)
    };
    let all = || cluster.machines.iter();
    let up: Vec<&Machine> =
        all().filter(|machine| machine.condition() == Condition::Up && machine.votes()).collect();
    let down = all().filter(|machine| machine.condition() == Condition::Down).filter(long).count();
    cluster.plan.mode == Mode::Replicated
        && up.len() == cluster.machines.len() / 2 + 1
        && up.len() + down == cluster.machines.len()
        && up.iter().all(|machine| !machine.forgetful() && !held_up(machine))
}
