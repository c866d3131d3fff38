//! One run, from seed to report.
//!
//! # Determinism
//! Each run has a thread of its own (the keys of hash maps are per thread), a madsim runtime with
//! the run's seed, and around it a tokio runtime whose own random numbers have the same seed:
//! tokio's `select!` and channels use them. The run is `unconstrained`, since otherwise tokio's
//! cooperative budget would run out and hang everything. For the same reason simulated code must
//! not call `tokio::task::yield_now`: it leaves its waker with the outer runtime, which never polls
//! it.

use super::after_unsafe_recovery;
use super::clients;
use super::clock::virtual_time;
use super::cluster::Cluster;
use super::crash_image;
use super::decay::DiskDecay;
use super::faults::Nemesis;
use super::finale;
use super::half_connected;
use super::kinds::FaultKind::{LostWrite, Repeat, Reset, StrayRead, StrayWrite};
use super::left_alone;
use super::logging::Capture;
use super::membership;
use super::minority_down;
use super::network::Links;
use super::observe::{Seen, watch};
use super::plan::Plan;
use super::probe;
use super::report::Report;
use super::script::{
    Act, CONTRADICTED, CUT_SHORT, DISCARDED_ERROR, Scenario, Signals, Stage, judge_loss,
};
use super::taker;
use super::watchers;
use super::watches::Watches;
use crate::hang::run_watched;
use crate::trace::Trace;
use cairn_clients::Violation;
use cairn_clients::check::{acknowledged, bounded, linearizable, position, provenance};
use cairn_clients::history::{Action, History, Outcome};
use cairn_clients::workload::Recorder;
use cairn_engine::Mode;
use madsim::runtime::NodeHandle;
use parking_lot::Mutex;
use real_tokio::runtime::{Builder, RngSeed};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::Level;

/// A run that takes longer than this in virtual time is stuck.
const TIME_LIMIT: Duration = Duration::from_secs(460);
/// How long a cluster may take to form undisturbed.
const FORMING_LIMIT: Duration = Duration::from_secs(20);
/// How long clients continue after the faults.
const AFTERMATH: Duration = Duration::from_secs(3);
const STACK_BYTES: usize = 16 << 20;

/// How to run a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// The mode, if not the seed's own.
    pub mode: Option<Mode>,
    /// Whether to run the plan with many power cuts ([`Plan::storm`]).
    pub storm: bool,
    /// Whether each event is printed as it happens.
    pub print: bool,
    /// The lowest level of log lines that are printed.
    pub log: Option<Level>,
}

impl RunOptions {
    /// The plan of a seed.
    pub fn plan(&self, seed: u64) -> Plan {
        if self.storm { Plan::storm(seed, self.mode) } else { Plan::new(seed, self.mode) }
    }
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs one seed on a thread of its own.
pub fn run_seed(seed: u64, options: RunOptions) -> Report {
    run_plan(options.plan(seed), options, None)
}

/// Runs one seed of a scenario on a thread of its own.
pub fn run_scenario(scenario: &Scenario, seed: u64, options: RunOptions) -> Report {
    let plan = scenario.plan_of(seed, options.mode);
    let mut report = run_plan(plan, options, Some(scenario.act(seed)));
    report.seed = seed;
    if !scenario.may_stop && report.events.contains_key(finale::STOPPED) {
        let detail = "it waits for an operator";
        report.violations.push(Violation::new("the cluster recovers without an operator", detail));
    }
    report
}

/// Runs a plan on a thread of its own, with the plan's faults or those of a script.
fn run_plan(plan: Plan, options: RunOptions, act: Option<Act>) -> Report {
    keep_panics();
    let empty = Report::empty(plan.seed, plan.mode);
    run_watched(STACK_BYTES, move || isolated(plan, options, act))
        .unwrap_or_else(|why| failed(empty, &why))
}

fn failed(mut report: Report, detail: &str) -> Report {
    report.violations.push(Violation::new("the run ends", detail));
    report
}

/// Panics are caught and reported with the seed instead of printed.
fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let text = format!("{info}");
            // The first panic is the cause; those that follow come from its unwinding.
            PANIC.with_borrow_mut(|slot| slot.get_or_insert(text).len());
        }));
    });
}

fn isolated(plan: Plan, options: RunOptions, act: Option<Act>) -> Report {
    let (capture, errors) = Capture::new(options.log);
    let _logging = tracing::subscriber::set_default(capture);
    let trace = Trace::new(virtual_time, options.print);
    let empty = Report::empty(plan.seed, plan.mode);
    let result = catch_unwind(AssertUnwindSafe(|| simulate(plan, trace.clone(), act)));
    let mut report = match result {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => failed(empty, &error),
        Err(_) => {
            let text = PANIC.with_borrow_mut(Option::take).unwrap_or_else(|| "unknown".into());
            failed(empty, &format!("panic: {text}"))
        }
    };
    for error in errors.lock().iter() {
        // A member that was missing in an unsafe recovery, and holds what was discarded, must report it.
        if error.text.contains(DISCARDED_ERROR) && report.missing.explains(error) {
            *report.events.entry(CONTRADICTED).or_default() += 1;
            continue;
        }
        let waits = report.events.contains_key(finale::STOPPED)
            || report.events.contains_key(finale::UNSAFE_RECOVERY);
        if waits && error.text.contains(finale::BLOCKED_ERROR) {
            continue;
        }
        let detail = error.text.clone();
        report.violations.push(Violation::new("no unexpected ERROR is logged", detail));
    }
    report.trace_hash = trace.hash();
    report.trace = trace.lines();
    report
}

fn simulate(plan: Plan, trace: Trace, act: Option<Act>) -> Result<Report, String> {
    let seed = RngSeed::from_bytes(&plan.seed.to_le_bytes());
    let around =
        Builder::new_current_thread().rng_seed(seed).build().map_err(|error| error.to_string())?;
    let mut inside =
        madsim::runtime::Runtime::with_seed_and_config(plan.seed, madsim::Config::default());
    inside.set_time_limit(TIME_LIMIT);
    cairn_raft::forget_earlier_run();
    cairn_raft::cut_snapshots(plan.snapshot_piece_bytes);
    let run = async { inside.block_on(run(plan, trace, act)) };
    around.block_on(real_tokio::task::unconstrained(run))
}

async fn run(plan: Plan, trace: Trace, act: Option<Act>) -> Result<Report, String> {
    trace.event(format!("{plan:?}"));
    let cluster = Cluster::build(plan.clone(), trace.clone())
        .await
        .map_err(|error| format!("format: {error}"))?;
    let hosts = clients::hosts(&plan);
    let all_hosts =
        cluster.machines.iter().map(|machine| machine.host).chain(hosts.iter().map(NodeHandle::id));
    let links = Arc::new(Links::new(&plan, all_hosts.collect()));
    for machine in &cluster.machines {
        cluster.start(machine);
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    madsim::task::spawn(watch(cluster.clone(), links.clone(), seen.clone()));
    madsim::task::spawn(crash_image::watch(cluster.clone()));
    probe::spawn(&cluster);
    if plan.forms_in_peace {
        form(&cluster).await;
    }

    let recorder = Recorder::new(trace.clone());
    let signals = Arc::new(Signals::default());
    let stop = signals.quiet.clone();
    let clients = clients::start(&cluster, &hosts, 0, &recorder, &stop)?;
    let client_hosts: Vec<_> = hosts.iter().map(NodeHandle::id).collect();
    let (mut churning, mut filling, mut bulk, mut taking) = (None, None, None, None);
    let mut watching = None;
    match act {
        Some(Act { seed, script }) => {
            let world = (cluster.clone(), links.clone(), client_hosts);
            let stage = Stage::new(world, recorder.clone(), signals.clone(), seed);
            if let Err(missed) = script(stage).await {
                trace.event(format!("{CUT_SHORT} {missed}"));
            }
        }
        None => {
            churning = clients::start_churn(&cluster, &hosts, &stop)?;
            bulk = clients::start_bulk(&cluster, &hosts, &stop)?;
            taking = taker::start(&cluster, &hosts, &stop)?;
            watching = Some(watchers::start(&cluster, &hosts, &cluster.watches, 23)?);
            let until = virtual_time() + plan.fault_time;
            madsim::task::spawn(DiskDecay::new(cluster.clone()).run(until));
            filling = clients::start_fill(&cluster)?;
            if plan.leaves {
                madsim::task::spawn(minority_down::leave(cluster.clone()));
            }
            if plan.half_connected {
                madsim::task::spawn(half_connected::last(cluster.clone(), links.clone(), until));
            }
            cairn_raft::repeat_messages(plan.repeats_per_mille);
            cairn_raft::reset_calls(plan.resets_per_mille);
            madsim::task::spawn(left_alone::watch(
                cluster.clone(),
                (links.clone(), client_hosts.clone()),
                recorder.clone(),
                stop.clone(),
            ));
            Nemesis::new(cluster.clone(), links.clone(), client_hosts).inject(until).await;
            cairn_raft::repeat_messages(0);
            cairn_raft::reset_calls(0);
            cluster.count_many(Reset.name(), cairn_raft::calls_reset());
            cluster.count_many(Repeat.name(), cairn_raft::messages_repeated());
        }
    }
    // What an unsafe recovery discarded contradicts what came after it, so the time before and the
    // time after are checked separately.
    let seen_before = cluster.decided().then(|| Mutex::new(std::mem::take(&mut *seen.lock())));
    let last = plan.profile.clients * plan.profile.tasks_per_client;
    let dead = finale::heal(&cluster, &links).await;
    if !dead.is_empty() {
        serve(&cluster, &hosts, last + 1, &recorder).await?;
        finale::start(&cluster, &dead).await;
    }
    let stuck = finale::stuck(&cluster).await;
    tokio::time::sleep(AFTERMATH).await;
    minority_down::linger(&cluster).await;
    stop.store(true, Ordering::Relaxed);
    let others = churning.into_iter().chain(taking).chain(filling.filter(|_| !stuck));
    for client in clients.into_iter().chain(others) {
        client.await.map_err(|error| format!("a client's task: {error}"))?;
    }
    if let Some(bulk) = bulk {
        let (wrong, pages) =
            bulk.await.map_err(|error| format!("the client of many keys: {error}"))?;
        cluster.count_event("runs with hundreds of keys");
        cluster.trace.event(format!("{pages} pages of many keys"));
        for detail in wrong.into_iter().filter(|_| !stuck) {
            cluster.violation(Violation::new("a list shows what was written", detail));
        }
    }
    watchers::end(watching, &recorder, stuck).await?;
    if stuck {
        finale::decide(&cluster).await;
    }
    finale::start(&cluster, &Vec::from_iter(0..cluster.machines.len())).await;
    let end = match cluster.decided() {
        true => None,
        false => Some(serve(&cluster, &hosts, last, &recorder).await?),
    };
    minority_down::speed_up(&cluster);
    // A slow disk may take a minute for a snapshot.
    membership::finish(&cluster).await;
    let cut = *signals.all_cut.lock();
    if cluster.decided() && (cut.is_some() || plan.keeps_disks()) {
        let end = serve(&cluster, &hosts, last, &Recorder::new(trace.clone())).await?;
        judge_loss(&cluster, recorder.records(), &end, cut);
        go_on(&cluster, &hosts).await?;
    }
    if !stuck {
        finale::converge(&cluster, &seen).await;
        finale::scrub(&cluster, &seen).await;
        taker::all_send(&cluster, &hosts).await?;
        finale::lose_power_idle(&cluster).await;
    }

    let history = History::new(recorder.records());
    judge(&cluster, seen_before.as_ref().unwrap_or(&seen), &recorder, &history, end.as_ref());
    let report = report(&cluster, &links, &seen, &history);
    cluster.dismantle().await;
    Ok(report)
}

/// The last client: writes once and reads everything.
async fn serve(
    cluster: &Arc<Cluster>,
    hosts: &[NodeHandle],
    number: u32,
    recorder: &Recorder,
) -> Result<acknowledged::FinalKeys, String> {
    let host = hosts.first().ok_or("no client host")?;
    let client = clients::client(cluster, u64::from(number))?;
    let (cluster, recorder) = (cluster.clone(), recorder.clone());
    let serving =
        host.spawn(async move { finale::serve(&cluster, client, number, &recorder).await });
    serving.await.map_err(|error| format!("the last client: {error}"))
}

/// Lets clients continue after an unsafe recovery, and checks their history from there.
async fn go_on(cluster: &Arc<Cluster>, hosts: &[NodeHandle]) -> Result<(), String> {
    let host = hosts.first().ok_or("no client host")?;
    let clearing = {
        let number = u64::from(after_unsafe_recovery::FIRST_CLIENT) - 1;
        let (client, cluster) = (clients::client(cluster, number)?, cluster.clone());
        host.spawn(async move { after_unsafe_recovery::clear(&cluster, client).await })
    };
    clearing.await.map_err(|error| format!("the client that deletes all keys: {error}"))?;
    let (recorder, stop) = (Recorder::new(cluster.trace.clone()), Arc::new(AtomicBool::new(false)));
    let clients =
        clients::start(cluster, hosts, after_unsafe_recovery::FIRST_CLIENT, &recorder, &stop)?;
    let watches = Arc::new(Watches::default());
    let watching = watchers::start(cluster, hosts, &watches, 24)?;
    after_unsafe_recovery::disturb(cluster).await;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.map_err(|error| format!("a client's task: {error}"))?;
    }
    watchers::end(Some(watching), &recorder, false).await?;
    for (event, times) in watches.events() {
        cluster.count_events(event, times);
    }
    let end = serve(cluster, hosts, 2 * after_unsafe_recovery::FIRST_CLIENT, &recorder).await?;
    let history = History::new(recorder.records());
    let mut found = linearizable::check(&history, linearizable::DEFAULT_BUDGET);
    found.extend(provenance::check(&history));
    found.extend(reads(cluster, &history));
    found.extend(watches.check(&history, &[]));
    found.extend(acknowledged::check(&history, &end));
    after_unsafe_recovery::judge(cluster, found, &end);
    Ok(())
}

/// Waits for a leader.
async fn form(cluster: &Cluster) {
    let began = virtual_time();
    let led = || {
        let mut nodes = cluster.machines.iter().filter_map(|machine| machine.node());
        nodes.any(|(_, node)| node.replica().leader().is_some())
    };
    while !led() {
        if virtual_time() - began > FORMING_LIMIT {
            cluster.violation(Violation::new("a cluster forms undisturbed", "no leader"));
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.trace.event("formed");
}

fn judge(
    cluster: &Cluster,
    seen: &Mutex<Seen>,
    recorder: &Recorder,
    history: &History,
    end: Option<&acknowledged::FinalKeys>,
) {
    let mut found = linearizable::check(history, linearizable::DEFAULT_BUDGET);
    found.extend(provenance::check(history));
    found.extend(reads(cluster, history));
    found.extend(cluster.watches.check(history, &cluster.states.all()));
    found.extend(end.into_iter().flat_map(|end| acknowledged::check(history, end)));
    let seen = seen.lock();
    found.extend(cluster.states.check(history, &seen.logs));
    found.extend(cluster.watches.check_logs(&seen.logs));
    for record in history.records() {
        if let Some((term, index)) = record.log_id() {
            found.extend(seen.logs.acknowledged(cairn_engine::LogId { term, index }));
        }
    }
    found.extend(
        recorder.surprises().into_iter().map(|text| Violation::new("answers make sense", text)),
    );
    let refused = recorder.take_refused_ranges();
    // An unsafe recovery may discard the version that has ranges.
    if !cluster.decided() {
        let property = "a cluster that has deleted a range refuses none";
        found.extend(refused.into_iter().map(|text| Violation::new(property, text)));
    }
    for text in recorder.unreadable() {
        // The members that have the value may be down; at the end all are up, and all keys were
        // read.
        cluster.count_event("answers that a value cannot be read");
        if cluster.atlas.victims().is_empty() {
            found.push(Violation::new("values are readable where nothing decays", text));
        }
    }
    for violation in found {
        cluster.violation(violation);
    }
}

/// What must hold for reads beside one order of all.
fn reads(cluster: &Cluster, history: &History) -> Vec<Violation> {
    let mut found = bounded::check(history, cluster.plan.clock_skew);
    found.extend(position::check(history, cluster.plan.clock_skew));
    found
}

fn report(cluster: &Cluster, links: &Links, seen: &Mutex<Seen>, history: &History) -> Report {
    let seen = seen.lock();
    let mut report = Report::empty(cluster.plan.seed, cluster.plan.mode);
    for record in history.records() {
        let kind = match record.outcome {
            Outcome::Found(_) if matches!(record.action, Action::BoundedGet(..)) => {
                "gets within a bound"
            }
            Outcome::FoundMany(..) if matches!(record.action, Action::BoundedGetMany(..)) => {
                "gets of several keys within a bound"
            }
            Outcome::FoundMany(..) if record.action == Action::Scan => "scans",
            Outcome::Applied { .. } => "writes applied",
            Outcome::ConditionFailed { .. } => "conditions failed",
            Outcome::RangeDeleted { .. } => "ranges deleted",
            Outcome::RangeTooLarge { .. } => "ranges too large",
            Outcome::Found(_) => "gets",
            Outcome::FoundMany(..) => "gets of several keys",
            Outcome::FoundVersion(_) => "versions",
            Outcome::Listed(..) => "lists",
            Outcome::NoEffect => "refused",
            Outcome::Unknown => "unknown",
        };
        *report.outcomes.entry(kind).or_default() += 1;
    }
    let relied = u64::try_from(position::by_an_earlier_barrier(history)).unwrap_or(u64::MAX);
    report.outcomes.insert("gets of several keys by an earlier barrier", relied);
    for machine in &cluster.machines {
        let stats = machine.disk.stats();
        cluster.trace.event(format!(
            "disk {} did {stats:?}, digest {:016x}",
            machine.slot,
            machine.disk.digest()
        ));
        report.disk.reads += stats.reads;
        report.disk.writes += stats.writes;
        report.disk.bytes_written += stats.bytes_written;
        report.disk.syncs += stats.syncs;
        report.disk.damage.add(stats.damage);
        report.disk.wrongs.add(stats.wrongs);
        let wrongs = stats.wrongs;
        for (kind, times) in [
            (LostWrite, wrongs.lost_writes),
            (StrayWrite, wrongs.stray_writes),
            (StrayRead, wrongs.stray_reads),
        ] {
            cluster.count_many(kind.name(), times);
        }
    }
    for (event, times) in cluster.watches.events() {
        cluster.count_events(event, times);
    }
    // Every scheduling step advances the clock and the generator, so these two are a digest of the
    // whole schedule.
    cluster.trace.event(format!(
        "end: {} messages, random {:016x}",
        links.messages(),
        madsim::rand::random::<u64>()
    ));
    report.violations = cluster.violations();
    report.faults = cluster.counts();
    report.events = cluster.events();
    report.missing = cluster.missing();
    report.power_cuts = cluster.power_cuts.load(Ordering::Relaxed);
    *report.events.entry("starts").or_default() +=
        cluster.machines.iter().map(|m| u64::from(m.life())).sum::<u64>();
    report.virtual_ms = u64::try_from(virtual_time().as_millis()).unwrap_or(u64::MAX);
    report.terms = seen.leaders.terms() as u64;
    report.log_entries = seen.logs.entries() as u64;
    report
}
