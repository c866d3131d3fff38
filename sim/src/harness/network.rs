//! Links between hosts: cut in one direction or both, lossy or slow.

use super::plan::Plan;
use madsim::net::NetSim;
use madsim::task::NodeId;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The kinds of trouble.
const CUT: usize = 0;
const ROUGH: usize = 1;
const LATE: usize = 2;

/// The network between all hosts of the run.
pub(super) struct Links {
    net: Arc<NetSim>,
    hosts: Vec<NodeId>,
    latency: Range<Duration>,
    /// Links are cut, messages are lost or slow, or some are late.
    trouble: [AtomicBool; 3],
}

impl Links {
    /// The simulation's network with the plan's usual latency.
    pub(super) fn new(plan: &Plan, hosts: Vec<NodeId>) -> Links {
        let trouble = Default::default();
        let links = Links { net: NetSim::current(), hosts, latency: plan.latency.clone(), trouble };
        links.calm();
        links
    }

    /// Lets every message through again.
    pub(super) fn heal(&self) {
        self.is(CUT, false);
        for from in &self.hosts {
            for to in &self.hosts {
                self.net.unclog_link(*from, *to);
            }
        }
    }

    /// Stops messages from `from` to `to`.
    pub(super) fn cut(&self, from: NodeId, to: NodeId) {
        self.is(CUT, true);
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
        self.is(LATE, some);
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
        self.is(ROUGH, loss > 0.0 || latency != self.latency);
        self.net.update_config(|config| {
            config.packet_loss_rate = loss;
            config.send_latency = latency;
        });
    }

    fn is(&self, what: usize, so: bool) {
        if let Some(trouble) = self.trouble.get(what) {
            trouble.store(so, Ordering::Relaxed);
        }
    }

    /// Whether every message gets through, as fast as usual.
    pub(super) fn calm_and_whole(&self) -> bool {
        self.trouble.iter().all(|trouble| !trouble.load(Ordering::Relaxed))
    }

    /// Messages sent so far.
    pub(super) fn messages(&self) -> u64 {
        self.net.stat().msg_count
    }
}
