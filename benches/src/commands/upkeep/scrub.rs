//! A scrub as a node's: window by window, spans in order of offset, at a bounded rate, on the
//! thread that serves puts.
//!
//! Each phase begins with a new window, so each contains a pass over all keys. A node makes one for
//! 64 MiB or more of its data area, so here they are more frequent.

use crate::report::Report;
use anyhow::{Context, Result};
use cairn_engine::io::BLOCK;
use cairn_engine::{Engine, Extent, GroupId, scrub_spans, scrub_window};
use std::pin::pin;
use std::time::{Duration, Instant};

const GROUP: GroupId = GroupId(0);
/// As a node does, collect short waits until they are worth a timer.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// The scrub, and what it did so far.
pub(super) struct Scrub {
    engine: Engine,
    /// Bytes a second.
    rate: u64,
    /// Where the next window begins.
    position: u64,
    /// Time that is to be waited for what was read.
    debt: Duration,
    bytes: u64,
    passes: Vec<Pass>,
}

/// One pass over all keys.
#[derive(Default)]
struct Pass {
    /// From its begin to its end.
    elapsed: Duration,
    /// On the thread.
    busy: Duration,
    /// Longest without letting other tasks run.
    longest: Duration,
}

impl Scrub {
    pub(super) fn new(engine: &Engine, rate: u64) -> Scrub {
        let (engine, debt) = (engine.clone(), Duration::ZERO);
        Scrub { engine, rate: rate.max(1), position: 0, debt, bytes: 0, passes: Vec::new() }
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Scrubs until it is dropped.
    ///
    /// # Errors
    /// A damaged value.
    pub(super) async fn run(&mut self) -> Result<()> {
        loop {
            let data_bytes = self.engine.status().data_bytes;
            let window = scrub_window(self.position, data_bytes);
            self.position = if window.end == data_bytes { 0 } else { window.end };
            let mut pass = Pass::default();
            let extents = timed(self.engine.extents(GROUP, window), &mut pass).await;
            self.passes.push(pass);
            for span in scrub_spans(&extents) {
                self.span(span).await?;
            }
        }
    }

    async fn span(&mut self, extents: &[Extent]) -> Result<()> {
        let bytes: u64 = extents.iter().map(|extent| u64::from(extent.at.len)).sum();
        self.pace(bytes.next_multiple_of(BLOCK as u64)).await;
        let (blocks, suspects) = self.engine.check_extents(extents).await;
        self.bytes += blocks * BLOCK as u64;
        for extent in suspects {
            // It may have been freed, or its write was in flight: then this reads nothing.
            self.engine.read_extent(GROUP, &extent).await.context("a damaged value")?;
        }
        Ok(())
    }

    async fn pace(&mut self, bytes: u64) {
        self.debt += Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        if self.debt >= WAIT_MIN {
            tokio::time::sleep(std::mem::take(&mut self.debt)).await;
        }
    }

    pub(super) fn report(&self, report: &mut Report) {
        let longest_ms = |of: fn(&Pass) -> Duration| {
            self.passes.iter().map(of).max().unwrap_or_default().as_secs_f64() * 1e3
        };
        report.figure("scrub: passes over all keys", self.passes.len() as f64, "");
        report.figure("scrub: longest pass", longest_ms(|pass| pass.elapsed), "ms");
        report.figure("scrub: longest pass, on the thread", longest_ms(|pass| pass.busy), "ms");
        let name = "scrub: longest part of a pass without a yield";
        report.figure(name, longest_ms(|pass| pass.longest), "ms");
    }
}

/// Times how long a future keeps the thread.
async fn timed<T>(future: impl Future<Output = T>, pass: &mut Pass) -> T {
    let began = Instant::now();
    let mut future = pin!(future);
    let output = std::future::poll_fn(|context| {
        let polled = Instant::now();
        let poll = future.as_mut().poll(context);
        let busy = polled.elapsed();
        pass.busy += busy;
        pass.longest = pass.longest.max(busy);
        poll
    })
    .await;
    pass.elapsed = began.elapsed();
    output
}
