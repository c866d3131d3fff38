//! The alerts and the dashboard of `deploy/` in a Prometheus that scrapes real processes.
//!
//! What holds here:
//! - each alert of the rule file is walked through once: its cause is made on a cluster of three members, Prometheus
//!   says that it fires, the cause is undone, and it is gone. An alert that nobody walks through fails a test;
//! - an alert whose cause cannot be made here is in [`unmade`], with the reason;
//! - each query of the dashboard returns numbers while clients work.
//!
//! The walks are ignored, since Prometheus and promtool are not part of the build: `./test prometheus` brings them.

mod members;
mod panels;
mod rules;
mod server;
mod service;
mod storage;
mod unmade;
mod walk;

use std::collections::BTreeMap;
use std::time::Duration;

/// How often Prometheus is asked. It scrapes every five seconds.
const POLL: Duration = Duration::from_millis(200);

/// The story of each rule that nobody saw fire: its metric never had that value.
#[test]
fn each_alert_of_the_rule_file_is_in_one_walk_or_says_why_it_is_in_none() {
    let walks: [&[&str]; 14] = [
        &members::OUTAGE,
        &members::BLOCKED,
        &members::LEADERS,
        &members::BEHIND,
        &members::VOTERS,
        &members::TOGETHER,
        &storage::DAMAGED,
        &storage::SUSPECT,
        &storage::FULL,
        &storage::KEYS,
        &storage::SLOW,
        &service::CONNECTIONS,
        &service::CERTIFICATES,
        &service::BACKUPS,
    ];
    let mut walked = BTreeMap::<&str, usize>::new();
    let unmade = unmade::ALERTS.iter().map(|(alert, _)| alert);
    for alert in walks.into_iter().flatten().chain(unmade) {
        *walked.entry(*alert).or_default() += 1;
    }
    let rules = rules::expressions();
    let expected: BTreeMap<&str, usize> = rules.keys().map(|alert| (alert.as_str(), 1)).collect();
    assert_eq!(walked, expected);
}
