//! A stream of watches, from its requests to its messages.
//!
//! What holds here:
//! - Nothing is made before the transport asks for the next message, and of that nothing is kept while memory for it
//!   is waited for.
//! - A message is planned behind a barrier, and told behind one that is as new once its values are read. Its changes are
//!   told from the history as it is then, which refuses a position that is not in it.
//! - Every 5 seconds the client hears something: how far its watches are, or an empty message while nothing can be said
//!   of that. So a client that hears nothing knows that something is broken.

use super::hub::{OfStream, Registered};
use super::marks::{HEARS, Marks};
use super::plan::{Part, Plan, WATCHES, Watched};
use super::ranges::Range;
use super::{Held, Inner, Message, ended, position, untold, values};
use crate::access::{Denied, Identity, Session};
use crate::admission::caller::Caller;
use crate::admission::memory::Charge;
use crate::admission::refusal;
use crate::admission::requests::Arrived;
use crate::service::read::{Age, barrier, in_time, page_bytes, readable};
use cairn_client::proto::watch_ended::Why;
use cairn_client::proto::{self, watch_part};
use cairn_engine::LogId;
use cairn_engine::io::yield_once;
use cairn_raft::HistoryError;
use futures::future::{Either, select};
use futures::stream::Fuse;
use futures::{FutureExt, StreamExt};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Status, Streaming};

/// How old the barrier may be behind which something is told.
const AGE: Duration = Duration::from_secs(1);
/// How long a member that gets no barrier keeps its watches: an election is mostly over by then.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause before another attempt at a barrier, or at memory.
const RETRY: Duration = Duration::from_millis(100);
/// The pause before another attempt to read the log.
const TURN: Duration = Duration::from_millis(3);
/// How long a message waits for memory before it is planned anew: the client is to hear something meanwhile.
const WAITS: Duration = HEARS;
/// Requests that are taken together, so that the watches that they begin share a barrier.
const REQUESTS: usize = 128;
/// Parts of a message beside those with changes.
const PARTS: usize = 1024;

/// Serves one stream.
pub(super) struct Serving {
    requests: Fuse<Streaming<proto::WatchRequest>>,
    arrived: Arrived,
    watching: Watching,
    has_ended: bool,
}

/// A request with the charge of its message.
pub(super) type Request = (proto::WatchRequest, Option<Charge>);

enum Event {
    Request(Option<Result<proto::WatchRequest, Status>>),
    News,
    Quiet,
}

impl Serving {
    pub(super) fn new(
        inner: Arc<Inner>,
        (caller, session): (Caller, Session),
        requests: Streaming<proto::WatchRequest>,
        arrived: Arrived,
    ) -> Serving {
        let hub = inner.watches.hub.open();
        let watching = Watching {
            inner,
            caller,
            session,
            hub,
            watches: BTreeMap::new(),
            ids: BTreeMap::new(),
            parts: VecDeque::new(),
            begun_at: 0,
            marks: Marks::new(),
        };
        Serving { requests: requests.fuse(), arrived, watching, has_ended: false }
    }

    /// The next message; `None`: the stream has ended. When the node stops, all watches are sent elsewhere first.
    pub(super) async fn next(&mut self) -> Option<Message> {
        if self.has_ended {
            return self.watching.said().map(Ok);
        }
        let stopping = self.watching.inner.stopping.clone();
        let turn = {
            let turn = pin!(self.turn());
            match select(pin!(stopping), turn).await {
                Either::Left(_) => None,
                Either::Right((turn, _)) => Some(turn),
            }
        };
        match turn {
            Some(Some(Ok(message))) => Some(Ok(message)),
            Some(Some(Err(refused))) => {
                self.has_ended = true;
                self.watching.parts.clear();
                Some(Err(refused))
            }
            Some(None) => None,
            None => self.last("this node stops; ask another one"),
        }
    }

    /// Sends all watches elsewhere for this reason. Then the stream ends.
    fn last(&mut self, why: &str) -> Option<Message> {
        self.has_ended = true;
        self.watching.end_all(Why::Move, why);
        self.watching.said().map(Ok)
    }

    /// Works until there is a message. May be cancelled, and then loses requests that were not answered.
    async fn turn(&mut self) -> Option<Message> {
        loop {
            if let Some(said) = self.watching.said() {
                return Some(Ok(said));
            }
            if self.watching.marks.have_fallen() {
                let why = "this member got another history; what it told before may not be in that";
                return self.last(why);
            }
            let quiet = self.watching.marks.quiet();
            let event = {
                let Serving { requests, watching, .. } = &mut *self;
                tokio::select! {
                    biased;
                    request = requests.next() => Event::Request(request),
                    () = watching.hub.news() => Event::News,
                    () = tokio::time::sleep(quiet) => Event::Quiet,
                }
            };
            let told = match event {
                Event::Request(None) => return None,
                Event::Request(Some(request)) => match self.take(request).await {
                    Ok(()) => None,
                    Err(refused) => return Some(Err(refused)),
                },
                Event::News => self.watching.tell().await,
                Event::Quiet => self.watching.speak().await,
            };
            if let Some(told) = told {
                return Some(Ok(told));
            }
        }
    }

    /// Takes this request and those that have arrived behind it.
    async fn take(&mut self, first: Result<proto::WatchRequest, Status>) -> Result<(), Status> {
        let mut taken: Vec<Request> = Vec::new();
        let mut next = first;
        let end = loop {
            match next {
                Ok(request) => taken.push((request, self.arrived.decoded(0)?)),
                Err(broken) => break Err(broken),
            }
            if taken.len() == REQUESTS {
                break Ok(());
            }
            match self.requests.next().now_or_never() {
                Some(Some(request)) => next = request,
                // The end comes again when it is asked for.
                Some(None) | None => break Ok(()),
            }
        };
        self.watching.answer(taken).await?;
        end
    }
}

/// A watch that has begun.
pub(super) struct Watch {
    pub(super) id: u64,
    pub(super) range: Range,
    pub(super) keys_only: bool,
    /// What it was told of an entry, if not all.
    pub(super) part: Option<(LogId, usize)>,
    pub(super) held: Held,
    pub(super) _registered: Registered,
}

/// The watches of a stream.
pub(super) struct Watching {
    pub(super) inner: Arc<Inner>,
    pub(super) caller: Caller,
    pub(super) session: Session,
    pub(super) hub: OfStream,
    /// By the hub's number, and that by the client's.
    pub(super) watches: BTreeMap<u64, Watch>,
    pub(super) ids: BTreeMap<u64, u64>,
    /// What the client is told next, beside changes. An end keeps what its watch held until it goes out.
    parts: VecDeque<(proto::WatchPart, Option<Held>)>,
    /// The greatest index at which a watch began.
    pub(super) begun_at: u64,
    pub(super) marks: Marks,
}

impl Watching {
    /// Adds to the next message.
    pub(super) fn say(&mut self, id: u64, kind: watch_part::Kind, held: Option<Held>) {
        self.parts.push_back((proto::WatchPart { id, kind: Some(kind) }, held));
    }

    /// Tells the client that a watch has ended, or does not begin.
    pub(super) fn say_ended(&mut self, id: u64, ended: proto::WatchEnded, held: Option<Held>) {
        self.inner.metrics.watches().ended(ended.why());
        self.say(id, watch_part::Kind::Ended(ended), held);
    }

    /// Ends a watch.
    pub(super) fn end(&mut self, number: u64, ended: proto::WatchEnded) {
        if let Some(watch) = self.watches.remove(&number) {
            self.ids.remove(&watch.id);
            self.say_ended(watch.id, ended, Some(watch.held));
        }
    }

    fn end_all(&mut self, why: Why, message: &str) {
        let numbers: Vec<u64> = self.watches.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.end(number, ended(why, message)));
    }

    /// The parts that are to be told beside changes, a message of them.
    fn said(&mut self) -> Option<proto::WatchResponse> {
        let count = self.parts.len().min(PARTS);
        let parts: Vec<_> = self.parts.drain(..count).map(|(part, _)| part).collect();
        (count > 0).then_some(proto::WatchResponse { parts, through: None })
    }

    /// Whether a part waits to go out beside changes.
    pub(super) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns once this member may tell what it has applied, if that is so within this time.
    async fn may_tell(&self, within: Duration) -> Result<(), Status> {
        in_time(within, barrier(&self.inner, Age::Within(AGE))).await?;
        // It may have begun to recover meanwhile.
        readable(&self.inner)?;
        Ok(())
    }

    /// The same, but tries again for a while. Without success, all watches are sent elsewhere. `false`: they are.
    async fn waits_to_tell(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.may_tell(left).await {
                Ok(()) => return true,
                Err(_) if Instant::now() + RETRY < until => tokio::time::sleep(RETRY).await,
                Err(why) => {
                    let why = refusal::bounded(why);
                    self.end_all(Why::Move, why.message());
                    return false;
                }
            }
        }
    }

    /// The client has heard nothing for a while: how far its watches are.
    async fn speak(&mut self) -> Option<proto::WatchResponse> {
        self.marks.hears();
        if self.watches.is_empty() || !self.waits_to_tell().await {
            return None;
        }
        self.look_at_roles();
        Some(self.how_far())
    }

    /// Ends the watches that the client may not have any more.
    fn look_at_roles(&mut self) {
        let identity = self.session.identity();
        let all = self.watches.iter();
        let denied = all.filter_map(|(number, watch)| Some((*number, denied(&identity, watch)?)));
        let denied: Vec<(u64, Denied)> = denied.collect();
        for (number, denied) in denied {
            self.end(number, ended(Why::Denied, denied.to_string()));
        }
    }

    /// Tells the watches what they have to be told, as far as it goes into a message. `None`: that was nothing.
    async fn tell(&mut self) -> Option<proto::WatchResponse> {
        let mut admitted: Option<Charge> = None;
        loop {
            if !self.waits_to_tell().await {
                return None;
            }
            // Here, behind the barrier: how far the watches are may not be told without one either. With memory for a
            // message there is one next.
            if admitted.is_none() && self.marks.quiet().is_zero() {
                return Some(self.how_far());
            }
            let Some(plan) = self.planned() else {
                tokio::time::sleep(TURN).await;
                continue;
            };
            if plan.changes == 0 {
                self.note(plan.parts);
                // A log without a change for these watches is as much work as one with some.
                yield_once().await;
                return None;
            }
            let need = page_bytes(plan.changes, plan.bytes);
            let charge = match admitted.take() {
                Some(mut charge) => charge.settle(need).then_some(charge),
                None => self.caller.try_admit(need),
            };
            if let Some(charge) = charge {
                return self.message(plan, charge).await;
            }
            drop(plan);
            match self.caller.admit(need, Instant::now() + WAITS).await {
                Ok(charge) => admitted = Some(charge),
                // Others hold it. Waiting costs nothing: the log has what is to be told.
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// A plan of the next message. `None`: it has to read the log, and so many others read it now.
    ///
    /// Nothing is waited for between the barrier and the plan, nor while the log is read: a stream that its transport
    /// does not poll any more would keep its turn, and those of others would wait for it.
    fn planned(&mut self) -> Option<Plan> {
        if !self.hub.reads_log() {
            return Some(self.plan(false));
        }
        let _turn = self.inner.watches.log_turn()?;
        Some(self.plan(true))
    }

    /// It ends before the first watch that has to read the log, unless it may.
    fn plan(&mut self, reads_log: bool) -> Plan {
        let replica = self.inner.replica.clone();
        let history = |after: LogId, most: usize| replica.applied_changes(after, most);
        let identity = self.session.identity();
        let (mut plan, mut ends) = (Plan::new(reads_log), Vec::new());
        for number in self.hub.ready(WATCHES) {
            if plan.is_full() {
                break;
            }
            let Some(watch) = self.watches.get(&number) else { continue };
            let Some((work, breaks)) = self.hub.work(number) else { continue };
            if let Some(denied) = denied(&identity, watch) {
                ends.push((number, ended(Why::Denied, denied.to_string())));
                continue;
            }
            let Watch { range, keys_only, part, .. } = watch;
            let watched = Watched { range, keys_only: *keys_only, part: *part };
            if let Err(error) = plan.add((number, breaks), &watched, &work, &history) {
                ends.push((number, untold(&error)));
            }
        }
        for (number, ended) in ends {
            self.end(number, ended);
        }
        plan.made()
    }

    /// Notes how far watches were told.
    fn note(&mut self, parts: Vec<Part>) {
        for part in parts {
            if let Some(watch) = self.watches.get_mut(&part.watch) {
                watch.part = part.told.part;
                self.hub.told(part.watch, part.told.at, part.breaks);
            }
        }
    }

    /// Reads the values of a plan, and makes it a message.
    async fn message(&mut self, plan: Plan, charge: Charge) -> Option<proto::WatchResponse> {
        let (values, charge) = match values::read(&self.inner.replica, &plan, charge).await {
            Ok(read) => read,
            Err(why) => {
                self.end_all(Why::Move, why.message());
                return None;
            }
        };
        if !self.stands(&plan).await {
            return None;
        }
        let (mut parts, mut count) = (Vec::new(), 0);
        for mut part in plan.parts {
            let changes = match values.fill(&mut part, || values::gone(&self.inner.replica)) {
                Ok(changes) => changes,
                Err(ended) => {
                    self.end(part.watch, ended);
                    continue;
                }
            };
            let (told, watch) = (part.told, self.watches.get(&part.watch));
            let id = watch.map(|watch| watch.id);
            self.note(vec![part]);
            if let Some(id) = id.filter(|_| !changes.is_empty()) {
                count += changes.len();
                let through = told.part.is_none().then(|| position(told.at));
                let kind = watch_part::Kind::Changes(proto::WatchChanges { changes, through });
                parts.push(proto::WatchPart { id, kind: Some(kind) });
            }
        }
        if count == 0 {
            return None;
        }
        self.inner.metrics.watches().told(count);
        self.caller.answer(charge);
        let mut message = proto::WatchResponse { parts, through: None };
        if self.marks.may_show() {
            self.mark(&mut message);
        }
        Some(message)
    }

    /// Whether a plan may be told now. Its values may have taken long: the barrier that it was made behind is old, and another
    /// history may have come since.
    async fn stands(&mut self, plan: &Plan) -> bool {
        if !self.waits_to_tell().await {
            return false;
        }
        let is_other = |id| {
            let follows = self.inner.replica.follows(id);
            matches!(follows, Err(HistoryError::Discarded { .. } | HistoryError::Ahead { .. }))
        };
        !plan.last_entries().into_iter().any(is_other)
    }
}

/// Why this caller, as the roles are now, may not have a watch.
fn denied(identity: &Result<Identity, Denied>, watch: &Watch) -> Option<Denied> {
    match identity {
        Ok(identity) => identity.may(watch.range.need()).err(),
        Err(denied) => Some(denied.clone()),
    }
}
