//! What a member may do in every standing, and what each event changes in it.

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
                all.extend([None, Some(at(6)), Some(at(5)), Some(at(1))].map(|heard| Standing {
                    own: OWN,
                    holds,
                    drained,
                    leaves,
                    heard,
                    patience: PATIENCE,
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
                recovery.grant.is_some_and(|(grant, at)| now - at < seconds(60) && allows(grant))
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
