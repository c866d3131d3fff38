//! Whether a cluster is well: `cairn health`, and that `cairn status` says the same.
use crate::support::{Cluster, SLOW_ELECTIONS};
use serde_json::Value;

/// A cluster whose members count as machines of their own.
async fn apart() -> Cluster {
    let more = format!("{SLOW_ELECTIONS}mode = \"sync\"");
    let mut cluster = Cluster::format(3, "64MiB", &more);
    for node in 0..cluster.len() {
        let file = cluster.folder.path().join(format!("kernel-{node}"));
        let id = format!("{node}1234567-89ab-cdef-0123-456789abcdef");
        std::fs::write(&file, id).expect("a file");
        cluster.configure(node, &format!("storage.boot_id_file = {file:?}"));
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    cluster
}

fn asked(cluster: &Cluster, more: &[&str]) -> (i32, Value) {
    let ran = cluster.cairn(&[&["health", "-o", "json"], more].concat());
    (ran.code, serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}")))
}

fn finding<'a>(answer: &'a Value, code: &str) -> Option<&'a Value> {
    answer["findings"].as_array().expect("findings").iter().find(|found| found["code"] == code)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_well_until_a_member_is_down_and_well_again_once_it_is_back() {
    let mut cluster = apart().await;
    let (code, answer) = asked(&cluster, &["--wait", "100s"]);
    assert_eq!((code, &answer["well"]), (0, &Value::Bool(true)), "{answer}");

    let away = (cluster.leader().await + 1) % 3;
    let endpoint = cluster.endpoints()[away].clone();
    cluster.kill_node(away);
    let (code, answer) = asked(&cluster, &[]);
    assert_eq!((code, &answer["well"]), (4, &Value::Bool(false)), "{answer}");
    let silent = finding(&answer, "unreachable").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(silent["severity"], "warning", "{answer}");
    assert_eq!(silent["nodes"], serde_json::json!([endpoint]), "{answer}");
    // A wait that ends without a yes has the exit code of its last answer.
    let (code, answer) = asked(&cluster, &["--wait", "1ms"]);
    assert_eq!((code, &answer["well"]), (4, &Value::Bool(false)), "{answer}");
    assert!(finding(&answer, "unreachable").is_some(), "{answer}");
    let words = format!("{endpoint} does not answer: ");
    let text = cluster.cairn(&["health"]);
    assert!(text.code == 4 && text.stdout.contains(&format!("warning: {words}")), "{text:?}");
    let status = cluster.cairn(&["status"]);
    assert!(status.stdout.contains(&words), "{status:?}");

    cluster.start_node(away);
    let (code, answer) = asked(&cluster, &["--wait", "100s"]);
    assert_eq!((code, &answer["well"]), (0, &Value::Bool(true)), "{answer}");

    cluster.kill_all();
    for more in [&[][..], &["--wait", "1ms"]] {
        let (code, answer) = asked(&cluster, more);
        assert_eq!(code, 6, "{more:?}: {answer}");
        let leaderless = finding(&answer, "no_leader").unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(leaderless["severity"], "critical", "{answer}");
    }
}

/// They all run on the machine of the test.
#[tokio::test(flavor = "multi_thread")]
async fn voters_on_one_machine_are_not_well() {
    let cluster = Cluster::start(3, "64MiB", SLOW_ELECTIONS).await;
    let known = async || {
        let (code, answer) = asked(&cluster, &[]);
        let shared = finding(&answer, "voters_fail_together")?.clone();
        Some((code, shared))
    };
    let (code, shared) = cluster.until("the leader knows the machines", known).await;
    assert_eq!((code, &shared["severity"]), (4, &"warning".into()), "{shared}");
    let what = shared["what"].as_str().expect("text");
    assert!(what.starts_with("slots 1, 2 and 3 run on one machine"), "{what}");
}

#[test]
fn a_slot_is_named_only_with_the_question_whether_it_may_be_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = crate::support::run(folder.path(), &["health", "--slot", "1"]);
    assert!(ran.code == 2 && ran.stderr.contains("--safe-to-stop"), "{ran:?}");
}
