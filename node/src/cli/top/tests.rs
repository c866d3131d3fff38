//! What frames show of clusters in good and bad states, on terminals of any size.

use super::draw::{Chosen, draw, text};
use super::scrape::{Requests, Scrape};
use super::screen::Key;
use super::view::{Look, Times, Trend, View};
use super::{Exit, HttpReader, Source, after, exit_of};
use cairn_client::shown::is_unprintable;
use cairn_client::{Error, NodeStatus, Options, Role, StorageStatus};
use cairn_node::health::{Answer, Report};
use cairn_raft::NodeId;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

const SECOND: Duration = Duration::from_secs(1);
const SIZES: [(u16, u16); 3] = [(80, 24), (200, 50), (20, 5)];

fn node(slot: u16, committed: u64, applied: u64) -> Answer {
    let mut storage = StorageStatus::default();
    (storage.data_bytes, storage.free_bytes, storage.live_bytes) = (1 << 30, 1 << 29, 1 << 28);
    (storage.index_bytes, storage.index_limit_bytes) = (1 << 20, 1 << 22);
    let mut node = NodeStatus::default();
    (node.cluster, node.slot, node.term) = ("tested".into(), slot, 7);
    node.node_id = NodeId::new(slot, 10).as_u64();
    node.role = if slot == 1 { Role::Leader } else { Role::Follower };
    node.leader = Some("n1.example:7400".into());
    (node.committed_index, node.applied_index) = (committed, applied);
    node.storage = Some(storage);
    (format!("n{slot}.example:7400"), Ok(node))
}

fn silent(slot: u16) -> Answer {
    let endpoint = format!("n{slot}.example:7400");
    let last_error = "connection refused".into();
    (endpoint.clone(), Err(Error::Unavailable { tried: vec![endpoint], last_error, source: None }))
}

fn scrape(slot: u16, puts: u64, gets: u64) -> Scrape {
    let ms = |ms| Some(Duration::from_millis(ms));
    let requests = |done| Requests { done, buckets: vec![(ms(1), done / 2), (ms(8), done)] };
    Scrape {
        node_id: NodeId::new(slot, 10).to_string(),
        puts: requests(puts),
        gets: requests(gets),
        resident_bytes: Some(96 << 20),
        memory: vec![("reads".into(), 3 << 20)],
        space: vec![("live".into(), 1 << 28), ("dead_unsynced".into(), 1 << 20)],
        applied_lag: None,
    }
}

fn look(at: Instant, answers: Vec<Answer>, scrapes: Vec<Scrape>) -> Look {
    Look { at, report: Report::of(answers), scrapes: scrapes.into_iter().map(Ok).collect() }
}

/// Two looks, two seconds apart.
fn well() -> View {
    let (mut trend, began) = (Trend::default(), Instant::now());
    let answers = [1, 2, 3].map(|slot| node(slot, 5000, 5000));
    trend.add(look(began, answers.to_vec(), vec![scrape(1, 1000, 10), scrape(2, 0, 500)]));
    let answers = [node(1, 6000, 6000), node(2, 6000, 6000), node(3, 5500, 5500)];
    let scrapes = vec![scrape(1, 1400, 10), scrape(2, 0, 1100)];
    trend.add(look(began + 2 * SECOND, answers.to_vec(), scrapes))
}

fn of(answers: Vec<Answer>) -> View {
    Trend::default().add(look(Instant::now(), answers, Vec::new()))
}

fn drawn(view: &View, chosen: Chosen, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let drawn = terminal.draw(|frame| draw(view, chosen, frame.area(), frame.buffer_mut()));
    drawn.expect("drawn");
    let cells = terminal.backend().buffer().content();
    let rows = cells.chunks(usize::from(width));
    let rows: Vec<String> =
        rows.map(|cells| cells.iter().map(|cell| cell.symbol()).collect()).collect();
    rows.join("\n")
}

#[test]
fn a_cluster_that_is_well_shows_its_members_their_rates_and_how_late_they_are() {
    let view = well();
    let frame = drawn(&view, Chosen::default(), (80, 24));
    for words in [
        "cairn top  tested  term 7  slot 1 leads",
        "WELL  the cluster is well: nodes that answer: 3; slot 1 leads",
        "puts/s 200  p50 1.0ms  p99 8.0ms",
        "gets/s 300",
        "requests as 2 of 3 members tell",
        "puts/s, at most 200",
        "> 1    n1.example:7400",
        "nothing is at risk",
        "space of 1GiB: live 256MiB, dead unsynced 1MiB; for keys 25% used",
        "memory 96MiB: reads 3MiB",
        "q end",
    ] {
        assert!(frame.contains(words), "{words} in\n{frame}");
    }
    let third = frame.lines().find(|line| line.contains("n3.example")).expect("a row");
    let cells: Vec<&str> = third.split_whitespace().collect();
    assert_eq!(cells, ["3", "n3.example:7400", "follower", "5500", "500", "2.0s", "-", "-"]);
    let wide = drawn(&view, Chosen { member: 1, help: false }, (200, 50));
    assert!(wide.contains("PUT P99") && wide.contains("> 2    n2.example:7400"), "{wide}");
    let small = drawn(&view, Chosen::default(), (20, 5));
    assert!(small.contains("WELL") && small.contains("n1.exam"), "{small}");
}

#[test]
fn a_member_that_is_down_is_named_with_what_to_do() {
    let view = of(vec![node(1, 50, 50), node(2, 50, 50), silent(3)]);
    let frame = drawn(&view, Chosen { member: 2, help: false }, (80, 24));
    assert!(frame.contains("WARNING  the cluster is not well, for one reason"), "{frame}");
    assert!(frame.contains("> ?    n3.example:7400"), "{frame}");
    assert!(frame.contains("silent"), "{frame}");
    let wide = drawn(&view, Chosen { member: 2, help: false }, (200, 50));
    assert!(wide.contains("connection refused"), "{wide}");
    assert!(frame.contains("warning: n3.example:7400 does not answer"), "{frame}");
    // Without the HTTP ports nobody tells requests.
    assert!(frame.contains("puts/s -") && frame.contains("--http"), "{frame}");
    assert!(drawn(&view, Chosen::default(), (20, 5)).contains("WARNING"));
}

#[test]
fn a_cluster_without_a_leader_is_critical_and_so_is_one_of_which_nobody_answers() {
    let leaderless = |slot| {
        let mut answer = node(slot, 50, 50);
        if let Ok(node) = &mut answer.1 {
            (node.role, node.leader) = (Role::Candidate, None);
        }
        answer
    };
    for view in [of(vec![leaderless(1), leaderless(2)]), of(vec![silent(1), silent(2)])] {
        let frame = drawn(&view, Chosen::default(), (200, 50));
        assert!(frame.contains("no leader") && frame.contains("CRITICAL"), "{frame}");
        assert!(frame.contains("critical: no node that answers knows a leader"), "{frame}");
        assert!(drawn(&view, Chosen::default(), (20, 5)).contains("CRITICAL"));
    }
}

#[test]
fn a_frame_of_any_size_and_with_any_number_of_members_is_drawn() {
    let many = |count: u16| of((1..=count).map(|slot| node(slot, 50, 50)).collect());
    for view in [many(0), many(1), many(300), well()] {
        for size in SIZES.into_iter().chain([(1, 1), (3, 2), (80, 8), (300, 3), (2, 100)]) {
            for help in [false, true] {
                let frame = drawn(&view, Chosen { member: 299, help }, size);
                assert_eq!(frame.lines().count(), usize::from(size.1), "{size:?}");
            }
        }
        let frame = drawn(&view, Chosen { member: 0, help: true }, (80, 24));
        assert!(frame.contains("another member"), "{frame}");
    }
}

/// A name, an address or an error of another node with escape sequences, or with text that goes backwards.
#[test]
fn what_others_wrote_is_shown_and_never_obeyed() {
    let hostile = "x\u{1b}[2J\u{9b}2J\u{202e}\n\rforged";
    let mut named = node(1, 50, 50);
    named.0 = hostile.into();
    if let Ok(node) = &mut named.1 {
        (node.cluster, node.not_ready) = (hostile.into(), Some(hostile.into()));
        node.election_blocked = Some(hostile.into());
    }
    let last_error = hostile.to_owned();
    let error = Error::Unavailable { tried: vec![hostile.into()], last_error, source: None };
    let answers = vec![named, (hostile.into(), Err(error))];
    let mut told = scrape(1, 1, 1);
    told.memory = vec![(hostile.into(), 1 << 20)];
    let mut asked = look(Instant::now(), answers, vec![told]);
    asked.scrapes.push(Err(hostile.into()));
    let view = Trend::default().add(asked);
    for size in SIZES {
        for member in [0, 1] {
            let frame = drawn(&view, Chosen { member, help: false }, size);
            assert!(!frame.contains(|c: char| c != '\n' && is_unprintable(c)), "{frame:?}");
        }
    }
    let printed = text(&view);
    assert!(!printed.contains(|c: char| c != '\n' && is_unprintable(c)), "{printed:?}");
    assert!(!printed.lines().any(|line| line.starts_with("forged")), "{printed}");
    assert!(printed.contains(r"x\u{1b}[2J"), "{printed}");
}

#[test]
fn a_frame_as_text_has_every_member_and_every_finding() {
    let mut answers: Vec<Answer> = (1..=9).map(|slot| node(slot, 50, 50)).collect();
    answers.extend((10..=40).map(silent));
    let view = of(answers);
    let printed = text(&view);
    for slot in 1..=40 {
        let name = format!("n{slot}.example:7400");
        let row = printed.lines().any(|line| line.split_whitespace().any(|word| word == name));
        assert!(row, "{name} in\n{printed}");
        assert_eq!(printed.contains(&format!("{name} does not answer")), slot > 9, "{printed}");
    }
    assert!(printed.lines().all(|line| line == line.trim_end() && !line.is_empty()), "{printed}");
}

/// The story: a look had the time of its slowest answer. When one member began to hang, the others seemed to do
/// half as much as before.
#[tokio::test]
async fn a_look_has_the_time_at_which_it_asked_however_long_an_answer_takes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let asked = tokio::spawn(async move {
        let _client = listener.accept().await.expect("asked");
        Instant::now()
    });
    let client = Options::new(vec!["127.0.0.1:1".to_owned()]).deadline(SECOND).build();
    let source = Source {
        client: client.expect("a client"),
        http: HttpReader::new(None, None, 60 * SECOND).expect("no token"),
        addresses: vec![address],
    };
    let look = source.look_after(Duration::ZERO).await;
    assert!(look.at <= asked.await.expect("asked"));
    assert!(look.scrapes.iter().all(Result::is_err), "it hung up");
}

#[test]
fn a_node_that_started_again_has_no_rate_until_the_look_after_that() {
    let (mut trend, began) = (Trend::default(), Instant::now());
    let mut add = |after: u32, puts| {
        let answers = vec![node(1, 50, 50)];
        trend.add(look(began + after * SECOND, answers, vec![scrape(1, puts, 0)]))
    };
    assert_eq!(add(0, 1000).traffic.puts_per_second, None);
    assert_eq!(add(1, 1500).traffic.puts_per_second, Some(500));
    let anew = add(2, 10);
    assert_eq!((anew.traffic.puts_per_second, anew.traffic.told_by), (None, 0));
    let view = add(3, 20);
    assert_eq!(view.traffic.puts_per_second, Some(10));
    let plotted: Vec<_> = view.history.puts_per_second.into_iter().collect();
    assert_eq!(plotted, [None, Some(500), None, Some(10)]);
    // Nothing happened: no time of requests is known.
    let idle = add(4, 20);
    assert_eq!((idle.traffic.puts_per_second, idle.traffic.puts), (Some(0), Times::default()));
}

#[test]
fn the_document_has_the_numbers_of_the_frame() {
    let view = serde_json::to_value(well()).expect("JSON");
    assert_eq!((&view["format"], &view["well"]), (&1.into(), &true.into()), "{view}");
    assert_eq!(view["traffic"]["puts_per_second"], 200, "{view}");
    assert_eq!(view["traffic"]["entries_per_second"], 500, "{view}");
    assert_eq!(view["members"][2]["lag_ms"], 2000, "{view}");
    assert_eq!(view["members"][0]["space"][0]["name"], "live", "{view}");
    assert_eq!(view["findings"], serde_json::json!([]), "{view}");
}

#[test]
fn keys_choose_a_member_that_is_there_and_end_the_view() {
    let second = Chosen { member: 1, help: false };
    assert_eq!(after(Key::Down, Chosen::default(), 2), Some(second));
    assert_eq!(after(Key::Down, second, 2), Some(second));
    assert_eq!(after(Key::Down, Chosen::default(), 0), Some(Chosen::default()));
    assert_eq!(after(Key::Up, Chosen::default(), 2), Some(Chosen::default()));
    assert_eq!(after(Key::Help, second, 2), Some(Chosen { member: 1, help: true }));
    assert_eq!(after(Key::Resized, second, 2), Some(second));
    assert_eq!(after(Key::End, second, 2), None);
}

#[test]
fn the_exit_code_says_who_answered() {
    assert_eq!(exit_of(&[node(1, 1, 1), silent(2)]).0, Exit::Done);
    assert_eq!(exit_of(&[silent(2)]).0, Exit::Unavailable);
    let denied = Err(Error::PermissionDenied { message: "no role".into() });
    assert_eq!(exit_of(&[("a:1".into(), denied), silent(2)]).0, Exit::NotAllowed);
}
