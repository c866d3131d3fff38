//! A bound on the time that an operation may be out: a device may take one and never answer, not even with an error.
//!
//! What holds here, whatever stands behind [`Device`]:
//! - an operation that is out for longer than the limit ends with an error for whoever waits for it. Nothing cancels it: its file,
//!   its lock and its buffer stay with the backend until the device is done with them;
//! - the time is counted in ticks of one task. While the process is stopped, or gets no processor, no time passes, so that a
//!   device is not blamed for that;
//! - once an operation was out for so long the others have a fifth of the limit, so that the end of the process is bounded;
//! - no operation has a timer or a thread of its own. It costs an entry in a table.

use super::{AlignedBuf, Device, Directory, FileKind, IoFuture};
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;

/// Ticks in the limit.
const TICKS: u64 = 10;
/// So many for the others, once one was out for the limit.
const TICKS_ONCE_HUNG: u64 = 2;
/// An operation that is out for so many is worth a change of the leader.
const TICKS_STALLED: u64 = 3;
const SHORTEST_TICK: Duration = Duration::from_millis(1);

/// The operations of one directory that are out.
pub(crate) struct Watch {
    limit: Duration,
    table: Mutex<Table>,
    /// The first one was out for too long.
    hung: Notify,
}

#[derive(Default)]
struct Table {
    ticks: u64,
    next: u64,
    /// In the order in which they began.
    out: BTreeMap<u64, Out>,
    hung: Option<Hung>,
}

struct Out {
    /// When it began, in ticks.
    since: u64,
    what: Hung,
    expired: bool,
    waiting: Option<Waker>,
}

/// An operation that was out for longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hung {
    pub file: FileKind,
    pub operation: &'static str,
}

impl Watch {
    /// Nothing is out. The limit is counted from here on, until the last handle is gone.
    pub(crate) fn start(limit: Duration) -> Arc<Watch> {
        let watch = Arc::new(Watch { limit, table: Mutex::default(), hung: Notify::new() });
        tokio::spawn(run(Arc::downgrade(&watch), (limit / TICKS as u32).max(SHORTEST_TICK)));
        watch
    }

    /// Resolves with the first operation that was out for too long.
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

    /// Refuses what was read, if an operation was out for too long: what looks unreadable then may be whole.
    pub(crate) fn check(&self, location: &str) -> Result<()> {
        let Some(Hung { file, operation }) = self.table.lock().hung else { return Ok(()) };
        Err(Error::failed(location, file, operation, self.late()))
    }

    /// Whether an operation is out for a third of the limit.
    pub(crate) fn stalled(&self) -> bool {
        let table = self.table.lock();
        let oldest = table.out.first_key_value();
        oldest.is_some_and(|(_, out)| table.ticks.saturating_sub(out.since) > TICKS_STALLED)
    }

    /// The error of an operation that was out for too long.
    pub(crate) fn late(&self) -> io::Error {
        let text = format!("the device did not return within {:?} (storage.io_timeout)", self.limit);
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    fn begin(self: &Arc<Self>, file: FileKind, operation: &'static str) -> Ticket {
        let mut table = self.table.lock();
        let (id, since) = (table.next, table.ticks);
        table.next += 1;
        let out = Out { since, what: Hung { file, operation }, expired: false, waiting: None };
        table.out.insert(id, out);
        drop(table);
        Ticket { watch: Arc::clone(self), id }
    }

    fn tick(&self) {
        let mut wake = Vec::new();
        {
            let mut table = self.table.lock();
            table.ticks += 1;
            let limit = if table.hung.is_some() { TICKS_ONCE_HUNG } else { TICKS };
            let Table { ticks, out, hung, .. } = &mut *table;
            let late = out.values_mut().take_while(|out| ticks.saturating_sub(out.since) > limit);
            for out in late.filter(|out| !out.expired) {
                out.expired = true;
                hung.get_or_insert(out.what);
                wake.extend(out.waiting.take());
            }
        }
        if !wake.is_empty() {
            self.hung.notify_waiters();
            wake.into_iter().for_each(Waker::wake);
        }
    }
}

/// Counts until nobody uses the directory any more.
async fn run(watch: Weak<Watch>, tick: Duration) {
    loop {
        tokio::time::sleep(tick).await;
        match watch.upgrade() {
            Some(watch) => watch.tick(),
            None => return,
        }
    }
}

/// An operation that is out, as long as somebody may wait for it.
struct Ticket {
    watch: Arc<Watch>,
    id: u64,
}

impl Ticket {
    /// What the operation comes to, or that it was out for too long.
    async fn result<T>(self, mut operation: IoFuture<T>) -> io::Result<T> {
        poll_fn(|context| match operation.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Ok(result)),
            Poll::Pending => self.wait(context),
        })
        .await
    }

    fn wait<T>(&self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let mut table = self.watch.table.lock();
        match table.out.get_mut(&self.id) {
            Some(out) if out.expired => Poll::Ready(Err(self.watch.late())),
            Some(out) => {
                match &mut out.waiting {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.watch.table.lock().out.remove(&self.id);
    }
}

/// A directory whose operations are bounded in time.
pub(crate) struct Watched {
    pub directory: Arc<dyn Directory>,
    pub watch: Arc<Watch>,
}

impl Directory for Watched {
    fn open(&self, kind: FileKind) -> io::Result<Arc<dyn Device>> {
        let device = self.directory.open(kind)?;
        Ok(Arc::new(WatchedDevice { device, kind, watch: Arc::clone(&self.watch) }))
    }

    fn location(&self) -> String {
        self.directory.location()
    }

    fn backend(&self) -> &'static str {
        self.directory.backend()
    }
}

struct WatchedDevice {
    device: Arc<dyn Device>,
    kind: FileKind,
    watch: Arc<Watch>,
}

type Transfer = (io::Result<()>, AlignedBuf);

impl WatchedDevice {
    fn transfer(&self, operation: &'static str, begun: IoFuture<Transfer>) -> IoFuture<Transfer> {
        let ticket = self.watch.begin(self.kind, operation);
        // The buffer is the device's, who knows for how long.
        Box::pin(async move {
            ticket.result(begun).await.unwrap_or_else(|late| (Err(late), AlignedBuf::zeroed(0)))
        })
    }
}

impl Device for WatchedDevice {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read(&self, offset: u64, buf: AlignedBuf) -> IoFuture<Transfer> {
        self.transfer("read", self.device.read(offset, buf))
    }

    fn write(&self, offset: u64, buf: AlignedBuf) -> IoFuture<Transfer> {
        self.transfer("write", self.device.write(offset, buf))
    }

    fn sync(&self) -> IoFuture<io::Result<()>> {
        let ticket = self.watch.begin(self.kind, "sync");
        let begun = self.device.sync();
        Box::pin(async move { ticket.result(begun).await.and_then(|synced| synced) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn watch() -> Arc<Watch> {
        Arc::new(Watch { limit: Duration::from_secs(30), table: Mutex::default(), hung: Notify::new() })
    }

    fn never(watch: &Arc<Watch>, file: FileKind, operation: &'static str) -> IoFuture<io::Result<()>> {
        let ticket = watch.begin(file, operation);
        Box::pin(async move { ticket.result(Box::pin(std::future::pending::<()>())).await })
    }

    fn ticks(watch: &Watch, count: u64) {
        (0..count).for_each(|_| watch.tick());
    }

    #[test]
    fn an_operation_that_never_returns_ends_after_the_limit_and_no_earlier() {
        let watch = watch();
        let mut sync = never(&watch, FileKind::Journal, "sync");
        ticks(&watch, TICKS);
        assert!((&mut sync).now_or_never().is_none() && watch.stalled());
        assert!(watch.check("d").is_ok() && watch.hung().now_or_never().is_none());
        watch.tick();
        let error = (&mut sync).now_or_never().expect("it ended").expect_err("late");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let hung = Hung { file: FileKind::Journal, operation: "sync" };
        assert_eq!(watch.hung().now_or_never(), Some(hung));
        let error = watch.check("d").expect_err("refused").to_string();
        assert!(
            error.contains("d: sync failed on file `journal`: the device did not return within 30s"),
            "{error}"
        );
    }

    #[test]
    fn after_the_first_the_others_end_sooner_so_that_the_process_can() {
        let watch = watch();
        let first = never(&watch, FileKind::Data, "write");
        ticks(&watch, TICKS + 1);
        let mut second = never(&watch, FileKind::Superblock, "write");
        ticks(&watch, TICKS_ONCE_HUNG);
        assert!((&mut second).now_or_never().is_none());
        watch.tick();
        assert!(second.now_or_never().expect("it ended").is_err());
        assert_eq!(
            watch.hung().now_or_never().map(|hung| hung.file),
            Some(FileKind::Data),
            "the first is named"
        );
        drop(first);
    }

    #[test]
    fn what_ended_or_was_left_is_not_waited_for() {
        let watch = watch();
        let ticket = watch.begin(FileKind::Data, "read");
        assert!(ticket.result(Box::pin(async {})).now_or_never().expect("it ended").is_ok());
        drop(never(&watch, FileKind::Data, "read"));
        ticks(&watch, 10 * TICKS);
        assert!(watch.table.lock().out.is_empty() && watch.check("d").is_ok() && !watch.stalled());
    }

    #[test]
    fn whoever_waits_is_woken() {
        let watch = watch();
        let waits = never(&watch, FileKind::Data, "read");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let result = runtime.block_on(async {
            let waits = tokio::spawn(waits);
            tokio::task::yield_now().await;
            ticks(&watch, TICKS + 1);
            waits.await.expect("no panic")
        });
        assert!(result.is_err());
    }
}
