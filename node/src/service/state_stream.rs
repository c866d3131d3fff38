//! Sends what is read of the state of one log index, piece by piece, to a receiver that may be slow.
//!
//! What holds here: the view of the state keeps the space of what is deleted meanwhile, so it ends with the stream,
//! when the receiver takes nothing for a while, when the stream lasts longer than it may, and when space is scarce. A piece
//! is charged to the caller until the transport has sent one; one more of each stream, which waits for its place, is
//! not. Others come first: behind each piece, and behind each step that sends none, a stream waits as long as reading
//! it took.

use super::Stop;
use crate::admission::caller::Caller;
use crate::admission::memory::Charge;
use crate::admission::refusal;
use cairn_engine::Engine;
use cairn_engine::io::yield_once;
use cairn_raft::Item;
use futures::{Stream, StreamExt};
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

/// Bytes of keys and values in a piece, unless a single value is larger.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// A piece is in memory twice while it is encoded.
pub(super) const COPIES: usize = 2;
/// The least that a piece is charged: this many keys are listed for it.
pub(super) const LEAST_BYTES: usize = 4 << 20;
/// How long a receiver may take nothing.
pub(super) const TAKES_WITHIN: Duration = Duration::from_secs(60);
/// What a key takes beside its own bytes and its value's.
const ITEM_BYTES: usize = 160;
/// How often the receiver, the time and the space are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Once less than this part of the data area is free, the state may keep no more from being free than is
/// free.
const SCARCE_PART: u64 = 8;

/// The pieces, as they are sent.
pub(super) type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What comes next.
pub(super) enum Next<T> {
    /// This is sent.
    Part(T),
    /// There is nothing to send yet.
    Later,
    /// The same, since memory for a piece did not come free yet.
    Waiting,
    /// Everything was sent.
    End,
}

impl<T> Next<T> {
    /// The same, made of what is sent.
    pub(super) fn map<U>(self, of: impl FnOnce(T) -> U) -> Next<U> {
        match self {
            Next::Part(part) => Next::Part(of(part)),
            Next::Later => Next::Later,
            Next::Waiting => Next::Waiting,
            Next::End => Next::End,
        }
    }
}

/// Memory for the pieces of a stream. It is waited for in short turns: in between the receiver, the time and the space
/// are looked at, as the view keeps space meanwhile.
pub(super) struct Memory {
    /// How long one turn is, and all of them.
    turn: Duration,
    within: Duration,
    /// Since when a piece waits.
    since: Option<Instant>,
    /// What the next piece takes, if it was listed and did not fit.
    listed: usize,
}

impl Memory {
    pub(super) fn new() -> Memory {
        Memory { turn: LOOK, within: TAKES_WITHIN, since: None, listed: 0 }
    }

    /// A charge for the next piece; `None` if no memory came free in this turn.
    ///
    /// # Errors
    /// OVERLOADED, if none came free for long.
    pub(super) async fn admit(&mut self, caller: &Caller) -> Result<Option<Charge>, Status> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let charge = caller.admit_within(self.listed.max(LEAST_BYTES), self.turn).await?;
        if charge.is_some() {
            self.since = None;
        } else if since.elapsed() >= self.within {
            return Err(refusal::reads_overloaded("no memory came free for the read"));
        }
        Ok(charge)
    }

    /// Charges for a piece that was listed, before its values are read. Returns whether it may be: if not, the charge is
    /// to be dropped, and the next one is as large as the piece.
    pub(super) fn settle(&mut self, charge: &mut Charge, bytes: usize) -> bool {
        let bytes = bytes.max(LEAST_BYTES);
        // It was asked for before: what is larger than the budget has all of that.
        if self.listed < bytes && !charge.settle(bytes) {
            self.listed = bytes;
            return false;
        }
        self.listed = 0;
        true
    }
}

/// Reads the state. Runs in a task of its own: a stream that nobody reads is not polled, and would keep the
/// view.
pub(super) trait Reading: Send + 'static {
    /// What is sent.
    type Part: Send + 'static;

    /// Reads on. It takes no longer than a piece may take.
    fn next(&mut self) -> impl Future<Output = Result<Next<Self::Part>, Status>> + Send;
}

/// What ends a stream beside its receiver, and what its receiver is told to do then.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// How long it may last; `None`: as long as its receiver takes.
    pub(super) longest: Option<Duration>,
    /// How long its receiver may take nothing.
    pub(super) takes_within: Duration,
    /// By how much it is the first to end where space is scarce: what all views keep together is taken this many times.
    pub(super) yields: u64,
    /// What to do if the state keeps too much space.
    pub(super) way_out: &'static str,
}

/// A stream of what is read, until it ends or the node stops.
pub(super) fn send<R: Reading>(
    reading: R,
    bounds: Bounds,
    engine: Engine,
    stopping: Stop,
) -> Parts<R::Part> {
    let (parts, taken) = mpsc::channel(1);
    tokio::spawn(async move {
        let space = || check_space(&engine, bounds);
        if let Err(ended) = send_to(reading, bounds, space, &parts).await {
            // The last piece may still wait. Nobody listens any more if this fails.
            let _ = parts.send(Err(ended)).await;
        }
    });
    let parts = futures::stream::unfold(taken, |mut taken| async move {
        taken.recv().await.map(|part| (part, taken))
    });
    Box::pin(parts.take_until(stopping))
}

/// Ends once all is sent or the receiver is gone. The view ends with it.
async fn send_to<R: Reading>(
    mut reading: R,
    bounds: Bounds,
    space: impl Fn() -> Result<(), Status>,
    parts: &mpsc::Sender<Result<R::Part, Status>>,
) -> Result<(), Status> {
    let begun = Instant::now();
    loop {
        let since = Instant::now();
        let next = reading.next().await?;
        // A busy disk and a busy processor make it long.
        let (part, took) = match next {
            Next::Part(part) => (Some(part), since.elapsed()),
            Next::Later => (None, since.elapsed()),
            // Others came first.
            Next::Waiting => (None, Duration::ZERO),
            Next::End => return Ok(()),
        };
        let waits_since = Instant::now();
        loop {
            space()?;
            too_long(begun.elapsed(), bounds.longest)?;
            if part.is_none() {
                match parts.is_closed() {
                    true => return Ok(()),
                    false => break,
                }
            }
            match tokio::time::timeout(LOOK.min(bounds.takes_within), parts.reserve()).await {
                Ok(Ok(place)) => {
                    if let Some(part) = part {
                        place.send(Ok(part));
                    }
                    break;
                }
                Ok(Err(_)) => return Ok(()),
                Err(_) if waits_since.elapsed() < bounds.takes_within => {}
                Err(_) => return Err(not_taken(bounds.takes_within)),
            }
        }
        yield_once().await;
        tokio::time::sleep(took.min(LOOK)).await;
    }
}

fn not_taken(within: Duration) -> Status {
    let why = format!("nothing was taken of the state for {} s", within.as_secs());
    Status::deadline_exceeded(why)
}

fn too_long(lasts: Duration, longest: Option<Duration>) -> Result<(), Status> {
    match longest.filter(|longest| lasts >= *longest) {
        None => Ok(()),
        Some(longest) => Err(refusal::refused(format!(
            "the state was sent for {} s, which is the most: ask for less at once, take what is sent faster, or list page by page",
            longest.as_secs()
        ))),
    }
}

/// The engine tells what all views keep together, not what each does.
fn check_space(engine: &Engine, bounds: Bounds) -> Result<(), Status> {
    let status = engine.status();
    let space = status.space;
    let (free, area) = (space.free + space.reserve, status.data_bytes);
    if !keeps_too_much(space.dead_viewed, bounds.yields, free, area) {
        return Ok(());
    }
    Err(refusal::keeps_too_much_space(space.dead_viewed, space.free, bounds.way_out))
}

fn keeps_too_much(kept: u64, yields: u64, free: u64, area: u64) -> bool {
    free < area / SCARCE_PART && kept.saturating_mul(yields) > free
}

/// What a key takes in a piece, with its value if that is read.
pub(super) fn bytes_of(item: &Item, with_value: bool) -> usize {
    let value = if with_value { item.entry.value.len as usize } else { 0 };
    item.key.len() + value + ITEM_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::credentials::Credentials;
    use crate::access::{AccessTable, Entries};
    use crate::admission::memory::Budget;
    use crate::admission::requests::Budgets;
    use cairn_client::proto::ErrorDetail;
    use cairn_client::proto::error_detail::Reason;
    use std::sync::Arc;
    use tonic::{Code, Extensions};

    /// Numbers up to this one, each behind a step that sends nothing. It ends its view when it is dropped.
    struct Numbers {
        next: u32,
        most: u32,
        waits: bool,
        _view: Arc<()>,
    }

    impl Reading for Numbers {
        type Part = u32;

        async fn next(&mut self) -> Result<Next<u32>, Status> {
            self.waits = !self.waits;
            Ok(match self.waits {
                true => Next::Later,
                false if self.next > self.most => Next::End,
                false => {
                    self.next += 1;
                    Next::Part(self.next - 1)
                }
            })
        }
    }

    fn numbers(most: u32) -> (Numbers, Arc<()>) {
        let view = Arc::new(());
        (Numbers { next: 0, most, waits: false, _view: view.clone() }, view)
    }

    const LONG: Bounds =
        Bounds { longest: None, takes_within: Duration::from_secs(3600), yields: 1, way_out: "" };

    #[tokio::test]
    async fn all_is_sent_in_order_and_the_view_ends_with_it() {
        let (reading, view) = numbers(5);
        let (parts, mut taken) = mpsc::channel::<Result<u32, Status>>(1);
        let takes = async {
            let mut found = Vec::new();
            while found.len() < 6 {
                found.push(taken.recv().await.expect("a part").expect("no error"));
            }
            found
        };
        let (sent, found) = tokio::join!(send_to(reading, LONG, || Ok(()), &parts), takes);
        assert!(sent.is_ok());
        assert_eq!(found, [0, 1, 2, 3, 4, 5]);
        assert_eq!(Arc::strong_count(&view), 1, "the view has ended");
    }

    #[tokio::test]
    async fn a_receiver_that_is_gone_ends_it_also_where_nothing_is_sent_yet() {
        for waits in [false, true] {
            let (reading, view) = numbers(5);
            let reading = Numbers { waits, ..reading };
            let (parts, taken) = mpsc::channel(1);
            drop(taken);
            assert!(send_to(reading, LONG, || Ok(()), &parts).await.is_ok());
            assert_eq!(Arc::strong_count(&view), 1, "the view has ended");
        }
    }

    /// Nobody takes the first part: the second one waits for its place.
    #[tokio::test]
    async fn a_receiver_that_takes_nothing_a_long_time_and_scarce_space_end_it_and_say_why() {
        let end = async |bounds: Bounds, space: fn() -> Result<(), Status>| {
            let (reading, view) = numbers(5);
            let (parts, taken) = mpsc::channel(1);
            let ended = send_to(reading, bounds, space, &parts).await.expect_err("it ends");
            assert_eq!(Arc::strong_count(&view), 1, "the view has ended");
            drop(taken);
            (ended.code(), ended.message().to_owned())
        };
        let brief = Duration::from_millis(5);
        let (code, why) = end(Bounds { takes_within: brief, ..LONG }, || Ok(())).await;
        assert!(code == Code::DeadlineExceeded && why.contains("nothing was taken"), "{why}");
        let (code, why) = end(Bounds { longest: Some(Duration::ZERO), ..LONG }, || Ok(())).await;
        assert!(code == Code::FailedPrecondition && why.contains("list page by page"), "{why}");
        let (code, _) = end(LONG, || Err(Status::resource_exhausted("scarce"))).await;
        assert_eq!(code, Code::ResourceExhausted);
    }

    /// Never gets memory.
    struct Starved;

    impl Reading for Starved {
        type Part = u32;

        async fn next(&mut self) -> Result<Next<u32>, Status> {
            Ok(Next::Waiting)
        }
    }

    /// The story: a scan waited for memory as long as a receiver may take nothing, and meanwhile nobody looked whether there
    /// was one, and whether others had space.
    #[tokio::test]
    async fn what_waits_for_memory_ends_with_its_receiver_its_time_and_the_space() {
        let (parts, taken) = mpsc::channel(1);
        let ended = send_to(Starved, LONG, || Err(Status::resource_exhausted("scarce")), &parts);
        assert_eq!(ended.await.expect_err("it ends").code(), Code::ResourceExhausted);
        let brief = Bounds { longest: Some(Duration::from_millis(5)), ..LONG };
        let ended = send_to(Starved, brief, || Ok(()), &parts).await.expect_err("it ends");
        assert_eq!(ended.code(), Code::FailedPrecondition);
        drop(taken);
        assert!(send_to(Starved, LONG, || Ok(()), &parts).await.is_ok());
    }

    fn reads(most: usize) -> (Budget, Caller) {
        let budgets = Budgets { requests: Budget::new(most), reads: Budget::new(most) };
        let table = AccessTable::new(false, &Entries::default());
        let identity = table.identify(&Credentials::None).expect("anybody");
        let unknown = budgets.accounts(&Arc::default());
        (budgets.reads, Caller::of(identity, &Extensions::default(), &unknown))
    }

    #[tokio::test]
    async fn a_piece_waits_for_memory_turn_by_turn_and_not_for_ever() {
        let (_, caller) = reads(4 * LEAST_BYTES);
        let turn = Duration::from_millis(1);
        let mut memory = Memory { turn, ..Memory::new() };
        let held = caller.try_admit(2 * LEAST_BYTES).expect("it fits");
        for _ in 0..2 {
            assert!(memory.admit(&caller).await.expect("it waits").is_none());
        }
        let mut impatient = Memory { turn, within: Duration::ZERO, ..Memory::new() };
        assert!(impatient.admit(&caller).await.is_err());
        drop(held);
        assert!(memory.admit(&caller).await.expect("it is free").is_some());
        assert!(memory.since.is_none(), "the next piece has a time of its own");
    }

    /// The story: a value of many megabytes was charged as any piece until it had been read.
    #[tokio::test]
    async fn a_piece_is_charged_with_its_size_before_it_is_read_also_one_larger_than_the_budget() {
        let (budget, caller) = reads(4 * LEAST_BYTES);
        let mut memory = Memory { turn: Duration::from_millis(1), ..Memory::new() };
        let admit = async |memory: &mut Memory| memory.admit(&caller).await.expect("it waits");
        let mut charge = admit(&mut memory).await.expect("it is free");
        assert!(memory.settle(&mut charge, 1) && charge.bytes() == LEAST_BYTES);
        assert!(memory.settle(&mut charge, 2 * LEAST_BYTES));
        assert_eq!(charge.bytes(), 2 * LEAST_BYTES);
        assert_eq!(budget.status().held_bytes, charge.bytes() as u64);
        assert!(!memory.settle(&mut charge, 9 * LEAST_BYTES), "there is less");
        assert!(admit(&mut memory).await.is_none(), "its own first charge is in the way");
        drop(charge);
        let mut charge = admit(&mut memory).await.expect("all of the budget");
        assert_eq!(charge.bytes(), 4 * LEAST_BYTES);
        assert!(memory.settle(&mut charge, 9 * LEAST_BYTES), "no more can come free");
        drop(charge);
        assert_eq!(admit(&mut memory).await.expect("it is free").bytes(), LEAST_BYTES);
    }

    /// The story: the client took the end of a scan for a broken connection, opened another one and avoided the node.
    #[test]
    fn an_end_that_the_node_decides_is_none_of_the_connection() {
        let reason = |ended: Status| ErrorDetail::of(&ended).map(|detail| detail.reason());
        let longest = Duration::from_secs(300);
        let ended = too_long(longest, Some(longest)).expect_err("it was long");
        assert_eq!(reason(ended), Some(Reason::Refused), "the same would last as long");
        let ended = refusal::keeps_too_much_space(60, 20, "take it faster");
        assert_eq!(reason(ended), Some(Reason::Overloaded));
    }

    /// The story: of an area of which nine tenths were live, a backup kept the last tenth from being free.
    #[test]
    fn a_state_leaves_an_area_that_is_nearly_full_as_much_as_it_keeps() {
        for (kept, free, ends) in
            [(0, 0, false), (60, 20, true), (20, 60, false), (49, 51, false), (51, 49, true)]
        {
            assert_eq!(keeps_too_much(kept, 1, free, 1000), ends, "{kept} kept, {free} free");
        }
        assert!(!keeps_too_much(500, 1, 200, 1000), "much is free");
    }

    /// The story: a scan that nobody took kept the space, and a backup that was nearly done ended for it.
    #[test]
    fn a_scan_ends_before_a_backup_does_whichever_of_them_keeps_the_space() {
        for (kept, free, scan, backup) in [
            (20, 60, false, false),
            (31, 60, true, false),
            (60, 60, true, false),
            (61, 60, true, true),
        ] {
            let ends = |yields| keeps_too_much(kept, yields, free, 1000);
            assert_eq!((ends(2), ends(1)), (scan, backup), "{kept} kept, {free} free");
        }
        assert!(keeps_too_much(u64::MAX, 2, 60, 1000), "more than a number holds");
    }
}
