//! Backups of the cluster, saved by the command line or by the leader itself.

mod save;

pub use save::{SaveError, Saved, save, senders};
