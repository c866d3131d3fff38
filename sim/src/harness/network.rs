//! Links between hosts: cut in one direction or both, lossy or slow.

use super::clock::virtual_time;
use super::plan::Plan;
use madsim::net::NetSim;
use madsim::task::NodeId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The kinds of disturbance of all links.
const ROUGH: usize = 0;
const LATE: usize = 1;

/// The network between all hosts of the run.
pub(super) struct Links {
    net: Arc<NetSim>,
    hosts: Vec<NodeId>,
    latency: Range<Duration>,
    /// For each kind whether it is on: messages are lost or slow, some requests are late.
    disturbed: [AtomicBool; 2],
    cuts: Mutex<Cuts>,
}

/// The links that are cut, each in one direction, and when that changed last.
#[derive(Default)]
struct Cuts {
    links: BTreeSet<(NodeId, NodeId)>,
    changed_at: Duration,
}

impl Links {
    /// The simulation's network with the plan's usual latency.
    pub(super) fn new(plan: &Plan, hosts: Vec<NodeId>) -> Links {
        let links = Links {
            net: NetSim::current(),
            hosts,
            latency: plan.latency.clone(),
            disturbed: Default::default(),
            cuts: Mutex::default(),
        };
        links.restore_quality();
        links
    }

    /// Ends all partitions.
    pub(super) fn heal(&self) {
        *self.cuts.lock() = Cuts { links: BTreeSet::new(), changed_at: virtual_time() };
        for from in &self.hosts {
            for to in &self.hosts {
                self.net.unclog_link(*from, *to);
            }
        }
    }

    /// Drops messages from `from` to `to`.
    pub(super) fn cut(&self, from: NodeId, to: NodeId) {
        let mut cuts = self.cuts.lock();
        if cuts.links.insert((from, to)) {
            cuts.changed_at = virtual_time();
        }
        self.net.clog_link(from, to);
    }

    /// Drops messages between all hosts of one side and all of the other.
    pub(super) fn cut_between(&self, side: &[NodeId], other: &[NodeId]) {
        for one in side {
            for two in other {
                self.cut(*one, *two);
                self.cut(*two, *one);
            }
        }
    }

    /// Delays one request in ten by seconds, or stops that.
    pub(super) fn late(&self, some: bool) {
        self.set(LATE, some);
        match some {
            true => madsim::buggify::enable(),
            false => madsim::buggify::disable(),
        }
    }

    /// Restores the usual latency, without loss.
    pub(super) fn restore_quality(&self) {
        self.late(false);
        self.set_quality(0.0, self.latency.clone());
    }

    /// Sets the share of lost messages (a stream sends them again, later) and the range of delays.
    /// Delays differ, so that messages of different connections overtake each other.
    pub(super) fn set_quality(&self, loss: f64, latency: Range<Duration>) {
        self.set(ROUGH, loss > 0.0 || latency != self.latency);
        self.net.update_config(|config| {
            config.packet_loss_rate = loss;
            config.send_latency = latency;
        });
    }

    fn set(&self, what: usize, on: bool) {
        if let Some(disturbed) = self.disturbed.get(what) {
            disturbed.store(on, Ordering::Relaxed);
        }
    }

    /// Whether every message arrives that is sent on a link that is not cut, as fast as usual.
    pub(super) fn undisturbed(&self) -> bool {
        self.disturbed.iter().all(|disturbed| !disturbed.load(Ordering::Relaxed))
    }

    /// When a link was cut or restored last.
    pub(super) fn changed_at(&self) -> Duration {
        self.cuts.lock().changed_at
    }

    /// Whether no link is cut.
    pub(super) fn all_pass(&self) -> bool {
        self.cuts.lock().links.is_empty()
    }

    /// Whether messages pass between each two of these hosts, in both directions.
    pub(super) fn connects(&self, hosts: &BTreeSet<NodeId>) -> bool {
        let cuts = &self.cuts.lock().links;
        !cuts.iter().any(|(from, to)| hosts.contains(from) && hosts.contains(to))
    }

    /// Messages sent so far.
    pub(super) fn messages(&self) -> u64 {
        self.net.stat().msg_count
    }
}
