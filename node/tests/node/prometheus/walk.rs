//! A walk through alerts on one cluster: each fires once its cause is there, and is gone once it is undone.
//!
//! What holds here: a walk is done only if each of its alerts fired and then was gone. An alert that looks back over a
//! window stays for that window, an hour or more. Of such a one the walk waits until its expression finds nothing in
//! the last minute. One that goes by what a member said last is gone at once when the member says something else.

use super::rules;
use super::server::Prometheus;
use crate::support::{Cluster, value_of};
use std::cell::RefCell;
use std::collections::BTreeSet;

pub struct Walk {
    prometheus: Prometheus,
    alerts: &'static [&'static str],
    fired: RefCell<BTreeSet<&'static str>>,
    gone: RefCell<BTreeSet<&'static str>>,
}

impl Walk {
    /// Lets a Prometheus scrape this cluster. Its causes are not there yet. Returns once each node that runs was
    /// scraped and none of the alerts fires: one may have, while a slow machine did not answer.
    pub async fn start(cluster: &Cluster, alerts: &'static [&'static str]) -> Walk {
        let prometheus = Prometheus::start(cluster).await;
        let running = (0..cluster.len()).filter(|node| cluster.runs(*node));
        let instance = |node| value_of(cluster.config(node), "listen.http");
        let running: Vec<String> = running.map(instance).collect();
        let begins = async || {
            running.iter().all(|instance| prometheus.is_up(instance))
                && !alerts.iter().any(|alert| prometheus.fires(alert))
        };
        let what = "each node that runs is scraped, and no alert fires before its cause";
        prometheus.until(what, begins).await;
        Walk { prometheus, alerts, fired: RefCell::default(), gone: RefCell::default() }
    }

    pub fn prometheus(&self) -> &Prometheus {
        &self.prometheus
    }

    /// Waits until it fires.
    pub async fn fires(&self, alert: &'static str) {
        self.fires_while(alert, async || {}).await;
    }

    /// Does this over and over until it fires.
    pub async fn fires_while(&self, alert: &'static str, mut cause: impl AsyncFnMut()) {
        assert!(self.alerts.contains(&alert), "{alert} is not in this walk");
        let fires = async || {
            let fires = self.prometheus.fires(alert);
            if !fires {
                cause().await;
            }
            fires
        };
        self.prometheus.until(&format!("{alert} fires"), fires).await;
        println!("{alert} fires");
        self.fired.borrow_mut().insert(alert);
    }

    /// Waits until it is gone, while each node is scraped.
    pub async fn is_gone(&self, alert: &'static str) {
        assert!(self.fired.borrow().contains(alert), "{alert} did not fire");
        let expressions = rules::expressions();
        let expression = expressions.get(alert).expect("a rule");
        let now = rules::of_now(expression);
        let looks_back = now != *expression && !expression.contains("last_over_time(");
        let gone = async || {
            // A node that is not scraped has nothing that an expression could find.
            let all_scraped = self.prometheus.query("up == 0").is_empty();
            let finds = !self.prometheus.query(&now).is_empty();
            all_scraped && !finds && (looks_back || !self.prometheus.fires(alert))
        };
        self.prometheus.until(&format!("{alert} is gone"), gone).await;
        println!("{alert} is gone");
        self.gone.borrow_mut().insert(alert);
    }

    pub fn done(self) {
        let expected: BTreeSet<&str> = self.alerts.iter().copied().collect();
        assert_eq!(self.gone.into_inner(), expected, "each fired and was gone");
    }
}
