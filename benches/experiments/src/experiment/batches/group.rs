//! Group commit: many clients share a sync in the engine, and beside it threads that each sync for
//! themselves.

use super::writer::{Call, FileWrites};
use super::{Manner, PLAIN, Sizes, make_file};
use crate::experiment::{
    Case, Context, LOAD_COLUMNS, close, little_checks, load_figures, rounds, small,
};
use crate::measure::{Payloads, Samples, Stopped};
use crate::report::{Check, Table, count};
use crate::subject::{EngineLog, EnginePuts, Load, Subject};
use anyhow::Result;
use cairn_engine::Mode;
use cairn_engine::io::BLOCK;
use futures::future::BoxFuture;
use std::sync::{Arc, OnceLock};

pub(super) const GROUP_COMMIT: &str = "Group commit: many clients share a sync";

/// The lines of the second table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Engine(Mode),
    Threads,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] =
        [Kind::Engine(Mode::Sync), Kind::Engine(Mode::Replicated), Kind::Threads];

    pub(super) fn label(self) -> String {
        match self {
            Kind::Engine(mode) => format!("Cairn, {mode}"),
            Kind::Threads => "O_DIRECT, own fdatasync".to_owned(),
        }
    }

    pub(super) fn row(self, clients: usize) -> String {
        let who = if self == Kind::Threads { "thread" } else { "client" };
        format!("{}, {}", self.label(), count(clients, who))
    }

    fn answered_by(self) -> &'static str {
        match self {
            Kind::Engine(Mode::Sync) | Kind::Threads => "disk",
            Kind::Engine(_) => "device",
        }
    }

    /// The most clients: more threads would measure the scheduler.
    pub(super) fn most_clients(self) -> usize {
        if self == Kind::Threads { 100 } else { usize::MAX }
    }
}

/// How many clients the second table has.
pub(super) fn clients(quick: bool) -> &'static [usize] {
    if quick { &[1, 10, 100] } else { &[1, 10, 100, 1000] }
}

/// Measures the second table.
pub(super) async fn measure_group_commit(
    context: &Context<'_>,
    sizes: &Sizes,
) -> Result<(Table, Vec<Check>)> {
    let mut cases = Vec::new();
    let mut failures: Vec<Failure> = Vec::new();
    // Half of what may live in the engine.
    let keys = sizes.engine / 8 / BLOCK as u64;
    let payloads = tokio::task::spawn_blocking(move || Payloads::new(keys, 1)).await?;
    for kind in Kind::ALL {
        let failure = Failure::default();
        failures.push(failure.clone());
        cases.push(match kind {
            Kind::Threads => thread_case(context, sizes.file).await?,
            Kind::Engine(mode) => {
                engine_case(context, mode, sizes.engine, &payloads, failure).await?
            }
        });
    }
    let mut table = Table::new(GROUP_COMMIT, &LOAD_COLUMNS);
    let mut checks = Vec::new();
    for clients in clients(context.settings.quick).iter().copied() {
        let some = Kind::ALL.iter().take_while(|kind| clients <= kind.most_clients()).count();
        let (made, left_out) = cases.split_at_mut(some.min(Kind::ALL.len()));
        for (case, kind) in made.iter_mut().zip(Kind::ALL) {
            case.name = kind.row(clients);
            case.rounds.clear();
        }
        rounds(context, made, clients, sizes.group_commit, None).await?;
        for (case, failure) in made.iter_mut().zip(&failures) {
            let failed = failure.reason();
            match failed.as_ref().or(case.subject.as_ref().err()) {
                Some(reason) => {
                    table.not_made(&*case.name, reason);
                    case.rounds.clear();
                }
                None => {
                    let figures = load_figures(&case.rounds);
                    table.measured(&*case.name, &*case.answered_by, figures);
                }
            }
        }
        for kind in Kind::ALL.iter().skip(some).take(left_out.len()) {
            table.not_made(kind.row(clients), "so many threads would measure the scheduler");
        }
        checks.extend(little_checks(made, clients));
    }
    close(cases).await?;
    for kind in Kind::ALL {
        match kind {
            Kind::Engine(mode) => context.place.remove(&engine_name(mode))?,
            Kind::Threads => context.place.remove("batches-file")?,
        }
    }
    Ok((table, checks))
}

fn engine_name(mode: Mode) -> String {
    format!("batches-engine-{mode}")
}

/// Threads that write as the engine does, with `O_DIRECT`, to a file that is written before.
async fn thread_case(context: &Context<'_>, bytes: u64) -> Result<Case> {
    let kind = Kind::Threads;
    if let Err(reason) = context.place.direct() {
        return Ok(Case::not_made(kind.label(), reason));
    }
    let path = make_file(context, "batches-file", bytes, true).await?;
    let sync = Some((Call::Fdatasync, 1));
    let subject = FileWrites::open(&path, bytes, Manner { direct: true, sync, ..PLAIN })?;
    Ok(Case::new(kind.label(), kind.answered_by(), subject))
}

async fn engine_case(
    context: &Context<'_>,
    mode: Mode,
    bytes: u64,
    payloads: &Payloads,
    failure: Failure,
) -> Result<Case> {
    let kind = Kind::Engine(mode);
    // Engines need O_DIRECT.
    if let Some(reason) = context.settings.why_not(mode).or(context.place.direct().err()) {
        return Ok(Case::not_made(kind.label(), reason));
    }
    let options = |boot| small(mode, boot, bytes);
    let engine = context.engine(&engine_name(mode), bytes, options).await?;
    let log = EngineLog::start(engine, bytes / 16);
    let puts = EnginePuts { log, payloads: payloads.clone(), value_bytes: BLOCK };
    Ok(Case::new(kind.label(), kind.answered_by(), MayFail { subject: puts, failure }))
}

/// Why a subject failed.
#[derive(Clone, Default)]
struct Failure(Arc<OnceLock<String>>);

impl Failure {
    fn reason(&self) -> Option<String> {
        self.0.get().map(|error| format!("failed: {error}; a larger --size may help"))
    }
}

/// A subject that loses its rows when it fails, not the run. A small engine is full if the disk
/// takes writes much faster than a sync.
struct MayFail<S> {
    subject: S,
    failure: Failure,
}

impl<S: Subject + 'static> Subject for MayFail<S> {
    fn round<'a>(&'a mut self, load: &'a Load) -> BoxFuture<'a, Result<Samples>> {
        Box::pin(async move {
            if self.failure.0.get().is_some() {
                return Samples::new();
            }
            match self.subject.round(load).await {
                Err(error) if !error.is::<Stopped>() => {
                    // Only the first failure counts.
                    let _ = self.failure.0.set(format!("{error:#}"));
                    Samples::new()
                }
                ended => ended,
            }
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        let MayFail { subject, failure } = *self;
        Box::pin(async move {
            let closed = Box::new(subject).close().await;
            if failure.0.get().is_some() { Ok(()) } else { closed }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::tests::{Bench, settings};
    use crate::measure::Limit;
    use crate::subject::make_engine;
    use cairn_engine::io::Backend;

    #[tokio::test]
    async fn a_mode_that_is_not_justified_has_a_row_with_the_reason() {
        let mut settings = settings();
        settings.modes = vec![(Mode::Sync, Some("no".into()))];
        let bench = Bench::new(settings);
        let context = bench.context();
        let payloads = Payloads::new(1, 1);
        for (mode, expected) in [(Mode::Sync, "no"), (Mode::Device, "was not chosen")] {
            let case = engine_case(&context, mode, 64 << 20, &payloads, Failure::default());
            let Case { subject: Err(reason), .. } = case.await.unwrap() else {
                panic!("{mode} is measured")
            };
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[tokio::test]
    async fn a_round_of_puts_leaves_nothing_unsynced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine");
        let zeroed = &mut |_, _| std::ops::ControlFlow::Continue(());
        let mode = Mode::Replicated;
        let engine = make_engine(&path, 16 << 20, mode, Backend::Auto, zeroed).await.unwrap();
        let log = EngineLog::start(engine.clone(), 1 << 20);
        let payloads = Payloads::new(10, 1);
        let mut puts = EnginePuts { log, payloads, value_bytes: BLOCK };
        let limit = Limit::Operations(20);
        let load = Load { depth: 4, limit, seed: 1, stop: crate::Stop::default() };
        assert_eq!(puts.round(&load).await.unwrap().latencies.len(), 20);
        assert_eq!(engine.status().unsynced_bytes, 0);
        Box::new(puts).close().await.unwrap();
    }

    struct Fails;

    impl Subject for Fails {
        fn round<'a>(&'a mut self, _: &'a Load) -> BoxFuture<'a, Result<Samples>> {
            Box::pin(async { anyhow::bail!("full") })
        }
    }

    #[tokio::test]
    async fn a_failed_subject_has_a_reason_and_does_not_end_the_run() {
        let failure = Failure::default();
        let mut subject = MayFail { subject: Fails, failure: failure.clone() };
        let limit = Limit::Operations(1);
        let load = Load { depth: 1, limit, seed: 1, stop: crate::Stop::default() };
        for _ in 0..2 {
            assert!(subject.round(&load).await.unwrap().latencies.is_empty());
        }
        Box::new(subject).close().await.unwrap();
        assert!(failure.reason().unwrap().starts_with("failed: full"));
    }
}
