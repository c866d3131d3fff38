//! Tasks give way to others.

pub use shuttle::future::yield_now;
