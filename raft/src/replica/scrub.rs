//! The scrubber: reads all live data at a bounded rate, in a cycle of days, and repairs the damage
//! that it finds.
//!
//! A cycle walks the data area in order of offset, then checks the journal, both checkpoints and
//! the superblock's copies. Its position survives restarts. Time counts only while the member runs:
//! no wall clock is used.
//!
//! What holds here: nothing is checked while the member recovers, since recovery is about to
//! replace what it holds.

use super::pacer::Pacer;
use crate::core::ids::GROUP;
use crate::core::runtime;
use crate::durability::{Act, LocalMember};
use cairn_engine::io::{BLOCK, IoFuture};
use cairn_engine::{Extent, ScrubProgress, scrub_spans, scrub_window};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// After a start the scrubber waits this long: other tasks need the disk more.
const BEGIN_AFTER: Duration = Duration::from_secs(60);
/// How often the scrubber checks whether something is due.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The shortest interval between two writes of the position.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// The position of a cycle that has nothing left to do.
const DONE: u64 = u64::MAX;

/// The scrubber's progress. Counters count since the member was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// It reads at present; else it waits for its next cycle, or is paused.
    pub running: bool,
    /// An operator paused it.
    pub paused: bool,
    /// Its position in the data area, in bytes.
    pub position: u64,
    /// The size of the data area, in bytes.
    pub data_bytes: u64,
    /// Seconds of running time since the present cycle began.
    pub elapsed_s: u64,
    /// Cycles completed.
    pub cycles: u64,
    /// Blocks of 4 KiB read.
    pub blocks_checked: u64,
    /// Values compared with their hash.
    pub values_checked: u64,
    /// Values, journal blocks, checkpoints and superblock copies that the scrubber found damaged.
    pub damaged: u64,
    /// Of all damage found by the scrubber or by reads: repaired, or purged because nothing needs
    /// it.
    pub repaired: u64,
    /// Of all damage found by the scrubber or by reads: could not be repaired at the time.
    pub unrepairable: u64,
}

/// The scrubber and what controls it. Clones share it.
#[derive(Clone)]
pub(crate) struct Scrubber {
    member: Arc<LocalMember>,
    pacer: Arc<Pacer>,
    control: Arc<Mutex<ScrubControl>>,
}

#[derive(Default)]
struct ScrubControl {
    status: ScrubStatus,
    /// An operator's requests that the task has not taken yet.
    start: bool,
    pause: Option<bool>,
    /// Damage in journal, checkpoints and superblock: repaired, and not repairable.
    repaired: u64,
    unrepairable: u64,
}

impl Scrubber {
    pub(crate) fn new(member: Arc<LocalMember>) -> Scrubber {
        let pacer = Arc::new(Pacer::new(member.config.scrub_rate_bytes));
        Scrubber { member, pacer, control: Arc::default() }
    }

    /// Begins a cycle now, paused or not.
    pub(crate) fn start(&self) {
        let mut control = self.control.lock();
        (control.start, control.pause) = (true, Some(false));
        control.status.paused = false;
        // Counts as running from now on: a caller that waits for the end must not see the end of
        // the previous cycle.
        control.status.running = true;
    }

    /// Pauses before the next value, or resumes.
    pub(crate) fn pause(&self, pause: bool) {
        let mut control = self.control.lock();
        control.pause = Some(pause);
        control.status.paused = pause;
    }

    /// Reads at most this many bytes a second from now on.
    pub(crate) fn set_rate(&self, bytes_per_s: u64) {
        self.pacer.set_rate(bytes_per_s);
    }

    pub(crate) fn status(&self) -> ScrubStatus {
        let (repaired, unrepairable) = self.member.repairer.counts();
        let control = self.control.lock();
        ScrubStatus {
            repaired: repaired + control.repaired,
            unrepairable: unrepairable + control.unrepairable,
            data_bytes: self.member.engine.status().data_bytes,
            ..control.status
        }
    }

    /// Runs until the engine fails or the member stops.
    pub(crate) async fn run(self) {
        let progress = self.member.engine.scrub_progress().await;
        let began = runtime::now();
        let mut cycle = Cycle { scrubber: &self, progress, since: began, saved: began };
        loop {
            if self.stopped() {
                return;
            }
            if cycle.apply_requests().await.is_err() {
                return;
            }
            let early = runtime::now() - began < BEGIN_AFTER && !self.control.lock().status.running;
            if early || !cycle.is_due() || self.member.may(Act::Vouch).is_err() {
                runtime::sleep(POLL_INTERVAL).await;
                continue;
            }
            if cycle.step().await.is_err() {
                return;
            }
        }
    }

    fn stopped(&self) -> bool {
        self.member.stops() || self.member.engine.status().failed.is_some()
    }

    /// A request or a stop is waiting.
    fn interrupted(&self) -> bool {
        let control = self.control.lock();
        control.start || control.pause == Some(true) || self.member.stops()
    }

    async fn pace(&self, bytes: u64) {
        self.pacer.spend(bytes, || self.interrupted()).await;
    }

    fn count(&self, count: impl FnOnce(&mut ScrubStatus)) {
        count(&mut self.control.lock().status);
    }
}

/// The present cycle.
struct Cycle<'a> {
    scrubber: &'a Scrubber,
    progress: ScrubProgress,
    /// The time up to which `progress` counts.
    since: runtime::Instant,
    saved: runtime::Instant,
}

type Step = cairn_engine::Result<()>;

impl Cycle<'_> {
    /// Applies an operator's requests, and begins the next cycle when it is due.
    async fn apply_requests(&mut self) -> Step {
        let (start, pause) = {
            let mut control = self.scrubber.control.lock();
            (std::mem::take(&mut control.start), control.pause.take())
        };
        if start {
            (self.progress.position, self.progress.elapsed_s) = (0, 0);
        }
        if let Some(pause) = pause {
            self.progress.paused = pause;
        }
        if start || pause.is_some() {
            self.save().await?;
        }
        self.tick();
        if self.progress.position == DONE
            && Duration::from_secs(self.progress.elapsed_s)
                >= self.scrubber.member.config.scrub_cycle
        {
            (self.progress.position, self.progress.elapsed_s) = (0, 0);
        }
        Ok(())
    }

    fn is_due(&self) -> bool {
        !self.progress.paused && self.progress.position != DONE
    }

    /// Adds the whole seconds that have passed, and publishes the position.
    fn tick(&mut self) {
        let seconds = (runtime::now() - self.since).as_secs();
        self.since += Duration::from_secs(seconds);
        self.progress.elapsed_s = self.progress.elapsed_s.saturating_add(seconds);
        let (progress, due) = (self.progress, self.is_due());
        let data_bytes = self.scrubber.member.engine.status().data_bytes;
        let mut control = self.scrubber.control.lock();
        if !control.start {
            control.status.running &= due;
        }
        if control.pause.is_none() {
            control.status.paused = progress.paused;
        }
        control.status.position = progress.position.min(data_bytes);
        control.status.elapsed_s = progress.elapsed_s;
    }

    async fn save(&mut self) -> Step {
        // An update overwrites two copies at once and relies on the other two: check them first.
        self.superblock().await?;
        self.saved = runtime::now();
        self.scrubber.member.engine.save_scrub_progress(self.progress).await
    }

    /// Checks the next window of the data area, or the metadata after the last one.
    async fn step(&mut self) -> Step {
        self.scrubber.count(|status| status.running = true);
        let data_bytes = self.scrubber.member.engine.status().data_bytes;
        if self.progress.position < data_bytes {
            return self.window(scrub_window(self.progress.position, data_bytes)).await;
        }
        self.metadata().await?;
        if !self.scrubber.interrupted() {
            self.progress.position = DONE;
            self.scrubber.count(|status| status.cycles += 1);
            let ScrubStatus {
                damaged, repaired, unrepairable, blocks_checked, values_checked, ..
            } = self.scrubber.status();
            tracing::info!(
                blocks_checked,
                values_checked,
                damaged,
                repaired,
                unrepairable,
                "a scrub has ended"
            );
            self.save().await?;
            self.scrubber.count(|status| status.running = false);
        }
        Ok(())
    }

    async fn window(&mut self, window: Range<u64>) -> Step {
        let end = window.end;
        let extents = self.scrubber.member.engine.extents(GROUP, window).await;
        let mut spans = scrub_spans(&extents).peekable();
        while let Some(span) = spans.next() {
            self.values(span).await;
            if self.scrubber.interrupted() || self.scrubber.stopped() {
                return Ok(());
            }
            let next = spans.peek().and_then(|next| next.first());
            self.progress.position = next.map_or(end, |next| next.at.offset());
            self.tick();
            if runtime::now() - self.saved > SAVE_EVERY {
                self.save().await?;
            }
        }
        self.progress.position = end;
        Ok(())
    }

    /// Checks adjacent values, and repairs the damaged ones.
    async fn values(&self, extents: &[Extent]) {
        let scrubber = self.scrubber;
        let span = |extent: &Extent| u64::from(extent.at.len);
        scrubber.pace(extents.iter().map(span).sum::<u64>().next_multiple_of(BLOCK as u64)).await;
        let (blocks, suspects) = scrubber.member.engine.check_extents(extents).await;
        scrubber.count(|status| {
            status.blocks_checked += blocks;
            status.values_checked += extents.len() as u64;
        });
        for extent in suspects {
            // Read it again: it may have been freed, or a write was in flight.
            if let Err(error) = scrubber.member.engine.read_extent(GROUP, &extent).await {
                tracing::warn!(%error, "scrub: a value is damaged");
                scrubber.count(|status| status.damaged += 1);
                scrubber.member.repairer.repair(&extent).await;
            }
        }
    }

    /// Checks journal, checkpoints and superblock. Damage in the first two is not repaired in
    /// place: two new checkpoints, one for each area, replace everything before them.
    async fn metadata(&self) -> Step {
        let scrubber = self.scrubber;
        let engine = &scrubber.member.engine;
        while engine.status().checkpoints < 2 {
            engine.checkpoint().await?;
        }
        let found = self.check_metadata(true).await;
        if found > 0 {
            engine.checkpoint().await?;
            engine.checkpoint().await?;
            let left = self.check_metadata(false).await;
            let mut control = scrubber.control.lock();
            control.repaired += found.saturating_sub(left);
            control.unrepairable += left;
        }
        self.superblock().await
    }

    async fn superblock(&self) -> Step {
        let copies = self.scrubber.member.engine.check_superblock().await?;
        if copies > 0 {
            tracing::warn!(copies, "scrub: damaged copies of the superblock were rewritten");
            self.scrubber.control.lock().repaired += copies;
            self.scrubber.count(|status| status.damaged += copies);
        }
        Ok(())
    }

    /// How many parts of journal and checkpoints are damaged. `count`: add them to the status.
    async fn check_metadata(&self, count: bool) -> u64 {
        let scrubber = self.scrubber;
        let pacing = scrubber.clone();
        let pace = move |bytes: u64| -> IoFuture<()> {
            let pacing = pacing.clone();
            Box::pin(async move { pacing.pace(bytes).await })
        };
        let parts = [
            scrubber.member.engine.check_journal(&pace).await,
            scrubber.member.engine.check_checkpoints(&pace).await,
        ];
        let mut damaged = 0;
        for part in parts {
            for damage in &part.damaged {
                damaged += 1;
                tracing::warn!(%damage, "scrub: found damage");
            }
            if count {
                scrubber.count(|status| {
                    status.blocks_checked += part.blocks;
                    status.damaged += part.damaged.len() as u64;
                });
            }
        }
        damaged
    }
}
