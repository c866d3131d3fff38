//! A time limit for device operations. A device may accept an operation and never answer, not even
//! with an error.
//!
//! What holds here, whatever the implementation of [`Device`]:
//! - An operation that takes longer than the limit ends with an error for its caller. Nothing
//!   cancels the operation itself: its file, its lock and its buffer stay with the backend until
//!   the device has finished.
//! - One task counts the time in ticks. While the process is stopped or gets no processor, no time
//!   passes, so that the device is not blamed for that.
//! - After the first operation that timed out, the others get a fifth of the limit, so that the
//!   process ends in bounded time.
//! - No operation has a timer or a thread of its own. It costs one entry in a table.

use super::{AlignedBuf, Device, Directory, FileKind, IoFuture};
use crate::error::{Error, Result};
use crate::latency::{DeviceLatency, Latency};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The limit, in ticks.
const TICKS: u64 = 10;
/// The limit for the others after the first timeout, in ticks.
const TICKS_ONCE_HUNG: u64 = 2;
/// If an operation takes longer than this many ticks, leadership should move to another member.
const TICKS_STALLED: u64 = 3;
const SHORTEST_TICK: Duration = Duration::from_millis(1);

/// The operations of one directory that are in flight, and their time limit.
pub(crate) struct IoDeadlines {
    limit: Duration,
    table: Mutex<Table>,
    /// Notifies when the first operation has timed out.
    hung: Notify,
    /// How long they take.
    pub(crate) latency: DeviceLatency,
}

#[derive(Default)]
struct Table {
    ticks: u64,
    next: u64,
    /// In the order in which they began.
    in_flight: BTreeMap<u64, InFlight>,
    hung: Option<Hung>,
}

/// An operation in flight.
struct InFlight {
    /// When it began, in ticks.
    since: u64,
    what: Hung,
    expired: bool,
    waiting: Option<Waker>,
}

/// An operation that took longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hung {
    pub file: FileKind,
    pub operation: &'static str,
}

impl IoDeadlines {
    /// Starts with an empty table. Time counts from here on, until the last handle is dropped.
    pub(crate) fn start(limit: Duration) -> Arc<IoDeadlines> {
        let deadlines = Arc::new(IoDeadlines {
            limit,
            table: Mutex::default(),
            hung: Notify::new(),
            latency: DeviceLatency::default(),
        });
        tokio::spawn(run(Arc::downgrade(&deadlines), (limit / TICKS as u32).max(SHORTEST_TICK)));
        deadlines
    }

    /// Resolves with the first operation that timed out.
    pub(crate) async fn hung(&self) -> Hung {
        loop {
            let mut changed = pin!(self.hung.notified());
            changed.as_mut().enable();
            if let Some(hung) = self.table.lock().hung {
                return hung;
            }
            changed.await;
        }
    }

    /// Refuses the results of reads if an operation has timed out: data that looks unreadable then
    /// may be intact.
    pub(crate) fn check(&self, location: &str) -> Result<()> {
        let Some(Hung { file, operation }) = self.table.lock().hung else { return Ok(()) };
        Err(Error::failed(location, file, operation, self.late()))
    }

    /// Whether an operation has taken a third of the limit.
    pub(crate) fn stalled(&self) -> bool {
        let table = self.table.lock();
        let oldest = table.in_flight.first_key_value();
        oldest.is_some_and(|(_, entry)| table.ticks.saturating_sub(entry.since) > TICKS_STALLED)
    }

    /// The error of an operation that timed out.
    pub(crate) fn late(&self) -> io::Error {
        let limit = self.limit.as_millis();
        let text = format!("the device did not return within {limit} ms (storage.io_timeout)");
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    fn begin(self: &Arc<Self>, file: FileKind, operation: &'static str) -> Ticket {
        let mut table = self.table.lock();
        let (id, since) = (table.next, table.ticks);
        table.next += 1;
        let entry =
            InFlight { since, what: Hung { file, operation }, expired: false, waiting: None };
        table.in_flight.insert(id, entry);
        drop(table);
        Ticket { deadlines: Arc::clone(self), id }
    }

    fn tick(&self) {
        let mut wake = Vec::new();
        {
            let mut table = self.table.lock();
            table.ticks += 1;
            let limit = if table.hung.is_some() { TICKS_ONCE_HUNG } else { TICKS };
            let Table { ticks, in_flight, hung, .. } = &mut *table;
            let late = in_flight
                .values_mut()
                .take_while(|entry| ticks.saturating_sub(entry.since) > limit);
            for entry in late.filter(|entry| !entry.expired) {
                entry.expired = true;
                hung.get_or_insert(entry.what);
                wake.extend(entry.waiting.take());
            }
        }
        if !wake.is_empty() {
            self.hung.notify_waiters();
            wake.into_iter().for_each(Waker::wake);
        }
    }
}

/// Ticks until the last handle on the directory is dropped.
async fn run(deadlines: Weak<IoDeadlines>, tick: Duration) {
    loop {
        tokio::time::sleep(tick).await;
        match deadlines.upgrade() {
            Some(deadlines) => deadlines.tick(),
            None => return,
        }
    }
}

/// An operation in flight. Dropped when its caller stops waiting.
struct Ticket {
    deadlines: Arc<IoDeadlines>,
    id: u64,
}

impl Ticket {
    /// The operation's result, or the error that it timed out.
    async fn result<T>(self, mut operation: IoFuture<T>) -> io::Result<T> {
        poll_fn(|context| match operation.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Ok(result)),
            Poll::Pending => self.wait(context),
        })
        .await
    }

    fn wait<T>(&self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let mut table = self.deadlines.table.lock();
        match table.in_flight.get_mut(&self.id) {
            Some(entry) if entry.expired => return Poll::Ready(Err(self.deadlines.late())),
            Some(entry) => entry.waiting = Some(context.waker().clone()),
            None => {}
        }
        Poll::Pending
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.deadlines.table.lock().in_flight.remove(&self.id);
    }
}

/// A directory whose operations have a time limit.
pub(crate) struct BoundedDirectory {
    pub directory: Arc<dyn Directory>,
    pub deadlines: Arc<IoDeadlines>,
}

impl Directory for BoundedDirectory {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        let device = self.directory.open(kind)?;
        Ok(Arc::new(BoundedDevice { device, kind, deadlines: Arc::clone(&self.deadlines) }))
    }

    fn location(&self) -> String {
        self.directory.location()
    }

    fn backend(&self) -> &'static str {
        self.directory.backend()
    }

    fn set_aside(&self, number: u64) -> IoFuture<io::Result<String>> {
        self.directory.set_aside(number)
    }
}

struct BoundedDevice {
    device: Arc<dyn Device>,
    kind: FileKind,
    deadlines: Arc<IoDeadlines>,
}

type Transfer = (io::Result<()>, AlignedBuf);

/// Where an operation is counted.
type Counted = fn(&DeviceLatency) -> &Latency;

impl BoundedDevice {
    fn transfer(
        &self,
        operation: &'static str,
        counted: Counted,
        begun: IoFuture<Transfer>,
    ) -> IoFuture<Transfer> {
        let ticket = self.deadlines.begin(self.kind, operation);
        let (deadlines, began) = (Arc::clone(&self.deadlines), Instant::now());
        // After a timeout the device keeps the buffer, for an unknown time.
        Box::pin(async move {
            let result = ticket.result(begun).await;
            counted(&deadlines.latency).observe(began.elapsed());
            result.unwrap_or_else(|late| (Err(late), AlignedBuf::zeroed(0)))
        })
    }
}

impl Device for BoundedDevice {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read(&self, offset: u64, buf: AlignedBuf) -> IoFuture<Transfer> {
        self.transfer("read", |latency| &latency.reads, self.device.read(offset, buf))
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<Transfer> {
        self.transfer("write", |latency| &latency.writes, self.device.write(offset, buf))
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        let ticket = self.deadlines.begin(self.kind, "sync");
        let (deadlines, began) = (Arc::clone(&self.deadlines), Instant::now());
        let begun = self.device.sync();
        Box::pin(async move {
            let result = ticket.result(begun).await;
            deadlines.latency.syncs.observe(began.elapsed());
            result.and_then(|synced| synced)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn deadlines() -> Arc<IoDeadlines> {
        Arc::new(IoDeadlines {
            limit: Duration::from_secs(30),
            table: Mutex::default(),
            hung: Notify::new(),
            latency: DeviceLatency::default(),
        })
    }

    fn never(
        deadlines: &Arc<IoDeadlines>,
        file: FileKind,
        operation: &'static str,
    ) -> IoFuture<io::Result<()>> {
        let ticket = deadlines.begin(file, operation);
        Box::pin(async move { ticket.result(Box::pin(std::future::pending::<()>())).await })
    }

    fn ticks(deadlines: &IoDeadlines, count: u64) {
        (0..count).for_each(|_| deadlines.tick());
    }

    #[test]
    fn an_operation_that_never_returns_ends_after_the_limit_and_no_earlier() {
        let deadlines = deadlines();
        let mut sync = never(&deadlines, FileKind::Journal, "sync");
        ticks(&deadlines, TICKS);
        assert!((&mut sync).now_or_never().is_none() && deadlines.stalled());
        assert!(deadlines.check("d").is_ok() && deadlines.hung().now_or_never().is_none());
        deadlines.tick();
        let error = (&mut sync).now_or_never().expect("it ended").expect_err("late");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let hung = Hung { file: FileKind::Journal, operation: "sync" };
        assert_eq!(deadlines.hung().now_or_never(), Some(hung));
        let error = deadlines.check("d").expect_err("refused").to_string();
        assert!(
            error.contains(
                "d: sync failed on file `journal`: the device did not return within 30000 ms"
            ),
            "{error}"
        );
    }

    #[test]
    fn after_the_first_timeout_the_others_end_sooner() {
        let deadlines = deadlines();
        let first = never(&deadlines, FileKind::Data, "write");
        ticks(&deadlines, TICKS + 1);
        let mut second = never(&deadlines, FileKind::Superblock, "write");
        ticks(&deadlines, TICKS_ONCE_HUNG);
        assert!((&mut second).now_or_never().is_none());
        deadlines.tick();
        assert!(second.now_or_never().expect("it ended").is_err());
        assert_eq!(
            deadlines.hung().now_or_never().map(|hung| hung.file),
            Some(FileKind::Data),
            "the first is named"
        );
        drop(first);
    }

    #[test]
    fn finished_and_dropped_operations_leave_the_table() {
        let deadlines = deadlines();
        let ticket = deadlines.begin(FileKind::Data, "read");
        assert!(ticket.result(Box::pin(async {})).now_or_never().expect("it ended").is_ok());
        drop(never(&deadlines, FileKind::Data, "read"));
        ticks(&deadlines, 10 * TICKS);
        assert!(
            deadlines.table.lock().in_flight.is_empty()
                && deadlines.check("d").is_ok()
                && !deadlines.stalled()
        );
    }

    #[test]
    fn a_waiting_caller_is_woken() {
        let deadlines = deadlines();
        let waits = never(&deadlines, FileKind::Data, "read");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let result = runtime.block_on(async {
            let waits = tokio::spawn(waits);
            tokio::task::yield_now().await;
            ticks(&deadlines, TICKS + 1);
            waits.await.expect("no panic")
        });
        assert!(result.is_err());
    }
}
