//! The status page in a real browser: what a person sees of a cluster under load, in light and dark, on a wide and a
//! narrow window, with the keyboard alone, to a screen reader, and without JavaScript.
//!
//! What holds here: each state is a screenshot in `target/browser`. The page asks by itself; nothing here loads it anew
//! to see what has changed.

mod devtools;
mod page;

use crate::support::{Cluster, POLL, SLOW_ELECTIONS, http_get, value_of};
use cairn_client::ListOptions;
use cairn_launch::quoted;
use page::{Page, UNANSWERED};
use serde_json::Value;
use std::collections::BTreeSet;
use tokio::task::JoinHandle;

const CONTRAST: &str = include_str!("browser/contrast.js");
const OVERFLOW: &str = include_str!("browser/overflow.js");

/// Ends whatever it stands in, and sets `ran` if anything of it runs.
const HOSTILE: &str = "'\"><script>ran=1</script><img src=x onerror=ran=1>";
/// What the page says of a domain of that name.
const SHARED: &str = "are in failure domain `'\"><script>ran=1</script><img src=x onerror=ran=1>`";

/// The plots that must have lines under load. The others may have gaps: nothing was synced, or refused.
const DRAWN: [&str; 12] = [
    "Writes per second",
    "Gets per second",
    "Lists per second",
    "Time of a write, mean",
    "Time of a get, mean",
    "Append to the log, p99 at most",
    "Entries behind, worst member",
    "Not synced yet",
    "Written to the device per second",
    "Data area in use",
    "Space for keys in use",
    "Journal in use",
];
const PLOTS: usize = 15;

/// Three members on a kernel each, so that none of them fails with another one, in this failure domain.
async fn cluster(domain: &str) -> Cluster {
    let synced = "mode = \"replicated\"\nstorage.sync_interval = \"500ms\"\n";
    // Only a leader knows of the others.
    let mut cluster = Cluster::format(3, "64MiB", &format!("{SLOW_ELECTIONS}{synced}"));
    for node in 0..cluster.len() {
        let file = cluster.folder.path().join(format!("kernel-{node}"));
        std::fs::write(&file, format!("{node}1234567-89ab-cdef-0123-456789abcdef"))
            .expect("a file");
        let own = format!("storage.boot_id_file = {file:?}\nfailure_domain = {}", quoted(domain));
        cluster.configure(node, &own);
        cluster.start_node(node);
    }
    cluster.wait_ready().await;
    cluster
}

/// Requests of each kind, over and over.
fn load(cluster: &Cluster) -> JoinHandle<()> {
    let client = cluster.client();
    tokio::spawn(async move {
        for _ in 0..u64::MAX {
            client.put("key", "value").await.ok();
            client.get("key").await.ok();
            client.list(ListOptions::prefix("key")).await.ok();
            tokio::time::sleep(POLL).await;
        }
    })
}

fn http(cluster: &Cluster, node: usize) -> String {
    value_of(cluster.config(node), "listen.http")
}

/// What the node tells programs.
fn told(cluster: &Cluster, node: usize) -> Value {
    let answer = http_get(&http(cluster, node), "/status.json");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"))
}

/// The slot, role and addresses of each member by `cairn status -o json`, in the words of the page; `None` while not
/// all answer.
fn members(cluster: &Cluster) -> Option<BTreeSet<[String; 4]>> {
    let ran = cluster.cairn(&["status", "-o", "json"]);
    let nodes: Value = serde_json::from_str(&ran.stdout).ok()?;
    let nodes = nodes.as_array()?;
    let leader = nodes.iter().find(|node| node["role"] == "leader")?;
    let row = |member: &Value| {
        let own = nodes.iter().find(|node| node["node_id"] == member["node_id"])?;
        let role = match own["role"].as_str()? {
            "leader" => "leader",
            _ if member["voter"] == true => "voter",
            _ => "learner",
        };
        let text = |name: &str| member[name].as_str().map(str::to_owned);
        Some([
            member["slot"].to_string(),
            role.to_owned(),
            text("client_address")?,
            text("peer_address")?,
        ])
    };
    leader["members"].as_array()?.iter().map(row).collect()
}

/// The same by the page's table.
fn members_shown(page: &mut Page) -> BTreeSet<[String; 4]> {
    let row = |row: Vec<String>| {
        let row: [String; 6] = row.try_into().expect("six columns");
        let [slot, role, _, _, client, peer] = row;
        [slot.replace(", this node", ""), role, client, peer]
    };
    page.rows("#members").into_iter().map(row).collect()
}

/// The name, the line and the last value of each plot.
fn plots(page: &mut Page) -> Vec<[String; 3]> {
    let script = "[...document.querySelectorAll('#plots figure')].map((plot) => [
        plot.querySelector('figcaption span').textContent,
        plot.querySelector('path').getAttribute('d') || '',
        plot.querySelector('figcaption span:last-child').textContent])";
    let plots = page.eval(script);
    serde_json::from_value(plots).expect("plots")
}

fn finds(told: &Value, code: &str, name: &str) -> bool {
    let mut found = told["findings"].as_array().expect("findings").iter();
    found.any(|one| one["code"] == code && one["nodes"] == serde_json::json!([name]))
}

fn names(page: &mut Page, words: &str) -> bool {
    page.texts("#findings li").iter().any(|line| line.contains(words))
}

fn is_quiet(page: &Page) {
    assert_eq!(page.foreign_requests(), Vec::<String>::new());
    assert_eq!(page.faults(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: ./test browser"]
async fn a_person_sees_members_and_live_plots_and_that_one_is_gone_and_that_it_is_back() {
    let mut cluster = cluster("none").await;
    let leader = cluster.leader().await;
    let load = load(&cluster);
    let audited = cluster.cairn_at(leader, &["scrub", "start"]);
    assert_eq!(audited.code, 0, "{audited:?}");
    let mut page = Page::open(&http(&cluster, leader));

    let agree = async || (members(&cluster)? == members_shown(&mut page)).then_some(());
    cluster.until("the page shows what `cairn status` says", agree).await;
    assert_eq!(page.rows("#members").len(), 3);
    let calls = page.rows("#changes");
    assert!(calls.iter().any(|call| call.get(1).is_some_and(|call| call == "scrub")), "{calls:?}");

    let drawn = async || {
        let plots = plots(&mut page);
        assert_eq!(plots.len(), PLOTS, "{plots:?}");
        let has_line = |name: &str| {
            let mut named = plots.iter().filter(|plot| plot[0] == name);
            named.any(|plot| plot[1].matches('L').count() >= 3)
        };
        // Its value is not 0.
        let writes = plots[0][2].contains(|digit: char| ('1'..='9').contains(&digit));
        (writes && DRAWN.iter().all(|name| has_line(name))).then_some(())
    };
    cluster.until("each plot has a line", drawn).await;

    let other = (leader + 1) % 3;
    let name = format!("slot {}", other + 1);
    let same = async || {
        page.look_again();
        let now = told(&cluster, leader);
        let said = [page.text("#verdict b"), page.text("#verdict span")];
        let found = [&now["verdict"]["severity"], &now["verdict"]["words"]];
        let found = found.map(|text| text.as_str().unwrap_or_default().to_owned());
        (said == found && !names(&mut page, &name)).then_some(said)
    };
    let before = cluster.until("the page has the verdict of the node", same).await;
    println!("the verdict is {before:?}");
    page.shoot("running");

    cluster.kill_node(other);
    let missed = async || finds(&told(&cluster, leader), "unreachable", &name).then_some(());
    cluster.until("the leader misses the member", missed).await;
    page.look_again();
    assert!(names(&mut page, &name), "{:?}", page.texts("#findings li"));
    assert_ne!(page.text("#verdict b"), "well");
    // Of what is as grave the first one is the verdict.
    let first = page.text("#verdict span").contains(&name);
    assert!(first || before[0] != "well", "{}", page.text("#verdict"));
    assert_eq!(page.rows("#members").len(), 3);
    page.shoot("member-gone");

    cluster.start_node(other);
    let there = async || {
        page.look_again();
        (!names(&mut page, &name)).then_some(())
    };
    cluster.until("the page no longer names the member", there).await;
    page.shoot("member-back");

    // The page's own member goes, and comes back.
    load.abort();
    cluster.kill_node(leader);
    let gone = format!("document.getElementById('verdict').textContent.includes('{UNANSWERED}')");
    page.until("the page says that nobody answers it", &gone);
    assert_eq!(page.text("#verdict b"), "critical");
    page.shoot("unanswered");
    cluster.start_node(leader);
    page.until("its member answers again", &format!("!{gone}"));
    is_quiet(&page);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: ./test browser"]
async fn it_is_read_in_light_and_dark_on_any_window_by_keyboard_and_by_screen_readers() {
    // With the longest of texts.
    let cluster = cluster(HOSTILE).await;
    let leader = cluster.leader().await;
    let load = load(&cluster);
    let address = http(&cluster, leader);
    let mut page = Page::open(&address);
    let warned = async || {
        page.look_again();
        names(&mut page, SHARED).then_some(())
    };
    cluster.until("the domain is named", warned).await;

    for (scheme, dark) in [("light", false), ("dark", true)] {
        for width in [1200, 500] {
            let name = format!("{scheme}-{width}");
            page.show_as(scheme, width);
            let overflow = page.eval(OVERFLOW);
            assert_eq!(overflow["beyond"], 0, "{name}: {overflow}");
            assert_eq!(overflow["over"], serde_json::json!([]), "{name}");
            let contrast = page.eval(CONTRAST);
            assert!(contrast["seen"].as_u64() > Some(200), "{name}: {contrast}");
            assert_eq!(contrast["faint"], serde_json::json!([]), "{name}");
            let light = contrast["page"].as_f64().expect("a number");
            assert!(if dark { light < 0.1 } else { light > 0.9 }, "{name}: {light}");
            page.shoot(&name);
        }
    }

    let titles = plots(&mut page).into_iter().map(|[title, _, _]| format!("Plot: {title}"));
    let titles: BTreeSet<String> = titles.collect();
    let images = page.names_of(&["img", "image"]);
    assert_eq!((titles.len(), images.len()), (PLOTS, PLOTS), "{images:?}");
    assert_eq!(images.into_iter().collect::<BTreeSet<_>>(), titles);
    let regions = page.names_of(&["region"]);
    for name in ["At risk now", "Members", "Operators' last calls to this node"] {
        assert!(regions.iter().any(|region| region == name), "{name} in {regions:?}");
    }
    assert!(!page.names_of(&["status"]).is_empty());

    let stops = "window.stops = [...document.querySelectorAll('a[href], [tabindex=\"0\"]')], \
        stops.map((stop) => stop.getAttribute('href') || '')";
    let links: Vec<String> = serde_json::from_value(page.eval(stops)).expect("texts");
    assert_eq!(links, ["", "", "status.json", "metrics"]);
    for (stop, link) in links.iter().enumerate() {
        page.press_tab();
        let focus = page.eval(
            "[stops.indexOf(document.activeElement), getComputedStyle(document.activeElement).outlineStyle]",
        );
        assert_eq!(focus[0], stop, "{link}");
        assert_ne!(focus[1], "none", "{link}: nobody sees where the keyboard is");
        if !link.is_empty() {
            let answer = http_get(&address, &format!("/{link}"));
            assert!(answer.starts_with("HTTP/1.1 200"), "{link}: {answer}");
        }
    }
    page.shoot("keyboard");
    load.abort();
    is_quiet(&page);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: ./test browser"]
async fn hostile_texts_are_texts_with_and_without_javascript_and_no_other_script_or_place_is_let_in()
 {
    let cluster = cluster(HOSTILE).await;
    let leader = cluster.leader().await;
    let named =
        async || told(&cluster, leader).to_string().contains("voters_fail_together").then_some(());
    cluster.until("the leader knows the domains", named).await;
    let mut page = Page::open(&http(&cluster, leader));
    page.look_again();
    harmless(&mut page);
    page.shoot("hostile");

    page.forbid_scripts();
    page.load();
    harmless(&mut page);
    let agree = async || (members(&cluster)? == members_shown(&mut page)).then_some(());
    cluster.until("the page shows what `cairn status` says", agree).await;
    assert!(page.rows("#numbers").len() > 20);
    assert_eq!(page.texts("#plots figure"), Vec::<String>::new());
    let hidden = "!document.getElementById('live').checkVisibility()";
    assert_eq!(page.eval(hidden), true, "a heading without plots");
    let hint = "document.body.innerText.includes('load the page again')";
    assert_eq!(page.eval(hint), true, "{}", page.text("header"));
    page.shoot("without-javascript");
    is_quiet(&page);
    let policies = page.policies();
    assert_eq!(policies.len(), 2, "{policies:?}");
    for policy in policies {
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    }

    // Another page, which lets scripts run: it is not let out, and nothing is let in.
    let mut page = Page::open(&http(&cluster, leader));
    let elsewhere = Value::from(format!("http://{}/live", http(&cluster, (leader + 1) % 3)));
    page.eval(&format!(
        "(() => {{
            window.refused = [];
            document.addEventListener('securitypolicyviolation', (one) => refused.push(one.effectiveDirective));
            const script = document.createElement('script');
            script.textContent = 'window.ran = 1';
            document.body.append(script);
            new Image().src = {elsewhere};
            fetch({elsewhere}).catch(() => null);
        }})()"
    ));
    let refused =
        "['script-src-elem', 'img-src', 'connect-src'].every((one) => refused.includes(one))";
    page.until("the browser refuses each of them", refused);
    assert_eq!(page.eval("typeof ran"), "undefined");
}

/// The hostile text is there as a text, and nothing of it is markup or ran.
fn harmless(page: &mut Page) {
    assert!(names(page, SHARED), "{:?}", page.texts("#findings li"));
    assert!(page.text("#verdict span").contains(SHARED), "{}", page.text("#verdict"));
    assert_eq!(page.eval("document.scripts.length"), 1);
    assert_eq!(page.eval("document.images.length"), 0);
    assert_eq!(page.eval("typeof ran"), "undefined");
}
