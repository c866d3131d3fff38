//! A snapshot that is installed over a log that is longer, that conflicts with it, or that has
//! operations still queued, under concurrent readers. A power cut or a kill at any operation leaves
//! all of the old state or all of the new one, and the new one once the install was reported.

use crate::support::space::driver::{Driver, entry, value};
use crate::support::space::{Keys, Requests, Round, World, check_recovered, check_space};
use crate::support::workload::{GROUP, Step, image};
use crate::support::{Disk, Fate, Random, geometry, identity, run};
use bytes::Bytes;
use cairn_engine::io::FileKind;
use cairn_engine::{Engine, Installer, LogId, Promise, SnapshotKey, View};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::yield_now;

/// Where the snapshot ends relative to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// At an entry of the log, which continues behind it.
    Inside,
    /// At an index of the log, with a different term.
    InConflict,
    Beyond,
}

async fn put(installer: &mut Installer, key: Bytes, version: LogId, value: Bytes) {
    let missing = installer.put(vec![SnapshotKey::with_value(key, version, value)]).await.unwrap();
    assert!(missing.is_empty());
}

/// A directory whose log continues for ten entries behind what is applied.
async fn base(world: World, seed: u64) -> (Disk, Arc<Requests>) {
    let (disk, requests) = (Disk::new(geometry()), Arc::new(Requests::default()));
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let engine = world.open(&disk, 1, seed, "the base").await;
    let mut random = Random(seed);
    let mut driver = Driver::new(&engine, &disk, &requests);
    driver.fill(&mut random).await;
    engine.close().await.unwrap();
    drop((driver, engine));
    disk.kill(Fate::Kept);
    (disk, requests)
}

/// The snapshot's content: some keys as they are, some overwritten, some missing, and many new
/// ones.
fn snapshot(requests: &Requests, ends: Ends, random: &mut Random) -> (LogId, Keys) {
    let (_, log) = crate::support::workload::log_after(&requests.steps.lock().unwrap());
    let applied = *requests.applied.lock().unwrap().last_key_value().unwrap().0;
    let inside = log[&(applied + 4)].id;
    let at = match ends {
        Ends::Inside => inside,
        Ends::InConflict => LogId { term: inside.term + 5, ..inside },
        Ends::Beyond => LogId { term: inside.term + 5, index: inside.index + 500 },
    };
    let mut keys = Keys::new();
    for (number, (key, held)) in requests.keys().iter().enumerate() {
        match number % 3 {
            0 => drop(keys.insert(key.clone(), held.clone())),
            1 => drop(keys.insert(key.clone(), (inside, value(random, 500 + number)))),
            _ => {}
        }
    }
    for number in 0..90 {
        let len = [10, 3000, 4096, 9000][number % 4] + number;
        keys.insert(
            format!("n{number:02}").into(),
            (LogId { index: number as u64, ..inside }, value(random, len)),
        );
    }
    (at, keys)
}

/// Checks that the view shows exactly one of the two states.
async fn check_view(view: &View, old: &Keys, new: (LogId, &Keys)) {
    let keys = if view.applied() == Some(new.0) { new.1 } else { old };
    assert_eq!(view.len(), keys.len(), "a mixture at {:?}", view.applied());
    for (key, (version, bytes)) in keys {
        let found = view.get(key).unwrap_or_else(|| panic!("no {key:?} at {:?}", view.applied()));
        assert_eq!(found.version, *version, "{key:?}");
        assert!(view.read(&found).await.unwrap() == bytes, "{key:?} reads wrong");
    }
}

/// Installs, while readers read and while appends are queued that the snapshot replaces. Sets
/// `reported` when it is done.
async fn install(
    engine: &Engine,
    disk: &Disk,
    requests: &Arc<Requests>,
    (at, keys): (LogId, Arc<Keys>),
    seed: u64,
    reported: &AtomicBool,
) {
    let old = requests.keys();
    let (reader, views) = (engine.clone(), Arc::new(AtomicUsize::new(0)));
    let reading = {
        let (old, keys, views) = (old.clone(), keys.clone(), views.clone());
        async move {
            loop {
                let view = reader.view(GROUP);
                yield_now().await;
                check_view(&view, &old, (at, &keys)).await;
                views.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
            }
        }
    };
    let before = engine.view(GROUP);
    let installing = async {
        let mut installer = engine.begin_install(GROUP).await.unwrap();
        for (key, (version, bytes)) in keys.iter() {
            put(&mut installer, key.clone(), *version, bytes.clone()).await;
        }
        // Operations that are still queued when the snapshot replaces them.
        let files =
            [FileKind::Journal, FileKind::Data, FileKind::Checkpoint0, FileKind::Checkpoint1];
        let held = files[(seed % 4) as usize];
        disk.hold(held);
        let mut random = Random(seed);
        let mut driver = Driver::new(engine, disk, requests);
        for _ in 0..3 {
            let id = driver.next_id();
            driver.append(
                vec![
                    entry(id, &mut random),
                    entry(LogId { index: id.index + 1, ..id }, &mut random),
                ],
                Promise::Mode,
            );
            yield_now().await;
        }
        let finish = installer.finish(at, image(at));
        let release = async {
            for _ in 0..30 {
                yield_now().await;
            }
            assert!(!reported.load(Ordering::SeqCst), "done while {} is held", held.name());
            disk.release();
        };
        let finish = async {
            finish.await.unwrap();
            reported.store(true, Ordering::SeqCst);
        };
        tokio::join!(finish, release);
        drop(driver);
        // Views made after the install.
        let views_then = views.load(Ordering::SeqCst);
        while views.load(Ordering::SeqCst) < views_then + 2 {
            yield_now().await;
        }
        check_view(&before, &old, (at, &keys)).await;
        assert_eq!((engine.applied(GROUP), engine.log_bounds(GROUP).last), (Some(at), Some(at)));
        assert!(
            engine.read_log(GROUP, 0..u64::MAX, u64::MAX).await.unwrap().is_empty(),
            "nothing of the old log is left"
        );
    };
    tokio::select! {
        biased;
        () = reading => unreachable!(),
        () = installing => {}
    }
}

/// Returns `Some(new)` if the cut came: whether the new state was there afterwards.
async fn round(
    world: World,
    base: &(Disk, Arc<Requests>),
    ends: Ends,
    seed: u64,
    cut: u64,
) -> Option<bool> {
    let what = format!("{world:?} {ends:?} seed={seed} cut={cut}");
    let named = Round(what.clone());
    let (disk, requests) = (base.0.copy(), base.1.copy());
    let engine = world.open(&disk, 2, seed, &what).await;
    check_recovered(&engine, &disk, &requests, world, &what).await;
    let mut random = Random(seed);
    let (at, keys) = snapshot(&requests, ends, &mut random);
    let keys = Arc::new(keys);
    {
        let mut core = disk.core.lock().unwrap();
        core.cut_at = Some(core.operations + cut);
    }
    let reported = AtomicBool::new(false);
    let came = tokio::select! {
        biased;
        () = disk.died.notified() => true,
        () = install(&engine, &disk, &requests, (at, keys.clone()), seed, &reported) => false,
    };
    drop(engine);
    let mut chance = Random(seed ^ cut << 20);
    world.crash(&disk, &mut chance);
    let mut engine = world.open(&disk, 3, seed, &what).await;
    let new = engine.applied(GROUP) == Some(at);
    assert!(
        new || !reported.load(Ordering::SeqCst),
        "{what}: the install was reported, but the old state is there"
    );
    let replaced = Arc::new(Requests {
        steps: Mutex::new(vec![Step::Purge(at)]),
        acknowledged: AtomicUsize::new(1),
        synced: AtomicUsize::new(1),
        applied: Mutex::new(BTreeMap::from([(at.index, keys)])),
        left_out: Mutex::default(),
    });
    if new {
        replaced.watch(&disk);
    }
    let requests = if new { replaced } else { requests };
    check_recovered(&engine, &disk, &requests, world, &what).await;
    // Either state can be used further, and everything else is free.
    for generation in [4, 5] {
        let mut driver = Driver::new(&engine, &disk, &requests);
        driver.run(&mut random, 20).await;
        drop(driver);
        check_space(&engine, &disk, &requests, geometry(), &what).await;
        drop(engine);
        world.crash(&disk, &mut chance);
        engine = world.open(&disk, generation, seed, &what).await;
        check_recovered(&engine, &disk, &requests, world, &what).await;
    }
    drop(named);
    came.then_some(new)
}

/// Cuts at every `CAIRN_INSTALL_STEP`-th operation (3 unless set) of an install.
fn crash_everywhere(world: World) {
    let step = std::env::var("CAIRN_INSTALL_STEP").map_or(3, |set| set.parse().unwrap());
    let (mut old, mut new) = (0, 0);
    for (seed, ends) in
        [Ends::Inside, Ends::InConflict, Ends::Beyond, Ends::InConflict].into_iter().enumerate()
    {
        let seed = seed as u64;
        let base = run(base(world, seed));
        let mut cut = 1 + seed % step;
        while let Some(is_new) = run(round(world, &base, ends, seed, cut)) {
            *(if is_new { &mut new } else { &mut old }) += 1;
            cut += step;
        }
    }
    println!("{world:?}: {old} cuts left the old state, {new} the new one");
    assert!(old > 5 && new > 1, "{old} cuts left the old state, {new} the new one");
}

#[test]
fn a_power_cut_of_a_synced_node_at_any_operation_of_an_install_leaves_one_state_whole() {
    crash_everywhere(World::SYNCED);
}

#[test]
fn a_power_cut_of_a_replicated_node_at_any_operation_of_an_install_leaves_one_state_whole() {
    crash_everywhere(World::REPLICATED);
}

#[test]
fn a_kill_at_any_operation_of_an_install_leaves_one_state_whole() {
    crash_everywhere(World::KILLED);
}

#[test]
fn a_power_cut_of_a_node_whose_device_keeps_what_completed_at_any_operation_of_an_install_leaves_one_state_whole()
 {
    crash_everywhere(World::PROTECTED);
}
