//! The status page of real nodes: what it says, and to whom.
use crate::support::stranger::Stranger;
use crate::support::{Cluster, UNHURRIED_ELECTIONS, value_of};
use serde_json::Value;
use std::io::{Read, Write};

/// The head and the body of an answer.
fn ask(address: &str, method: &str, path: &str, host: &str) -> (String, String) {
    let mut stream = std::net::TcpStream::connect(address).expect("HTTP is served");
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn http(cluster: &Cluster, node: usize) -> String {
    value_of(cluster.config(node), "listen.http")
}

/// What a node tells to somebody on its own machine.
fn told(cluster: &Cluster, node: usize) -> Value {
    let address = http(cluster, node);
    let (head, body) = ask(&address, "GET", "/status.json", &address);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"))
}

fn has_finding(told: &Value, code: &str, node: &str) -> bool {
    let found = told["findings"].as_array().expect("findings");
    found.iter().any(|one| one["code"] == code && one["nodes"] == serde_json::json!([node]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_tells_of_all_members_and_another_member_of_itself() {
    let mut cluster = Cluster::start(3, "64MiB", UNHURRIED_ELECTIONS).await;
    cluster.client().put("key", "value").await.expect("written");
    let all_answer = async || {
        let leader = cluster.leader().await;
        let now = told(&cluster, leader);
        let members = now["members"].as_array().expect("members").clone();
        let known = |member: &&Value| member["this"] == true || member["silence_ms"].is_u64();
        // They all run on one machine, as each of them tells the leader.
        let warned = now["verdict"]["severity"] == "warning";
        (members.iter().filter(known).count() == 3 && warned).then_some((leader, now))
    };
    let (leader, now) = cluster.until("the others have answered the leader", all_answer).await;
    assert_eq!((&now["format"], &now["cluster"]), (&1.into(), &"tested".into()), "{now}");
    assert_eq!(now["verdict"]["scope"], "cluster", "{now}");
    let roles: Vec<&Value> = now["members"].as_array().expect("members").iter().collect();
    let leads = roles.iter().filter(|member| member["role"] == "leader").count();
    let votes = roles.iter().filter(|member| member["role"] == "voter").count();
    assert_eq!((leads, votes), (1, 2), "{now}");
    assert!(now["requests"]["write"]["ok"].as_u64() >= Some(1), "{now}");
    assert!(now["requests"]["write"]["seconds"].as_f64() > Some(0.0), "{now}");
    assert!(now["space"]["keys"].as_u64() >= Some(1), "{now}");
    let found = now["findings"].as_array().expect("findings");
    assert!(found.iter().any(|one| one["code"] == "voters_fail_together"), "{now}");

    let other = (leader + 1) % 3;
    let now = told(&cluster, other);
    assert_eq!(now["verdict"]["scope"], "member", "{now}");
    let basis = now["verdict"]["basis"].as_str().expect("text");
    assert!(basis.contains(&format!("slot {} leads", leader + 1)), "{basis}");

    cluster.kill_node(other);
    let name = format!("slot {}", other + 1);
    let found = async || {
        let leader = cluster.leader().await;
        has_finding(&told(&cluster, leader), "unreachable", &name).then_some(())
    };
    cluster.until("the leader misses the member", found).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_and_changes_are_for_who_asks_a_loopback_port_by_its_name() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let ran = cluster.cairn(&["scrub", "start"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let here = told(&cluster, 0);
    assert_eq!(here["changes"][0]["call"], "scrub", "{here}");
    assert_eq!(here["members"][0]["client_address"], cluster.endpoints()[0].as_str(), "{here}");

    let (head, body) = ask(&http(&cluster, 0), "GET", "/status.json", "foreign.example");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let there: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(there["changes"], Value::Null, "{there}");
    assert!(!body.contains(&cluster.endpoints()[0]), "{body}");
    assert_eq!(there["members"][0]["role"], "leader", "{there}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_browser_keeps_an_answer_or_takes_it_for_something_else_and_nothing_is_written() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let address = http(&cluster, 0);
    let (head, _) = ask(&address, "GET", "/status.json", &address);
    for line in [
        "content-type: application/json",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "x-frame-options: DENY",
        "referrer-policy: no-referrer",
        "cross-origin-resource-policy: same-origin",
        "content-security-policy: default-src 'none'",
    ] {
        assert!(head.lines().any(|found| found == line), "{line} of\n{head}");
    }
    for path in ["/", "/status", "/status.json"] {
        for method in ["POST", "PUT", "DELETE"] {
            let (head, _) = ask(&address, method, path, &address);
            assert!(head.starts_with("HTTP/1.1 405"), "{method} {path}: {head}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_says_all_of_it_without_a_script_and_lets_no_other_script_run() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    cluster.client().put("key", "value").await.expect("written");
    let address = http(&cluster, 0);
    for path in ["/", "/status"] {
        let (head, body) = ask(&address, "GET", path, &address);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        for line in ["content-type: text/html; charset=utf-8", "cache-control: no-store"] {
            assert!(head.lines().any(|found| found == line), "{line} of\n{head}");
        }
        let policies: Vec<&str> =
            head.lines().filter(|line| line.starts_with("content-security-policy: ")).collect();
        let [policy] = policies.as_slice() else { panic!("{head}") };
        assert!(policy.contains("script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
        let row = format!(
            "<tr><th scope=\"row\">1, this node</th><td>leader</td><td>–</td><td>–</td><td>{}</td>",
            cluster.endpoints()[0]
        );
        assert!(body.contains(&row), "{row} in\n{body}");
        assert!(body.contains("Cluster tested"), "{body}");
        assert!(body.contains("<a href=\"status.json\">"), "{body}");
        assert!(body.ends_with("</html>\n"), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tls_it_is_for_certificates_of_the_cluster_that_have_a_role() {
    let roles = "access.tester = \"read write operator\"\naccess.reader = \"read\"\n";
    let mut cluster = Cluster::secured(1, "64MiB", roles);
    cluster.start_all().await;
    let certificates = cluster.certificates.as_ref().expect("secured");
    let reader = certificates.ca().issue("client/reader");
    let nobody = certificates.ca().issue("client/nobody");
    let address = http(&cluster, 0);
    for (own, expected) in [(None, "needs a certificate"), (Some(&nobody), "no role on this node")]
    {
        for path in ["/", "/status.json"] {
            let answer = Stranger::new(own).get(&address, path).await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 403") && answer.contains(expected), "{answer}");
        }
    }
    let known = Stranger::new(Some(&reader));
    let answer = known.get(&address, "/status.json").await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(&cluster.endpoints()[0]), "{answer}");
    assert!(answer.contains("\"changes\":["), "{answer}");
}

/// A browser cannot send a token, and a script can.
#[tokio::test(flavor = "multi_thread")]
async fn without_tls_and_with_roles_it_is_for_their_tokens() {
    let hash = cairn_node::access::TokenHash::of(b"secret");
    let roles = format!("access.ada = \"read token:{hash}\"\n");
    let mut cluster = Cluster::format(1, "64MiB", &roles).with_token("secret");
    cluster.start_all().await;
    let address = http(&cluster, 0);
    for path in ["/", "/status.json"] {
        let (head, body) = ask(&address, "GET", path, &address);
        assert!(head.starts_with("HTTP/1.1 403"), "{path}: {head}");
        assert!(body.contains("neither a client certificate nor a token"), "{path}: {body}");
        let host = format!("{address}\r\nAuthorization: Bearer secret");
        let (head, _) = ask(&address, "GET", path, &host);
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        let host = format!("{address}\r\nAuthorization: Bearer other");
        let (head, _) = ask(&address, "GET", path, &host);
        assert!(head.starts_with("HTTP/1.1 403"), "{path}: {head}");
    }
}
