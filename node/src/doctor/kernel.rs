//! The kernel: its version, its clock, and whether it allows io_uring.

use super::Roots;
use super::device::text;
use crate::platform;

/// What matters about the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its release, such as `6.1.0-13-amd64`.
    pub release: String,
    /// Why the server does not run on it, if it does not.
    pub supported: Result<(), String>,
    /// Its clock source, if it reports one.
    pub clock_source: Option<String>,
    /// Why io_uring cannot be used, if it cannot.
    pub io_uring: Result<(), String>,
}

/// Clocks that can be read without entering the kernel, or almost.
const FAST_CLOCKS: &[&str] =
    &["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase"];

impl Kernel {
    pub(super) fn read(roots: &Roots) -> Kernel {
        let clock = "devices/system/clocksource/clocksource0/current_clocksource";
        Kernel {
            release: platform::release(),
            supported: platform::check(),
            clock_source: text(&roots.sys.join(clock)),
            io_uring: cairn_engine::io::probe_io_uring().map_err(|error| error.to_string()),
        }
    }

    /// Whether reading the time is cheap; `None` if that is not known.
    pub fn clock_is_fast(&self) -> Option<bool> {
        self.clock_source.as_deref().map(|source| FAST_CLOCKS.contains(&source))
    }
}
