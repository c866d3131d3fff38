//! What `fsync` costs on a disk, and what it costs to change filesystem metadata: five public
//! experiments, made again in a directory of the disk in question.
//!
//! ```text
//! run          the plan: what to measure, its bounds in space and time; the whole run
//! experiment   the five experiments, one file or folder each; the sentences at the end
//! subject      what is measured: files with and without syncs, raw writes, the shipped engine
//! place        the folder on the disk: made, locked, checked, and removed again
//! measure      closed-loop load, latencies, rounds, medians with their spread
//! report       tables, plots, checks and sentences; as JSON, Markdown and SVG
//! ```
//!
//! A module uses modules below it and beside it.
//!
//! What holds here:
//! - Everything is made inside one folder, `cairn-bench-disk`, in the directory that the user
//!   names. It is removed at the end, also after an error or a first signal. What a killed run left
//!   is removed by the next run.
//! - The most bytes that this folder holds are known before a run begins, and so is its time on a
//!   disk that is not slower than the bounds assume.
//! - Values are random bytes. A warm-up is not counted. The rows of a table are measured in
//!   alternating rounds, with the same number of requests under way. A table that cannot alternate
//!   says so in its notes: that of `uploads` on a filesystem of its own.
//! - A figure that could not be measured is missing, with the reason in its place. None is guessed.
//! - Rows of Cairn run the shipped engine through its public interface.
#![forbid(unsafe_code)]

mod experiment;
mod measure;
mod place;
mod report;
mod run;
mod subject;

pub use experiment::{Bounds, Observer, Settings, run_child};
pub use measure::{
    BlockingWorker, Limit, Payloads, Samples, Stop, Stopped, Worker, drive, drive_blocking,
    drive_until, median, spread,
};
pub use place::{FOLDER, Place, Refused};
pub use report::{
    Check, Column, Experiment, Figure, Outcome, Plot, PlotData, Report, Row, Table, cell, markdown,
    number, rounded, size, svg,
};
pub use run::{Name, Plan, run};
pub use subject::{
    EngineLog, FileReader, FileStore, FileSync, Getter, Putter, RawReader, RawWriter, ValueBytes,
    make_engine, make_raw_device, open_engine, raw_writes, sync_filesystem,
};
