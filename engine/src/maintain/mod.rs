//! What keeps a directory whole while it is in use: checks of what is at rest, repair, and a peer's
//! snapshot in place of the state.

mod extent;
mod install;
mod scrub;

pub use extent::{Extent, Owner};
pub use install::Installer;
pub use scrub::Checked;
