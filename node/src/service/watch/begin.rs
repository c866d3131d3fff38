//! How watches begin and end: what a client asks for on its stream.
//!
//! What holds here:
//! - Each request is answered: a watch by where it begins or why it does not, an end by CANCELLED, also of a watch that is not
//!   there, since it may have ended meanwhile.
//! - A watch is charged before anything is done for it. The memory of its request is free by then.
//! - Watches that begin together share one barrier, which begins after their requests have come. Behind it the
//!   member has applied whatever was told anywhere: a position that is not in its history then is in none.

use super::hub::applied;
use super::ranges::Range;
use super::stream::{Request, Watch, Watching};
use super::{Held, WATCH_BYTES, ended, position, untold};
use crate::admission::{refusal, validate};
use crate::service::read::{Age, barrier, in_time, readable};
use bytes::Bytes;
use cairn_client::proto::watch_ended::Why;
use cairn_client::proto::{self, watch_part, watch_request};
use cairn_engine::LogId;
use cairn_raft::GROUP;
use tonic::Status;

/// A watch that may begin.
struct Begin {
    id: u64,
    range: Range,
    after: Option<LogId>,
    keys_only: bool,
    held: Held,
}

impl Watching {
    /// Answers requests.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, if one has no content: nobody knows which watch it is about. The stream ends.
    pub(super) async fn answer(&mut self, requests: Vec<Request>) -> Result<(), Status> {
        let mut begins: Vec<Begin> = Vec::new();
        for (request, _charge) in requests {
            match request.kind {
                Some(watch_request::Kind::Begin(begin)) => self.consider(begin, &mut begins),
                Some(watch_request::Kind::End(id)) => {
                    self.begin(std::mem::take(&mut begins)).await;
                    self.cancel(id);
                }
                None => {
                    return Err(Status::invalid_argument(
                        "a request of a watch without content; begin a watch, or end one",
                    ));
                }
            }
        }
        self.begin(begins).await;
        Ok(())
    }

    /// Lets a watch begin with the others, or says why not.
    fn consider(&mut self, begin: proto::WatchBegin, begins: &mut Vec<Begin>) {
        let id = begin.id;
        // What is told of the id would be of either watch: so none has it.
        let others = begins.len();
        begins.retain(|other| other.id != id);
        let open = self.ids.get(&id).copied();
        if open.is_some() || begins.len() < others {
            let twice = ended(
                Why::Invalid,
                format!(
                    "two watches of the stream have the id {id}, and both have ended; give each an id of its own"
                ),
            );
            match open {
                Some(number) => self.end(number, twice),
                None => self.say_ended(id, twice, None),
            }
            return;
        }
        match self.checked(begin) {
            Ok(begin) => begins.push(begin),
            Err(refused) => self.say_ended(id, refused, None),
        }
    }

    fn checked(&self, begin: proto::WatchBegin) -> Result<Begin, proto::WatchEnded> {
        let (start, end) = validate::watched(begin.range)
            .map_err(|refused| ended(Why::Invalid, refusal::bounded(refused).message()))?;
        // They are parts of the message, and would keep all of it.
        let own = |bound: Bytes| Bytes::copy_from_slice(&bound);
        let range = Range { start: own(start), end: end.map(own) };
        let identity = self.session.identity();
        let may = identity.and_then(|identity| identity.may(range.need()));
        may.map_err(|denied| ended(Why::Denied, denied.to_string()))?;
        let most = self.inner.limits().max_watches;
        let place = self.inner.watches.take(self.caller.owner(), most).ok_or_else(|| {
            ended(
                Why::Full,
                format!(
                    "this node has at most {most} watches (`limits.max_watches`), and a client as many of them as remain free; \
                     end some, or ask another node"
                ),
            )
        })?;
        let charge = self.caller.try_hold(WATCH_BYTES + range.bytes()).ok_or_else(|| {
            let refused = refusal::requests_overloaded("there is no memory for another watch");
            ended(Why::Full, refused.message())
        })?;
        let after = begin.after.map(|after| LogId { term: after.term, index: after.index });
        let held = Held { _place: place, _charge: charge };
        Ok(Begin { id: begin.id, range, after, keys_only: begin.keys_only, held })
    }

    /// Begins watches behind a barrier.
    async fn begin(&mut self, begins: Vec<Begin>) {
        if begins.is_empty() {
            return;
        }
        let budget = self.inner.config.timing.request;
        let passed = in_time(budget, barrier(&self.inner, Age::New)).await;
        // It may have begun to recover meanwhile.
        let passed = passed.and_then(|()| readable(&self.inner).map(|_| ()));
        for Begin { id, range, after, keys_only, held } in begins {
            let begun = match &passed {
                Ok(()) => self.position_of(after),
                Err(why) => Err(ended(Why::Move, refusal::bounded(why.clone()).message())),
            };
            let at = match begun {
                Ok(at) => at,
                Err(refused) => {
                    self.say_ended(id, refused, Some(held));
                    continue;
                }
            };
            let (number, registered) = self.hub.begin(&self.inner.replica, range.clone(), at);
            self.begun_at = self.begun_at.max(at.index);
            self.ids.insert(id, number);
            let watch = Watch { id, range, keys_only, part: None, held, _registered: registered };
            self.watches.insert(number, watch);
            self.say(id, watch_part::Kind::Began(position(at)), None);
        }
    }

    /// Where a watch begins that asked for this.
    fn position_of(&self, after: Option<LogId>) -> Result<LogId, proto::WatchEnded> {
        let replica = &self.inner.replica;
        let Some(after) = after else { return Ok(applied(replica)) };
        replica.follows(after).map_err(|error| untold(&error))?;
        // A term of 0 stands for whichever entry has the index.
        let known = replica.engine().log_id_at(GROUP, after.index).filter(|_| after.term == 0);
        Ok(known.unwrap_or(after))
    }

    fn cancel(&mut self, id: u64) {
        let cancelled = ended(Why::Cancelled, "the client ended it");
        match self.ids.get(&id).copied() {
            Some(number) => self.end(number, cancelled),
            None => self.say_ended(id, cancelled, None),
        }
    }
}
