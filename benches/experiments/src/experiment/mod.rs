//! The five experiments, and what they share: the place, progress, rounds of load, and the tables
//! that follow from them.

mod batches;
mod conclusion;
mod direct;
mod finding;
mod intervals;
mod objects;
mod uploads;

pub(crate) use conclusion::conclusion;
pub use direct::run_child;

use crate::measure::{Limit, Samples, Stop, median, spread_of};
use crate::place::Place;
use crate::report::{Check, Experiment, Figure};
use crate::subject::{Subject, make_engine_with};
use anyhow::Result;
use cairn_engine::io::Backend;
use cairn_engine::{Engine, KernelBootId, Mode, Options};
use futures::future::BoxFuture;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

/// An experiment that can be run.
pub(crate) struct Definition {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it asks, in one sentence.
    pub question: &'static str,
    /// Whose experiment it is made after.
    pub source: &'static str,
    /// The most space and the most time that it takes with these settings.
    pub bounds: fn(&Settings) -> Bounds,
    /// Runs it.
    pub run: for<'a> fn(&'a Context<'a>) -> BoxFuture<'a, Result<Experiment>>,
}

/// The experiments in the order in which they run.
pub(crate) const ALL: [&Definition; 5] = [
    &objects::DEFINITION,
    &intervals::DEFINITION,
    &uploads::DEFINITION,
    &batches::DEFINITION,
    &direct::DEFINITION,
];

/// What an experiment takes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes on the disk at one time, with the filesystem's blocks.
    pub bytes: u64,
    /// Time, if no single system call hangs.
    pub time: Duration,
}

/// What the user chose and what the machine allows.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The size of the files and of the engines' directories, in bytes: at least
    /// [`Settings::MIN_SIZE`].
    pub size_bytes: u64,
    /// Few and short rounds.
    pub quick: bool,
    /// Cairn's modes, the strongest first, and why one is not justified here.
    pub modes: Vec<(Mode, Option<String>)>,
    /// The program and the arguments that call [`run_child`] with what follows on the command
    /// line.
    pub child: Option<(PathBuf, Vec<String>)>,
    /// Whether this process may mount filesystems in a namespace of its own.
    pub root: bool,
}

impl Settings {
    /// The least size.
    pub const MIN_SIZE: u64 = 64 << 20;
    /// The size if none is chosen.
    pub const DEFAULT_SIZE: u64 = 2 << 30;
    /// The size of a quick run if none is chosen.
    pub const QUICK_SIZE: u64 = 256 << 20;

    /// Why a mode is not justified here.
    pub(crate) fn why_not(&self, mode: Mode) -> Option<String> {
        match self.modes.iter().find(|(found, _)| *found == mode) {
            Some((_, refused)) => refused.clone(),
            None => Some(format!("mode `{mode}` was not chosen")),
        }
    }

    /// Rounds of each row.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 3 } else { 5 }
    }

    /// One round of a timed row.
    pub(crate) fn limit(&self) -> Limit {
        let ms = |warm_up, measured| Limit::Time {
            warm_up: Duration::from_millis(warm_up),
            measured: Duration::from_millis(measured),
        };
        if self.quick { ms(50, 250) } else { ms(500, 2000) }
    }

    /// The time of one round of a timed row.
    pub(crate) fn round_time(&self) -> Duration {
        match self.limit() {
            Limit::Time { warm_up, measured } => warm_up + measured,
            Limit::Bounded { time, .. } => time,
            Limit::Operations(_) => Duration::ZERO,
        }
    }

    /// The speed of a disk that the bounds of time assume. A slower one takes longer.
    pub const fn assumed_mib_per_second(&self) -> u64 {
        if self.quick { 200 } else { Settings::FILL_MIB_PER_SECOND }
    }

    const FILL_MIB_PER_SECOND: u64 = 50;

    /// The time of a full run to fill this many bytes, as the bounds assume.
    pub(crate) fn fill_time(bytes: u64) -> Duration {
        Duration::from_secs(bytes.div_ceil(Settings::FILL_MIB_PER_SECOND << 20))
    }
}

/// Who is told how far a run is.
pub trait Observer: Send + Sync {
    /// An experiment begins, number `at` of `of`.
    fn experiment(&self, name: &str, at: usize, of: usize);
    /// The next step of it begins.
    fn step(&self, what: &str);
    /// So many bytes of so many are zeroed.
    fn zeroed(&self, done: u64, of: u64);
}

/// What an experiment needs to run.
pub(crate) struct Context<'a> {
    pub settings: &'a Settings,
    pub place: &'a Place,
    pub observer: &'a dyn Observer,
    pub stop: Stop,
}

impl Context<'_> {
    /// Tells the next step, unless the run is to end.
    ///
    /// # Errors
    /// [`Stopped`](crate::Stopped).
    pub(crate) fn step(&self, what: &str) -> Result<()> {
        self.stop.check()?;
        self.observer.step(what);
        Ok(())
    }

    /// Tells how much is zeroed. Ends the work if the run is to end.
    pub(crate) fn zeroed(&self, done: u64, of: u64) -> ControlFlow<()> {
        self.observer.zeroed(done, of);
        if self.stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// A new engine of the run's size in a subfolder of this name.
    ///
    /// # Errors
    /// The engine's; `Stopped`.
    pub(crate) async fn engine(
        &self,
        name: &str,
        bytes: u64,
        options: impl FnOnce(KernelBootId) -> Options,
    ) -> Result<Engine> {
        self.step(&format!("zeroing {name}"))?;
        let path = self.place.path(name);
        let zeroed = &mut |done, of| self.zeroed(done, of);
        let engine = make_engine_with(&path, bytes, Backend::Auto, zeroed, options).await?;
        self.stop.check()?;
        Ok(engine)
    }
}

/// One row: what it measures, or why this place does not allow it.
pub(crate) struct Case {
    /// The row's name.
    pub name: String,
    /// What has the data when an operation is answered.
    pub answered_by: String,
    /// The subject, or why there is none.
    pub subject: Result<Box<dyn Subject>, String>,
    /// What was measured so far.
    pub rounds: Vec<Samples>,
}

impl Case {
    pub(crate) fn new(
        name: impl Into<String>,
        answered_by: impl Into<String>,
        subject: impl Subject + 'static,
    ) -> Case {
        let (name, answered_by) = (name.into(), answered_by.into());
        Case { name, answered_by, subject: Ok(Box::new(subject)), rounds: Vec::new() }
    }

    pub(crate) fn not_made(name: impl Into<String>, reason: impl Into<String>) -> Case {
        let (name, answered_by) = (name.into(), String::new());
        Case { name, answered_by, subject: Err(reason.into()), rounds: Vec::new() }
    }
}

/// Ends what the cases run in the background.
///
/// # Errors
/// The first error of a case.
pub(crate) async fn close(cases: Vec<Case>) -> Result<()> {
    for case in cases {
        if let Ok(subject) = case.subject {
            subject.close().await.map_err(|error| error.context(case.name))?;
        }
    }
    Ok(())
}

/// The columns of a closed loop.
pub(crate) const LOAD_COLUMNS: [(&str, &str); 5] =
    [("rate", "/s"), ("mean", "µs"), ("p50", "µs"), ("p99", "µs"), ("rate × mean", "")];

/// The figures for [`LOAD_COLUMNS`].
pub(crate) fn load_figures(rounds: &[Samples]) -> Vec<Option<Figure>> {
    let each = |of: &dyn Fn(&Samples) -> f64| spread_of(rounds, of);
    vec![
        each(&Samples::rate),
        each(&Samples::mean_us),
        each(&|samples| samples.quantile_us(0.5)),
        each(&|samples| samples.quantile_us(0.99)),
        each(&Samples::under_way),
    ]
}

/// The most by which rate × mean latency may differ from the number of requests under way.
const LITTLE_TOLERANCE: f64 = 0.1;

/// Little's law: in a closed loop, rate × mean latency is the number of requests under way. A row
/// for which this does not hold measured something else than it says.
pub(crate) fn little_check(name: &str, rounds: &[Samples], depth: usize) -> Check {
    let under_way: Vec<f64> = rounds.iter().map(Samples::under_way).collect();
    let found = median(&under_way);
    Check {
        name: format!("{name}: rate × mean latency is the {depth} requests under way, within 10 %"),
        // Not a number is not within.
        passed: (found / depth as f64 - 1.0).abs() <= LITTLE_TOLERANCE,
        found: format!("{found:.2}"),
    }
}

/// The checks of all cases that were measured.
pub(crate) fn little_checks(cases: &[Case], depth: usize) -> Vec<Check> {
    let measured = cases.iter().filter(|case| !case.rounds.is_empty());
    measured.map(|case| little_check(&case.name, &case.rounds, depth)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quick run of the least size, in which `replicated` and `sync` are justified.
    pub(crate) fn settings() -> Settings {
        let refused = Some("the disk may lose completed writes".to_owned());
        Settings {
            size_bytes: Settings::MIN_SIZE,
            quick: true,
            modes: vec![(Mode::Device, refused), (Mode::Replicated, None), (Mode::Sync, None)],
            child: None,
            root: false,
        }
    }

    pub(crate) struct Silent;

    impl Observer for Silent {
        fn experiment(&self, _: &str, _: usize, _: usize) {}
        fn step(&self, _: &str) {}
        fn zeroed(&self, _: u64, _: u64) {}
    }

    /// Runs one experiment in a temporary directory and returns what it measured.
    pub(crate) fn run_alone(definition: &Definition, settings: &Settings) -> Experiment {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::make(directory.path(), 0).unwrap();
        let context = Context { settings, place: &place, observer: &Silent, stop: Stop::default() };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on((definition.run)(&context)).unwrap()
    }

    fn samples(answers: u64, latency_us: u64, elapsed: Duration) -> Samples {
        let mut samples = Samples::new().unwrap();
        samples.latencies.record_n(latency_us * 1000, answers).unwrap();
        samples.elapsed = elapsed;
        samples
    }

    #[test]
    fn littles_law_holds_for_a_closed_loop_and_shows_a_lie() {
        let second = Duration::from_secs(1);
        // 32 clients with 1 ms each answer 32,000 requests in a second.
        let honest = samples(32_000, 1000, second);
        assert!(little_check("row", &[honest], 32).passed);
        // The latencies of 128 clients, but only 79 under way: a public figure that lies.
        let lie = samples(190_985, 413, second);
        let check = little_check("row", &[lie], 128);
        assert!(!check.passed, "{check:?}");
        assert!(check.found.starts_with("78.") || check.found.starts_with("79"), "{check:?}");
        // A rate that counts the answers of twice the time.
        let twice = samples(64_000, 1000, second);
        assert!(!little_check("row", &[twice], 32).passed);
        assert!(!little_check("row", &[], 32).passed, "nothing measured is no proof");
    }

    #[test]
    fn names_are_different_and_bounds_grow_with_the_size() {
        let small = settings();
        let large = Settings { size_bytes: 8 << 30, quick: false, ..settings() };
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|one| one.name).collect();
        assert_eq!(names.len(), ALL.len());
        for definition in ALL {
            let (small, large) = ((definition.bounds)(&small), (definition.bounds)(&large));
            assert!(small.bytes > 0 && small.time > Duration::ZERO);
            assert!(small.bytes <= large.bytes && small.time < large.time, "{}", definition.name);
        }
    }

    #[test]
    fn a_quick_run_is_bounded_by_two_minutes() {
        let settings = Settings { size_bytes: Settings::QUICK_SIZE, root: true, ..settings() };
        let time: Duration = ALL.iter().map(|one| (one.bounds)(&settings).time).sum();
        assert!(time <= Duration::from_secs(120), "{time:?}");
    }
}
