//! Networks that connect only some of the members: which links each shape leaves, and runs in which
//! the network has such a shape for long.
//!
//! The story: in November 2020 a switch let some members of a store reach only some of the others.
//! The control plane of a large provider was without a leader for six hours.

use super::clock::virtual_time;
use super::cluster::Cluster;
use super::kinds::FaultKind;
use super::network::Links;
use cairn_raft::Role;
use rand::seq::SliceRandom;
use rand::{RngExt, rngs::StdRng};
use std::sync::Arc;
use std::time::Duration;

/// The time before the next shape, in milliseconds.
const APART_MS: std::ops::Range<u64> = 500..3_000;
/// How long a shape stays, in milliseconds: longer than a majority may take to serve.
const LASTS_MS: std::ops::Range<u64> = 14_000..20_000;

/// Which links are left between members, of which the first one leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// The leader has one neighbour; all links of the others are left.
    OneNeighbour,
    /// One member reaches all, and each other member only that one. It does not lead.
    Hub,
    /// Two halves have one member in common.
    Bridge,
    /// Each member reaches the one before and the one behind it; the leader is at the end.
    Chain,
    /// The same, and the last one reaches the leader.
    Ring,
    /// The leader's messages arrive, and those to it do not.
    LeaderHearsNobody,
    /// The other way round.
    NobodyHearsLeader,
}

impl Shape {
    pub(super) const ALL: [Shape; 7] = [
        Shape::OneNeighbour,
        Shape::Hub,
        Shape::Bridge,
        Shape::Chain,
        Shape::Ring,
        Shape::LeaderHearsNobody,
        Shape::NobodyHearsLeader,
    ];

    /// One of them.
    pub(super) fn any(rng: &mut StdRng) -> Shape {
        let number = rng.random_range(0..Shape::ALL.len());
        Shape::ALL.get(number).copied().unwrap_or(Shape::Hub)
    }

    /// The links that it lacks, each in one direction.
    pub(super) fn cuts<T: Copy>(self, members: &[T]) -> Vec<(T, T)> {
        let count = members.len();
        let mut cuts = Vec::new();
        for (number, from) in members.iter().enumerate() {
            for (other, to) in members.iter().enumerate() {
                if number != other && !self.links(number, other, count) {
                    cuts.push((*from, *to));
                }
            }
        }
        cuts
    }

    /// Whether messages pass from one member to another one, of `count` members.
    fn links(self, from: usize, to: usize, count: usize) -> bool {
        let (middle, apart) = (count / 2, from.abs_diff(to));
        match self {
            Shape::OneNeighbour => from.min(to) > 0 || apart == 1,
            Shape::Hub => from == 1 || to == 1,
            Shape::Bridge => from.max(to) <= middle || from.min(to) >= middle,
            Shape::Chain => apart == 1,
            Shape::Ring => apart == 1 || apart + 1 == count,
            Shape::LeaderHearsNobody => to != 0,
            Shape::NobodyHearsLeader => from != 0,
        }
    }

    /// Whether the leader hears less than a majority that hears it.
    pub(super) fn leaves_the_leader_a_minority(self, count: usize) -> bool {
        let both = |other: usize| self.links(0, other, count) && self.links(other, 0, count);
        (1..count).filter(|other| both(*other)).count() < count / 2
    }
}

/// Keeps the network in one shape after another until `end` of virtual time.
pub(super) async fn last(cluster: Arc<Cluster>, links: Arc<Links>, end: Duration) {
    let mut rng = cluster.plan.rng(19);
    loop {
        tokio::time::sleep(Duration::from_millis(rng.random_range(APART_MS))).await;
        if virtual_time() >= end || cluster.faults_ended() {
            return;
        }
        let shape = Shape::any(&mut rng);
        let hosts: Vec<_> = in_order(&cluster, &mut rng);
        cluster.count(FaultKind::HalfConnected.name());
        cluster.count_event("half-connected for long");
        cluster.trace.event(format!("the network is {shape:?} for long, {hosts:?}"));
        for (from, to) in shape.cuts(&hosts) {
            links.cut(from, to);
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(LASTS_MS))).await;
        links.heal();
        cluster.trace.event("all links restored");
    }
}

/// The members' hosts in random order, the leader's first.
pub(super) fn in_order(cluster: &Cluster, rng: &mut StdRng) -> Vec<madsim::task::NodeId> {
    let mut machines: Vec<_> = cluster.machines.iter().collect();
    machines.shuffle(rng);
    machines.sort_by_key(|machine| {
        let status = machine.node().map(|(_, node)| node.replica().status());
        !status.is_some_and(|status| status.role == Role::Leader)
    });
    machines.into_iter().map(|machine| machine.host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_lacks_these_links() {
        // (shape, the links that are left among five members, whether the leader is in a minority)
        let table: [(Shape, &[(u8, u8)], bool); 5] = [
            (Shape::OneNeighbour, &[(0, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)], true),
            (Shape::Hub, &[(0, 1), (1, 2), (1, 3), (1, 4)], true),
            (Shape::Bridge, &[(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4)], false),
            (Shape::Chain, &[(0, 1), (1, 2), (2, 3), (3, 4)], true),
            (Shape::Ring, &[(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)], false),
        ];
        for (shape, left, minority) in table {
            let cuts = shape.cuts(&[0_u8, 1, 2, 3, 4]);
            for (from, to) in (0..5).flat_map(|from| (0..5).map(move |to| (from, to))) {
                let is_left = from == to || left.contains(&(from.min(to), from.max(to)));
                assert_eq!(!cuts.contains(&(from, to)), is_left, "{shape:?}: {from} to {to}");
            }
            assert_eq!(shape.leaves_the_leader_a_minority(5), minority, "{shape:?}");
        }
        assert_eq!(Shape::LeaderHearsNobody.cuts(&[0, 1, 2]), [(1, 0), (2, 0)]);
        assert_eq!(Shape::NobodyHearsLeader.cuts(&[0, 1, 2]), [(0, 1), (0, 2)]);
        assert!(Shape::LeaderHearsNobody.leaves_the_leader_a_minority(3));
        assert!(!Shape::Chain.leaves_the_leader_a_minority(3));
    }
}
