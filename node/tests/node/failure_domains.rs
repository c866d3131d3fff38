//! Voters that fail together: the members tell one another on which kernel they run.
use crate::support::{Cluster, SLOW_ELECTIONS, run};
use serde_json::Value;

const KERNELS: [&str; 2] =
    ["01234567-89ab-cdef-0123-456789abcdef", "11234567-89ab-cdef-0123-456789abcdef"];

/// A cluster in mode `replicated` whose members run on these kernels, each with more configuration.
async fn on(kernels: [usize; 3], more: [&str; 3]) -> Cluster {
    let sync =
        "mode = \"replicated\"\nstorage.sync_interval = \"500ms\"\nstorage.sync_bytes = \"2MiB\"";
    // Only a leader knows the machines of the others.
    let mut cluster = Cluster::format(3, "64MiB", &format!("{SLOW_ELECTIONS}{sync}"));
    for (node, (kernel, more)) in kernels.into_iter().zip(more).enumerate() {
        let file = cluster.folder.path().join(format!("kernel-{kernel}"));
        std::fs::write(&file, KERNELS[kernel]).expect("a file");
        cluster.configure(node, &format!("storage.boot_id_file = {file:?}\n{more}"));
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    cluster
}

fn exceptions(cluster: &Cluster) -> Vec<String> {
    let ran = cluster.cairn(&["status", "-o", "json"]);
    let nodes: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let nodes = nodes.as_array().expect("nodes");
    let lists = nodes.iter().filter_map(|node| node["durability"]["exceptions"].as_array());
    lists.flatten().map(|sentence| sentence.as_str().expect("text").to_string()).collect()
}

/// The story: `replicated` promises that one machine's loss of power loses nothing, and said so where
/// two of three voters ran on one machine.
#[tokio::test(flavor = "multi_thread")]
async fn two_voters_on_one_kernel_are_named_with_what_may_be_lost() {
    let rack = "failure_domain = \"rack9\"";
    let cluster = on([0, 0, 1], ["", rack, rack]).await;
    let window = "when it loses power, up to 500 ms or 32 MiB of acknowledged writes may be lost";
    let kernel = format!("slots 1 and 2 run on one machine: {window}");
    let domain = format!("slots 2 and 3 are in failure domain `rack9`: {window}");
    let known = async || (exceptions(&cluster).len() == 2).then_some(());
    cluster.until("the leader knows the machines", known).await;
    assert_eq!(exceptions(&cluster), [kernel.clone(), domain.clone()]);
    let status = cluster.cairn(&["status"]).stdout;
    assert!(status.contains(&format!("but {kernel}")), "{status}");
    assert!(status.contains("up to 500 ms or 32 MiB of acknowledged writes"), "{status}");

    let logged = async || {
        let log = cluster.logs();
        (log.contains(&kernel) && log.contains(&domain)).then_some(())
    };
    cluster.until("the leader logs it", logged).await;
    // Whoever does not answer it within a second is left out.
    let expected = serde_json::json!([kernel, domain]);
    let told = async || {
        let doctor =
            run(cluster.folder.path(), &["doctor", "--config", cluster.config(2), "-o", "json"]);
        let report: Value = serde_json::from_str(&doctor.stdout).expect("JSON");
        (report["verdict"]["exceptions"] == expected).then_some(())
    };
    cluster.until("the doctor is told by the leader", told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_does_not_run_is_judged_by_its_addresses() {
    let cluster = Cluster::format(3, "64MiB", "");
    let doctor = run(cluster.folder.path(), &["doctor", "--config", cluster.config(0)]);
    assert!(
        doctor.stdout.contains("but slots 1, 2 and 3 are configured at one address, 127.0.0.1"),
        "{}",
        doctor.stdout
    );
}
