//! Alerts of what a node serves and does beside its writes: connections, certificates, backups.

use super::walk::Walk;
use crate::backup_schedule::reload;
use crate::support::certificates::Ca;
use crate::support::{Cluster, SLOW_ELECTIONS};
use cairn_tls::issue::Validity;
use tonic::transport::Channel;

pub const CONNECTIONS: [&str; 1] = ["CairnConnectionsNearLimit"];
pub const CERTIFICATES: [&str; 2] = ["CairnCertificateExpires", "CairnCertificateEnds"];
pub const BACKUPS: [&str; 2] = ["CairnBackupFails", "CairnBackupMissing"];

/// The connections that a node of the walk may have, and so many that it has nearly as many.
const CONNECTIONS_MAX: usize = 100;
const NEARLY: usize = 95;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn a_port_that_has_nearly_all_its_connections_fires_until_clients_leave() {
    let more = format!("{SLOW_ELECTIONS}limits.max_connections = {CONNECTIONS_MAX}");
    let cluster = Cluster::start(3, "64MiB", &more).await;
    let walk = Walk::start(&cluster, &CONNECTIONS).await;
    let mut open: Vec<Channel> = Vec::new();
    for _ in 0..NEARLY {
        let endpoint = format!("http://{}", cluster.endpoints()[0]);
        let channel = Channel::from_shared(endpoint).expect("a URI").connect().await;
        open.push(channel.expect("it listens"));
    }
    walk.fires("CairnConnectionsNearLimit").await;
    drop(open);
    walk.is_gone("CairnConnectionsNearLimit").await;
    walk.done();
}

/// Gives the first member a certificate that is valid for so many days. It uses it without a restart.
fn renew(cluster: &Cluster, ca: &Ca, days: u32) {
    let certificates = cluster.certificates.as_ref().expect("secured");
    let own = ca.issue_for("member/1", Validity::days(days));
    certificates.install("member-1", &ca.pem, &own);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn a_certificate_that_ends_soon_fires_until_it_is_replaced() {
    let mut cluster = Cluster::secured(3, "64MiB", SLOW_ELECTIONS);
    cluster.start_all().await;
    let ca = cluster.certificates.as_ref().expect("secured").ca();
    let walk = Walk::start(&cluster, &CERTIFICATES).await;
    renew(&cluster, &ca, 10);
    walk.fires("CairnCertificateExpires").await;
    assert!(!walk.prometheus().fires("CairnCertificateEnds"), "it is valid for ten days");
    renew(&cluster, &ca, 2);
    walk.fires("CairnCertificateEnds").await;
    renew(&cluster, &ca, 300);
    walk.is_gone("CairnCertificateEnds").await;
    walk.is_gone("CairnCertificateExpires").await;
    walk.done();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: ./test prometheus"]
async fn backups_that_fail_fire_until_their_folder_is_there() {
    let mut cluster = Cluster::format(3, "64MiB", SLOW_ELECTIONS);
    let target = cluster.folder.path().join("saved");
    for node in 0..3 {
        let lines = format!("backup.target = {target:?}\nbackup.every = \"1h\"\nbackup.keep = 2");
        cluster.configure(node, &lines);
    }
    // Before the nodes start: their first look at the target fails.
    let walk = Walk::start(&cluster, &BACKUPS).await;
    cluster.start_all().await;
    walk.fires("CairnBackupMissing").await;
    // It is tried again after pauses that grow.
    walk.fires("CairnBackupFails").await;
    std::fs::create_dir(&target).expect("a folder");
    // A schedule that is read again is tried at once.
    for node in 0..3 {
        reload(&mut cluster, node, "backup.keep = 2", "backup.keep = 3");
    }
    walk.is_gone("CairnBackupMissing").await;
    walk.is_gone("CairnBackupFails").await;
    walk.done();
}
