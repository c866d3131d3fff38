//! The attempts of one request: which node to ask next, how long to wait before that, and when to
//! stop.
//!
//! [`Failure::of`] decides what a failure means. This file decides what to do about it. One attempt is in
//! [`call`], the error at the deadline in [`ending`].

mod call;
mod ending;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Error;
use crate::failure::Failure;
use crate::node::{Connection, Node};
use crate::pool::{Pool, Target};
use crate::types::Position;

/// The first delay, once every node was asked. It doubles up to the maximum.
const BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(250);

/// An attempt after a failure needs at least this much time. One that starts just before the
/// deadline is hardly ever answered, and can only make a known outcome unknown.
const LAST_ATTEMPT: Duration = Duration::from_millis(10);

/// For so long a node that answers, and cannot serve what goes on until one can, is not out of reach. It recovers or is about to
/// stop. One that was removed and still runs answers so for ever: it must not keep an error from who waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hints are followed without delay this many times. Later ones wait too, since nodes can disagree
/// for a while.
const FREE_HOPS: u32 = 3;

/// When a request makes its client stay with the generation that it named.
///
/// The story: a fresh client's first read went to a node that an earlier generation had left over. The
/// node served nobody, and the client refused the cluster that was made anew, until it was restarted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    /// Never: nodes of any generation answer it.
    Never,
    /// Once it was served: it has no effect.
    Served,
    /// Also when its outcome is unknown.
    Sent,
}

/// The attempts of one request.
pub(crate) struct Attempts {
    pub(crate) target: Target,
    stays: Stays,
    deadline: Instant,
    failures: u32,
    cursor: Option<usize>,
    hint: Option<Arc<Node>>,
    /// The node that was named last as the leader.
    named: Option<Arc<Node>>,
    /// The node that is asked now was hinted at.
    hinted: bool,
    /// The node that failed last. Another one is asked first.
    avoid: Option<Arc<Node>>,
    /// Nodes that cannot answer this read, as far as they say: they lack its call, the value intact, or the changes of a watch.
    /// They are asked again only where no other can be.
    unfit: Vec<Arc<Node>>,
    /// Nodes that were not reached, or broke off.
    unreached: Vec<Arc<Node>>,
    /// Of what goes on until a node can serve it: until when one that answers that it cannot may do so later.
    patient_until: Option<Instant>,
    tried: Vec<String>,
    /// Nodes of another cluster, or of another generation of it.
    strangers: Vec<String>,
    /// Of the histories that do not reach back to this watch, the one that reaches back furthest: its oldest entry, and the last
    /// one that its node had applied.
    compacted: Option<(Position, Position)>,
    last: Option<Failure>,
    /// How long an answer may take at least, where the usual time is too short for the call.
    answer_within: Duration,
}

impl Attempts {
    pub(crate) fn new(target: Target, deadline: Duration) -> Self {
        Attempts {
            target,
            stays: Stays::Sent,
            deadline: Instant::now() + deadline,
            failures: 0,
            cursor: None,
            hint: None,
            named: None,
            hinted: false,
            avoid: None,
            unfit: Vec::new(),
            unreached: Vec::new(),
            patient_until: None,
            tried: Vec::new(),
            strangers: Vec::new(),
            compacted: None,
            last: None,
            answer_within: Duration::ZERO,
        }
    }

    /// The same, for a request without an effect.
    pub(crate) fn without_effect(self) -> Self {
        Attempts { stays: Stays::Served, ..self }
    }

    /// The same, for a request that nodes of any generation answer.
    pub(crate) fn of_any_generation(self) -> Self {
        Attempts { stays: Stays::Never, ..self }
    }

    /// The same, for what goes on until a node can serve it.
    pub(crate) fn lasting(self) -> Self {
        Attempts { patient_until: Some(Instant::now() + PATIENCE), ..self }
    }

    /// The same, for a call whose answer may take so long.
    pub(crate) fn answered_within(self, answer_within: Duration) -> Self {
        Attempts { answer_within, ..self }
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// A connection to the node to ask next.
    ///
    /// # Errors
    /// The request's final error, if the deadline passes first, or no node is of the client's
    /// cluster.
    pub(crate) async fn connection(
        &mut self,
        pool: &Pool,
    ) -> Result<(Arc<Node>, Arc<Connection>), Error> {
        loop {
            if self.remaining().is_zero() {
                return Err(self.exhausted());
            }
            let node = match self.choose(pool, Instant::now()) {
                Ok(node) => node,
                Err(wait) => {
                    self.pause(wait).await?;
                    continue;
                }
            };
            if let Some(connection) = node.connection().filter(|_| pool.knows_generation()) {
                pool.refresh_by(&node, &connection);
                return Ok((node, connection));
            }
            let connecting = pool.connect_to_its_end(&node);
            let failure = match tokio::time::timeout(self.remaining(), connecting).await {
                Ok(Ok(connection)) => return Ok((node, connection)),
                Ok(Err(error @ Error::ProtocolMismatch { .. })) => return Err(error),
                Ok(Err(error @ Error::ClusterMismatch { .. })) => {
                    if self.is_last_stranger(pool, &node) {
                        return Err(error);
                    }
                    Failure::OtherCluster(error)
                }
                // At an address of before there may be a node of another cluster, or one that does not
                // know of this caller yet. So each is asked, and if one has let the caller in before, until
                // all deny it.
                Ok(Err(error)) if error.is_denied() => {
                    let all_deny = self.is_last_stranger(pool, &node);
                    if all_deny || (!pool.knows_generation() && self.is_last_untried(pool, &node)) {
                        return Err(error);
                    }
                    Failure::OtherCluster(error)
                }
                Ok(Err(error)) => Failure::NotSent(error.into()),
                // What failed before says more.
                Err(_) if self.last.is_some() => return Err(self.exhausted()),
                Err(_) => Failure::NotSent("no connection before the deadline".into()),
            };
            self.failed(pool, &node, failure).await?;
        }
    }

    /// Notes that `node` is of another cluster, or denies the caller. Returns whether all do, so that
    /// nobody is left to ask.
    fn is_last_stranger(&mut self, pool: &Pool, node: &Node) -> bool {
        if !self.strangers.iter().any(|address| address == node.address()) {
            self.strangers.push(node.address().to_owned());
        }
        self.strangers.len() >= pool.len()
    }

    /// Whether every other node was asked.
    pub(crate) fn is_last_untried(&self, pool: &Pool, node: &Node) -> bool {
        let others = self.tried.iter().filter(|address| *address != node.address()).count();
        others + 1 >= pool.len()
    }

    /// Nodes that cannot answer may be able to by now, as after an upgrade.
    pub(crate) fn ask_all_again(&mut self) {
        self.unfit.clear();
        self.unreached.clear();
    }

    /// Whether no node is left that could answer a read, now that `node` cannot: each other one cannot either, or
    /// was not reached. One that only failed for a moment is left.
    pub(crate) fn is_nobody_left(&self, pool: &Pool, node: &Arc<Node>) -> bool {
        if self.target == Target::Leader {
            return self.is_last_untried(pool, node);
        }
        let is_out = |other: &Arc<Node>| {
            let mut out = self.unfit.iter().chain(&self.unreached).chain([node]);
            out.any(|out| Arc::ptr_eq(out, other))
        };
        (0..pool.len()).filter_map(|position| pool.nth(position)).all(|other| is_out(&other))
    }

    /// The node to ask next, or how long to wait until there is one.
    fn choose(&mut self, pool: &Pool, now: Instant) -> Result<Arc<Node>, Duration> {
        let hint = self.hint.take();
        let hint = hint.filter(|node| node.cooling(now).is_none() && !self.is_unfit(node));
        self.hinted = hint.is_some();
        if let Some(hint) = hint {
            return Ok(hint);
        }
        let avoided = |node: &Arc<Node>| {
            self.avoid.iter().chain(&self.unfit).any(|avoid| Arc::ptr_eq(avoid, node))
        };
        if let Some(node) = pool.first_choice(self.target, now).filter(|node| !avoided(node)) {
            return Ok(node);
        }
        let from = self.cursor.unwrap_or(pool.start);
        let mut until: Option<Instant> = None;
        let (mut last_resort, mut serves_no_reads, mut unfit) = (None, None, None);
        for position in from..from + pool.len() {
            let Some(node) = pool.nth(position) else { continue };
            if let Some(cooling) = node.cooling(now) {
                until = Some(until.map_or(cooling, |earliest| earliest.min(cooling)));
            } else if self.is_unfit(&node) {
                unfit = Some(node);
            } else if avoided(&node) {
                last_resort = Some(node);
            } else if self.target == Target::Reader && !node.serves_reads(now) {
                serves_no_reads = Some(node);
            } else {
                self.cursor = Some(position + 1);
                return Ok(node);
            }
        }
        let wait = until.map_or(MAX_BACKOFF, |until| until.saturating_duration_since(now));
        serves_no_reads.or(last_resort).or(unfit).ok_or(wait)
    }

    /// Records that asking `node` failed, and waits as long as the failure requires.
    ///
    /// # Errors
    /// The request's final error.
    pub(crate) async fn failed(
        &mut self,
        pool: &Pool,
        node: &Arc<Node>,
        failure: Failure,
    ) -> Result<(), Error> {
        let delay = self.note(pool, node, failure);
        self.pause(delay).await
    }

    /// Records that asking `node` failed. Returns how long to wait before asking again.
    fn note(&mut self, pool: &Pool, node: &Arc<Node>, failure: Failure) -> Duration {
        self.failures = self.failures.saturating_add(1);
        if !self.tried.iter().any(|address| address == node.address()) {
            self.tried.push(node.address().to_owned());
        }
        let stays = self.stays(pool, node, &failure);
        self.hint = match &failure {
            Failure::NotLeader(Some(address)) => pool.at(address),
            // The node that reported this leads, and gave the new session its base.
            Failure::SessionExpired => Some(node.clone()),
            _ if stays => Some(node.clone()),
            _ => None,
        };
        if matches!(failure, Failure::NotLeader(Some(_))) {
            self.named = self.hint.clone();
        }
        if matches!(
            failure,
            Failure::NotLeader(_)
                | Failure::NoLeader
                | Failure::NotSent(_)
                | Failure::OtherCluster(_)
                | Failure::Lost { .. }
                | Failure::ElectionBlocked(_)
        ) {
            pool.refresh_soon();
        }
        if failure != Failure::SessionExpired && !stays {
            let forgotten = match self.target {
                Target::Reader => self.keeps_reads(node, &failure),
                Target::Leader | Target::Any => true,
            };
            if forgotten {
                pool.forget_preferred(self.target, node);
            }
            self.avoid = Some(node.clone());
        }
        // The leader stays the first choice of other reads, and would be that of this one again.
        let is_unfit = match &failure {
            Failure::Unreadable(_) | Failure::Unsupported(_) | Failure::Compacted { .. } => true,
            // It only leads back.
            Failure::NotLeader(Some(_)) => {
                self.hint.as_ref().is_some_and(|leader| self.is_unfit(leader))
            }
            _ => false,
        };
        if self.target != Target::Leader && is_unfit && !self.is_unfit(node) {
            self.unfit.push(node.clone());
        }
        let is_unreached = match &failure {
            Failure::NotSent(_) | Failure::OtherCluster(_) => true,
            Failure::Lost { answered, .. } => {
                !(*answered && self.patient_until.is_some_and(|until| Instant::now() < until))
            }
            _ => false,
        };
        if is_unreached || self.patient_until.is_some() {
            self.unreached.retain(|unreached| !Arc::ptr_eq(unreached, node));
        }
        if is_unreached {
            self.unreached.push(node.clone());
        }
        if let Failure::Compacted { oldest, now } = &failure
            && self.compacted.is_none_or(|(known, _)| oldest.index < known.index)
        {
            self.compacted = Some((*oldest, *now));
        }
        let delay = self.delay(pool, &failure);
        if !self.says_less(&failure) {
            self.last = Some(failure);
        }
        delay
    }

    fn is_unfit(&self, node: &Arc<Node>) -> bool {
        self.unfit.iter().any(|unfit| Arc::ptr_eq(unfit, node))
    }

    /// Keeps further reads from a node where one failed. Returns whether it is no leader any more, as far
    /// as that shows.
    fn keeps_reads(&self, node: &Node, failure: &Failure) -> bool {
        let now = Instant::now();
        match failure {
            Failure::Overloaded(after) | Failure::Full(after, _) => {
                node.wants_fewer_reads(now, *after);
                false
            }
            // Of one value, of one call, and of a caller without patience.
            Failure::Unreadable(_) | Failure::Unsupported(_) | Failure::Compacted { .. } => false,
            Failure::Lost { timed_out: true, .. } if self.remaining().is_zero() => true,
            _ => {
                node.refused_read(now);
                true
            }
        }
    }

    /// Whether the same node is asked again: a leader that wants fewer requests still leads. Any other
    /// node would take the whole request, only to name the leader.
    fn stays(&self, pool: &Pool, node: &Arc<Node>, failure: &Failure) -> bool {
        wants_fewer(failure) && self.target == Target::Leader && pool.leads(node)
    }

    fn delay(&self, pool: &Pool, failure: &Failure) -> Duration {
        let nodes = u32::try_from(pool.len()).unwrap_or(u32::MAX);
        let asked_for = match failure {
            Failure::Overloaded(after) | Failure::Full(after, _) => Some(*after),
            _ => None,
        };
        let hinted = self.hint.is_some() && self.failures <= FREE_HOPS;
        if asked_for.is_none() && (hinted || self.failures < nodes) {
            return Duration::ZERO;
        }
        let doublings = self.failures.saturating_sub(nodes).min(8);
        let backoff = BACKOFF.saturating_mul(1 << doublings).min(MAX_BACKOFF);
        // Clients that were refused together do not come back together.
        let asked_for = asked_for.map(|asked| asked + pool.random.jitter(asked));
        pool.random.jitter(backoff).max(asked_for.unwrap_or_default())
    }

    async fn pause(&self, delay: Duration) -> Result<(), Error> {
        if delay + LAST_ATTEMPT >= self.remaining() {
            return Err(self.exhausted());
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(())
    }
}

fn wants_fewer(failure: &Failure) -> bool {
    matches!(failure, Failure::Overloaded(_) | Failure::Full(..))
}

#[cfg(test)]
mod tests;
