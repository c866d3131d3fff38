//! What a member may do, as far as it decides that itself: vote, ask for votes, lead, take appends,
//! and stand for what it holds.
//!
//! What holds here: a member that may lack what it acknowledged sends nothing that counts as a
//! promise (no vote, no pre-vote), and it takes appends only from the leadership that agreed to help
//! it recover. There is one exception, and only for a while: an unsafe-recovery grant. It names one
//! boot epoch of one member; that member may ask for votes, and the others may vote for it alone.
//!
//! The story behind the time limit: no leader could be elected under a grant, the operator turned
//! to something else, and a missing member came back that held what the others had lost. A grant
//! without an end would still have elected a leader without that member.
//!
//! Not here, since others own it: whether openraft runs, the disk works, the log says that this
//! member is a voter, a majority answers its leader. A vote for nobody, which ends the own term,
//! promises nothing to a candidate and is not asked for here.

use crate::core::ids::NodeId;
use crate::core::runtime::Instant;
use crate::core::types::Vote;
use cairn_engine::{BootEpoch, MemberState};
use std::time::Duration;

/// A leader that was heard within this time lives: no unsafe recovery is needed beside it.
pub(crate) const LEADER_ALIVE: Duration = Duration::from_secs(5);

/// What one member holds, and whether it would lead. Changes by [`Standing::after`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    own: NodeId,
    holds: Holds,
    drained: Option<Drain>,
    /// It is being stopped, for good: it still votes, acknowledges and answers.
    leaves: bool,
    /// When a leader last sent a message.
    heard: Option<Instant>,
    /// A drained member that has heard no leader for so long stands for election: perhaps only it
    /// can be elected, since it has the newest entries, or the others are drained too.
    patience: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// Everything that it acknowledged.
    All,
    /// It may lack some of that, and recovers.
    NotAll(Recovery),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Recovery {
    /// The leadership that agreed to help.
    helper: Option<Vote>,
    /// The last leader whose appends were refused and that was not asked yet, if later than `helper`.
    refused: Option<(NodeId, Vote)>,
    /// Kept when it has expired: it says how an election was won.
    grant: Option<(UnsafeRecovery, Instant)>,
}

/// An operator keeps a member from leading, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drain {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

/// An unsafe-recovery grant: the operator's choice of a leader after a majority may have lost
/// acknowledged entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsafeRecovery {
    /// The only member that may campaign, and that recovering members may vote for.
    pub candidate: NodeId,
    /// Its boot epoch when the operator chose it. In a later one it may have lost more.
    pub epoch: BootEpoch,
}

impl UnsafeRecovery {
    /// How long recovering members may vote by it. A leader that was elected by then stays leader.
    pub const LIFETIME: Duration = Duration::from_secs(60);
}

/// What happens to a member and changes its standing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Entries or a snapshot of a leadership arrive, taken or not.
    Appends {
        leader: NodeId,
        vote: Vote,
        at: Instant,
    },
    /// An entry that it acknowledged is missing.
    Lost,
    /// It holds everything again. The caller has synced that it is active.
    Recovered,
    /// The refused leader is being asked for help.
    Asked,
    /// This leadership lets the log revert, and proposes the record of the boot epoch.
    Helped(Vote),
    Granted(UnsafeRecovery, Instant),
    /// One that is over ends an earlier one.
    Drained(Drain),
    Leaves,
}

/// What a member may do or not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// Answer this candidate's request for a vote or a pre-vote.
    Vote {
        candidate: NodeId,
        epoch: BootEpoch,
    },
    /// Ask for votes, and count those that come. Asked for each message, so what an operator prefers
    /// does not count: a member that is drained in the middle of its election wins it, and hands
    /// over. The story: its leader handed over to it, it was drained in that moment and asked nobody;
    /// nobody led until the leader's limit had passed.
    AskForVotes,
    /// Begin an election of its own accord.
    Stand,
    /// Take leadership over.
    Lead,
    /// Take appends and snapshots of this leadership.
    Append(Vote),
    /// Stand for what it holds: reads, scrubs, what others count on.
    Vouch,
    TakeGrant {
        candidate: NodeId,
    },
}

/// Why a member may not do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "this member is recovering: it may have lost acknowledged entries, and neither votes nor leads"
    )]
    Recovering,
    #[error("this member is recovering, and takes entries once the leader has agreed to help it")]
    NotHelped,
    #[error("an operator keeps this member from leading")]
    Drained,
    #[error("this member is being stopped")]
    Leaves,
    #[error("this member is active and votes without an unsafe-recovery grant")]
    HoldsAll,
    #[error("a leader is alive and helps this member recover; no unsafe recovery is needed")]
    Led,
}

impl Standing {
    pub(crate) fn new(own: NodeId, recorded: MemberState, patience: Duration) -> Standing {
        let holds = match recorded {
            MemberState::Active => Holds::All,
            MemberState::Recovering => Holds::NotAll(Recovery::default()),
        };
        Standing { own, holds, drained: None, leaves: false, heard: None, patience }
    }

    pub(crate) fn after(mut self, event: Event) -> Standing {
        match (event, &mut self.holds) {
            (Event::Appends { leader, vote, at }, holds) => {
                if let Holds::NotAll(recovery) = holds {
                    // A late message of an earlier leadership: asking it would delay the recovery.
                    if recovery.helper.is_none_or(|helper| helper < vote) {
                        recovery.refused = Some((leader, vote));
                    }
                }
                self.heard = Some(at);
            }
            (Event::Lost, holds @ Holds::All) => *holds = Holds::NotAll(Recovery::default()),
            (Event::Recovered, holds) => *holds = Holds::All,
            (Event::Asked, Holds::NotAll(recovery)) => recovery.refused = None,
            (Event::Helped(vote), Holds::NotAll(recovery)) => recovery.helper = Some(vote),
            (Event::Granted(grant, at), Holds::NotAll(recovery)) => {
                recovery.grant = Some((grant, at));
                // The operator names it as the leader, which ends the drain.
                if grant.candidate == self.own {
                    self.drained = None;
                }
            }
            (Event::Drained(drain), _) => self.drained = Some(drain),
            (Event::Leaves, _) => self.leaves = true,
            (Event::Lost | Event::Asked | Event::Helped(_) | Event::Granted(..), _) => {}
        }
        self
    }

    pub(crate) fn may(&self, act: Act, now: Instant) -> Result<(), Refusal> {
        match (act, &self.holds) {
            (Act::Append(vote), Holds::NotAll(recovery)) => {
                (recovery.helper == Some(vote)).then_some(()).ok_or(Refusal::NotHelped)
            }
            (Act::Append(_) | Act::Vouch | Act::Vote { .. } | Act::AskForVotes, Holds::All) => {
                Ok(())
            }
            (Act::Vouch, Holds::NotAll(_)) => Err(Refusal::Recovering),
            (Act::Vote { candidate, epoch }, _) => {
                self.is_granted(now, |grant| grant == UnsafeRecovery { candidate, epoch })
            }
            (Act::AskForVotes, _) => self.is_granted(now, |grant| grant.candidate == self.own),
            (Act::Stand, _) => {
                self.may(Act::AskForVotes, now)?;
                match self.kept_from_leading(now) {
                    Some(Refusal::Drained) if self.is_last_resort(now) => Ok(()),
                    kept => kept.map_or(Ok(()), Err),
                }
            }
            (Act::Lead, _) => {
                self.may(Act::Vouch, now)?;
                self.kept_from_leading(now).map_or(Ok(()), Err)
            }
            (Act::TakeGrant { .. }, Holds::All) => Err(Refusal::HoldsAll),
            (Act::TakeGrant { .. }, _) if self.heard_within(LEADER_ALIVE, now) => Err(Refusal::Led),
            // Nobody would be elected, and the others would keep the grant for its lifetime.
            (Act::TakeGrant { candidate }, _) if candidate == self.own && self.leaves => {
                Err(Refusal::Leaves)
            }
            (Act::TakeGrant { .. }, _) => Ok(()),
        }
    }

    /// Why this member does not lead, whatever it holds.
    pub(crate) fn kept_from_leading(&self, now: Instant) -> Option<Refusal> {
        match self.leaves {
            true => Some(Refusal::Leaves),
            false => self.drained_for(now).map(|_| Refusal::Drained),
        }
    }

    /// How long an operator still keeps this member from leading.
    pub(crate) fn drained_for(&self, now: Instant) -> Option<Duration> {
        self.drained.filter(|drain| drain.until > now).map(|drain| drain.until - now)
    }

    /// Whether this member is being stopped.
    pub(crate) fn leaves(&self) -> bool {
        self.leaves
    }

    /// Whether a leader sent a message within this time.
    pub(crate) fn heard_within(&self, time: Duration, now: Instant) -> bool {
        self.heard.is_some_and(|at| now - at < time)
    }

    /// The leadership that agreed to help this member recover.
    pub(crate) fn helper(&self) -> Option<Vote> {
        self.recovery().and_then(|recovery| recovery.helper)
    }

    /// The last leader that was refused and not yet asked for help.
    pub(crate) fn refused(&self) -> Option<(NodeId, Vote)> {
        self.recovery().and_then(|recovery| recovery.refused)
    }

    /// The grant in force.
    pub(crate) fn grant(&self, now: Instant) -> Option<UnsafeRecovery> {
        let (grant, at) = self.recovery()?.grant?;
        (now - at < UnsafeRecovery::LIFETIME).then_some(grant)
    }

    /// Whether a grant chose this member, even if it has expired: this says how an election was won,
    /// not whether to vote.
    pub(crate) fn was_chosen(&self, member: NodeId) -> bool {
        let grant = self.recovery().and_then(|recovery| recovery.grant);
        grant.is_some_and(|(grant, _)| grant.candidate == member)
    }

    fn is_granted(
        &self,
        now: Instant,
        allows: impl Fn(UnsafeRecovery) -> bool,
    ) -> Result<(), Refusal> {
        self.grant(now).is_some_and(allows).then_some(()).ok_or(Refusal::Recovering)
    }

    /// It gives leadership away again when another one may lead.
    fn is_last_resort(&self, now: Instant) -> bool {
        let drained_long_ago = self.drained.is_some_and(|drain| now - drain.from >= self.patience);
        drained_long_ago && !self.heard_within(self.patience, now)
    }

    fn recovery(&self) -> Option<&Recovery> {
        match &self.holds {
            Holds::All => None,
            Holds::NotAll(recovery) => Some(recovery),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: NodeId = NodeId::new(1, 1);
    const OTHER: NodeId = NodeId::new(2, 2);
    const PATIENCE: Duration = Duration::from_secs(6);
    const EPOCH: BootEpoch = BootEpoch { number: 3, nonce: 3 };
    const EARLIER_EPOCH: BootEpoch = BootEpoch { number: 2, nonce: 2 };

    fn vote(term: u64) -> Vote {
        Vote::new_committed(term, OTHER)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn grant(candidate: NodeId) -> UnsafeRecovery {
        UnsafeRecovery { candidate, epoch: EPOCH }
    }

    fn acts() -> Vec<Act> {
        let votes = [(OWN, EPOCH), (OTHER, EPOCH), (OTHER, EARLIER_EPOCH)];
        let votes = votes.map(|(candidate, epoch)| Act::Vote { candidate, epoch });
        let grants = [OWN, OTHER].map(|candidate| Act::TakeGrant { candidate });
        let rest = [Act::AskForVotes, Act::Stand, Act::Lead, Act::Vouch];
        let appends = [1, 2].map(|term| Act::Append(vote(term)));
        votes.into_iter().chain(grants).chain(rest).chain(appends).collect()
    }

    fn events(now: Instant) -> Vec<Event> {
        let drain = |from: Instant, time| Event::Drained(Drain { from, until: from + time });
        vec![
            Event::Appends { leader: OTHER, vote: vote(1), at: now },
            Event::Appends { leader: OTHER, vote: vote(2), at: now },
            Event::Lost,
            Event::Recovered,
            Event::Asked,
            Event::Helped(vote(1)),
            Event::Helped(vote(2)),
            Event::Granted(grant(OWN), now),
            Event::Granted(grant(OTHER), now),
            drain(now, seconds(600)),
            drain(now, Duration::ZERO),
            Event::Leaves,
        ]
    }

    /// Every combination of what a standing is made of, at the moment `now`. Each limit of time is met
    /// exactly.
    fn standings(now: Instant) -> Vec<Standing> {
        let at = |ago| now - seconds(ago);
        let grants = [None].into_iter().chain(
            [OWN, OTHER]
                .into_iter()
                .flat_map(|candidate| [1, 60].map(|ago| Some((grant(candidate), at(ago))))),
        );
        let mut holds = vec![Holds::All];
        for grant in grants {
            for helper in [None, Some(vote(1)), Some(vote(2))] {
                for refused in [None, Some((OTHER, vote(1))), Some((OTHER, vote(2)))] {
                    holds.push(Holds::NotAll(Recovery { helper, refused, grant }));
                }
            }
        }
        let later = now + seconds(600);
        let drains = [(at(1), later), (at(6), later), (at(60), now)];
        let drains = drains.map(|(from, until)| Some(Drain { from, until }));
        let mut all = Vec::new();
        for holds in holds {
            for drained in [None].into_iter().chain(drains) {
                for leaves in [false, true] {
                    all.extend([None, Some(at(6)), Some(at(5)), Some(at(1))].map(|heard| {
                        Standing { own: OWN, holds, drained, leaves, heard, patience: PATIENCE }
                    }));
                }
            }
        }
        all
    }

    fn may(standing: &Standing, act: Act, now: Instant) -> bool {
        standing.may(act, now).is_ok()
    }

    #[test]
    fn a_member_that_may_lack_what_it_acknowledged_promises_nothing_without_a_grant() {
        let now = crate::core::runtime::now();
        let mut seen = 0;
        for standing in standings(now) {
            let Holds::NotAll(recovery) = standing.holds else { continue };
            for act in acts() {
                let granted = |allows: &dyn Fn(UnsafeRecovery) -> bool| {
                    recovery
                        .grant
                        .is_some_and(|(grant, at)| now - at < seconds(60) && allows(grant))
                };
                let allowed = match act {
                    Act::Vote { candidate, epoch } => {
                        epoch == EPOCH && granted(&|grant| grant.candidate == candidate)
                    }
                    Act::AskForVotes => granted(&|grant| grant.candidate == OWN),
                    Act::Lead | Act::Vouch => false,
                    Act::Append(vote) => recovery.helper == Some(vote),
                    Act::Stand | Act::TakeGrant { .. } => continue,
                };
                assert_eq!(may(&standing, act, now), allowed, "{act:?} by {standing:?}");
                seen += 1;
            }
        }
        assert_eq!(seen, 45 * 32 * 8);
    }

    #[test]
    fn an_active_member_votes_and_acknowledges_whatever_an_operator_prefers() {
        let now = crate::core::runtime::now();
        let preferred = |act: &Act| matches!(act, Act::Stand | Act::Lead | Act::TakeGrant { .. });
        for standing in standings(now).iter().filter(|one| one.holds == Holds::All) {
            for act in acts().into_iter().filter(|act| !preferred(act)) {
                assert!(may(standing, act, now), "{act:?} by {standing:?}");
            }
            let taken = standing.may(Act::TakeGrant { candidate: OTHER }, now);
            assert_eq!(taken, Err(Refusal::HoldsAll));
        }
    }

    #[test]
    fn who_leads_may_stand_and_who_stands_may_ask_for_votes() {
        let now = crate::core::runtime::now();
        for standing in standings(now) {
            let [lead, stand, ask, vouch] = [Act::Lead, Act::Stand, Act::AskForVotes, Act::Vouch]
                .map(|act| may(&standing, act, now));
            assert!(stand || !lead, "{standing:?}");
            assert!(ask || !stand, "{standing:?}");
            assert!(vouch || !lead, "{standing:?}");
            let leaves = standing.leaves;
            let drained = standing.drained.is_some_and(|drain| drain.until > now);
            assert_eq!(lead, vouch && !drained && !leaves, "{standing:?}");
            let long_ago = |at: Instant| now - at >= PATIENCE;
            let last_resort = standing.drained.is_some_and(|drain| long_ago(drain.from))
                && standing.heard.is_none_or(long_ago);
            assert_eq!(stand, ask && !leaves && (!drained || last_resort), "{standing:?}");
        }
    }

    #[test]
    fn a_grant_is_taken_only_where_no_leader_is_heard_and_by_no_candidate_that_leaves() {
        let now = crate::core::runtime::now();
        for standing in standings(now).iter().filter(|one| one.holds != Holds::All) {
            let led = standing.heard.is_some_and(|at| now - at < seconds(5));
            for candidate in [OWN, OTHER] {
                let leaves = candidate == OWN && standing.leaves;
                let taken = may(standing, Act::TakeGrant { candidate }, now);
                assert_eq!(taken, !led && !leaves, "{standing:?}");
            }
        }
    }

    #[test]
    fn only_a_recovery_ends_a_recovery_and_nothing_ends_a_stop() {
        let now = crate::core::runtime::now();
        for standing in standings(now) {
            for event in events(now) {
                let next = standing.after(event);
                let holds_all = |one: &Standing| one.holds == Holds::All;
                match event {
                    Event::Recovered => assert!(holds_all(&next)),
                    Event::Lost => assert!(!holds_all(&next)),
                    _ => assert_eq!(holds_all(&next), holds_all(&standing), "{event:?}"),
                }
                assert_eq!(next.leaves(), standing.leaves() || matches!(event, Event::Leaves));
                // Of a time before it was active nothing is left.
                if holds_all(&standing) && !holds_all(&next) {
                    assert_eq!(next.holds, Holds::NotAll(Recovery::default()));
                }
                // A second task would recover it, too, and know of no help and no grant.
                if !holds_all(&standing) && matches!(event, Event::Lost) {
                    assert_eq!(next, standing);
                }
                let grant = |one: &Standing| one.recovery().and_then(|recovery| recovery.grant);
                let begins_or_ends = matches!(event, Event::Lost | Event::Recovered);
                let changes = |by: bool| begins_or_ends || by;
                let helped = changes(matches!(event, Event::Helped(_)));
                assert!(helped || next.helper() == standing.helper(), "{event:?}");
                let granted = changes(matches!(event, Event::Granted(..)));
                assert!(granted || grant(&next) == grant(&standing), "{event:?}");
                let drained = matches!(event, Event::Drained(_) | Event::Granted(..));
                assert!(drained || next.drained == standing.drained, "{event:?}");
            }
        }
    }

    #[test]
    fn a_leader_that_is_refused_is_asked_once_unless_a_later_one_helps() {
        let now = crate::core::runtime::now();
        for standing in standings(now) {
            for term in [1, 2] {
                let heard = Event::Appends { leader: OTHER, vote: vote(term), at: now };
                let next = standing.after(heard);
                assert!(next.heard_within(seconds(1), now));
                let known = standing.helper().is_some_and(|helper| helper >= vote(term));
                let expected = match standing.holds {
                    Holds::All => None,
                    Holds::NotAll(_) if known => standing.refused(),
                    Holds::NotAll(_) => Some((OTHER, vote(term))),
                };
                assert_eq!(next.refused(), expected, "{standing:?}");
                assert_eq!(next.after(Event::Asked).refused(), None);
            }
        }
    }

    #[test]
    fn time_alone_ends_grants_and_drains_and_begins_nothing_that_is_promised() {
        let now = crate::core::runtime::now();
        for standing in standings(now) {
            for later in [1, 10, 100, 1000].map(|time| now + seconds(time)) {
                for act in acts() {
                    let (before, after) = (may(&standing, act, now), may(&standing, act, later));
                    match act {
                        Act::Vote { .. } | Act::AskForVotes => assert!(before || !after),
                        Act::Lead | Act::TakeGrant { .. } => assert!(after || !before),
                        Act::Append(_) | Act::Vouch => assert_eq!(before, after),
                        Act::Stand => {
                            let active = standing.holds == Holds::All;
                            assert!(!active || after || !before, "{standing:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_grant_that_names_a_drained_member_ends_its_drain() {
        let now = crate::core::runtime::now();
        let drain = Drain { from: now, until: now + seconds(600) };
        let recovering = Standing::new(OWN, MemberState::Recovering, PATIENCE);
        let drained = recovering.after(Event::Drained(drain));
        assert_eq!(drained.drained_for(now), Some(seconds(600)));
        let named = drained.after(Event::Granted(grant(OWN), now));
        assert_eq!(named.drained_for(now), None);
        assert!(may(&named, Act::Stand, now));
        let other = drained.after(Event::Granted(grant(OTHER), now));
        assert_eq!(other.drained_for(now), Some(seconds(600)));
    }
}
