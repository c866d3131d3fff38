//! Storj.

use super::{Bounds, Context, Definition, Settings};
use crate::report::Experiment;
use anyhow::Result;
use futures::future::BoxFuture;
use std::time::Duration;

pub(super) const DEFINITION: Definition = Definition {
    name: "uploads",
    question: "",
    source: "Storj",
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
