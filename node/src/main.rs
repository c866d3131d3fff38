//! The binary `cairn`: the server and its command line. Everything happens in [`cli`] and in the library.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
