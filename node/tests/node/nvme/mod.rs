//! `deploy/nvme/setup` takes machines with blank drives to a cluster that serves, wherever it is killed, and changes
//! no drive that holds anything. The drives are loop devices, the machines network namespaces.
//!
//! What holds here: only processes, drives and namespaces that this test made are ended or removed, those of a run
//! that was killed at the next start. One run at a time has them. Without root or loop devices it fails and says what
//! it lacks. The boot scripts, which call `setup` in a cloud, need neither.

mod boot;
mod drive;
mod refused;
mod site;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use site::Site;

/// How often the script is killed.
const KILLS: usize = 20;
/// So many of them before all machines run at once for the first time.
const KILLS_BEFORE_IT_FORMS: usize = 12;
/// About as many lines as the script and the doctor print.
const LINES: usize = 40;

#[test]
#[ignore = "needs root and loop devices: ./test nvme"]
fn blank_drives_become_a_cluster_wherever_the_script_is_killed_and_a_new_drive_takes_its_slot_again()
 {
    let mut rng = StdRng::seed_from_u64(20_261_130);
    let mut site = Site::with_blank_drives(3);
    for round in 0..KILLS_BEFORE_IT_FORMS {
        let slot = 1 + round % 3;
        // Otherwise only the first rounds would see how a drive is formatted.
        if round >= 3 && round % 2 == 1 {
            site.replace_drive(slot);
        }
        site.start(slot);
        site.until_it_said(slot, rng.random_range(0..LINES));
        site.kill_after(slot, rng.random_range(0..300), rng.random_bool(0.5));
    }
    for slot in 1..=3 {
        site.start(slot);
    }
    site.until_well();

    // The story: only a second run noted that a cluster was formed, so machines whose drives were all blank after their
    // first life formed an empty one.
    for slot in 1..=3 {
        site.until_noted(slot);
    }
    all_come_back_with_blank_drives(&mut site);
    for slot in 1..=3 {
        site.kill(slot);
    }
    for slot in 1..=3 {
        site.forget(slot);
        site.replace_drive(slot);
        site.start(slot);
    }
    site.until_well();
    site.until_done(1, &["put", "key", "value"]);

    for round in KILLS_BEFORE_IT_FORMS..KILLS {
        let slot = 1 + round % 3;
        let mark = site.mark(slot);
        assert!(mark.contains("\nstate made\n"), "{mark}");
        site.kill(slot);
        site.start(slot);
        site.until_it_said(slot, rng.random_range(0..LINES));
        site.kill_after(slot, rng.random_range(0..300), rng.random_bool(0.5));
        site.start(slot);
        site.until_well();
        assert_eq!(site.until_done(slot, &["get", "key"]), "value");
        assert_eq!(site.mark(slot), mark, "a drive with a member's data is formatted once");
    }

    // A stop of an instance gives its drives away: it comes back with a blank one.
    let before = site.node_id(2);
    site.kill(2);
    site.replace_drive(2);
    site.start(2);
    site.until_replaced(2, &before);
    let configuration = site.configuration(2);
    assert!(
        configuration.contains("\njoin = '10.0.0.1:7401,10.0.0.3:7401'\n")
            && !configuration.contains("members."),
        "it may join the cluster, and never form a new one: {configuration}"
    );
    site.until_well();
    // With one more away, what was written before needs the new drive.
    site.kill(3);
    assert_eq!(site.until_done(2, &["get", "key"]), "value");
    site.until_done(2, &["put", "after", "value"]);

    all_come_back_with_blank_drives(&mut site);
}

/// All instances were stopped: nothing may pretend to be the old cluster.
fn all_come_back_with_blank_drives(site: &mut Site) {
    for slot in 1..=3 {
        site.kill(slot);
        site.replace_drive(slot);
        site.start(slot);
    }
    for slot in 1..=3 {
        site.until_it_said(slot, usize::MAX);
        let said = site.said(slot);
        assert!(said.contains("joins the cluster of "), "slot {slot} would form one: {said}");
    }
}
