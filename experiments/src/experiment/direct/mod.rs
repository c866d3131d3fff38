//! Glommio.

use super::{Bounds, Context, Definition, Settings};
use crate::report::Experiment;
use anyhow::Result;
use futures::future::BoxFuture;
use std::time::Duration;

pub(super) const DEFINITION: Definition = Definition {
    name: "direct",
    question: "",
    source: "Glommio",
    bounds,
    run: |context| -> BoxFuture<'_, _> { Box::pin(run(context)) },
};

fn bounds(settings: &Settings) -> Bounds {
    Bounds {
        bytes: settings.size_bytes,
        time: Duration::from_secs(if settings.quick { 20 } else { 60 }),
    }
}

async fn run(_context: &Context<'_>) -> Result<Experiment> {
    Ok(Experiment::default())
}

/// The command line of the child process.
pub fn run_child(_arguments: &[String]) -> Result<()> {
    Ok(())
}
