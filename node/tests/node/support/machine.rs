//! A machine of its own under a node: its disk forgets at a power cut what was not synced, and its
//! kernel has another boot id after each cut.

use cairn_lossy::cluster::boot_id;
use cairn_lossy::disk::{Behaviour, CutStyle, Damage, LossyMount, isolate, missing};
use rand::{SeedableRng, rngs::StdRng};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a sync takes, on average. Without this a cut finds hardly anything unsynced.
const SYNC_TIME: Duration = Duration::from_millis(3);

/// Gives the calling thread mounts of its own. All machines and nodes of the test are started by this
/// thread. False, with a message, if this system can have no lossy disk. In CI that is a failure.
pub fn can_have_machines() -> bool {
    if let Some(missing) = missing() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
        eprintln!("SKIPPED: {missing}");
        return false;
    }
    isolate().expect("mounts of our own");
    true
}

pub struct Machine {
    disk: LossyMount,
    boot_id_file: PathBuf,
    rng: StdRng,
}

impl Machine {
    /// A machine that is on, with an empty disk. Its files are in `folder`.
    pub fn new(folder: &Path, name: &str) -> Machine {
        let path = |what: &str| folder.join(format!("{what}-{name}"));
        let (below, mounted) = (path("below"), path("disk"));
        std::fs::create_dir(&below).expect("a folder");
        std::fs::create_dir(&mounted).expect("a folder");
        let disk = LossyMount::new(&below, &mounted, Behaviour::Volatile).expect("a lossy disk");
        disk.disk().sync_takes(SYNC_TIME);
        let seed = name.bytes().fold(0, |seed, byte| seed << 8 | u64::from(byte));
        let mut machine =
            Machine { disk, boot_id_file: path("boot"), rng: StdRng::seed_from_u64(seed) };
        machine.boot();
        machine
    }

    /// Where its node has its data.
    pub fn data(&self) -> PathBuf {
        self.disk.path().join("data")
    }

    /// Lets each sync take a random time from now on, with this average; [`SYNC_TIME`] without one.
    pub fn sync_takes(&self, time: Option<Duration>) {
        self.disk.disk().sync_takes(time.unwrap_or(SYNC_TIME));
    }

    /// The lines of its node's configuration.
    pub fn keys(&self) -> String {
        format!("storage.boot_id_file = {:?}\n", self.boot_id_file)
    }

    fn boot(&mut self) {
        std::fs::write(&self.boot_id_file, boot_id(&mut self.rng)).expect("a file");
    }

    /// Cuts the power, and lets the machine boot. Its node's process was sent SIGKILL before.
    pub fn cut_power(&mut self) -> Damage {
        let style = CutStyle::random(&mut self.rng);
        let damage = self.disk.disk().cut(style, &mut self.rng).expect("the files below the disk");
        self.boot();
        damage
    }
}
