//! `cairn watch` on real processes: each change is a line, and the position at the end is one to go on from.

use crate::support::{Cluster, WAIT_LIMIT, finish, refused};
use cairn_launch::Signal;
use rustix::process::{Pid, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc;

/// `cairn watch` while it runs.
struct Watching {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Watching {
    fn start(cluster: &Cluster, arguments: &[&str]) -> Watching {
        let mut child = cluster.spawn(&[&["watch"][..], arguments].concat());
        let printed = BufReader::new(child.stdout.take().expect("piped"));
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for printed in printed.lines().map_while(Result::ok) {
                if line.send(printed).is_err() {
                    break;
                }
            }
        });
        Watching { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(WAIT_LIMIT).expect("a line")
    }

    /// Ends it as Ctrl-C does. Returns what it says on standard error.
    fn interrupt(self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("our own child");
        let ran = finish(self.child);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stderr
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_prints_a_line_for_each_change_and_says_where_to_go_on() {
    let cluster = Cluster::start(3, "64MiB", "").await;
    let client = cluster.client();
    let before = client.put("app/before", "0").await.expect("written");
    let from = format!("{}.{}", before.term, before.version);
    let watching = Watching::start(&cluster, &["app/", "--from", &from]);
    let put = client.put("app/a\n", "1").await.expect("written");
    client.put("other", "2").await.expect("written");
    let gone = client.delete("app/a\n").await.expect("deleted");
    assert_eq!(watching.line(), format!("{}\tput\tapp/a\\n\t1", put.version));
    assert_eq!(watching.line(), format!("{}\tdelete\tapp/a\\n", gone.version));
    let said = watching.interrupt();
    let position = said.split_once("--from ").and_then(|(_, rest)| rest.split(' ').next());
    let position = position.unwrap_or_else(|| panic!("{said}")).to_owned();

    let watching = Watching::start(&cluster, &["app/", "--from", &position, "-o", "json"]);
    let last = client.put("app/b", "3").await.expect("written");
    // The signal may have come before the line that was printed last counted.
    let told = loop {
        let told: Value = serde_json::from_str(&watching.line()).expect("a document");
        if told["version"] != json!(gone.version.0) {
            break told;
        }
    };
    let expected = json!({
        "key": "app/b", "value": "3", "version": last.version.0, "term": last.term,
        "deleted": false, "previous": null, "last_of_version": true,
    });
    assert_eq!(told, expected);
    let said: Value = serde_json::from_str(&watching.interrupt()).expect("a document");
    let position = said["position"].as_str().expect("a position").to_owned();
    assert!(position.split_once('.').is_some(), "{position}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_nobody_can_go_on_from_is_refused_with_a_way_out() {
    let cluster = Cluster::start(1, "64MiB", "").await;
    cluster.client().put("key", "value").await.expect("written");
    refused(&cluster.cairn(&["watch", "--from", "3"]), 2, &["`3`", "such as 3.17"]);
    // No leader of this cluster had that term.
    let gone = cluster.cairn(&["watch", "--from", "999.1"]);
    refused(&gone, 3, &["cairn watch", "cairn list"]);
    assert!(!gone.stderr.contains("goes on behind it"), "{gone:?}");
}
