//! Maintenance of a directory in use: checks of stored data, repair, and replacing the state by a
//! peer's snapshot.

mod extent;
mod install;
mod scrub;
mod windows;

pub use extent::{Extent, Owner};
pub use install::Installer;
pub use scrub::Checked;
pub use windows::{scrub_spans, scrub_window};
