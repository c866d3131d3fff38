//! The memory that reads may take: one budget for the node, shared by its clients.
//!
//! What holds here:
//! - A read is charged from before it begins until the kernel has taken its answer or the answer is
//!   dropped.
//! - After admission a client holds at most as many bytes as remain free ([`super::shares`]),
//!   over all its connections. A client that has no name is its connection.
//! - The number of waiting reads is bounded by the same rule, and each waits no longer than its own
//!   deadline.
//! - Connections take turns. The reads of one connection are admitted in order.
//! - A client that takes its answers more slowly than the configured pace, while reads of others
//!   wait, loses its connection.

use super::shares::{Owner, Shares};
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Reads of all connections that wait for memory. Further reads are refused at once.
const MOST_WAITING: usize = 8192;

/// The budget of a node. Clones share it.
#[derive(Clone)]
pub struct Reads {
    shared: Arc<ReadBudget>,
}

struct ReadBudget {
    closed: AtomicU64,
    state: Mutex<State>,
}

struct State {
    held: Shares,
    waiting: Shares,
    next: u64,
    accounts: BTreeMap<u64, Account>,
    /// Connections with waiting reads, the next one first.
    turns: VecDeque<u64>,
}

/// What one connection waits for.
struct Account {
    /// The bytes held that wait for the client to take them.
    sending: usize,
    queue: VecDeque<QueuedRead>,
    flow: Arc<ConnectionFlow>,
    /// Since when its pace is measured, and how many bytes it had taken by then.
    watched: Option<(Instant, u64)>,
}

struct QueuedRead {
    ticket: u64,
    owner: Owner,
    bytes: usize,
    admitted: oneshot::Sender<()>,
}

impl State {
    /// Admits the reads that fit, one of each connection in turn.
    fn admit(&mut self) {
        let mut passed = 0;
        while passed < self.turns.len() {
            let Some(id) = self.turns.pop_front() else { return };
            let fits = self.accounts.get(&id).and_then(|account| {
                let head = account.queue.front()?;
                Some((head.owner, head.bytes, self.held.fits(head.owner, head.bytes)))
            });
            let Some((owner, bytes, fits)) = fits else { continue };
            self.turns.push_back(id);
            if !fits {
                passed += 1;
                continue;
            }
            passed = 0;
            let Some(account) = self.accounts.get_mut(&id) else { continue };
            self.held.take(owner, bytes);
            self.waiting.release(owner, 1);
            if let Some(head) = account.queue.pop_front() {
                // A cancelled read finds that it was admitted, and releases the memory again.
                let _ = head.admitted.send(());
            }
        }
    }

    fn release(&mut self, reader: &Reader, bytes: usize, sending: usize) {
        self.held.release(reader.owner, bytes);
        if let Some(account) = self.accounts.get_mut(&reader.handle.id) {
            account.sending = account.sending.saturating_sub(sending);
            if account.sending == 0 {
                account.watched = None;
            }
        }
    }
}

/// The pace at which clients must take their answers while other reads wait.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Least bytes in a second.
    pub rate_bytes: u64,
    /// The time over which the pace is measured.
    pub over: Duration,
    /// The time between two checks.
    pub interval: Duration,
}

/// The figures of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadsStatus {
    /// Bytes held by reads and by answers that wait to be sent.
    pub held_bytes: u64,
    /// Reads that wait for memory.
    pub waiting: u64,
    /// Connections that were closed because their clients were too slow.
    pub slow_closed: u64,
}

impl Reads {
    /// Changes the budget. What is held already stays; what waits is admitted as it fits.
    pub fn resize(&self, most_bytes: usize) {
        let mut state = self.shared.state.lock();
        state.held.set_most(most_bytes);
        state.admit();
    }

    /// A budget of `most_bytes`.
    pub fn new(most_bytes: usize) -> Reads {
        Reads::bounded(most_bytes, MOST_WAITING)
    }

    fn bounded(most_bytes: usize, most_waiting: usize) -> Reads {
        let state = State {
            held: Shares::new(most_bytes),
            waiting: Shares::new(most_waiting),
            next: 0,
            accounts: BTreeMap::new(),
            turns: VecDeque::new(),
        };
        let (closed, state) = (AtomicU64::new(0), Mutex::new(state));
        Reads { shared: Arc::new(ReadBudget { closed, state }) }
    }

    /// Opens an account for one more connection.
    pub fn reader(&self, flow: Arc<ConnectionFlow>) -> Reader {
        let mut state = self.shared.state.lock();
        let id = state.next;
        state.next += 1;
        let account = Account { sending: 0, queue: VecDeque::new(), flow, watched: None };
        state.accounts.insert(id, account);
        let handle = Arc::new(Handle { id, shared: self.shared.clone() });
        Reader { owner: Owner::Connection(id), handle }
    }

    /// Its figures.
    pub fn status(&self) -> ReadsStatus {
        let state = self.shared.state.lock();
        let slow_closed = self.shared.closed.load(Ordering::Relaxed);
        let (held_bytes, waiting) = (state.held.held() as u64, state.waiting.held() as u64);
        ReadsStatus { held_bytes, waiting, slow_closed }
    }

    /// Ends every connection: nothing more is read from it, and it closes.
    pub fn end_connections(&self) {
        for account in self.shared.state.lock().accounts.values() {
            account.flow.end();
        }
    }

    /// Closes connections whose clients are slower than `pace` while other reads wait. Never ends.
    pub async fn close_slow(self, pace: Pace) {
        loop {
            tokio::time::sleep(pace.interval).await;
            let closed = self.close_slow_once(pace, Instant::now());
            if closed > 0 {
                tracing::warn!(
                    closed,
                    "closed connections whose clients take less than {} bytes a second of their answers while other reads \
                     wait for memory (`limits.max_read_bytes`)",
                    pace.rate_bytes
                );
            }
        }
    }

    /// Checks all connections once, and returns how many it closed.
    fn close_slow_once(&self, pace: Pace, now: Instant) -> u64 {
        let mut state = self.shared.state.lock();
        let (waiting, mut closed) = (state.waiting.held(), 0);
        for account in state.accounts.values_mut() {
            let others_wait = waiting > account.queue.len();
            let written = account.flow.written.load(Ordering::Relaxed);
            let slow = match account.watched {
                _ if account.sending == 0 || !others_wait => {
                    account.watched = None;
                    continue;
                }
                None => false,
                Some((since, _)) if now - since < pace.over => continue,
                Some((since, before)) => {
                    let due = (now - since).as_millis().saturating_mul(u128::from(pace.rate_bytes))
                        / 1000;
                    u128::from(written.saturating_sub(before)) < due
                }
            };
            account.watched = Some((now, written));
            if slow && !account.flow.is_closed() {
                account.flow.close();
                closed += 1;
            }
        }
        self.shared.closed.fetch_add(closed, Ordering::Relaxed);
        closed
    }
}

/// The state of a connection as its reads see it: how much its client took, and whether the node
/// closes it.
#[derive(Default)]
pub struct ConnectionFlow {
    written: AtomicU64,
    closed: AtomicBool,
    ended: AtomicBool,
    task: AtomicWaker,
}

impl ConnectionFlow {
    /// Counts bytes that the kernel took, and returns their number.
    pub fn counted(&self, bytes: usize) -> usize {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        bytes
    }

    /// Closes the connection: wakes its task, whose next poll ends the connection.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.task.wake();
    }

    /// Ends the connection: wakes its task, which reads the end of the client's side.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.task.wake();
    }

    /// Whether nothing more is to be read.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether the connection is to end.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The same. If it is open, closing it wakes `task`.
    pub fn poll_closed(&self, task: &Waker) -> bool {
        self.task.register(task);
        self.is_closed()
    }
}

/// A connection's account. Clones share it; dropping the last one removes it.
#[derive(Clone)]
pub struct Reader {
    handle: Arc<Handle>,
    /// Whose reads they are.
    owner: Owner,
}

struct Handle {
    id: u64,
    shared: Arc<ReadBudget>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state.lock().accounts.remove(&self.id);
    }
}

/// Why a read was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// Too many reads wait already.
    Crowded,
    /// No memory came free until the read's deadline.
    Late,
}

impl Reader {
    /// Whose reads are charged.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// The same connection's account, for reads of this owner.
    pub(crate) fn owned_by(self, owner: Owner) -> Reader {
        Reader { owner, ..self }
    }

    /// A charge of `bytes`, if they fit at once.
    pub fn try_admit(&self, bytes: usize) -> Option<Charge> {
        let mut state = self.handle.shared.state.lock();
        let bytes = bytes.min(state.held.most());
        let account = state.accounts.get(&self.handle.id)?;
        if !account.queue.is_empty() || !state.held.fits(self.owner, bytes) {
            return None;
        }
        self.take(&mut state, bytes);
        drop(state);
        Some(Charge { reader: self.clone(), bytes, sending: 0 })
    }

    /// A charge of `bytes`. Waits for it until `end`. May be cancelled.
    ///
    /// # Errors
    /// See [`NotAdmitted`].
    pub async fn admit(&self, bytes: usize, end: Instant) -> Result<Charge, NotAdmitted> {
        if let Some(charge) = self.try_admit(bytes) {
            return Ok(charge);
        }
        let mut ticket = self.queue(bytes)?;
        let left = end.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, &mut ticket.admitted).await {
            Ok(Ok(())) => Ok(ticket.into_charge()),
            _ => Err(NotAdmitted::Late),
        }
    }

    /// A charge of `bytes`, whether they fit or not: for memory that is already in use.
    pub fn charge(&self, bytes: usize) -> Charge {
        self.take(&mut self.handle.shared.state.lock(), bytes);
        Charge { reader: self.clone(), bytes, sending: 0 }
    }

    fn take(&self, state: &mut State, bytes: usize) {
        state.held.take(self.owner, bytes);
    }

    fn queue(&self, bytes: usize) -> Result<Ticket, NotAdmitted> {
        let ReadBudget { state, .. } = &*self.handle.shared;
        let (admit, admitted) = oneshot::channel();
        let mut state = state.lock();
        let bytes = bytes.min(state.held.most());
        let State { waiting, next, accounts, turns, .. } = &mut *state;
        let account = accounts.get_mut(&self.handle.id).ok_or(NotAdmitted::Crowded)?;
        if !waiting.fits(self.owner, 1) {
            return Err(NotAdmitted::Crowded);
        }
        let number = *next;
        *next += 1;
        waiting.take(self.owner, 1);
        if account.queue.is_empty() && !turns.contains(&self.handle.id) {
            turns.push_back(self.handle.id);
        }
        account.queue.push_back(QueuedRead {
            ticket: number,
            owner: self.owner,
            bytes,
            admitted: admit,
        });
        // Memory may have been released since the first attempt.
        state.admit();
        drop(state);
        Ok(Ticket { reader: self.clone(), number, bytes, admitted, used: false })
    }
}

/// A read in the queue.
struct Ticket {
    reader: Reader,
    number: u64,
    bytes: usize,
    admitted: oneshot::Receiver<()>,
    used: bool,
}

impl Ticket {
    fn into_charge(mut self) -> Charge {
        self.used = true;
        Charge { reader: self.reader.clone(), bytes: self.bytes, sending: 0 }
    }
}

impl Drop for Ticket {
    /// Removes a cancelled read from the queue, or releases its memory if it was admitted
    /// meanwhile.
    fn drop(&mut self) {
        if self.used {
            return;
        }
        let handle = &self.reader.handle;
        let mut state = handle.shared.state.lock();
        let queue = state.accounts.get_mut(&handle.id).map(|account| &mut account.queue);
        let waited = queue.and_then(|queue| {
            let position = queue.iter().position(|waiting| waiting.ticket == self.number)?;
            queue.remove(position)
        });
        match waited {
            Some(_) => state.waiting.release(self.reader.owner, 1),
            None => state.release(&self.reader, self.bytes, 0),
        }
        state.admit();
    }
}

/// Memory that a read or its answer holds. Dropping it releases the memory.
pub struct Charge {
    reader: Reader,
    bytes: usize,
    sending: usize,
}

impl Charge {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the charge to the size that turned out to be needed.
    pub fn resize(&mut self, bytes: usize) {
        let mut state = self.reader.handle.shared.state.lock();
        if bytes > self.bytes {
            self.reader.take(&mut state, bytes - self.bytes);
        } else {
            state.release(&self.reader, self.bytes - bytes, 0);
            state.admit();
        }
        self.bytes = bytes;
    }

    /// From now on the charged memory only waits for the client to take it.
    pub fn sent(&mut self) {
        let mut state = self.reader.handle.shared.state.lock();
        if let Some(account) = state.accounts.get_mut(&self.reader.handle.id) {
            account.sending += self.bytes - self.sending;
        }
        self.sending = self.bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut state = self.reader.handle.shared.state.lock();
        state.release(&self.reader, self.bytes, self.sending);
        state.admit();
    }
}

/// The charges of answers on their way from the service to the transport.
#[derive(Clone)]
pub struct Outbox {
    reader: Reader,
    charges: Arc<Mutex<Vec<Charge>>>,
}

impl Outbox {
    /// An outbox of this reader's answers.
    pub fn of(reader: Reader) -> Outbox {
        Outbox { reader, charges: Arc::default() }
    }

    /// Adds the charge of an answer.
    pub fn put(&self, charge: Charge) {
        self.charges.lock().push(charge);
    }

    /// Replaces all charges in the outbox by one of `bytes`. The reader pays what they do not cover.
    pub fn take(&self, bytes: usize) -> Charge {
        let mut charges = std::mem::take(&mut *self.charges.lock());
        // The others are released after this one has grown, so that no other read is admitted in
        // between.
        let mut charge = charges.pop().unwrap_or_else(|| self.reader.charge(0));
        charge.resize(bytes);
        charge.sent();
        charge
    }
}

#[cfg(test)]
mod tests;
