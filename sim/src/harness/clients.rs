//! The clients of a run, on hosts of their own: those whose requests are checked, and one each that fills the data area,
//! owns many keys, or overwrites its own all the time.

use super::cluster::Cluster;
use super::fill::fill;
use super::kinds::FaultKind::Fill;
use super::plan::Plan;
use cairn_client::{Client, Options, ReadFrom};
use cairn_clients::workload::{Bulk, Generator, Recorder, Worker, churn};
use futures::FutureExt;
use madsim::runtime::{Handle, NodeHandle};
use rand::RngExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The number of the client that overwrites its keys all the time.
const CHURN: u64 = 999;
/// The number of the client that owns many keys.
const BULK: u64 = 998;

/// A host for each client.
pub(super) fn hosts(plan: &Plan) -> Vec<NodeHandle> {
    let handle = Handle::current();
    let host = |number: u32| {
        let address =
            std::net::Ipv4Addr::new(10, 0, 1, u8::try_from(number + 1).unwrap_or(u8::MAX));
        handle.create_node().name(format!("client-{number}")).ip(address.into()).build()
    };
    (0..plan.profile.clients).map(host).collect()
}

pub(super) fn client(cluster: &Cluster, number: u64) -> Result<Client, String> {
    let read_from = if number.is_multiple_of(2) { ReadFrom::Leader } else { ReadFrom::Members };
    Options::new(cluster.endpoints())
        .read_from(read_from)
        .deadline(cluster.plan.profile.deadline)
        .attempt_timeout(Duration::from_millis(1_000))
        .connect_timeout(Duration::from_millis(500))
        .seed(cluster.plan.seed.wrapping_mul(1_000).wrapping_add(number))
        .build()
        .map_err(|error| error.to_string())
}

/// Starts the clients whose requests are checked. The first one has this number.
pub(super) fn start(
    cluster: &Cluster,
    hosts: &[NodeHandle],
    first: u32,
    recorder: &Recorder,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<madsim::task::JoinHandle<()>>, String> {
    let profile = &cluster.plan.profile;
    let mut tasks = Vec::new();
    for (number, host) in (0_u32..).zip(hosts) {
        let client = client(cluster, u64::from(first + number))?;
        for task in 0..profile.tasks_per_client {
            let number = first + number * profile.tasks_per_client + task;
            let generator = Generator::new(cluster.plan.seed, number, profile.clone());
            let worker =
                Worker { number, client: client.clone(), generator, recorder: recorder.clone() };
            tasks.push(host.spawn(worker.run(stop.clone()).map(drop)));
        }
    }
    Ok(tasks)
}

/// Starts a client that fills the data area amid the faults.
pub(super) fn start_fill(
    cluster: &Arc<Cluster>,
) -> Result<Option<madsim::task::JoinHandle<()>>, String> {
    if !cluster.plan.decays.contains(&Fill) {
        return Ok(None);
    }
    let mut rng = cluster.plan.rng(9);
    let (after, holds) = (rng.random_range(1_000..25_000), rng.random_range(100..6_000));
    let host = Handle::current()
        .create_node()
        .name("filler")
        .ip(std::net::Ipv4Addr::new(10, 0, 2, 1).into())
        .build();
    let (client, cluster) = (client(cluster, 999)?, cluster.clone());
    Ok(Some(host.spawn(async move {
        tokio::time::sleep(Duration::from_millis(after)).await;
        fill(cluster, client, Duration::from_millis(holds)).await;
    })))
}

/// Wrong listings, and the number of pages read.
pub(super) type Listed = (Vec<String>, u64);

/// The client that owns many keys, if the plan has one.
pub(super) fn start_bulk(
    cluster: &Cluster,
    hosts: &[NodeHandle],
    stop: &Arc<AtomicBool>,
) -> Result<Option<madsim::task::JoinHandle<Listed>>, String> {
    let keys = cluster.plan.bulk_keys;
    let Some(host) = hosts.first().filter(|_| keys > 0) else { return Ok(None) };
    let bulk = Bulk::new(client(cluster, BULK)?, cluster.plan.rng(16), keys, cluster.trace.clone());
    Ok(Some(host.spawn(bulk.run(stop.clone()))))
}

/// The client that overwrites its own keys all the time, if the plan has one.
pub(super) fn start_churn(
    cluster: &Cluster,
    hosts: &[NodeHandle],
    stop: &Arc<AtomicBool>,
) -> Result<Option<madsim::task::JoinHandle<()>>, String> {
    let keys = cluster.plan.churn_keys;
    let Some(host) = hosts.first().filter(|_| keys > 0) else { return Ok(None) };
    let client = client(cluster, CHURN)?;
    Ok(Some(host.spawn(churn(client, cluster.plan.rng(4), keys, stop.clone()))))
}
