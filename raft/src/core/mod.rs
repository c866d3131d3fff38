//! What every floor uses: ids, commands, errors, settings, the peer protocol's messages, entries as
//! bytes, openraft's types, the runtime, and the simulation's hooks.
//!
//! What holds here: nothing on this floor uses a floor above it.

pub(crate) mod boot;
pub(crate) mod codec;
pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod convert;
pub(crate) mod error;
pub(crate) mod hooks;
pub(crate) mod ids;
pub(crate) mod machine;
pub(crate) mod proto;
pub(crate) mod quorum;
pub(crate) mod raft_metrics;
pub(crate) mod repeated;
pub(crate) mod runtime;
pub(crate) mod types;
pub(crate) mod version;
