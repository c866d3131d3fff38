//! The scrubber: reads everything that is live, at a bounded rate, in a cycle of days, and mends what it finds damaged.
//!
//! A cycle walks the data area in order of offset, then checks the journal, both checkpoints and the superblock's copies.
//! Its place is kept over restarts. Time is counted while the member runs: no wall clock is asked.
//!
//! What holds here: nothing is checked while the member recovers, since what it holds is about to be replaced.

use super::pacer::Pacer;
use crate::core::ids::GROUP;
use crate::core::runtime;
use crate::durability::LocalMember;
use crate::storage::repair::Mender;
use cairn_engine::io::{BLOCK, IoFuture};
use cairn_engine::{Extent, ScrubMark};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// After a start, before the first look: others need the disk more.
const BEGIN_AFTER: Duration = Duration::from_secs(60);
/// Between looks whether something is due.
const PAUSE: Duration = Duration::from_millis(200);
/// The place is stored this often at most.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// Each window of the data area costs a look at every key: there are at most this many, unless they become too small.
const WINDOWS: u64 = 64;
const WINDOW_BYTES_MIN: u64 = 64 << 20;
/// Neighbours read at once span at most this.
const SPAN_BYTES: u64 = 256 << 10;
/// The position of a cycle that has nothing left to do.
const DONE: u64 = u64::MAX;

/// What the scrubber says of itself. Counters count since the member was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// It reads at the moment; else it waits for its next cycle, or is paused.
    pub running: bool,
    /// An operator has paused it.
    pub paused: bool,
    /// How far it has come in the data area, in bytes.
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
    /// Values, journal blocks, checkpoints and superblock copies found damaged by it.
    pub damaged: u64,
    /// Of all damage met, by it or by reads: what was put right, or let go of where nobody needs it.
    pub mended: u64,
    /// Of all damage met, by it or by reads: what could not be put right at the time.
    pub unmendable: u64,
}

/// The scrubber and what controls it. Clones share it.
#[derive(Clone)]
pub(crate) struct Scrubber {
    member: Arc<LocalMember>,
    mender: Arc<Mender>,
    pacer: Arc<Pacer>,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    status: ScrubStatus,
    /// Asked from outside, not yet taken up.
    start: bool,
    pause: Option<bool>,
    /// What could be put right of journal, checkpoints and superblock, and what could not.
    mended: u64,
    unmendable: u64,
}

impl Scrubber {
    pub(crate) fn new(member: Arc<LocalMember>, mender: Arc<Mender>) -> Scrubber {
        let pacer = Arc::new(Pacer::new(member.config.scrub_rate_bytes));
        Scrubber { member, mender, pacer, shared: Arc::default() }
    }

    /// Begins a cycle now, paused or not.
    pub(crate) fn start(&self) {
        let mut shared = self.shared.lock();
        (shared.start, shared.pause) = (true, Some(false));
        shared.status.paused = false;
        // Until the new cycle is taken up, it is running: whoever waits for its end must not see the last one's.
        shared.status.running = true;
    }

    /// Stops at the next value until it is told to go on or to start.
    pub(crate) fn pause(&self, pause: bool) {
        let mut shared = self.shared.lock();
        shared.pause = Some(pause);
        shared.status.paused = pause;
    }

    pub(crate) fn status(&self) -> ScrubStatus {
        let (mended, unmendable) = self.mender.counts();
        let shared = self.shared.lock();
        ScrubStatus {
            mended: mended + shared.mended,
            unmendable: unmendable + shared.unmendable,
            data_bytes: self.member.engine.status().data_bytes,
            ..shared.status
        }
    }

    /// Runs until the engine fails or the member stops.
    pub(crate) async fn run(self) {
        let mark = self.member.engine.scrub_mark().await;
        let began = runtime::now();
        let mut cycle = Cycle { scrubber: &self, mark, since: began, saved: began };
        loop {
            if self.stopped() {
                return;
            }
            if cycle.obey().await.is_err() {
                return;
            }
            let early = runtime::now() - began < BEGIN_AFTER && !self.shared.lock().status.running;
            if early || !cycle.is_due() || !self.member.gate.is_open() {
                runtime::sleep(PAUSE).await;
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

    /// Somebody wants something else than to go on.
    fn interrupted(&self) -> bool {
        let shared = self.shared.lock();
        shared.start || shared.pause == Some(true) || self.member.stops()
    }

    async fn pace(&self, bytes: u64) {
        self.pacer.spend(bytes, || self.interrupted()).await;
    }

    fn count(&self, count: impl FnOnce(&mut ScrubStatus)) {
        count(&mut self.shared.lock().status);
    }
}

/// Where the present cycle is.
struct Cycle<'a> {
    scrubber: &'a Scrubber,
    mark: ScrubMark,
    /// Since when time was not yet added to the mark.
    since: runtime::Instant,
    saved: runtime::Instant,
}

type Step = cairn_engine::Result<()>;

impl Cycle<'_> {
    /// Does what was asked from outside, and begins the next cycle when its time has come.
    async fn obey(&mut self) -> Step {
        let (start, pause) = {
            let mut shared = self.scrubber.shared.lock();
            (std::mem::take(&mut shared.start), shared.pause.take())
        };
        if start {
            (self.mark.position, self.mark.elapsed_s) = (0, 0);
        }
        if let Some(pause) = pause {
            self.mark.paused = pause;
        }
        if start || pause.is_some() {
            self.save().await?;
        }
        self.tick();
        if self.mark.position == DONE
            && Duration::from_secs(self.mark.elapsed_s) >= self.scrubber.member.config.scrub_cycle
        {
            (self.mark.position, self.mark.elapsed_s) = (0, 0);
        }
        Ok(())
    }

    fn is_due(&self) -> bool {
        !self.mark.paused && self.mark.position != DONE
    }

    /// Adds whole seconds that have passed, and shows where it is.
    fn tick(&mut self) {
        let seconds = (runtime::now() - self.since).as_secs();
        self.since += Duration::from_secs(seconds);
        self.mark.elapsed_s = self.mark.elapsed_s.saturating_add(seconds);
        let (mark, due) = (self.mark, self.is_due());
        let data_bytes = self.scrubber.member.engine.status().data_bytes;
        let mut shared = self.scrubber.shared.lock();
        if !shared.start {
            shared.status.running &= due;
        }
        if shared.pause.is_none() {
            shared.status.paused = mark.paused;
        }
        shared.status.position = mark.position.min(data_bytes);
        shared.status.elapsed_s = mark.elapsed_s;
    }

    async fn save(&mut self) -> Step {
        // An update overwrites two copies at once and relies on the others.
        self.superblock().await?;
        self.saved = runtime::now();
        self.scrubber.member.engine.save_scrub_mark(self.mark).await
    }

    /// A window of the data area, or what comes after the last one.
    async fn step(&mut self) -> Step {
        self.scrubber.count(|status| status.running = true);
        let data_bytes = self.scrubber.member.engine.status().data_bytes;
        if self.mark.position < data_bytes {
            let end = self
                .mark
                .position
                .saturating_add((data_bytes / WINDOWS).max(WINDOW_BYTES_MIN))
                .min(data_bytes);
            return self.window(end).await;
        }
        self.metadata().await?;
        if !self.scrubber.interrupted() {
            self.mark.position = DONE;
            self.scrubber.count(|status| status.cycles += 1);
            tracing::info!(status = ?self.scrubber.status(), "a scrub has ended");
            self.save().await?;
            self.scrubber.count(|status| status.running = false);
        }
        Ok(())
    }

    async fn window(&mut self, end: u64) -> Step {
        let extents = self.scrubber.member.engine.extents(GROUP, self.mark.position..end).await;
        let mut rest = extents.as_slice();
        while let Some(first) = rest.first() {
            let within = |extent: &&Extent| {
                extent.at.offset + u64::from(extent.at.len) <= first.at.offset + SPAN_BYTES
            };
            let count = rest.iter().take_while(within).count().max(1);
            let (now, later) = rest.split_at(count);
            rest = later;
            self.values(now).await;
            if self.scrubber.interrupted() || self.scrubber.stopped() {
                return Ok(());
            }
            self.mark.position = later.first().map_or(end, |next| next.at.offset);
            self.tick();
            if runtime::now() - self.saved > SAVE_EVERY {
                self.save().await?;
            }
        }
        self.mark.position = end;
        Ok(())
    }

    /// Checks neighbours, and mends what is damaged of them.
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
            // Read anew: it may have died, or been in flight.
            if let Err(error) = scrubber.member.engine.read_extent(GROUP, &extent).await {
                tracing::warn!(%error, "scrub: a value is damaged");
                scrubber.count(|status| status.damaged += 1);
                scrubber.mender.mend(&extent).await;
            }
        }
    }

    /// Journal, checkpoints, superblock. What is damaged of the first two is not put right but replaced: two checkpoints,
    /// one for each area, make everything before them needless.
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
            let mut shared = scrubber.shared.lock();
            shared.mended += found.saturating_sub(left);
            shared.unmendable += left;
        }
        self.superblock().await
    }

    async fn superblock(&self) -> Step {
        let copies = self.scrubber.member.engine.check_superblock().await?;
        if copies > 0 {
            tracing::warn!(copies, "scrub: damaged copies of the superblock were rewritten");
            self.scrubber.shared.lock().mended += copies;
            self.scrubber.count(|status| status.damaged += copies);
        }
        Ok(())
    }

    /// How much of journal and checkpoints is damaged.
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
                tracing::warn!(%damage, "scrub: damage");
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
