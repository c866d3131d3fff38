//! Closed-loop load, and the figures that follow from it.

mod figures;
mod load;
mod payload;
mod stop;
mod usage;

pub(crate) use figures::{figure, spread_of};
pub use figures::{median, spread};
pub use load::{BlockingWorker, Limit, Samples, Worker, drive, drive_blocking, drive_until};
pub use payload::Payloads;
pub use stop::{Stop, Stopped};
pub(crate) use usage::usage;
