//! Checks at random moments what a power cut would leave, without cutting anything.
//!
//! In one step the contents of all disks are copied as a cut would leave them. The shipped engine
//! opens each copy under another kernel boot id. What must be there is known from outside: what
//! each member has counted as stored (as it reported to openraft), what any member has applied, and
//! how long each machine has been down. So a member whose own records excuse a loss is found out,
//! and no election has to come at the right moment.
//!
//! What is opened also has the values: those of its log, and those of its keys that the running
//! node has not overwritten. They are compared with the bytes of the copy, past the engine.

use super::clock::virtual_time;
use super::cluster::{CLUSTER, Cluster};
use super::live;
use super::machine::{Condition, Machine};
use super::observe::last_applied;
use crate::check::crash_image::{self, CrashImage};
use crate::disk::SimDisk;
use bytes::Bytes;
use cairn_clients::Violation;
use cairn_disk::Files;
use cairn_engine::{Engine, KernelBootId, KeyEntry, LogId, MemberState, Mode, Options, ValueRef};
use cairn_raft::{GROUP, NodeId};
use madsim::runtime::{Handle, NodeHandle};
use rand::RngExt;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;

/// The time between two checks, in milliseconds.
const INTERVAL_MS: std::ops::Range<u64> = 500..4_000;
/// After a machine has been down this long, all others have noticed, and all that was acknowledged
/// before is synced. This is longer than the longest sync interval, a leader's timeout and an
/// election, on a slow clock.
const NOTICED: Duration = Duration::from_secs(12);
/// How much longer than a sync interval a member may take, on a slow disk, until everything is
/// synced that it acknowledged before it heard that each acknowledgement is to be synced.
const SYNCS: Duration = Duration::from_secs(4);
/// A kernel boot id that no machine ever has.
const BOOT: KernelBootId = KernelBootId(u128::MAX);

/// How a machine that is down would start, by its disk as it is: in which state, and whether with
/// this entry. `None` if its node would not start.
pub(super) async fn starts_as(
    cluster: &Cluster,
    machine: &Machine,
    counted: Option<LogId>,
) -> Option<(MemberState, bool)> {
    let state =
        move |engine: &Engine| (engine.member_state(), counted.is_none_or(|id| holds(engine, id)));
    of_copy(cluster, machine, state).await
}

/// What a machine that is down holds, by a copy of its disk. `None` if its node would not start.
pub(super) async fn of_copy<T: Send + 'static>(
    cluster: &Cluster,
    machine: &Machine,
    look: impl FnOnce(&Engine) -> T + Send + 'static,
) -> Option<T> {
    let host = Handle::current().create_node().name("copy of a disk").build();
    let (disk, slot) = (machine.disk.copy(), machine.slot);
    let disk = SimDisk::of(format!("copy of disk-{slot}"), disk, host.clone());
    let options = Options { salvage: true, ..Options::new(cluster.plan.mode, machine.boot(), 1) };
    let opened = host.spawn(async move {
        let named = Some((CLUSTER.into(), slot));
        let engine = Engine::open(disk.directory(), named, options).await.ok()?;
        Some(look(&engine))
    });
    opened.await.ok()?
}

/// A machine's disk as a cut would leave it, and what was known at that moment.
struct Taken {
    machine: usize,
    files: Files,
    counted: Option<LogId>,
    member: NodeId,
    up: bool,
    may_ack_unsynced: bool,
    lacks_acks: bool,
    /// The keys of its running node.
    keys: Vec<(Bytes, KeyEntry)>,
}

/// What was known at the moment of the copy.
struct Known {
    counted: Option<LogId>,
    applied: LogId,
    keys: Vec<(Bytes, KeyEntry)>,
}

/// An entry, and the place of a value that it wrote.
type Place = (LogId, ValueRef);

/// Checks until the run ends, or an unsafe recovery begins.
pub(super) async fn watch(cluster: Arc<Cluster>) {
    let host = Handle::current().create_node().name("crash images").build();
    let mut rng = cluster.plan.rng(12);
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(INTERVAL_MS))).await;
        if cluster.decided() {
            return;
        }
        check(&cluster, &host, &mut rng).await;
    }
}

async fn check(cluster: &Arc<Cluster>, host: &NodeHandle, rng: &mut StdRng) {
    let Some((applied, _, configurations)) = last_applied(cluster) else { return };
    let synced = cluster.promises.present().is_some_and(|period| applied.index > period.after);
    let (bare_majority, worst) = (is_bare_majority(cluster), rng.random_bool(0.5));
    let taken: Vec<Taken> = (0..cluster.machines.len())
        .filter_map(|machine| take(cluster, machine, worst, rng))
        .collect();
    let mut images = Vec::new();
    for one in taken {
        let Some(machine) = cluster.machines.get(one.machine) else { continue };
        let disk =
            SimDisk::of(format!("crash image of disk-{}", machine.slot), one.files, host.clone());
        let known = Known { counted: one.counted, applied, keys: one.keys };
        match host
            .spawn(open(
                disk,
                cluster.plan.mode,
                known,
                one.member,
                [one.up, one.may_ack_unsynced, one.lacks_acks],
            ))
            .await
        {
            Ok(Ok((image, wrong))) => {
                judge_values(cluster, machine, wrong);
                images.push(image);
            }
            Ok(Err(error)) => {
                let detail = format!("node {} would not start: {error}", machine.slot);
                cluster.violation(Violation::new(crash_image::NAME, detail));
            }
            Err(_) => return,
        }
    }
    cluster.count_event("crash images opened");
    if bare_majority {
        cluster.count_event("crash images of a bare majority");
    }
    if synced && cluster.plan.mode == Mode::Replicated {
        cluster.count_event("crash images while an operator asked for syncs");
    }
    let judged = [synced, bare_majority];
    let all = crash_image::check_all(&images, &configurations, applied, judged);
    for violation in images.iter().filter_map(crash_image::check).chain(all) {
        cluster.violation(violation);
    }
}

/// What the disk itself damaged since the copy was made proves nothing.
fn judge_values(cluster: &Cluster, machine: &Machine, wrong: Vec<Place>) {
    let (slot, wrong) =
        (machine.slot, wrong.into_iter().find(|(_, at)| live::as_written(machine, at)));
    if let Some((log_id, at)) = wrong {
        let detail = format!("node {slot} would start without the value {at:?} of entry {log_id}");
        cluster.violation(Violation::new(crash_image::NAME, detail));
    }
}

/// Copies a machine's disk, unless a fault other than lost writes and power cuts changed it.
fn take(cluster: &Cluster, number: usize, worst: bool, rng: &mut StdRng) -> Option<Taken> {
    let machine = cluster.machines.get(number)?;
    // An operator may have chosen a mode whose assumptions this disk does not meet.
    let configured = machine.state.lock().mode.is_some();
    let away = machine.is_stale()
        || machine.is_lost()
        || machine.condition() == Condition::Open
        || configured;
    if away || machine.damaged() || machine.device_failed() || machine.disk.decayed() > 0 {
        return None;
    }
    let member = machine.identity()?;
    let files = machine.disk.after_a_cut(worst, rng);
    let keys = machine.node().map(|(_, node)| live::keys(&node)).unwrap_or_default();
    Some(Taken {
        machine: number,
        files,
        counted: machine.counted(),
        member,
        up: machine.condition() == Condition::Up,
        may_ack_unsynced: may_ack_unsynced(cluster, machine),
        lacks_acks: machine.lacks_acks(),
        keys,
    })
}

/// Whether the member may have acknowledged what it has not synced: always, unless the mode that the
/// cluster formed in, or an operator, says otherwise. A member needs some time from then on to sync
/// what it acknowledged before.
fn may_ack_unsynced(cluster: &Cluster, machine: &Machine) -> bool {
    match cluster.promises.present() {
        None => true,
        Some(period) if period.from == Duration::ZERO => false,
        Some(period) => {
            let heard = machine.synced_for().min(virtual_time().saturating_sub(period.from));
            is_held_up(machine) || heard < SYNCS + cluster.plan.sync_interval
        }
    }
}

async fn open(
    disk: SimDisk,
    mode: Mode,
    Known { counted, applied, keys }: Known,
    member: NodeId,
    [up, may_ack_unsynced, lacks_acks]: [bool; 3],
) -> Result<(CrashImage, Vec<Place>), String> {
    let options = Options { salvage: true, ..Options::new(mode, BOOT, 1) };
    let engine = Engine::open(disk.directory(), Some((CLUSTER.into(), member.slot())), options)
        .await
        .map_err(|error| error.to_string())?;
    let wrong = wrong_values(&engine, &disk, &keys).await;
    let image = CrashImage {
        member,
        member_state: engine.member_state(),
        counted,
        holds_counted: counted.is_none_or(|id| holds(&engine, id)),
        holds_applied: holds(&engine, applied),
        up,
        may_ack_unsynced,
        lacks_acks,
    };
    Ok((image, wrong))
}

fn holds(engine: &Engine, id: LogId) -> bool {
    let purged = engine.log_bounds(GROUP).purged.is_some_and(|purged| purged.index >= id.index);
    purged || engine.log_id_at(GROUP, id.index) == Some(id)
}

/// The values of the image that do not match: of its log, and of these keys as far as it has them.
/// No later entry overwrote them, so their places belong to them.
async fn wrong_values(engine: &Engine, disk: &SimDisk, keys: &[(Bytes, KeyEntry)]) -> Vec<Place> {
    let held = keys.iter().filter_map(|(key, now)| {
        let held = engine.lookup(GROUP, key).filter(|held| held.version == now.version)?;
        Some((held.version, held.value))
    });
    let logged = engine.extents(GROUP, 0..u64::MAX).await;
    let logged = logged.into_iter().map(|extent| (extent.log_id, extent.at));
    logged.chain(held).filter(|(_, at)| !live::matches(disk, at)).collect()
}

/// Whether exactly a bare majority has been up for long enough, and the others down for long
/// enough, that all members know.
fn is_bare_majority(cluster: &Cluster) -> bool {
    let now = virtual_time();
    let long = |machine: &&Machine| now.saturating_sub(machine.changed_at()) >= NOTICED;
    let all = || cluster.machines.iter();
    let up: Vec<&Machine> =
        all().filter(|machine| machine.condition() == Condition::Up && machine.votes()).collect();
    let down = all().filter(|machine| machine.condition() == Condition::Down).filter(long).count();
    cluster.plan.mode == Mode::Replicated
        && up.len() == cluster.machines.len() / 2 + 1
        && up.len() + down == cluster.machines.len()
        && up.iter().all(|machine| !machine.lacks_acks() && !is_held_up(machine))
        // Where one leaves, fewer are a bare majority.
        && all().all(|machine| machine.leaving().is_none())
}

/// A member that was paused, or could not sync, has not noticed yet. A member that starts uses the
/// safe ack mode until a leader says otherwise.
fn is_held_up(machine: &Machine) -> bool {
    let now = tokio::time::Instant::now();
    let stalled = machine.disk.stalled_until().is_some_and(|until| now < until + NOTICED);
    let paused = |at| virtual_time().saturating_sub(at) < NOTICED;
    stalled || machine.resumed_at().is_some_and(paused)
}
