//! What the present members do not allow is refused, with the reason and the way out. Nothing is
//! changed by it.

use crate::support::{Cluster, Ran};
use cairn_client::{Error, MemberChange};
use serde_json::{Value, json};

/// The refusal has these words, in text and in JSON.
fn refused(cluster: &Cluster, arguments: &[&str], words: &[&str]) {
    let said = |ran: &Ran| {
        assert_eq!(ran.code, 4, "{arguments:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{arguments:?}");
        for word in words {
            assert!(ran.stderr.contains(word), "{arguments:?}: {word} is not in {}", ran.stderr);
        }
    };
    said(&cluster.cairn(arguments));
    let ran = cluster.cairn(&[arguments, &["-o", "json"]].concat());
    said(&ran);
    let error: Value = serde_json::from_str(&ran.stderr).expect("one document");
    assert_eq!(error["exit_code"], 4);
}

fn voters(cluster: &Cluster) -> usize {
    let ran = cluster.cairn(&["members", "-o", "json"]);
    let members: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    members.as_array().expect("members").iter().filter(|member| member["voter"] == true).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_voters_of_mode_replicated_stay_three() {
    let cluster = Cluster::start(3, "64MiB", "mode = \"replicated\"").await;
    cluster.client().put("a", "1").await.expect("written");
    let words = ["replicated", "three", "cairn mode set sync"];
    refused(&cluster, &["members", "remove", "3", "--yes"], &words);
    assert_eq!(voters(&cluster), 3);
    assert_eq!(cluster.cairn(&["mode", "set", "sync"]).code, 0);
    assert_eq!(cluster.cairn(&["members", "remove", "3", "--yes"]).code, 0);
    assert_eq!(voters(&cluster), 2);
    refused(&cluster, &["mode", "set", "replicated"], &["three", "cairn members add"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_removed_if_those_that_stay_have_no_majority() {
    let mut cluster = Cluster::start(3, "64MiB", "mode = \"sync\"").await;
    cluster.kill_node(1);
    cluster.client().put("a", "1").await.expect("two of three serve");
    let leader = cluster.leader().await;
    let other = if leader == 0 { "3" } else { "1" };
    let gone = async || {
        let ran = cluster.cairn(&["members", "remove", other, "--yes", "--no-wait"]);
        (ran.code == 4).then_some(ran)
    };
    let ran = cluster.until("a refusal", gone).await;
    assert!(ran.stderr.contains("majority"), "{}", ran.stderr);
    assert_eq!(voters(&cluster), 3);
    // The one that is dead can go.
    assert_eq!(cluster.cairn(&["members", "remove", "2", "--yes"]).code, 0);
    assert_eq!(voters(&cluster), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_neither_added_removed_promoted_nor_moved() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    refused(&cluster, &["members", "add", "2", "--no-wait"], &["slot 2", "join"]);
    refused(&cluster, &["members", "replace", "1", "--no-wait"], &["slot 1", "join"]);
    refused(&cluster, &["members", "promote", "2"], &["slot 2", "learner"]);
    refused(&cluster, &["members", "remove", "2", "--yes"], &["slot 2"]);
    refused(&cluster, &["members", "move", "2", "127.0.0.1:1"], &["slot 2"]);
    refused(&cluster, &["leader", "move", "2"], &["slot 2"]);
    refused(&cluster, &["members", "remove", "1", "--yes"], &["slot 1"]);
    refused(&cluster, &["mode", "set", "replicated"], &["three"]);
    assert_eq!(voters(&cluster), 1);
    cluster.client().put("a", "1").await.expect("it serves");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_lacks_entries_is_not_promoted() {
    let mut cluster = Cluster::growing_insecure(4, "64MiB", "");
    for node in 0..3 {
        cluster.start_node(node);
        if node > 0 {
            let slot = (node + 1).to_string();
            assert_eq!(cluster.cairn(&["members", "add", &slot]).code, 0, "{}", cluster.logs());
        }
    }
    let client = cluster.client();
    let value = vec![7; 64 << 10];
    for number in 0..200 {
        client.put(format!("key{}", number % 100), value.clone()).await.expect("written");
    }
    // It is added, and killed before it can have everything.
    cluster.start_node(3);
    let operator = client.operator();
    let learner = async || {
        operator.change_members(&MemberChange::Add(4)).await.ok()?;
        let members = client.members().await.expect("a node answers");
        members.iter().any(|member| member.slot == 4).then_some(())
    };
    cluster.until("slot 4 is a learner", learner).await;
    cluster.kill_node(3);
    for number in 0..200 {
        client.put(format!("more{number}"), value.clone()).await.expect("written");
    }
    let member = client.members().await.expect("a node answers");
    let member = member.into_iter().find(|member| member.slot == 4).expect("a learner");
    if member.voter {
        println!("SKIPPED: slot 4 had everything before it was killed, so nothing refuses it");
        return;
    }
    refused(&cluster, &["members", "promote", "4"], &["slot 4"]);
    assert_eq!(voters(&cluster), 3);
    cluster.start_node(3);
    assert_eq!(cluster.cairn(&["members", "add", "4"]).code, 0);
    assert_eq!(voters(&cluster), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_before_anybody_is_asked() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    for (arguments, word) in [
        (&["members", "add", "0"][..], "0"),
        (&["members", "add", "70000"], "70000"),
        (&["members", "move", "1", "0.0.0.0:7401"], "nobody reaches a member there"),
        (&["members", "move", "1", "here"], "expected host:port"),
        (&["members", "remove", "1"], "add --yes"),
        (&["members", "remove", "1", "-o", "json"], "add --yes"),
        (&["mode", "set", "fast"], "fast"),
        (&["leader", "drain", "7"], "no member has slot 7; the members are slots 1"),
        (&["leader", "drain", "1", "--for", "1year"], "at most 7 days"),
        (&["leader", "drain", "1", "--for", "1m", "--end"], "--end"),
    ] {
        let ran = cluster.cairn(arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(word), "{arguments:?}: {word} is not in {}", ran.stderr);
    }
    assert_eq!(voters(&cluster), 1);
    let set = cluster.client().operator().set_mode("fast").await;
    assert!(matches!(set, Err(Error::InvalidRequest(_))), "{set:?}");
    assert_eq!(json!(cluster.client().members().await.expect("served").len()), json!(1));
}
