//! Direct against buffered writes of a whole file: after Glommio's article, the time until the last
//! write returns, the time until the data is safe, and the processor time; for a file that fits
//! into the memory given and for one that does not.

mod child;
mod memory;
mod text;
mod write;

pub use child::run_child;

use super::{Bounds, Context, Definition, Settings};
use crate::Stopped;
use crate::measure::spread_of;
use crate::report::{Experiment, Table};
use crate::subject::{Content, fill_file};
use anyhow::{Result, anyhow};
use child::{Request, ask};
use futures::future::BoxFuture;
use memory::Limited;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use write::{How, Task, WRITE, Written, write_file};

pub(super) const DEFINITION: Definition = Definition {
    name: "direct",
    question: "Is data sooner safe through the page cache or around it, and at what processor time?",
    source: "Glommio, \"Direct I/O writes\" (buffered against direct: time to write, time to safety, processor time)",
    bounds,
    run: |context| -> BoxFuture<'_, _> { Box::pin(run(context)) },
};

const GIB: f64 = (1u64 << 30) as f64;
const TITLE: &str = "One file, written from beginning to end";

/// The figures that are compared: rows that a time limit cut have fewer bytes.
const SAFE: &str = "time to safety per GiB";
const USED: &str = "processor time per GiB";
const COLUMNS: [(&str, &str); 9] = [
    ("time to write", "s"),
    ("time to safety", "s"),
    ("user", "s"),
    ("system", "s"),
    ("machine", "s"),
    ("throughput to safety", "MB/s"),
    ("written", "MiB"),
    (SAFE, "s"),
    (USED, "s"),
];

/// The folder of this experiment, and the files in it.
const FOLDER: &str = "direct";
const NEW: &str = "new";
const ZEROED: &str = "zeroed";

/// The least memory that a child is given: enough for the program itself.
const LEAST_MEMORY: u64 = 24 << 20;

/// How the rows of a size write, and how many writes are under way.
const ROWS: [(How, usize); 6] = [
    (How::Buffered, 1),
    (How::BufferedZeroed, 1),
    (How::Preallocated, 1),
    (How::Preallocated, 16),
    (How::Zeroed, 1),
    (How::Zeroed, 16),
];

fn label(how: How, depth: usize) -> String {
    match how {
        How::Buffered => "buffered, new file".to_owned(),
        How::BufferedZeroed => "buffered, zeroed file".to_owned(),
        How::Preallocated => format!("direct, preallocated file, {depth} under way"),
        How::Zeroed => format!("direct, zeroed file, {depth} under way"),
    }
}

fn answered_by(how: How) -> &'static str {
    if how.is_direct() {
        "device; disk after the fdatasync"
    } else {
        "page cache; disk after the fdatasync"
    }
}

/// Files against the memory that their writers are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Against {
    /// Without a limit.
    Below,
    /// In a memory cgroup.
    Above,
}

impl Against {
    fn text(self) -> &'static str {
        match self {
            Against::Below => "below memory",
            Against::Above => "above memory",
        }
    }
}

/// One row and its rounds.
#[derive(Clone, Debug)]
struct Line {
    against: Against,
    how: How,
    depth: usize,
    rounds: Result<Vec<Written>, String>,
}

impl Line {
    fn name(&self) -> String {
        name(self.against, self.how, self.depth)
    }
}

fn name(against: Against, how: How, depth: usize) -> String {
    format!("{}: {}", against.text(), label(how, depth))
}

/// A size of file, and how long a row of it may take.
#[derive(Clone, Copy, Debug)]
struct Size {
    against: Against,
    bytes: u64,
    row: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    below: Size,
    above: Size,
    /// The file above memory is so many times the memory given: numerator and denominator.
    above_per_memory: (u64, u64),
    /// The write before all rows, that shows how much fits into a row's time.
    first: u64,
    first_limit: Duration,
}

fn sizes(settings: &Settings) -> Sizes {
    let size = |against, bytes: u64, row| Size {
        against,
        bytes: bytes.min(settings.size_bytes) / WRITE as u64 * WRITE as u64,
        row: Duration::from_millis(row),
    };
    if settings.quick {
        return Sizes {
            below: size(Against::Below, 48 << 20, 320),
            above: size(Against::Above, 160 << 20, 720),
            above_per_memory: (5, 2),
            first: 16 << 20,
            first_limit: Duration::from_millis(150),
        };
    }
    Sizes {
        below: size(Against::Below, 256 << 20, 2300),
        above: size(Against::Above, 1 << 30, 5100),
        above_per_memory: (4, 1),
        first: 128 << 20,
        first_limit: Duration::from_secs(2),
    }
}

impl Sizes {
    /// The memory for a file of so many bytes. None if the file would not be well above it.
    fn memory(&self, bytes: u64) -> Option<u64> {
        let (numerator, denominator) = self.above_per_memory;
        let memory = (bytes * denominator / numerator).max(LEAST_MEMORY);
        (bytes >= memory / 2 * 3).then_some(memory)
    }
}

/// The time in which the zeroed file of a size is made.
fn zeroing(size: Size) -> Duration {
    size.row * 3 / 2
}

/// Time: each row has its own limit, in which a file of its size is written at 225 MiB/s; on a
/// slower disk all files of a size are shorter, by as much as the first write shows. Space: the
/// zeroed file and a new one.
fn bounds(settings: &Settings) -> Bounds {
    const INODES: u64 = 64 << 10;
    let sizes = sizes(settings);
    let rows = (settings.rounds() * ROWS.len()) as u32;
    let each = |size: Size| size.row * rows + zeroing(size);
    // Two times: the first write and its sync. The children's starts come on top.
    let time = sizes.first_limit * 2 + Duration::from_millis(400) + each(sizes.below);
    Bounds {
        bytes: 2 * sizes.below.bytes.max(sizes.above.bytes).max(sizes.first) + INODES,
        time: time + each(sizes.above),
    }
}

async fn run(context: &Context<'_>) -> Result<Experiment> {
    let sizes = sizes(context.settings);
    let folder = context.place.subfolder(FOLDER)?;
    let speed = first_write(context, &folder, &sizes).await?;
    let mut lines = Vec::new();
    let below = fitting(sizes.below, speed);
    lines.extend(measure(context, &folder, below, None).await?);
    let above = fitting(sizes.above, speed);
    let mut memory = None;
    match limit(context, &folder, &sizes, above).await {
        Ok(limited) => {
            memory = sizes.memory(above.bytes);
            match measure(context, &folder, above, Some(&limited)).await {
                Err(error) if !error.is::<Stopped>() => lines.extend(refused(&error)),
                measured => lines.extend(measured?),
            }
        }
        Err(error) if error.is::<Stopped>() => return Err(error),
        Err(error) => lines.extend(refused(&error)),
    }
    context.place.remove(FOLDER)?;
    let table = table(&lines);
    Ok(Experiment {
        plots: text::plot(&table).into_iter().collect(),
        sentences: text::sentences(&table),
        tables: vec![table],
        notes: text::notes(&lines, context.settings, memory),
        ..Experiment::default()
    })
}

/// Writes and syncs a file that no row counts. Returns bytes per second until safety.
async fn first_write(context: &Context<'_>, folder: &Path, sizes: &Sizes) -> Result<f64> {
    context.step("a first write, not counted")?;
    let task = Task {
        file: NEW.to_owned(),
        how: How::Buffered,
        depth: 1,
        bytes: sizes.first,
        limit_ms: millis(sizes.first_limit),
        seed: 0,
    };
    let written = one(context, folder, &task, None).await?;
    Ok(written.bytes as f64 / written.safe_s.max(1e-6))
}

/// As many bytes of the size as this disk writes in a row's time.
fn fitting(size: Size, speed: f64) -> Size {
    // A cast of floats saturates.
    let fits = (speed * size.row.as_secs_f64()) as u64 / WRITE as u64 * WRITE as u64;
    Size { bytes: size.bytes.min(fits.max(8 * WRITE as u64)), ..size }
}

/// A memory cgroup for this size, that a child has joined.
///
/// # Errors
/// Why there is none; `Stopped`.
async fn limit(context: &Context<'_>, folder: &Path, sizes: &Sizes, size: Size) -> Result<Limited> {
    let Some(program) = &context.settings.child else {
        return Err(anyhow!("no process of its own that can be given less memory"));
    };
    if !context.settings.root {
        return Err(anyhow!("only root may limit the memory of a process"));
    }
    let memory = sizes.memory(size.bytes).ok_or_else(|| {
        anyhow!(
            "only {} MiB can be written in a row's time or in the size chosen: less than 1.5 times the least memory",
            size.bytes >> 20
        )
    })?;
    let limited = Limited::make(memory)?;
    let request = Request { join: Some(limited.procs()), task: None };
    ask(program, folder, &request, &context.stop).await?;
    Ok(limited)
}

/// The rows above memory, that this place does not allow.
fn refused(error: &anyhow::Error) -> Vec<Line> {
    let rounds: Result<Vec<Written>, _> = Err(format!("{error:#}"));
    let line = |(how, depth)| Line { against: Against::Above, how, depth, rounds: rounds.clone() };
    ROWS.into_iter().map(line).collect()
}

/// Runs one task and removes a new file.
async fn one(
    context: &Context<'_>,
    folder: &Path,
    task: &Task,
    limited: Option<&Limited>,
) -> Result<Written> {
    let written = match &context.settings.child {
        Some(program) => {
            let join = limited.map(Limited::procs);
            let request = Request { join, task: Some(task.clone()) };
            let written = ask(program, folder, &request, &context.stop).await?;
            written.ok_or_else(|| anyhow!("the child wrote nothing"))?
        }
        None => {
            let (folder, task) = (folder.to_path_buf(), task.clone());
            let stop = context.stop.clone();
            tokio::task::spawn_blocking(move || write_file(&folder, &task, &stop)).await??
        }
    };
    if task.file == NEW {
        context.place.remove(&format!("{FOLDER}/{NEW}"))?;
    }
    Ok(written)
}

/// All rounds of all rows of a size.
async fn measure(
    context: &Context<'_>,
    folder: &Path,
    mut size: Size,
    limited: Option<&Limited>,
) -> Result<Vec<Line>> {
    let mut reasons = BTreeMap::new();
    if let Err(reason) = context.place.direct() {
        // Zeros are written with O_DIRECT too.
        let hows = [How::BufferedZeroed, How::Preallocated, How::Zeroed];
        reasons.extend(hows.map(|how| (how, reason.clone())));
    } else {
        context.step("zeroing a file")?;
        let (path, stop) = (folder.join(ZEROED), &context.stop);
        let zeros = fill_file(&path, size.bytes, Content::Zeros, true, zeroing(size), stop);
        size.bytes = zeros.await?;
        if let Err(reason) = preallocates(context, folder).await? {
            reasons.insert(How::Preallocated, reason);
        }
    }
    let mut lines: Vec<Line> = ROWS
        .into_iter()
        .map(|(how, depth)| {
            let rounds = reasons.get(&how).map_or_else(|| Ok(Vec::new()), |r| Err(r.clone()));
            Line { against: size.against, how, depth, rounds }
        })
        .collect();
    let rounds = context.settings.rounds();
    let ends = Instant::now() + size.row * (rounds * ROWS.len()) as u32;
    for round in 0..rounds {
        let began = Instant::now();
        for line in &mut lines {
            let name = line.name();
            let Ok(done) = &mut line.rounds else { continue };
            context.step(&format!("round {} of {rounds}: {name}", round + 1))?;
            let task = Task {
                file: if line.how.is_zeroed() { ZEROED } else { NEW }.to_owned(),
                how: line.how,
                depth: line.depth,
                bytes: size.bytes,
                limit_ms: millis(size.row),
                seed: round as u64 + 1,
            };
            let written = one(context, folder, &task, limited).await;
            done.push(written.map_err(|error| error.context(name))?);
        }
        // A disk that became slower makes fewer rounds.
        if Instant::now() + began.elapsed() > ends {
            break;
        }
    }
    context.place.remove(&format!("{FOLDER}/{ZEROED}"))?;
    Ok(lines)
}

/// Whether this filesystem reserves space and then takes a direct write there, or why not.
async fn preallocates(context: &Context<'_>, folder: &Path) -> Result<Result<(), String>> {
    let task = Task {
        file: "probe".to_owned(),
        how: How::Preallocated,
        depth: 1,
        bytes: WRITE as u64,
        limit_ms: 1000,
        seed: 0,
    };
    let (folder, stop) = (folder.to_path_buf(), context.stop.clone());
    let probed = tokio::task::spawn_blocking(move || write_file(&folder, &task, &stop)).await?;
    context.place.remove(&format!("{FOLDER}/probe"))?;
    match probed {
        Ok(_) => Ok(Ok(())),
        Err(error) if error.is::<Stopped>() => Err(error),
        Err(error) => Ok(Err(format!("{error:#}"))),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(TITLE, &COLUMNS);
    for line in lines {
        match &line.rounds {
            Err(reason) => table.not_made(line.name(), reason),
            Ok(rounds) => {
                let each = |of: &dyn Fn(&Written) -> f64| spread_of(rounds, of);
                let per_gib = |one: &Written, time: f64| time * GIB / one.bytes as f64;
                let figures = vec![
                    each(&|one| one.write_s),
                    each(&|one| one.safe_s),
                    each(&|one| one.user_s),
                    each(&|one| one.system_s),
                    each(&|one| one.machine_s),
                    each(&|one| one.bytes as f64 / 1e6 / one.safe_s),
                    each(&|one| one.bytes as f64 / f64::from(1 << 20)),
                    each(&|one| per_gib(one, one.safe_s)),
                    each(&|one| per_gib(one, one.user_s + one.system_s)),
                ];
                table.measured(line.name(), answered_by(line.how), figures);
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Bench, run_alone, settings};
    use super::*;
    use crate::report::Outcome;

    #[test]
    fn every_row_is_there_measured_or_with_its_reason() {
        let measured = run_alone(&DEFINITION, &settings());
        let [table] = &measured.tables[..] else { panic!("one table") };
        assert_eq!(table.rows.len(), 2 * ROWS.len());
        for row in &table.rows {
            let above = row.name.starts_with(Against::Above.text());
            match &row.outcome {
                Outcome::Measured(figures) => {
                    assert!(!above && figures.iter().all(Option::is_some), "{row:?}");
                    assert!(row.answered_by.contains("after the fdatasync"));
                }
                Outcome::NotMade(why) => assert!(!above || why.contains("process"), "{row:?}"),
            }
        }
        let buffered = "below memory: buffered, new file";
        let safe = table.value(buffered, "time to safety").unwrap();
        assert!(table.value(buffered, "time to write").unwrap() <= safe);
        assert_eq!(measured.plots.len(), 1);
        assert!((2..=5).contains(&measured.sentences.len()), "{:?}", measured.sentences);
    }

    #[test]
    fn no_file_is_larger_than_the_size_chosen() {
        for size_bytes in [Settings::MIN_SIZE, Settings::QUICK_SIZE, Settings::DEFAULT_SIZE] {
            for quick in [false, true] {
                let settings = Settings { size_bytes, quick, ..settings() };
                let found = sizes(&settings);
                assert!(found.above.bytes <= size_bytes);
                let largest = found.above.bytes.max(found.first);
                assert!(bounds(&settings).bytes < 2 * largest + (1 << 20), "two at a time");
            }
        }
    }

    #[test]
    fn a_slow_disk_has_smaller_files_and_none_above_memory() {
        let quick = Settings { size_bytes: Settings::QUICK_SIZE, ..settings() };
        let sizes = sizes(&quick);
        let mib = |speed: u64| fitting(sizes.above, (speed << 20) as f64).bytes >> 20;
        assert_eq!((mib(10_000), mib(100), mib(0)), (160, 72, 1));
        assert_eq!(sizes.memory(160 << 20), Some(64 << 20));
        assert_eq!(sizes.memory(40 << 20), Some(LEAST_MEMORY));
        assert_eq!(sizes.memory(30 << 20), None);
        assert_eq!(fitting(sizes.above, f64::INFINITY).bytes, 160 << 20);
        assert_eq!(fitting(sizes.above, f64::NAN).bytes, 1 << 20);
    }

    #[tokio::test]
    async fn without_root_or_a_child_nothing_is_limited() {
        for (child, expected) in
            [(None, "of its own"), (Some(("/bin/false".into(), vec![])), "root")]
        {
            let bench = Bench::new(Settings { child, ..settings() });
            let sizes = sizes(&settings());
            let limited = limit(&bench.context(), &bench.folder(), &sizes, sizes.above).await;
            assert!(limited.unwrap_err().to_string().contains(expected));
        }
        assert_eq!(refused(&anyhow!("no")).len(), ROWS.len());
    }
}
