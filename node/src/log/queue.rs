//! Lines on their way to standard error.
//!
//! What holds here: [`LogQueue::push`] never waits for I/O and never fails. The queue is bounded in
//! bytes; what does not fit is dropped and counted. A thread of its own writes, and is the only one that
//! a blocked write blocks. It says what was lost as soon as a write succeeds again.

use super::limit::{CallSiteLimit, LeftOut};
use super::{DROPPED, UNLIMITED};
use cairn_client::shown;
use parking_lot::{Condvar, Mutex};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;

/// Bytes of lines that wait. Longer lines than this are dropped.
const QUEUE_BYTES: usize = 1 << 20;
/// A pipe that does not block and is full is tried again after this.
const NONBLOCKING_RETRY: Duration = Duration::from_millis(10);
/// How often the lines that a call site was not allowed are said, at most.
const SAY_INTERVAL: Duration = Duration::from_secs(10);

/// How lines are formed, which decides how they are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineForm {
    /// For people; with the colours of a terminal or without.
    Human {
        /// The formatter writes sequences that set colours.
        colours: bool,
    },
    /// One JSON object.
    Json,
}

/// The queue. Clones share it.
#[derive(Clone)]
pub struct LogQueue {
    shared: Arc<Shared>,
    form: LineForm,
}

struct Shared {
    waiting: Mutex<Waiting>,
    /// Lines have come, or have gone.
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The thread has taken a line and not written it yet.
    writing: bool,
    /// Lines that were lost since that was said.
    lost: u64,
}

impl LogQueue {
    /// Starts the thread that writes to `out`. `limit`: its lines that are left out are said here.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        form: LineForm,
        out: impl Write + Send + 'static,
        limit: CallSiteLimit,
    ) -> io::Result<LogQueue> {
        let shared = Arc::new(Shared { waiting: Mutex::default(), changed: Condvar::new() });
        let writer = Writer { shared: Arc::clone(&shared), out, broken: false };
        let thread = std::thread::Builder::new().name("log".into());
        thread.spawn(move || writer.run(&limit))?;
        Ok(LogQueue { shared, form })
    }

    /// Adds a line, with its end. Drops it if there is no room.
    pub fn push(&self, line: Vec<u8>) {
        let mut waiting = self.shared.waiting.lock();
        if line.len() > QUEUE_BYTES - waiting.bytes {
            waiting.lost += 1;
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        drop(waiting);
        self.shared.changed.notify_all();
    }

    /// Waits until everything is written, but no longer than this. False: something is not.
    pub fn flush(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut waiting = self.shared.waiting.lock();
        while waiting.writing || !waiting.lines.is_empty() {
            if self.shared.changed.wait_until(&mut waiting, until).timed_out() {
                return !waiting.writing && waiting.lines.is_empty();
            }
        }
        true
    }
}

/// The formatter hands over a whole event at once.
impl Write for LogQueue {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.push(self.form.escaped(event));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = LogQueue;

    fn make_writer(&'a self) -> LogQueue {
        self.clone()
    }
}

impl LineForm {
    /// An event as one line that can do nothing to a terminal, whoever wrote what it says.
    fn escaped(self, event: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let escaped = match self {
            LineForm::Json => shown::json(text),
            LineForm::Human { colours: false } => shown::one_line(text),
            LineForm::Human { colours: true } => Cow::Owned(one_line_with_colours(text)),
        };
        let mut line = escaped.into_owned().into_bytes();
        line.push(b'\n');
        line
    }
}

/// One line in which only the formatter's own sequences stay, `ESC [ digits m`. They set colours.
fn one_line_with_colours(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    let mut parts = text.split("\u{1b}[");
    line.push_str(&shown::one_line(parts.next().unwrap_or_default()));
    for part in parts {
        let digits = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        let introducer = if digits.starts_with('m') { "\u{1b}[" } else { r"\u{1b}[" };
        line.push_str(introducer);
        line.push_str(&shown::one_line(part));
    }
    line
}

/// The thread's side.
struct Writer<W> {
    shared: Arc<Shared>,
    out: W,
    /// A line was written in part: the next one begins on a line of its own.
    broken: bool,
}

impl<W: Write> Writer<W> {
    fn run(mut self, limit: &CallSiteLimit) {
        let mut said = Instant::now();
        loop {
            if let Some(line) = self.next(said + SAY_INTERVAL) {
                let written = self.write(&line);
                self.account(written);
            }
            if said.elapsed() >= SAY_INTERVAL {
                said = Instant::now();
                limit.take_left_out().iter().for_each(say_left_out);
            }
        }
    }

    /// The next line; nothing if none comes until then.
    fn next(&self, until: Instant) -> Option<Vec<u8>> {
        let mut waiting = self.shared.waiting.lock();
        while waiting.lines.is_empty() {
            if self.shared.changed.wait_until(&mut waiting, until).timed_out() {
                break;
            }
        }
        let line = waiting.lines.pop_front()?;
        waiting.bytes -= line.len();
        waiting.writing = true;
        Some(line)
    }

    /// Counts a line that is written, or lost. Says what was lost once a line gets through.
    fn account(&self, written: bool) {
        let mut waiting = self.shared.waiting.lock();
        if !written {
            waiting.lost += 1;
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        let lost = if written { std::mem::take(&mut waiting.lost) } else { 0 };
        drop(waiting);
        if lost > 0 {
            // Goes through the queue, in the form of all lines. Nothing is locked here.
            tracing::warn!(name: UNLIMITED, lines = lost, "log lines were lost: standard error did not take them in time");
        }
        self.shared.waiting.lock().writing = false;
        self.shared.changed.notify_all();
    }

    /// Whether the whole line was written.
    fn write(&mut self, line: &[u8]) -> bool {
        if self.broken && self.out.write_all(b"\n").is_err() {
            return false;
        }
        self.broken = false;
        let mut rest = line;
        while !rest.is_empty() {
            match self.out.write(rest) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Whoever started the process made the pipe so. Only this thread waits.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(NONBLOCKING_RETRY);
                }
                Ok(written @ 1..) => rest = rest.get(written..).unwrap_or_default(),
                Ok(0) | Err(_) => {
                    self.broken = rest.len() < line.len();
                    return false;
                }
            }
        }
        true
    }
}

fn say_left_out(left_out: &LeftOut) {
    let LeftOut { site, lines } = left_out;
    let (kind, part, at_line) = (site.level(), site.target(), site.line().unwrap_or(0));
    tracing::warn!(name: UNLIMITED, lines, %kind, part, at_line, "log lines of one kind were left out: there were too many");
}

#[cfg(test)]
mod tests;
