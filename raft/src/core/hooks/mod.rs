//! Where a simulation changes what members send to one another, and looks at what they have stored. In
//! a real member each of these is a constant. Beside the runtime, the only module of this crate that
//! knows of `cfg(madsim)`.

#[cfg(not(madsim))]
mod real;
#[cfg(madsim)]
mod simulated;
#[cfg(madsim)]
mod wire;

#[cfg(not(madsim))]
use real as chosen;
#[cfg(madsim)]
use simulated as chosen;

pub(crate) use chosen::{
    connect, duplicate_after, is_refused, loses_appends, note_flushed, on_network, piece_bytes,
    range_bytes,
};

/// What the simulation uses.
pub(crate) mod exports {
    #[cfg(madsim)]
    pub use super::simulated::{
        cut_snapshots, flushed, forget_earlier_run, lose_appends, messages_repeated,
        refuse_connections, repeat_messages,
    };
    #[cfg(madsim)]
    pub use super::wire::{calls_reset, encoded, reset_calls, stream_until_reset, until_reset};
    #[cfg(madsim)]
    pub use crate::core::runtime::simulated::set_clock_rate;
}
