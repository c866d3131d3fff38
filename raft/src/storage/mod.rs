//! What openraft stores, in the engine: the log, the state machine with its snapshots, the history of
//! changes, and the repair of damaged values.

pub(crate) mod history;
pub(crate) mod log_store;
pub(crate) mod mode_in_force;
pub(crate) mod progress;
pub(crate) mod repair;
pub(crate) mod state_machine;
#[cfg(test)]
pub(crate) mod tests;

use crate::core::types::TypeConfig;
use state_machine::StateMachine;

/// openraft over this crate's storage.
pub(crate) type Raft = openraft::Raft<TypeConfig, StateMachine>;
