//! What the present members do not allow is refused, with the reason and the way out. Nothing is
//! changed by it.

use crate::support::{Cluster, Ran, SLOW_ELECTIONS, UNHURRIED_ELECTIONS};
use cairn_client::{Error, MemberChange, Mode};
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

/// The leader counts this slot as active and reachable, or not.
async fn counts(cluster: &Cluster, slot: u16, healthy: bool) {
    let operator = cluster.client().operator();
    let counted = async || match operator.move_leader(Some(slot)).await {
        Ok(_) => healthy.then_some(()),
        Err(Error::Refused { message }) => {
            (!healthy && message.contains("not active and reachable")).then_some(())
        }
        Err(_) => None,
    };
    cluster.until("the leader knows who is there", counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_voters_of_mode_replicated_stay_three() {
    // A member counts as reachable for as long as the shortest election timeout.
    let more = format!("{SLOW_ELECTIONS}mode = \"replicated\"");
    let cluster = Cluster::start(3, "64MiB", &more).await;
    cluster.client().put("a", "1").await.expect("written");
    for slot in [3, 2, 1] {
        counts(&cluster, slot, true).await;
    }
    let words = ["mode `replicated` needs 3 or more", "`cairn mode set sync` first"];
    refused(&cluster, &["members", "remove", "3", "--yes"], &words);
    assert_eq!(voters(&cluster), 3);
    assert_eq!(cluster.cairn(&["mode", "set", "sync"]).code, 0);
    assert_eq!(cluster.cairn(&["members", "remove", "3", "--yes"]).code, 0);
    assert_eq!(voters(&cluster), 2);
    let words = ["needs 3 voters or more", "this cluster has 2", "add members"];
    refused(&cluster, &["mode", "set", "replicated"], &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_removed_if_those_that_stay_have_no_majority() {
    let more = format!("{UNHURRIED_ELECTIONS}mode = \"sync\"");
    let mut cluster = Cluster::start(3, "64MiB", &more).await;
    cluster.kill_node(1);
    cluster.client().put("a", "1").await.expect("two of three serve");
    counts(&cluster, 2, false).await;
    let leader = cluster.leader().await;
    let other = if leader == 0 { "3" } else { "1" };
    let words =
        ["of the 2 voters after this change, 1 would not be active and reachable", "back first"];
    refused(&cluster, &["members", "remove", other, "--yes"], &words);
    assert_eq!(voters(&cluster), 3);
    // The one that is dead can go.
    assert_eq!(cluster.cairn(&["members", "remove", "2", "--yes"]).code, 0);
    assert_eq!(voters(&cluster), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_neither_added_promoted_moved_nor_led_by() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    let words = "no node of slot 2 asks to join: start one";
    let waits = async || {
        let ran = cluster.cairn(&["members", "add", "2", "--timeout", "1s"]);
        assert_ne!(ran.code, 0, "{ran:?}");
        // A second may be over before the leader has answered.
        ran.stderr.contains(words).then_some(ran)
    };
    let ran = cluster.until(words, waits).await;
    assert_eq!(ran.code, 6, "{ran:?}");
    assert!(ran.stderr.contains("the same command goes on from there"), "{ran:?}");
    let ran = cluster.cairn(&["members", "add", "2", "--no-wait"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains(&format!("not done yet: {words}")), "{ran:?}");
    let words = ["is the only voter", "`cairn members add` another slot first"];
    refused(&cluster, &["members", "replace", "1"], &words);
    let ran = cluster.cairn(&["members", "replace", "2"]);
    assert!(ran.code == 2 && ran.stderr.contains("`cairn members add 2`"), "{ran:?}");
    refused(
        &cluster,
        &["members", "promote", "2"],
        &["slot 2 has no learner: `cairn members add 2`"],
    );
    refused(&cluster, &["members", "move", "2", "127.0.0.1:1"], &["slot 2 is not a member"]);
    refused(
        &cluster,
        &["members", "move", "1", "127.0.0.1:1"],
        &["does not answer at 127.0.0.1:1"],
    );
    refused(&cluster, &["leader", "move", "2"], &["slot 2 has no voter"]);
    refused(&cluster, &["leader", "drain", "1"], &["no other voter could take over"]);
    refused(&cluster, &["members", "remove", "1", "--yes"], &["the last voter", "stop its node"]);
    refused(&cluster, &["mode", "set", "replicated"], &["needs 3 voters or more"]);
    assert_eq!(voters(&cluster), 1);
    cluster.client().put("a", "1").await.expect("it serves");
    let nobody = cluster.cairn(&["members", "remove", "2", "--yes"]);
    assert_eq!(nobody.code, 2, "{nobody:?}");
    assert!(nobody.stderr.contains("no member has slot 2; the members are slots 1"), "{nobody:?}");
    // Repeated until it is done. What is gone is gone.
    let remove = ["members", "remove", "2", "--yes", "--no-wait"];
    assert_eq!(cluster.cairn(&remove).code, 0);
    // The story: a job in Kubernetes that had removed its first slot failed later. It never succeeded again.
    let remove = ["members", "remove", "2", "--yes", "--if-member"];
    assert_eq!(cluster.cairn(&remove).code, 0);
    // The story: nobody of that slot was a member, so the replacement counted as done.
    let replace = MemberChange::Replace(9 << 48 | 5);
    let refused = cluster.client().operator().change_members(&replace).await;
    let words = "no member has slot 9, so there is nobody to replace: `cairn members add 9`";
    assert_eq!(refused, Err(Error::Refused { message: words.into() }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_lacks_entries_is_not_promoted() {
    let mut cluster = Cluster::growing_insecure(4, "64MiB", SLOW_ELECTIONS);
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
    refused(&cluster, &["members", "promote", "4"], &["learner 4."]);
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
    let set = cluster.client().operator().set_mode(Mode::Unknown).await;
    assert!(matches!(set, Err(Error::InvalidRequest(_))), "{set:?}");
    assert_eq!(json!(cluster.client().members().await.expect("served").len()), json!(1));
}
