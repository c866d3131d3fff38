//! Who gets memory, in which order, and who loses its connection.

use super::*;

const PACE: Pace =
    Pace { rate_bytes: 100, over: Duration::from_secs(1), interval: Duration::from_millis(1) };

fn accounts<const N: usize>(budget: &Budget) -> ([Account; N], [Arc<ConnectionFlow>; N]) {
    let flows = [(); N].map(|()| Arc::<ConnectionFlow>::default());
    (flows.clone().map(|flow| budget.account(flow)), flows)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Starts a read that waits, in a task of its own.
async fn waiting(
    budget: &Budget,
    account: &Account,
    bytes: usize,
) -> tokio::task::JoinHandle<Charge> {
    let (account, before) = (account.clone(), budget.status().waiting);
    let task =
        tokio::spawn(async move { account.admit(bytes, soon()).await.expect("admitted at last") });
    while budget.status().waiting == before {
        tokio::task::yield_now().await;
    }
    task
}

/// The story: a few connections took all the memory, and no other connection could read.
#[test]
fn a_connection_holds_at_most_as_much_as_stays_free() {
    let budget = Budget::new(100);
    let ([greedy, other], _flows) = accounts(&budget);
    let first = greedy.try_admit(50).expect("half of it");
    assert!(greedy.try_admit(1).is_none(), "no more than half");
    let second = other.try_admit(25).expect("half of the rest");
    assert!(other.try_admit(1).is_none());
    assert_eq!(budget.status().held_bytes, 75);
    drop((first, second));
    assert_eq!(budget.status().held_bytes, 0);
}

/// The story: the bound was for each connection, and one client opened as many as it liked.
#[tokio::test]
async fn a_client_with_a_name_has_one_share_over_all_its_connections() {
    let budget = Budget::bounded(100, 10);
    let (many, _flows) = accounts::<20>(&budget);
    let many = many.map(|account| account.owned_by(Owner::Name(7)));
    let ([other], _flow) = accounts(&budget);
    let held: Vec<Charge> = many.iter().filter_map(|account| account.try_admit(10)).collect();
    assert_eq!(held.len(), 5, "half of it");
    assert!(other.try_admit(25).is_some(), "half of the rest");
    let mut tasks = Vec::new();
    for account in many.iter().take(5) {
        tasks.push(waiting(&budget, account, 10).await);
    }
    assert_eq!(many[6].admit(10, soon()).await.err(), Some(NotAdmitted::Crowded));
    let third = other.try_admit(25);
    assert!(third.is_some(), "while many wait");
    drop(held);
    for task in tasks {
        task.abort();
        // It may have been admitted.
        let _ = task.await;
    }
    drop(third);
    assert_eq!(budget.status(), BudgetStatus::default());
}

#[test]
fn a_small_read_is_admitted_while_large_ones_of_many_connections_wait() {
    let budget = Budget::new(256);
    let ([small], _flow) = accounts(&budget);
    let (many, _flows) = accounts::<200>(&budget);
    let held: Vec<Charge> = many.iter().filter_map(|account| account.try_admit(4)).collect();
    assert_eq!(held.len(), 63);
    assert!(small.try_admit(1).is_some());
}

#[test]
fn a_read_that_is_longer_than_the_budget_is_admitted_alone() {
    let budget = Budget::new(100);
    let ([one, other], _flows) = accounts(&budget);
    let held = other.try_admit(1).expect("little");
    assert!(one.try_admit(1000).is_none());
    drop(held);
    let held = one.try_admit(1000).expect("alone");
    assert!(other.try_admit(1).is_none());
    drop(held);
    assert_eq!(budget.status().held_bytes, 0);
}

#[tokio::test]
async fn waiting_reads_are_admitted_when_memory_is_released_and_connections_take_turns() {
    let budget = Budget::new(100);
    let ([holder, first, second], _flows) = accounts(&budget);
    let held = holder.charge(100);
    let mut tasks = Vec::new();
    for (name, account) in [("first", &first), ("first", &first), ("second", &second)] {
        tasks.push((name, waiting(&budget, account, 30).await));
    }
    drop(held);
    let (mut admitted, mut rest) = (Vec::new(), Vec::new());
    for (name, task) in tasks {
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        match task.is_finished() {
            true => admitted.push((name, task.await.expect("a charge"))),
            false => rest.push(task),
        }
    }
    let names: Vec<_> = admitted.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        (names, rest.len()),
        (vec!["first", "second"], 1),
        "one of each, not two of the first"
    );
    drop(admitted);
    for task in rest {
        task.await.expect("a charge");
    }
    assert_eq!(budget.status(), BudgetStatus::default());
}

#[tokio::test]
async fn a_cancelled_read_releases_its_memory_and_lets_the_next_one_through() {
    let budget = Budget::new(100);
    let ([holder, one], _flows) = accounts(&budget);
    let held = holder.charge(60);
    let long = waiting(&budget, &one, 90).await;
    let short = waiting(&budget, &one, 10).await;
    long.abort();
    assert_eq!(short.await.expect("a charge").bytes(), 10);
    let now = Instant::now();
    assert_eq!(one.admit(90, now).await.err(), Some(NotAdmitted::Late));

    // Admitted, and cancelled before it learns of it.
    let mut late = Box::pin(one.admit(40, soon()));
    assert!(futures::poll!(&mut late).is_pending());
    drop(held);
    assert_eq!(budget.status().held_bytes, 40);
    drop(late);
    assert_eq!(budget.status(), BudgetStatus::default());
}

#[tokio::test]
async fn no_more_reads_wait_than_the_bound_and_one_connection_leaves_capacity_for_others() {
    let budget = Budget::bounded(100, 10);
    let ([holder, one, other], _flows) = accounts(&budget);
    let _held = holder.charge(100);
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(waiting(&budget, &one, 1).await);
    }
    assert_eq!(one.admit(1, soon()).await.err(), Some(NotAdmitted::Crowded));
    tasks.push(waiting(&budget, &other, 1).await);
    tasks.into_iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn a_slow_client_is_closed_while_others_wait_and_only_then() {
    let budget = Budget::new(100);
    let ([slow, quick, idle, other], flows) = accounts(&budget);
    let mut held = [slow.charge(50), quick.charge(40), idle.charge(10)];
    held.iter_mut().take(2).for_each(Charge::sent);
    let began = Instant::now();
    let after = |seconds| began + Duration::from_secs(seconds);
    assert_eq!(
        (budget.close_slow_once(PACE, began), budget.close_slow_once(PACE, after(9))),
        (0, 0),
        "no read waits"
    );

    let task = waiting(&budget, &other, 1).await;
    assert_eq!(budget.close_slow_once(PACE, after(10)), 0, "not measured for long enough");
    flows[0].counted(99);
    flows[1].counted(100);
    assert_eq!(budget.close_slow_once(PACE, after(11)), 1);
    let closed: Vec<bool> = flows.iter().map(|flow| flow.is_closed()).collect();
    assert_eq!(
        closed,
        [true, false, false, false],
        "what is still being read is no fault of the client"
    );
    assert_eq!(budget.status().slow_closed, 1);
    drop(held);
    task.await.expect("a charge");
}

#[test]
fn a_message_is_charged_once_for_everything_that_was_read_for_it() {
    let budget = Budget::new(1000);
    let ([account], _flow) = accounts(&budget);
    let outbox = Outbox::of(account.clone());
    for bytes in [100, 300, 200] {
        outbox.put(account.try_admit(bytes).unwrap_or_else(|| account.charge(bytes)));
    }
    assert_eq!(budget.status().held_bytes, 600);
    let message = outbox.take(580);
    assert_eq!((message.bytes(), budget.status().held_bytes), (580, 580));
    let more = outbox.take(20);
    assert_eq!(budget.status().held_bytes, 600);
    drop((message, more));
    assert_eq!(budget.status(), BudgetStatus::default());
}

/// The story: a client held as many watches as it had memory for its requests, and could not write any more.
#[test]
fn what_is_held_for_long_leaves_the_client_and_others_memory_for_their_calls() {
    let budget = Budget::new(1000);
    let ([one, other], _flows) = accounts(&budget);
    let hold_all = |account: &Account| {
        std::iter::from_fn(|| account.try_hold(10)).take(1000).collect::<Vec<Charge>>()
    };
    let held = hold_all(&one);
    assert_eq!(held.iter().map(Charge::bytes).sum::<usize>(), 250, "half of its share");
    let call = one.try_admit(250).expect("its calls go on");
    drop(call);
    let others = hold_all(&other);
    let call = other.try_admit(250).expect("those of others, too");
    drop((call, others));
    assert!(one.try_hold(10).is_none());
    drop(held);
    assert!(one.try_hold(10).is_some());
}
