//! Power cuts and kills at every operation while a nearly full data area changes: no two live
//! values ever share a byte, everything acknowledged is there, and all other space comes back.

use crate::support::space::driver::Driver;
use crate::support::space::{Requests, Round, World, check_recovered, check_space};
use crate::support::{Disk, Random, geometry, identity, run};
use cairn_engine::io::FileKind;
use cairn_engine::{Engine, MemberState};
use std::sync::Arc;

/// How often a round met each case.
#[derive(Default)]
struct Met {
    cuts: u64,
    recovering: u64,
    full: u64,
    truncated_held: u64,
    lost: u64,
    /// Bytes that compaction moved before and after the cut.
    moved: [u64; 2],
}

impl Met {
    fn add(&mut self, driver: &Driver) {
        self.full += driver.full;
        self.truncated_held += driver.truncated_held;
    }
}

/// A directory that is nearly full.
async fn filled(world: World, seed: u64) -> (Disk, Arc<Requests>) {
    let (disk, requests) = (Disk::new(geometry()), Arc::new(Requests::default()));
    Engine::format(&disk, geometry(), &identity()).await.unwrap();
    let engine = world.open(&disk, 1, seed, "filling").await;
    let mut random = Random(seed);
    let mut driver = Driver::new(&engine, &disk, &requests);
    driver.ballast(&mut random, seed).await;
    driver.run(&mut random, 60).await;
    engine.close().await.unwrap();
    drop((driver, engine));
    world.crash(&disk, &mut random);
    (disk, requests)
}

/// Runs random steps until operation `cut` ends them, opens what is left, continues for a while,
/// and crashes once more. Returns whether the cut came before the steps were over.
async fn round(
    world: World,
    filled: &(Disk, Arc<Requests>),
    seed: u64,
    cut: u64,
    met: &mut Met,
) -> bool {
    let what = format!("{world:?} seed={seed} cut={cut}");
    let named = Round(what.clone());
    let (disk, requests) = (filled.0.copy(), filled.1.copy());
    let engine = world.open(&disk, 2, seed, &what).await;
    check_recovered(&engine, &disk, &requests, world, &what).await;
    {
        let mut core = disk.core.lock().unwrap();
        core.cut_at = Some(core.operations + cut);
    }
    let mut random = Random(seed ^ 0x5eed);
    let mut driver = Driver::new(&engine, &disk, &requests);
    let came = tokio::select! {
        biased;
        () = disk.died.notified() => true,
        () = driver.run(&mut random, 150) => false,
    };
    met.add(&driver);
    met.moved[0] += engine.status().moved_bytes;
    drop((driver, engine));
    // Which blocks of a write survive differs from cut to cut.
    let mut chance = Random(seed ^ cut << 20);
    world.crash(&disk, &mut chance);
    met.cuts += u64::from(came);
    met.lost += disk.lost();
    let engine = world.open(&disk, 3, seed, &what).await;
    let member_state = check_recovered(&engine, &disk, &requests, world, &what).await;
    met.recovering += u64::from(member_state == MemberState::Recovering);
    let mut driver = Driver::new(&engine, &disk, &requests);
    driver.run(&mut random, 25).await;
    met.add(&driver);
    drop(driver);
    check_space(&engine, &disk, &requests, geometry(), &what).await;
    met.moved[1] += engine.status().moved_bytes;
    drop(engine);
    world.crash(&disk, &mut chance);
    let engine = world.open(&disk, 4, seed, &what).await;
    check_recovered(&engine, &disk, &requests, world, &what).await;
    check_space(&engine, &disk, &requests, geometry(), &what).await;
    drop(named);
    came
}

/// Cuts at every `CAIRN_CRASH_STEP`-th operation (13 unless set) of `CAIRN_CRASH_SEEDS` workloads
/// (3 unless set).
fn crash_everywhere(world: World) -> Met {
    let setting = |name, unless| std::env::var(name).map_or(unless, |set| set.parse().unwrap());
    let (step, seeds) = (setting("CAIRN_CRASH_STEP", 13), setting("CAIRN_CRASH_SEEDS", 3));
    let mut met = Met::default();
    for seed in 0..seeds as u64 {
        let filled = run(filled(world, seed));
        let mut cut = 1 + seed % step as u64;
        while run(round(world, &filled, seed, cut, &mut met)) {
            cut += step as u64;
        }
    }
    println!(
        "{world:?}: {} cuts, {} recovering afterwards, {} blocks lost, {} times full, {} truncations met operations that were held, {:?} bytes moved",
        met.cuts, met.recovering, met.lost, met.full, met.truncated_held, met.moved
    );
    assert!(met.moved.iter().all(|bytes| *bytes > 0), "nothing was compacted");
    assert!(met.cuts > 8 && met.full > 0 && met.truncated_held > 0, "too little was met");
    met
}

#[test]
fn no_value_is_put_over_a_live_one_in_a_full_area_of_a_synced_node_whose_power_is_cut() {
    let met = crash_everywhere(World::SYNCED);
    assert!(met.lost > 0 && met.recovering == 0);
}

#[test]
fn no_value_is_put_over_a_live_one_in_a_full_area_of_a_replicated_node_whose_power_is_cut() {
    let met = crash_everywhere(World::REPLICATED);
    assert!(met.lost > 0 && met.recovering > 0);
}

#[test]
fn no_value_is_put_over_a_live_one_in_a_full_area_of_a_replicated_node_that_is_killed() {
    crash_everywhere(World::KILLED);
}

#[test]
fn no_value_is_put_over_a_live_one_in_a_full_area_of_a_node_whose_device_keeps_what_completed() {
    crash_everywhere(World::PROTECTED);
}

/// The story: after this cut a block of 4 KiB was neither live nor free. The check had made three
/// syncs and compared. Compaction had moved the last values out of the block behind the last of
/// them, so the block only waited for another sync. Now the check goes on until compaction has
/// nothing more to gain and all that is dead is free.
#[test]
fn a_block_that_compaction_empties_behind_the_last_sync_comes_back() {
    let (world, seed, cut) = (World::PROTECTED, 1, 17);
    let mut met = Met::default();
    assert!(run(round(world, &run(filled(world, seed)), seed, cut, &mut met)), "no cut came");
    assert!(met.moved[1] > 0, "nothing was compacted behind the cut");
}

#[test]
fn a_seed_of_these_runs_the_same_each_time() {
    let world = World::REPLICATED;
    let once = || {
        let (disk, requests) = run(filled(world, 5));
        let bytes: Vec<Vec<u8>> = FileKind::ALL.into_iter().map(|kind| disk.bytes(kind)).collect();
        (bytes, requests.steps.lock().unwrap().len(), disk.core.lock().unwrap().operations)
    };
    assert!(once() == once());
}
