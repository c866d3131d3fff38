//! Changes of the members, the mode and the leader, with real processes.

mod calls;
mod forced;
mod life;
mod machines;
mod refusals;
