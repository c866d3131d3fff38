//! Closed-loop load, and the figures that follow from it.

mod figures;
mod load;
mod payload;
mod stop;
mod usage;

pub use figures::median;
pub(crate) use figures::{figure, spread};
pub(crate) use load::{BlockingWorker, drive_blocking, drive_until};
pub use load::{Limit, Samples, Worker, drive};
pub use payload::Payloads;
pub use stop::{Stop, Stopped};
pub(crate) use usage::usage;
