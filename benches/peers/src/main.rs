//! Cairn's engine beside embedded peers: RocksDB, redb, fjall, and a file for each object.
//!
//! ```text
//! main     arguments, interrupts, JSON
//! run      rows, rounds, tables
//! places   what the sides keep their objects in
//! sides    what a row measures
//! store    the peers
//! ```
//!
//! `cargo bench-cairn peers` builds and runs this program. It has a workspace of its own, so that no
//! other build waits for the peers.
#![forbid(unsafe_code)]

mod places;
mod plan;
mod preload;
mod run;
mod sides;
mod store;
mod values;

use cairn_experiments::Stop;
use clap::Parser;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let plan = plan::Plan::from(plan::Arguments::parse());
    let stop = Stop::default();
    let interrupted = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            // The run ends at its next step, and removes what it made.
            interrupted.set();
        }
    });
    let outcome = run::run(&plan, &stop).await;
    match outcome.and_then(|output| Ok(serde_json::to_string_pretty(&output)?)) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cairn-peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}
