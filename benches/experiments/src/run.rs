//! A whole run: the chosen experiments, one after the other, in one folder.

use crate::experiment::{ALL, Bounds, Context, Definition, Observer, Settings, conclusion};
use crate::measure::{Stop, usage};
use crate::place::Place;
use crate::report::{Report, SCHEMA};
use anyhow::{Context as _, Result};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long other programs are watched before the run.
const WATCHED: Duration = Duration::from_millis(500);

/// The name of an experiment on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(usize);

impl Name {
    /// All names, in the order in which the experiments run.
    pub fn all() -> impl Iterator<Item = Name> {
        (0..ALL.len()).map(Name)
    }

    /// The name.
    pub fn text(self) -> &'static str {
        ALL.get(self.0).map_or("", |definition| definition.name)
    }
}

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        Name::all().find(|name| name.text() == text).ok_or_else(|| {
            let names: Vec<&str> = Name::all().map(Name::text).collect();
            format!("no experiment `{text}`; one of {}", names.join(", "))
        })
    }
}

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A directory of the disk in question.
    pub directory: PathBuf,
    /// The experiments.
    pub names: Vec<Name>,
    /// What the user chose and what the machine allows.
    pub settings: Settings,
    /// What `cairn doctor` found, for the report.
    pub machine: serde_json::Value,
}

impl Plan {
    /// What the run takes at most: the space of the largest experiment, the time of all.
    pub fn bounds(&self) -> Bounds {
        let each = self.definitions().map(|definition| (definition.bounds)(&self.settings));
        each.fold(Bounds { bytes: 0, time: Duration::ZERO }, |sum, one| Bounds {
            bytes: sum.bytes.max(one.bytes),
            time: sum.time + one.time,
        })
    }

    fn definitions(&self) -> impl Iterator<Item = &'static Definition> {
        ALL.into_iter()
            .enumerate()
            .filter_map(|(at, definition)| self.names.contains(&Name(at)).then_some(definition))
    }
}

/// Runs the plan. The folder is removed when this returns, and when the future is dropped.
///
/// # Errors
/// [`Refused`](crate::Refused) before anything is measured; [`Stopped`](crate::Stopped); else the
/// first failure, such as a full disk, with the experiment's name.
pub async fn run(plan: &Plan, observer: &dyn Observer, stop: &Stop) -> Result<Report> {
    let place = Place::make(&plan.directory, plan.bounds().bytes)?;
    let directory = plan.directory.display().to_string();
    let mut report = Report::new(directory, &plan.settings, plan.machine.clone());
    report.busy_with_others = busy_with_others().await.ok();
    let began = Instant::now();
    let of = plan.definitions().count();
    let mut experiments = Vec::with_capacity(of);
    for (at, definition) in plan.definitions().enumerate() {
        stop.check()?;
        observer.experiment(definition.name, at + 1, of);
        let from = Instant::now();
        let context =
            Context { settings: &plan.settings, place: &place, observer, stop: stop.clone() };
        let ended = (definition.run)(&context).await;
        // What fails because of the stop counts as the stop.
        stop.check()?;
        let mut experiment = ended.with_context(|| definition.name)?;
        definition.name.clone_into(&mut experiment.name);
        definition.question.clone_into(&mut experiment.question);
        definition.source.clone_into(&mut experiment.source);
        experiment.plots.retain(|plot| plot.data.is_drawable());
        experiment.seconds = from.elapsed().as_secs_f64();
        experiments.push(experiment);
    }
    drop(place);
    report.experiments = experiments;
    report.seconds = began.elapsed().as_secs_f64();
    report.conclusion = conclusion(&report, &plan.settings);
    Ok(report)
}

impl Report {
    /// A report of nothing yet.
    pub(crate) fn new(
        directory: String,
        settings: &Settings,
        machine: serde_json::Value,
    ) -> Report {
        Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            directory,
            quick: settings.quick,
            size_bytes: settings.size_bytes,
            backend: backend(),
            busy_with_others: None,
            seconds: 0.0,
            machine,
            experiments: Vec::new(),
            conclusion: Vec::new(),
        }
    }
}

fn backend() -> String {
    match cairn_engine::io::probe_io_uring() {
        Ok(()) => "io_uring".to_owned(),
        Err(error) => format!("threads, since io_uring is not available: {error}"),
    }
}

/// The share of the processors that other programs use.
async fn busy_with_others() -> Result<f64> {
    let (from, before) = (Instant::now(), usage()?);
    tokio::time::sleep(WATCHED).await;
    let (took, used) = (from.elapsed(), usage()?.since(before));
    let others = used.machine.saturating_sub(used.user + used.system);
    let processors = std::thread::available_parallelism()?.get();
    Ok(others.as_secs_f64() / took.as_secs_f64() / processors as f64)
}
