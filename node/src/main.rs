//! The binary `cairn`: the server and its command line. Everything happens in [`cli`] and in the
//! library.
#![forbid(unsafe_code)]
// They panic where the stream is closed or full: `cli::output` and `cli::logging` write.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod cli;

use std::process::ExitCode;

/// Requests and log entries come and go on different threads, where the system's allocator spends a
/// tenth of a busy leader's processor time. The unit tests have the allocator of their fuzz targets, which counts.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator gives memory back soon and asks for huge pages, of which the kernel clears 2 MiB for
    // the first byte. With many large values under way that was half of the processor time. An
    // error means that the kernel has no huge pages.
    rustix::thread::disable_transparent_huge_pages(true).ok();
    cli::main()
}
