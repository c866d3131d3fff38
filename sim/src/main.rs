//! The simulation's command line: `cargo sim --seed 7` replays one run with its trace, `cargo sim
//! --seeds 0..200` runs many. See `--help`.
#![forbid(unsafe_code)]

#[cfg(madsim)]
mod cli;

/// The system's allocator took a tenth of a run's time.
#[cfg(madsim)]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(madsim)]
fn main() -> std::process::ExitCode {
    cli::main()
}

#[cfg(not(madsim))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "this program was built without the simulation; run it with `cargo sim --seed 7`, which stands for\n\
         cargo run --config .cargo/sim.toml --profile sim -p cairn-sim -- --seed 7"
    );
    std::process::ExitCode::from(2)
}
