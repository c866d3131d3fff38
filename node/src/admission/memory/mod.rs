//! Memory that clients' requests may take. A node has two budgets, shared by its clients: one for
//! requests (streams, messages that arrive, calls under way), one for reads and answers.
//!
//! What holds here:
//! - A request is charged from its first bytes until it is answered. A read is charged from before
//!   it begins until the kernel has taken its answer or the answer is dropped.
//! - After admission a client holds at most as many bytes as remain free ([`super::shares`]),
//!   over all its connections. A client that has no name is its connection.
//! - What a client holds for long, such as watches, leaves it a quarter of the budget for its calls.
//! - The number of charges that wait is bounded by the same rule, and each waits no longer than its
//!   own deadline.
//! - Connections take turns. The charges of one connection are admitted in order.
//! - A client that takes its answers more slowly than the configured pace, while reads of others
//!   wait, loses its connection.

mod flow;

use super::shares::{Owner, Shares};
pub use flow::ConnectionFlow;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Charges of all connections that wait for memory. Further ones are refused at once.
const MOST_WAITING: usize = 16_384;

/// The part of the budget that a client cannot hold for long.
const RESERVED_PART: usize = 4;

/// How many connections are looked at, one after the other, whose next charge does not fit. With
/// thousands that wait, looking at all of them at each release takes more time than their requests.
/// Those that were looked at go to the end, so all have their turn.
const MOST_PASSED: usize = 32;

/// The budget of a node. Clones share it.
#[derive(Clone)]
pub struct Budget {
    pool: Arc<Pool>,
}

struct Pool {
    closed: AtomicU64,
    state: Mutex<State>,
}

struct State {
    held: Shares,
    waiting: Shares,
    next: u64,
    accounts: BTreeMap<u64, Connection>,
    /// Connections with waiting charges, the next one first.
    turns: VecDeque<u64>,
}

/// What one connection waits for.
struct Connection {
    /// The bytes held that wait for the client to take them.
    sending: usize,
    queue: VecDeque<QueuedCharge>,
    flow: Arc<ConnectionFlow>,
    /// Since when its pace is measured, and how many bytes it had taken by then.
    watched: Option<(Instant, u64)>,
}

struct QueuedCharge {
    ticket: u64,
    owner: Owner,
    bytes: usize,
    admitted: oneshot::Sender<()>,
}

impl State {
    /// Admits the charges that fit, one of each connection in turn.
    fn admit(&mut self) {
        let mut passed = 0;
        while passed < self.turns.len().min(MOST_PASSED) {
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
                // One that was cancelled finds that it was admitted, and releases the memory again.
                let _ = head.admitted.send(());
            }
        }
    }

    fn release(&mut self, holder: &Account, bytes: usize, sending: usize) {
        self.held.release(holder.owner, bytes);
        if let Some(account) = self.accounts.get_mut(&holder.handle.id) {
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
pub struct BudgetStatus {
    /// Bytes that are charged.
    pub held_bytes: u64,
    /// Charges that wait for memory.
    pub waiting: u64,
    /// Connections that were closed because their clients were too slow.
    pub slow_closed: u64,
}

impl Budget {
    /// Changes the budget. What is held already stays; what waits is admitted as it fits.
    pub fn resize(&self, most_bytes: usize) {
        let mut state = self.pool.state.lock();
        state.held.set_most(most_bytes);
        state.admit();
    }

    /// A budget of `most_bytes`.
    pub fn new(most_bytes: usize) -> Budget {
        Budget::bounded(most_bytes, MOST_WAITING)
    }

    fn bounded(most_bytes: usize, most_waiting: usize) -> Budget {
        let state = State {
            held: Shares::new(most_bytes),
            waiting: Shares::new(most_waiting),
            next: 0,
            accounts: BTreeMap::new(),
            turns: VecDeque::new(),
        };
        let (closed, state) = (AtomicU64::new(0), Mutex::new(state));
        Budget { pool: Arc::new(Pool { closed, state }) }
    }

    /// Opens an account for one more connection.
    pub fn account(&self, flow: Arc<ConnectionFlow>) -> Account {
        let mut state = self.pool.state.lock();
        let id = state.next;
        state.next += 1;
        let account = Connection { sending: 0, queue: VecDeque::new(), flow, watched: None };
        state.accounts.insert(id, account);
        let handle = Arc::new(Handle { id, pool: self.pool.clone() });
        Account { owner: Owner::Connection(id), handle }
    }

    /// Its figures.
    pub fn status(&self) -> BudgetStatus {
        let state = self.pool.state.lock();
        let slow_closed = self.pool.closed.load(Ordering::Relaxed);
        let (held_bytes, waiting) = (state.held.held() as u64, state.waiting.held() as u64);
        BudgetStatus { held_bytes, waiting, slow_closed }
    }

    /// Ends every connection: nothing more is read from it, and it closes.
    pub fn end_connections(&self) {
        for account in self.pool.state.lock().accounts.values() {
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
        let mut state = self.pool.state.lock();
        let (waiting, mut closed) = (state.waiting.held(), 0);
        for account in state.accounts.values_mut() {
            let others_wait = waiting > account.queue.len();
            let written = account.flow.written();
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
        self.pool.closed.fetch_add(closed, Ordering::Relaxed);
        closed
    }
}

/// A connection's account. Clones share it; dropping the last one removes it.
#[derive(Clone)]
pub struct Account {
    handle: Arc<Handle>,
    /// Who is charged.
    owner: Owner,
}

struct Handle {
    id: u64,
    pool: Arc<Pool>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.pool.state.lock().accounts.remove(&self.id);
    }
}

/// Why a charge was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// Too many wait already, or it never fits.
    Crowded,
    /// No memory came free until its deadline.
    Late,
}

impl Account {
    /// Who is charged.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// The same connection's account, charged to this owner.
    pub(crate) fn owned_by(self, owner: Owner) -> Account {
        Account { owner, ..self }
    }

    /// The same connection's account, for requests that prove no name with a role.
    pub fn of_stranger(self) -> Account {
        let owner = self.owner.stranger();
        self.owned_by(owner)
    }

    /// A charge of `bytes`, if they fit at once.
    pub fn try_admit(&self, bytes: usize) -> Option<Charge> {
        self.try_take(bytes, |_| 0)
    }

    /// The same for what the client holds for long: a part of the budget has to remain for what it holds for a
    /// moment.
    pub fn try_hold(&self, bytes: usize) -> Option<Charge> {
        self.try_take(bytes, |most| most / RESERVED_PART)
    }

    fn try_take(&self, bytes: usize, reserve: impl Fn(usize) -> usize) -> Option<Charge> {
        let mut state = self.handle.pool.state.lock();
        let most = state.held.most();
        let bytes = bytes.min(most);
        let account = state.accounts.get(&self.handle.id)?;
        let beside = bytes.saturating_add(reserve(most));
        if !account.queue.is_empty() || !state.held.fits(self.owner, beside) {
            return None;
        }
        self.take(&mut state, bytes);
        drop(state);
        Some(Charge { account: self.clone(), bytes, sending: 0 })
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
        self.take(&mut self.handle.pool.state.lock(), bytes);
        Charge { account: self.clone(), bytes, sending: 0 }
    }

    fn take(&self, state: &mut State, bytes: usize) {
        state.held.take(self.owner, bytes);
    }

    fn queue(&self, bytes: usize) -> Result<Ticket, NotAdmitted> {
        let Pool { state, .. } = &*self.handle.pool;
        let (admit, admitted) = oneshot::channel();
        let mut state = state.lock();
        let bytes = bytes.min(state.held.most());
        let State { held, waiting, next, accounts, turns } = &mut *state;
        let account = accounts.get_mut(&self.handle.id).ok_or(NotAdmitted::Crowded)?;
        if !waiting.fits(self.owner, 1) || !held.may_fit(self.owner, bytes) {
            return Err(NotAdmitted::Crowded);
        }
        let number = *next;
        *next += 1;
        waiting.take(self.owner, 1);
        if account.queue.is_empty() && !turns.contains(&self.handle.id) {
            turns.push_back(self.handle.id);
        }
        account.queue.push_back(QueuedCharge {
            ticket: number,
            owner: self.owner,
            bytes,
            admitted: admit,
        });
        // Memory may have been released since the first attempt.
        state.admit();
        drop(state);
        Ok(Ticket { account: self.clone(), number, bytes, admitted, used: false })
    }
}

/// A charge in the queue.
struct Ticket {
    account: Account,
    number: u64,
    bytes: usize,
    admitted: oneshot::Receiver<()>,
    used: bool,
}

impl Ticket {
    fn into_charge(mut self) -> Charge {
        self.used = true;
        Charge { account: self.account.clone(), bytes: self.bytes, sending: 0 }
    }
}

impl Drop for Ticket {
    /// Removes a cancelled one from the queue, or releases its memory if it was admitted
    /// meanwhile.
    fn drop(&mut self) {
        if self.used {
            return;
        }
        let handle = &self.account.handle;
        let mut state = handle.pool.state.lock();
        let queue = state.accounts.get_mut(&handle.id).map(|account| &mut account.queue);
        let waited = queue.and_then(|queue| {
            let position = queue.iter().position(|waiting| waiting.ticket == self.number)?;
            queue.remove(position)
        });
        match waited {
            Some(_) => state.waiting.release(self.account.owner, 1),
            None => state.release(&self.account, self.bytes, 0),
        }
        state.admit();
    }
}

/// Memory that a request or its answer holds. Dropping it releases the memory.
pub struct Charge {
    account: Account,
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
        let mut state = self.account.handle.pool.state.lock();
        if bytes > self.bytes {
            self.account.take(&mut state, bytes - self.bytes);
        } else {
            state.release(&self.account, self.bytes - bytes, 0);
            state.admit();
        }
        self.bytes = bytes;
    }

    /// The same for memory that is not in use if it does not fit. `false`: it does not, and nothing
    /// has changed.
    pub fn settle(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let fits = {
            let state = self.account.handle.pool.state.lock();
            more == 0 || state.held.fits(self.account.owner, more)
        };
        if fits {
            self.resize(bytes);
        }
        fits
    }

    /// From now on the charged memory only waits for the client to take it.
    pub fn sent(&mut self) {
        let mut state = self.account.handle.pool.state.lock();
        if let Some(account) = state.accounts.get_mut(&self.account.handle.id) {
            account.sending += self.bytes - self.sending;
        }
        self.sending = self.bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut state = self.account.handle.pool.state.lock();
        state.release(&self.account, self.bytes, self.sending);
        state.admit();
    }
}

/// The charges of answers on their way from the service to the transport.
#[derive(Clone)]
pub struct Outbox {
    account: Account,
    charges: Arc<Mutex<Vec<Charge>>>,
}

impl Outbox {
    /// An outbox of the answers that are charged to this account.
    pub fn of(account: Account) -> Outbox {
        Outbox { account, charges: Arc::default() }
    }

    /// Whether no answer that goes out has a charge.
    pub fn is_empty(&self) -> bool {
        self.charges.lock().is_empty()
    }

    /// Whether so many bytes more fit now.
    pub fn fits(&self, bytes: usize) -> bool {
        let state = self.account.handle.pool.state.lock();
        state.held.fits(self.account.owner, bytes)
    }

    /// Adds the charge of an answer.
    pub fn put(&self, charge: Charge) {
        self.charges.lock().push(charge);
    }

    /// Replaces all charges in the outbox by one of `bytes`. The account pays what they do not
    /// cover.
    pub fn take(&self, bytes: usize) -> Charge {
        let mut charges = std::mem::take(&mut *self.charges.lock());
        // The others are released after this one has grown, so that no other read is admitted in
        // between.
        let mut charge = charges.pop().unwrap_or_else(|| self.account.charge(0));
        charge.resize(bytes);
        charge.sent();
        charge
    }
}

#[cfg(test)]
mod tests;
