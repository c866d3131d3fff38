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

/// An operator keeps a member from leading, for a time; or it does so itself, since nobody took its entries.
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
    #[error(
        "an operator keeps this member from leading, or it stays away for a while since nobody took its entries"
    )]
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
mod tests;
