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
use crate::subject::{Load, Subject, make_engine_with};
use anyhow::Result;
use cairn_engine::io::Backend;
use cairn_engine::{Engine, KernelBootId, Mode, Options};
use futures::future::BoxFuture;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

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
        self.limit().time().unwrap_or_default()
    }

    /// The speed of a disk that the bounds of time assume. A slower one takes longer.
    pub const fn assumed_mib_per_second(&self) -> u64 {
        if self.quick { 200 } else { 50 }
    }

    /// The time to fill this many bytes, as the bounds assume.
    pub(crate) fn fill_time(&self, bytes: u64) -> Duration {
        Duration::from_millis((bytes * 1000).div_ceil(self.assumed_mib_per_second() << 20))
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

/// What has the data when an engine of this mode answers.
pub(crate) fn mode_answered_by(mode: Mode) -> &'static str {
    match mode {
        Mode::Device => "device, which keeps completed writes",
        Mode::Replicated => "device, synced in the background; peers cover the time between",
        Mode::Sync => "disk",
    }
}

/// Options of an engine of so many bytes. It uses space again after a sync, so a small one has to
/// sync early.
pub(crate) fn small(mode: Mode, boot: KernelBootId, bytes: u64) -> Options {
    let options = Options::new(mode, boot, 1);
    Options { sync_bytes: options.sync_bytes.min(bytes / 16), ..options }
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

/// Runs all cases in each round, in every second round the last one first, so that no row always
/// follows the same one. Ends before a round that would not end in time, if there is one. Returns
/// how many rounds it ran, at least one.
pub(crate) async fn rounds(
    context: &Context<'_>,
    cases: &mut [Case],
    depth: usize,
    limit: Limit,
    until: Option<Instant>,
) -> Result<usize> {
    let rounds = context.settings.rounds();
    for round in 0..rounds {
        let began = Instant::now();
        let mut due: Vec<&mut Case> = cases.iter_mut().collect();
        if round % 2 == 1 {
            due.reverse();
        }
        for case in due {
            let Ok(subject) = &mut case.subject else { continue };
            context.step(&format!("round {} of {rounds}: {}", round + 1, case.name))?;
            let load = Load { depth, limit, seed: round as u64 + 1, stop: context.stop.clone() };
            let samples = subject.round(&load).await;
            case.rounds.push(samples.map_err(|error| error.context(case.name.clone()))?);
        }
        if until.is_some_and(|until| Instant::now() + began.elapsed() > until) {
            return Ok(round + 1);
        }
    }
    Ok(rounds)
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
    use crate::place::FOLDER;
    use crate::report::Outcome;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::sync::{Arc, Mutex, mpsc};

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

    /// A run in a temporary directory.
    pub(crate) struct Bench {
        directory: tempfile::TempDir,
        place: Place,
        settings: Settings,
        pub stop: Stop,
    }

    impl Bench {
        pub(crate) fn new(settings: Settings) -> Bench {
            let directory = tempfile::tempdir().unwrap();
            let place = Place::make(directory.path(), 0).unwrap();
            Bench { directory, place, settings, stop: Stop::default() }
        }

        pub(crate) fn context(&self) -> Context<'_> {
            let (settings, place, stop) = (&self.settings, &self.place, self.stop.clone());
            Context { settings, place, observer: &Silent, stop }
        }

        pub(crate) fn folder(&self) -> PathBuf {
            self.directory.path().join(FOLDER)
        }

        pub(crate) fn run(&self, definition: &Definition) -> Result<Experiment> {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            let ended = runtime.block_on((definition.run)(&self.context()));
            ended.inspect(assert_rows)
        }
    }

    /// Every row is measured, or has a reason.
    fn assert_rows(experiment: &Experiment) {
        for row in experiment.tables.iter().flat_map(|table| &table.rows) {
            match &row.outcome {
                Outcome::Measured(figures) => {
                    assert!(figures.iter().any(Option::is_some), "{row:?}");
                    assert!(!row.answered_by.is_empty(), "{row:?}");
                }
                Outcome::NotMade(reason) => assert!(!reason.is_empty(), "{row:?}"),
            }
        }
        assert!(experiment.plots.iter().all(|plot| !plot.sentence.is_empty()));
        assert!(!experiment.notes.is_empty() && !experiment.sentences.is_empty());
    }

    /// Runs one experiment in a temporary directory and returns what it measured.
    pub(crate) fn run_alone(definition: &Definition, settings: &Settings) -> Experiment {
        Bench::new(settings.clone()).run(definition).unwrap()
    }

    /// The same, with the most bytes that its folder held. Nothing is left in it.
    pub(crate) fn run_watched(definition: &Definition, settings: &Settings) -> (Experiment, u64) {
        let bench = Bench::new(settings.clone());
        let folder = bench.folder();
        let empty = used(&folder);
        let (found, peak) = std::thread::scope(|scope| {
            // A run that panics drops its end, so that the watcher ends too.
            let (running, watched) = mpsc::channel::<()>();
            let folder = &folder;
            let watcher = scope.spawn(move || {
                let mut peak = 0;
                while watched.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    peak = used(folder).max(peak);
                    std::thread::yield_now();
                }
                peak
            });
            let found = bench.run(definition);
            drop(running);
            (found.unwrap(), watcher.join().unwrap())
        });
        assert_eq!(used(&folder), empty);
        assert!(peak <= (definition.bounds)(settings).bytes, "{peak}");
        (found, peak)
    }

    /// Bytes on the disk, with an inode for each file.
    fn used(path: &Path) -> u64 {
        let Ok(metadata) = path.symlink_metadata() else { return 0 };
        let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
        metadata.blocks() * 512 + 512 + inside.map(|entry| used(&entry.path())).sum::<u64>()
    }

    /// Writes its name when it runs.
    struct Named(&'static str, Arc<Mutex<String>>);

    impl Subject for Named {
        fn round<'a>(&'a mut self, _: &'a Load) -> BoxFuture<'a, Result<Samples>> {
            self.1.lock().unwrap().push_str(self.0);
            Box::pin(async { Samples::new() })
        }
    }

    #[tokio::test]
    async fn every_second_round_runs_the_last_row_first_until_the_time_is_over() {
        let bench = Bench::new(settings());
        let ran: Arc<Mutex<String>> = Arc::default();
        let case = |name| Case::new(name, "x", Named(name, Arc::clone(&ran)));
        let mut cases = [case("a"), Case::not_made("b", "no"), case("c")];
        let (context, limit) = (bench.context(), Limit::Operations(1));
        assert_eq!(rounds(&context, &mut cases, 1, limit, None).await.unwrap(), 3);
        let over = Some(Instant::now());
        assert_eq!(rounds(&context, &mut cases, 1, limit, over).await.unwrap(), 1);
        assert_eq!(*ran.lock().unwrap(), "accaacac");
        assert_eq!(cases.map(|case| case.rounds.len()), [4, 0, 4]);
    }

    #[test]
    fn a_small_engine_syncs_before_it_is_full() {
        for (bytes, sync_bytes) in [(24 << 20, (24 << 20) / 16), (4096 << 20, 4 << 20)] {
            assert_eq!(small(Mode::Sync, KernelBootId(1), bytes).sync_bytes, sync_bytes);
        }
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
    fn the_bounds_stay_within_the_budget_even_with_all_modes() {
        let modes: Vec<_> = settings().modes.into_iter().map(|(mode, _)| (mode, None)).collect();
        let size_bytes = Settings::QUICK_SIZE;
        let quick = Settings { size_bytes, root: true, modes, ..settings() };
        let size_bytes = Settings::DEFAULT_SIZE;
        let full = Settings { size_bytes, quick: false, ..quick.clone() };
        // Seconds of a quick run and of a full one, and how many times the size.
        let most = [(30, 420, 2), (30, 480, 1), (25, 360, 2), (12, 180, 1), (22, 240, 2)];
        for (definition, (least, most, times)) in ALL.iter().zip(most) {
            for (settings, seconds) in [(&quick, least), (&full, most)] {
                let found = (definition.bounds)(settings);
                assert!(found.time <= Duration::from_secs(seconds), "{}", definition.name);
                assert!(found.bytes <= times * settings.size_bytes, "{}", definition.name);
            }
        }
        let time: Duration = ALL.iter().map(|one| (one.bounds)(&quick).time).sum();
        assert!(time <= Duration::from_secs(120), "{time:?}");
    }
}
