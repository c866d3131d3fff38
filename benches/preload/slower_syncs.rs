//! A library for `LD_PRELOAD`: each `fdatasync` of the process lasts `SLOWER_SYNCS_US` microseconds
//! longer. `cargo bench-cairn cluster --slower-syncs-us` compiles it.

use std::ffi::{c_int, c_long};
use std::sync::LazyLock;
use std::time::Duration;

#[cfg(target_arch = "x86_64")]
const FDATASYNC: c_long = 75;
#[cfg(target_arch = "aarch64")]
const FDATASYNC: c_long = 83;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

static LONGER: LazyLock<Duration> = LazyLock::new(|| {
    let us = std::env::var("SLOWER_SYNCS_US").ok().and_then(|us| us.parse().ok());
    Duration::from_micros(us.unwrap_or(0))
});

#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(file: c_int) -> c_int {
    std::thread::sleep(*LONGER);
    // SAFETY: the system call takes a file descriptor and nothing else.
    unsafe { syscall(FDATASYNC, file) as c_int }
}
