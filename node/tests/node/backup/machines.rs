//! Machines lose their power while backups are saved from them, and while one is restored onto them.

use super::kills::{
    Kills, ROUNDS_MOST, Writer, backups, broken_off, cluster_named_in, compare, refuses_or_has_all,
};
use super::*;
use crate::support::machine::can_have_machines;
use crate::support::{Hosts, UNHURRIED_ELECTIONS, WAIT_LIMIT, command};
use cairn_backup::Target;
use cairn_client::MemberState;
use std::process::Command;

/// How often at the least a machine loses its power while a backup is saved, and while one is restored. There are more
/// rounds until one of them was in the middle.
const SAVES: usize = 12;
const RESTORES: usize = 25;

/// Not a test of tokio: the runtime's threads must see the machines' disks.
fn on_machines(test: impl Future<Output = ()>) {
    if can_have_machines() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let limited = async { tokio::time::timeout(WAIT_LIMIT * 8, test).await };
        runtime.block_on(limited).expect("it ends in time");
    }
}

/// One machine after another loses its power in the middle of a save, in turns the leader's and another one.
/// A save that ends well is a backup of exactly what was acknowledged up to its index, and any other one is
/// none.
#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn a_backup_is_of_one_index_though_the_power_of_a_member_is_cut_while_it_is_saved() {
    on_machines(saves());
}

async fn saves() {
    let mut cluster = Cluster::format_on(Hosts::Machines, 3, "128MiB", UNHURRIED_ELECTIONS);
    cluster.start_all().await;
    let writer = Writer::new(cluster.client(), 7).await;
    let mut all = writer.writes;
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let told = (stop.clone(), acknowledged.clone());
            tokio::spawn(writes(cluster.client(), number, told))
        })
        .collect();
    let target = target(&cluster);
    let endpoints = cluster.endpoints().join(",");
    let folder = cluster.folder.path().to_owned();
    let whole = ["backup", "save", &target, "--endpoints", &endpoints];
    let since = [&whole[..], &["--since", "latest"]].concat();
    let mut kills = Kills::new(7);
    assert!(kills.run(command(&folder, &whole), u64::MAX, |_| ()), "the first one is saved");
    let opened = Target::open(&target).expect("a folder");
    let (mut round, mut saved, mut in_the_middle) = (0_usize, 1, 0);
    while round < SAVES || in_the_middle == 0 {
        assert!(round < ROUNDS_MOST * SAVES, "no power was cut in the middle of a save");
        let begun = broken_off(Path::new(&target));
        let before = acknowledged.load(Ordering::SeqCst);
        let more = async || (acknowledged.load(Ordering::SeqCst) > before + 50).then_some(());
        cluster.until("more writes", more).await;
        let leader = cluster.leader().await;
        let victim = if round.is_multiple_of(2) { leader } else { (leader + 1) % 3 };
        let save = command(&folder, if round.is_multiple_of(3) { &whole[..] } else { &since[..] });
        let moment = kills.moment();
        let ended = kills.run(save, moment, |child| {
            let has_begun = broken_off(Path::new(&target)) > begun;
            let runs = child.try_wait().expect("our own child").is_none();
            in_the_middle += usize::from(has_begun && runs);
            cluster.fail_node(victim);
            cluster.start_node(victim);
        });
        saved += usize::from(ended);
        assert_eq!(backups(&opened).await.len(), saved, "round {round}");
        cluster.wait_ready().await;
        let recovered = |node: &cairn_client::NodeStatus| node.member_state == MemberState::Active;
        cluster.until_all("nobody recovers", recovered).await;
        round += 1;
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        all.extend(writer.await.expect("it ends"));
    }
    for name in backups(&opened).await {
        compare(&opened, &name, &all).await;
    }
    println!("{in_the_middle} of {round} cuts were in the middle of a save");
    println!("{saved} backups are whole, of {} saves; {:?}", round + 1, cluster.damage);
    assert!(saved > 1, "some saves end well");
}

/// The machine loses its power in the middle of a restore, and what was not synced is gone.
#[test]
#[ignore = "needs root and /dev/fuse: ./test lossy"]
fn a_restore_whose_machine_loses_power_leaves_nothing_that_a_node_starts_with() {
    on_machines(restores());
}

async fn restores() {
    let mut cluster = Cluster::format_on(Hosts::Machines, 1, "64MiB", "");
    cluster.start_all().await;
    let mut writer = Writer::new(cluster.client(), 8).await;
    writer.change(100).await;
    let target = target(&cluster);
    json_of(&cluster.cairn(&["backup", "save", &target, "-o", "json"]));
    let keys = at(&writer.writes, Version(u64::MAX));
    cluster.kill_all();
    cluster.lose_disk(0);
    let config = cluster.config(0).to_owned();
    let folder = cluster.folder.path().to_owned();
    let restore =
        || -> Command { command(&folder, &["backup", "restore", &target, "--config", &config]) };
    let mut kills = Kills::new(8);
    assert!(kills.run(restore(), u64::MAX, |_| ()), "it is restored");
    // The power goes as soon as the command says that it is done.
    cluster.fail_node(0);
    assert_eq!(refuses_or_has_all(&mut cluster, &keys).await, None, "what was restored is synced");
    let (mut round, mut half, mut whole) = (0_usize, 0, 0);
    while round < RESTORES || half == 0 {
        assert!(round < ROUNDS_MOST * RESTORES, "no power was cut in the middle of a restore");
        if cluster.data(0).exists() {
            cluster.lose_disk(0);
        }
        let moment = kills.moment();
        let ended = kills.run(restore(), moment, |child| {
            child.kill().expect("our own child");
            child.wait().expect("our own child");
            cluster.fail_node(0);
        });
        half += usize::from(cluster_named_in(&cluster, 0) == "(being restored)");
        match refuses_or_has_all(&mut cluster, &keys).await {
            None => whole += 1,
            Some(said) => {
                assert!(!ended, "round {round}: it was restored, and does not open: {said}")
            }
        }
        round += 1;
    }
    println!("{half} directories were half restored, {whole} had all; {:?}", cluster.damage);
}
