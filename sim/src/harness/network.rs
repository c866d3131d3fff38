//! Links between hosts: cut in one direction or both, lossy or slow.

use super::plan::Plan;
use madsim::net::NetSim;
use madsim::task::NodeId;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The network between all hosts of the run.
pub(super) struct Links {
    net: Arc<NetSim>,
    hosts: Vec<NodeId>,
    latency: Range<Duration>,
}

impl Links {
    /// The simulation's network with the plan's usual latency.
    pub(super) fn new(plan: &Plan, hosts: Vec<NodeId>) -> Links {
        let links = Links { net: NetSim::current(), hosts, latency: plan.latency.clone() };
        links.calm();
        links
    }

    /// Lets every message through again.
    pub(super) fn heal(&self) {
        for from in &self.hosts {
            for to in &self.hosts {
                self.net.unclog_link(*from, *to);
            }
        }
    }

    /// Stops messages from `from` to `to`.
    pub(super) fn cut(&self, from: NodeId, to: NodeId) {
        self.net.clog_link(from, to);
    }

    /// Stops messages between all hosts of one side and all of the other.
    pub(super) fn part(&self, side: &[NodeId], other: &[NodeId]) {
        for one in side {
            for two in other {
                self.cut(*one, *two);
                self.cut(*two, *one);
            }
        }
    }

    /// Makes one request in ten take seconds to arrive, or no longer.
    pub(super) fn late(&self, some: bool) {
        match some {
            true => madsim::buggify::enable(),
            false => madsim::buggify::disable(),
        }
    }

    /// Usual latency, no loss.
    pub(super) fn calm(&self) {
        self.late(false);
        self.weather(0.0, self.latency.clone());
    }

    /// Loses this share of messages (a stream's are sent again, later), and delays each by a time from this range, so
    /// that messages of different connections overtake each other.
    pub(super) fn weather(&self, loss: f64, latency: Range<Duration>) {
        self.net.update_config(|config| {
            config.packet_loss_rate = loss;
            config.send_latency = latency;
        });
    }

    /// Messages sent so far.
    pub(super) fn messages(&self) -> u64 {
        self.net.stat().msg_count
    }
}
