//! What a simulation changes and sees. The state belongs to the thread: a simulation runs on one.

use super::wire;
use crate::core::runtime;
use cairn_engine::LogId;
use cairn_tls::Tls;
use madsim::rand::Rng;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

thread_local! {
    /// How many of a thousand messages between members are sent a second time.
    static REPEATS: Cell<u32> = const { Cell::new(0) };
    static REPEATED: Cell<u64> = const { Cell::new(0) };
    /// The size of a snapshot's pieces in bytes, if not the usual one.
    static PIECE_BYTES: Cell<Option<u64>> = const { Cell::new(None) };
    /// By slot, the last entry that a member reported to openraft as stored: from then on it
    /// counts for a quorum.
    static FLUSHED: RefCell<BTreeMap<u16, LogId>> = const { RefCell::new(BTreeMap::new()) };
    /// The slots whose process has ended on a machine that is up.
    static REFUSE: RefCell<BTreeSet<u16>> = const { RefCell::new(BTreeSet::new()) };
    /// The slots whose append streams do not pass.
    static LOSE: RefCell<BTreeSet<u16>> = const { RefCell::new(BTreeSet::new()) };
}

/// From now on sends this many of a thousand messages between members a second time, up to some
/// seconds later.
pub fn repeat_messages(per_mille: u32) {
    REPEATS.set(per_mille);
}

/// How many messages were sent a second time, since the last call of this function.
pub fn messages_repeated() -> u64 {
    REPEATED.replace(0)
}

/// After how long to send the present message a second time; `None`: never.
pub(crate) fn duplicate_after() -> Option<Duration> {
    let per_mille = REPEATS.get();
    let mut rng = madsim::rand::thread_rng();
    if per_mille == 0 || rng.gen_range(0..1_000) >= per_mille {
        return None;
    }
    REPEATED.set(REPEATED.get() + 1);
    // Half of the copies overtake messages that were sent soon after; half arrive after the
    // leader, and often the receiver's process, has ended.
    let longest_us = if rng.gen_bool(0.5) { 20_000 } else { 10_000_000 };
    Some(Duration::from_micros(rng.gen_range(0..longest_us)))
}

/// From now on snapshots are sent in pieces of this many bytes, or of the usual size.
pub fn cut_snapshots(piece_bytes: Option<u64>) {
    PIECE_BYTES.set(piece_bytes);
}

pub(crate) fn piece_bytes(usual: u64) -> u64 {
    PIECE_BYTES.get().unwrap_or(usual)
}

/// A range is cut into several pieces, and the last of them is shorter, as with the usual sizes.
pub(crate) fn range_bytes(usual: u64) -> u64 {
    PIECE_BYTES.get().map_or(usual, |piece| piece * 5 / 2)
}

/// A member reports to openraft that its log is stored through `last`.
pub(crate) fn note_flushed(slot: u16, last: LogId) {
    FLUSHED.with_borrow_mut(|flushed| flushed.insert(slot, last));
}

/// The last entry that the member of this slot reported as stored, in any of its boots.
pub fn flushed(slot: u16) -> Option<LogId> {
    FLUSHED.with_borrow(|flushed| flushed.get(&slot).copied())
}

/// From now on the machine of this slot refuses connections, since no process listens there. One
/// that is off, or cut from others, does not: it answers nothing.
pub fn refuse_connections(slot: u16, refuse: bool) {
    REFUSE.with_borrow_mut(|slots| match refuse {
        true => slots.insert(slot),
        false => slots.remove(&slot),
    });
}

/// From now on what the member of this slot sends on append streams is lost, as large packets are
/// somewhere. Heartbeats, votes and answers pass.
pub fn lose_appends(slot: u16, lose: bool) {
    LOSE.with_borrow_mut(|slots| match lose {
        true => slots.insert(slot),
        false => slots.remove(&slot),
    });
}

pub(crate) fn loses_appends(slot: u16) -> bool {
    LOSE.with_borrow(|slots| slots.contains(&slot))
}

/// madsim says of a cut link, too, that the connection is refused.
pub(crate) fn is_refused(slot: u16, error: &tonic::Status) -> bool {
    error.code() == tonic::Code::Unavailable && REFUSE.with_borrow(|slots| slots.contains(&slot))
}

/// Call this when a simulation begins, since the state of this module belongs to the thread.
pub fn forget_earlier_run() {
    runtime::simulated::forget_earlier_run();
    FLUSHED.with_borrow_mut(BTreeMap::clear);
    REFUSE.with_borrow_mut(BTreeSet::clear);
    LOSE.with_borrow_mut(BTreeSet::clear);
    REPEATS.set(0);
    REPEATED.set(0);
    wire::reset_calls(0);
    wire::calls_reset();
}

/// Connects on the simulated network, which has no certificates.
pub(crate) async fn connect(
    _tls: Option<&Tls>,
    _slot: Option<u16>,
    address: &str,
) -> io::Result<TcpStream> {
    TcpStream::connect(address).await
}

/// A connection of the simulated network, whose bytes arrive in pieces and which may be reset.
pub(crate) fn on_network<S>(stream: S) -> wire::Uneven<S> {
    wire::Uneven::new(stream)
}
