//! What an acknowledgement of this member means.
//!
//! The log holds the least that it means, the cluster's mode: the first leader logs the one of its
//! configuration, and an operator changes it. A member may be stricter, since its drive may not
//! allow the mode; it is never laxer. `sync` is stricter than `device`, and `device` than
//! `replicated`.
//!
//! What holds here:
//! - while the log holds an entry that asks for a mode and is not applied, every acknowledgement
//!   waits for its sync: so a stricter mode holds from its append or the install of its snapshot on,
//!   and a laxer one from its apply on, when no other leader can take it back;
//! - fewer than three voters never run `replicated`: a membership of fewer asks like a mode does;
//! - what the log held when the process began may ask;
//! - this is the only place that tells the engine whether to wait.

use crate::core::codec::LogRecord;
use crate::core::types::{Membership, Payload};
use cairn_engine::{Engine, Mode};
use parking_lot::Mutex;

/// Mode `replicated` relies on other members that hold what a power cut takes from one.
pub(crate) const REPLICATED_VOTERS: usize = 3;

/// The modes of a member, as far as it knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// What the log says, as far as it is applied here. `None`: nothing yet.
    pub cluster: Option<Mode>,
    /// The laxest that this member's drive and engine allow.
    pub own: Mode,
    /// What its acknowledgements mean at least: the stricter of both, and `sync` before the log says
    /// anything.
    pub effective: Mode,
}

/// The mode in force on this member.
pub(crate) struct ModeInForce {
    engine: Engine,
    own: Mode,
    state: Mutex<State>,
}

struct State {
    applied: Option<Mode>,
    /// The index of the entry that set the applied mode.
    since: u64,
    /// Entries up to this one may ask for a mode and are not applied: the log's last one when the
    /// process began, or a later one that asks.
    unapplied: Option<u64>,
    /// The leader asks for the fast ack mode.
    fast: bool,
}

impl State {
    fn binding(&self) -> Mode {
        self.applied.filter(|_| self.unapplied.is_none()).unwrap_or(Mode::Sync)
    }
}

/// The stricter of two modes.
pub(crate) fn stricter(one: Mode, other: Mode) -> Mode {
    let strictness = |mode| match mode {
        Mode::Replicated => 0,
        Mode::Device => 1,
        Mode::Sync => 2,
    };
    if strictness(other) > strictness(one) { other } else { one }
}

/// Whether `replicated` may run under this membership: one configuration, of enough voters.
pub(crate) fn allows_replicated(membership: &Membership) -> bool {
    membership.get_joint_config().len() == 1 && !too_few(membership)
}

/// The mode that the first leader logs: the one of its configuration, if the voters are enough for it.
pub(crate) fn first_mode(configured: Mode, membership: &Membership) -> Mode {
    match configured {
        Mode::Replicated if !allows_replicated(membership) => Mode::Sync,
        mode => mode,
    }
}

/// Whether a configuration of this membership has too few voters for `replicated`.
pub(crate) fn too_few(membership: &Membership) -> bool {
    membership.get_joint_config().iter().any(|voters| voters.len() < REPLICATED_VOTERS)
}

/// Whether an entry asks for a mode, or ends `replicated`.
fn asks(payload: &Payload) -> bool {
    match payload {
        Payload::Normal(proposal) => {
            matches!(LogRecord::of_members(&proposal.meta), Ok(Some(LogRecord::Mode(_))))
        }
        Payload::Membership(membership) => too_few(membership),
        Payload::Blank => false,
    }
}

impl ModeInForce {
    /// `last`: the last entry of the log.
    pub(crate) fn new(engine: Engine, own: Mode, last: Option<u64>) -> ModeInForce {
        engine.set_safe_acks(true);
        let state = State { applied: None, since: 0, unapplied: last, fast: false };
        ModeInForce { engine, own, state: Mutex::new(state) }
    }

    /// An entry is about to be appended. Call this before the engine has it.
    pub(crate) fn appended(&self, index: u64, payload: &Payload) {
        if asks(payload) {
            self.installs(index);
        }
    }

    /// A snapshot through `index`, which has a mode, is about to be installed. Call this before the
    /// engine has it.
    pub(crate) fn installs(&self, index: u64) {
        self.change(|state| state.unapplied = state.unapplied.max(Some(index)));
    }

    /// The log ends with this entry now.
    pub(crate) fn truncated(&self, last: Option<u64>) {
        self.change(|state| state.unapplied = state.unapplied.min(last));
    }

    /// Everything up to `through` is applied, and the log says this mode there, since that index.
    pub(crate) fn applied(&self, through: u64, mode: Option<Mode>, since: u64) {
        {
            let state = self.state.lock();
            let nothing_new = (state.applied, state.since) == (mode, since)
                && state.unapplied.is_none_or(|unapplied| unapplied > through);
            if nothing_new {
                return;
            }
        }
        self.change(|state| {
            (state.applied, state.since) = (mode, since);
            state.unapplied = state.unapplied.filter(|unapplied| *unapplied > through);
        });
    }

    /// The leader, this member or another one, asks for the fast ack mode, or for the safe one.
    pub(crate) fn set_fast(&self, fast: bool) {
        self.change(|state| state.fast = fast);
    }

    /// Whether the log may hold a mode that is not applied yet.
    pub(crate) fn is_changing(&self) -> bool {
        self.state.lock().unapplied.is_some()
    }

    /// What the log asks for: the applied mode, and `sync` while an entry that asks is not applied.
    pub(crate) fn binding(&self) -> Mode {
        self.state.lock().binding()
    }

    /// A member whose log reaches this index holds the record of the mode that is applied here.
    pub(crate) fn since(&self) -> u64 {
        self.state.lock().since
    }

    pub(crate) fn modes(&self) -> Modes {
        let state = self.state.lock();
        let cluster = state.applied;
        let effective = match cluster {
            Some(mode) if !needs_sync(self.own, mode, true) => stricter(mode, self.own),
            _ => Mode::Sync,
        };
        Modes { cluster, own: self.own, effective }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        // Under the lock: two changes reach the engine in their order.
        self.engine.set_safe_acks(needs_sync(self.own, state.binding(), state.fast));
    }
}

/// Whether a member of mode `own` syncs before it acknowledges, while the log asks for `binding`.
fn needs_sync(own: Mode, binding: Mode, fast: bool) -> bool {
    match own {
        Mode::Sync => true,
        Mode::Device => binding == Mode::Sync,
        Mode::Replicated => binding != Mode::Replicated || !fast,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::codec::encode_mode;
    use crate::core::ids::{MemberAddress, NodeId};
    use crate::storage::tests::engine;
    use std::collections::BTreeMap;

    async fn mode_in_force(own: Mode, last: Option<u64>) -> (ModeInForce, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (ModeInForce::new(engine(&folder).await, own, last), folder)
    }

    fn record(mode: Mode) -> Payload {
        Payload::Normal(encode_mode(mode))
    }

    fn of(voters: u16) -> Membership {
        let ids: Vec<NodeId> = (1..=voters).map(|slot| NodeId::new(slot, 1)).collect();
        let nodes: BTreeMap<_, _> = ids.iter().map(|id| (*id, MemberAddress::default())).collect();
        Membership::new(vec![ids.into_iter().collect()], nodes).unwrap()
    }

    #[test]
    fn a_member_syncs_where_the_log_its_own_mode_or_the_leader_asks_for_it() {
        use Mode::{Device, Replicated, Sync};
        let spared = [Sync, Device, Replicated].into_iter().flat_map(|own| {
            let all = [Sync, Device, Replicated].into_iter();
            let all = all.flat_map(|binding| [(binding, false), (binding, true)]);
            let spared = all.filter(move |(binding, fast)| !needs_sync(own, *binding, *fast));
            spared.map(move |(binding, fast)| (own, binding, fast))
        });
        // A `device` member needs no other member to hold what its own device keeps.
        let expected = [
            (Device, Device, false),
            (Device, Device, true),
            (Device, Replicated, false),
            (Device, Replicated, true),
            (Replicated, Replicated, true),
        ];
        assert_eq!(spared.collect::<Vec<_>>(), expected);
    }

    #[tokio::test]
    async fn before_the_log_says_anything_everything_is_synced() {
        let (modes, _folder) = mode_in_force(Mode::Replicated, None).await;
        assert_eq!(modes.binding(), Mode::Sync);
        assert_eq!(modes.modes().effective, Mode::Sync);
        modes.applied(3, Some(Mode::Replicated), 3);
        assert_eq!(modes.binding(), Mode::Replicated);
    }

    /// The story: the log asked for `device` of machines that do not allow it. They synced, and said
    /// that they acknowledge what their devices keep.
    #[tokio::test]
    async fn a_member_says_sync_where_it_syncs() {
        use Mode::{Device, Replicated, Sync};
        for own in [Sync, Device, Replicated] {
            for cluster in [Sync, Device, Replicated] {
                let (modes, _folder) = mode_in_force(own, None).await;
                modes.applied(3, Some(cluster), 3);
                let expected = match (own, cluster) {
                    (Sync, _) | (_, Sync) | (Replicated, Device) => Sync,
                    (Device, _) => Device,
                    (Replicated, Replicated) => Replicated,
                };
                assert_eq!(modes.modes().effective, expected, "{own} in a cluster of {cluster}");
            }
        }
    }

    #[tokio::test]
    async fn a_stricter_mode_binds_from_its_append_and_a_laxer_one_from_its_apply() {
        let (modes, _folder) = mode_in_force(Mode::Replicated, None).await;
        modes.applied(3, Some(Mode::Replicated), 3);
        modes.appended(9, &record(Mode::Sync));
        assert_eq!(modes.binding(), Mode::Sync);
        modes.appended(10, &record(Mode::Replicated));
        modes.applied(8, Some(Mode::Replicated), 3);
        assert_eq!(modes.binding(), Mode::Sync, "an entry before it");
        modes.applied(9, Some(Mode::Sync), 9);
        assert_eq!((modes.binding(), modes.since()), (Mode::Sync, 9));
        modes.applied(10, Some(Mode::Replicated), 10);
        assert_eq!(modes.binding(), Mode::Replicated);
    }

    #[tokio::test]
    async fn a_laxer_mode_binds_only_when_nobody_can_take_it_back() {
        let (modes, _folder) = mode_in_force(Mode::Replicated, None).await;
        modes.applied(3, Some(Mode::Sync), 3);
        modes.appended(4, &record(Mode::Replicated));
        assert_eq!(modes.binding(), Mode::Sync);
        modes.applied(4, Some(Mode::Replicated), 4);
        assert_eq!(modes.binding(), Mode::Replicated);
    }

    #[tokio::test]
    async fn a_leader_may_ask_for_the_fast_mode_and_take_it_back() {
        let (modes, _folder) = mode_in_force(Mode::Replicated, None).await;
        for fast in [true, false] {
            modes.set_fast(fast);
            assert_eq!(modes.state.lock().fast, fast);
        }
    }

    #[tokio::test]
    async fn a_record_that_another_leader_took_back_binds_no_more() {
        let (modes, _folder) = mode_in_force(Mode::Replicated, None).await;
        modes.applied(3, Some(Mode::Replicated), 3);
        modes.appended(9, &record(Mode::Sync));
        modes.truncated(Some(9));
        assert_eq!(modes.binding(), Mode::Sync);
        modes.truncated(Some(8));
        modes.applied(8, Some(Mode::Replicated), 3);
        assert_eq!(modes.binding(), Mode::Replicated);
    }

    /// An applied entry asks for nothing beside the mode that the log says, also where that mode was
    /// the same before it.
    #[tokio::test]
    async fn an_entry_that_is_applied_is_no_longer_only_appended() {
        let (modes, _folder) = mode_in_force(Mode::Replicated, None).await;
        modes.applied(3, Some(Mode::Device), 3);
        modes.appended(9, &Payload::Membership(of(2)));
        modes.appended(10, &Payload::Membership(of(2)));
        modes.applied(9, Some(Mode::Device), 3);
        assert!(modes.is_changing(), "one of two");
        modes.applied(10, Some(Mode::Device), 3);
        assert!(!modes.is_changing());
    }

    #[tokio::test]
    async fn what_the_log_held_at_the_start_may_ask_for_syncs() {
        let (modes, _folder) = mode_in_force(Mode::Replicated, Some(20)).await;
        modes.applied(15, Some(Mode::Replicated), 3);
        assert_eq!(modes.binding(), Mode::Sync);
        modes.applied(20, Some(Mode::Replicated), 3);
        assert_eq!(modes.binding(), Mode::Replicated);
        let (modes, _folder) = mode_in_force(Mode::Replicated, Some(20)).await;
        modes.applied(15, Some(Mode::Replicated), 3);
        modes.truncated(Some(15));
        modes.applied(15, Some(Mode::Replicated), 3);
        assert_eq!(modes.binding(), Mode::Replicated, "the rest was cut");
    }

    #[tokio::test]
    async fn fewer_than_three_voters_end_replicated_from_the_append_on() {
        let (modes, _folder) = mode_in_force(Mode::Replicated, None).await;
        modes.applied(3, Some(Mode::Replicated), 3);
        modes.appended(9, &Payload::Membership(of(3)));
        assert_eq!(modes.binding(), Mode::Replicated);
        modes.appended(10, &Payload::Membership(of(2)));
        assert_eq!(modes.binding(), Mode::Sync);
        assert!(allows_replicated(&of(3)) && !allows_replicated(&of(2)));
        assert_eq!(first_mode(Mode::Replicated, &of(3)), Mode::Replicated);
        assert_eq!(first_mode(Mode::Replicated, &of(1)), Mode::Sync);
        assert_eq!(first_mode(Mode::Device, &of(1)), Mode::Device);
    }
}
