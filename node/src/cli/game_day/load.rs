//! The load of a game day, and the checker of what it was told.
//!
//! What holds here: every key is under a prefix that no other run has, and has one writer. A key whose write
//! has an unknown outcome is not written again, since that write may be applied at any time later. So what each
//! write replaces is known: the write that was acknowledged before it. So is what may be read of each key: its
//! last acknowledged write, or the one of which the outcome is unknown. What is lost is told once.

use super::gap::{Measured, Outcome, Window};
use super::losses::Losses;
use super::told::{Ended, Lost, Told, value_of};
use cairn_client::{Client, Error, ListOptions};
use futures::future::{join_all, try_join_all};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// All runs have their keys under this.
const PREFIX: &str = "cairn-game-day/";
/// Writers, each with one write under way.
const WRITERS: u32 = 4;
/// Keys of each, over and over.
const KEYS: usize = 64;
/// Between two writes of a writer: enough to see a gap of this length, and little work for the cluster.
const THINK: Duration = Duration::from_millis(10);
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Keys that are read back, and removed, at a time.
const AT_ONCE: usize = 64;
/// Keys of a page to remove.
const PAGE: u32 = 1000;
const POLL: Duration = Duration::from_millis(20);

/// One writer, and what it was told.
#[derive(Debug)]
struct Writer {
    number: u32,
    /// Of the last write.
    sequence: u64,
    keys: Vec<Told>,
    /// Those that are not written again.
    retired: Vec<Told>,
}

/// What the writers share.
struct Shared {
    client: Client,
    prefix: String,
    stop: AtomicBool,
    window: Mutex<Window>,
    /// What was found to be lost and was not taken yet.
    lost: Mutex<Losses>,
}

/// The writers, at work or paused.
pub(super) struct Load {
    shared: Arc<Shared>,
    paused: Vec<Writer>,
    working: JoinSet<Writer>,
}

/// What was found when the keys were read back.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// How many keys were read.
    pub(super) read: u64,
    /// What is lost, also by what the writes were told.
    pub(super) lost: Losses,
    /// That some keys could not be read, and why.
    pub(super) unread: Option<String>,
}

impl Load {
    /// Writers that have not begun.
    pub(super) fn new(client: &Client) -> Load {
        Load::within(client.with_deadline(DEADLINE))
    }

    /// The same with the deadline of this client.
    fn within(client: Client) -> Load {
        let prefix = format!("{PREFIX}{:016x}/", rand::random::<u64>());
        let shared = Shared {
            client,
            prefix,
            stop: AtomicBool::new(false),
            window: Mutex::new(Window::begin(Instant::now())),
            lost: Mutex::new(Losses::default()),
        };
        let paused = (0..WRITERS).map(|number| Writer::new(&shared.prefix, number)).collect();
        Load { shared: Arc::new(shared), paused, working: JoinSet::new() }
    }

    /// All keys of this run begin with it.
    pub(super) fn prefix(&self) -> &str {
        &self.shared.prefix
    }

    /// Lets the writers work.
    pub(super) fn start(&mut self) {
        self.shared.stop.store(false, Ordering::Relaxed);
        self.measure();
        for writer in self.paused.drain(..) {
            self.working.spawn(writer.run(Arc::clone(&self.shared)));
        }
    }

    /// Measures from now on.
    pub(super) fn measure(&self) {
        *self.shared.window.lock() = Window::begin(Instant::now());
    }

    /// Returns once so many more writes are acknowledged.
    pub(super) async fn works(&self, more: u64, within: Duration) -> anyhow::Result<()> {
        let acknowledged = || self.shared.window.lock().acknowledged();
        let (until, began) = (acknowledged() + more, Instant::now());
        while acknowledged() < until {
            anyhow::ensure!(
                began.elapsed() < within,
                "fewer than {more} writes were acknowledged in {} s",
                within.as_secs()
            );
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Lets the writers end the write that each has under way, and returns what was measured: nothing if they
    /// do not work.
    ///
    /// The story: a fault that never began was reported with what had been measured in the one before.
    ///
    /// # Errors
    /// If a writer panicked. The others are paused all the same; what that one was told is not known.
    pub(super) async fn stop(&mut self) -> anyhow::Result<Measured> {
        if self.working.is_empty() {
            return Ok(Measured::default());
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        let measured = self.shared.window.lock().end(Instant::now());
        let mut failed = None;
        while let Some(ended) = self.working.join_next().await {
            match ended {
                Ok(writer) => self.paused.push(writer),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            None => Ok(measured),
            Some(error) => Err(anyhow::Error::new(error).context("a writer of the load")),
        }
    }

    /// Reads every key back. One that cannot be read is tried again for so long.
    pub(super) async fn check(&mut self, within: Duration) -> Checked {
        let (began, shared) = (Instant::now(), Arc::clone(&self.shared));
        let mut checked = Checked::default();
        let writers = self.paused.iter_mut();
        let keys =
            writers.flat_map(|writer| writer.keys.iter_mut().chain(writer.retired.iter_mut()));
        let mut pending: Vec<&mut Told> = keys.collect();
        while !pending.is_empty() {
            let (mut again, mut last_error) = (Vec::new(), String::new());
            while !pending.is_empty() {
                let some = pending.split_off(pending.len().saturating_sub(AT_ONCE));
                let mut asked = Vec::new();
                for told in &some {
                    asked.push(shared.client.get(told.key.clone()));
                }
                let answers = join_all(asked).await;
                for (told, answer) in some.into_iter().zip(answers) {
                    match answer {
                        Ok(found) => {
                            checked.read += 1;
                            if let Some(lost) = told.compared(found.map(|found| found.value)) {
                                shared.lost.lock().add(lost);
                            }
                        }
                        Err(error) => {
                            last_error = format!("`{}`: {error}", told.key);
                            again.push(told);
                        }
                    }
                }
            }
            if !again.is_empty() && began.elapsed() >= within {
                let why = format!("{} keys cannot be read back: {last_error}", again.len());
                checked.unread = Some(why);
                break;
            }
            pending = again;
            if !pending.is_empty() {
                sleep(POLL).await;
            }
        }
        for writer in &mut self.paused {
            writer.leave_lost(&shared.prefix);
        }
        checked.lost = self.take_lost();
        checked
    }

    /// Something that was found to be lost by others than the writers.
    pub(super) fn add_lost(&self, lost: Lost) {
        self.shared.lost.lock().add(lost);
    }

    /// What was found to be lost since it was taken last.
    pub(super) fn take_lost(&self) -> Losses {
        std::mem::take(&mut *self.shared.lost.lock())
    }
}

/// Removes all keys of a run.
pub(super) async fn remove(client: &Client, prefix: &str) -> Result<(), Error> {
    loop {
        let options = ListOptions::prefix(prefix.to_owned()).limit(PAGE).keys_only();
        let page = client.list(options).await?;
        if page.items.is_empty() {
            return Ok(());
        }
        for some in page.items.chunks(AT_ONCE) {
            let mut asked = Vec::new();
            for item in some {
                asked.push(client.delete(item.key.clone()));
            }
            try_join_all(asked).await?;
        }
    }
}

impl Writer {
    fn new(prefix: &str, number: u32) -> Writer {
        let keys = (0..KEYS).map(|at| Told::new(prefix, number, 0, at)).collect();
        Writer { number, sequence: 0, keys, retired: Vec::new() }
    }

    async fn run(mut self, shared: Arc<Shared>) -> Writer {
        let mut at = 0;
        while !shared.stop.load(Ordering::Relaxed) {
            at = (at + 1) % KEYS;
            let Some(key) = self.keys.get(at).map(|told| told.key.clone()) else { break };
            self.sequence += 1;
            let began = Instant::now();
            let result = shared.client.put(key, value_of(self.sequence)).await;
            shared.window.lock().saw(began, Instant::now(), Outcome::of(&result));
            if let Some(lost) = self.told(&shared.prefix, at, Ended::of(&result)) {
                shared.lost.lock().add(lost);
            }
            sleep(THINK).await;
        }
        self
    }

    /// What became of the last write. Returns what is lost by what it replaced.
    fn told(&mut self, prefix: &str, at: usize, ended: Ended) -> Option<Lost> {
        let Writer { number, sequence, keys, retired } = self;
        let told = keys.get_mut(at)?;
        match ended {
            Ended::Acknowledged { version, previous } => {
                told.was_acknowledged(*sequence, version, previous)
            }
            Ended::Unknown => {
                told.unknown = Some(*sequence);
                let next = Told::new(prefix, *number, *sequence, at);
                retired.push(std::mem::replace(told, next));
                None
            }
            Ended::Refused => None,
        }
    }

    /// Other keys instead of those that are lost, which would be told again and again.
    fn leave_lost(&mut self, prefix: &str) {
        let Writer { number, sequence, keys, retired } = self;
        // No key of this number was made.
        *sequence += 1;
        for (at, told) in keys.iter_mut().enumerate().filter(|(_, told)| told.lost) {
            *told = Told::new(prefix, *number, *sequence, at);
        }
        retired.retain(|told| !told.lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::{Options, Version};
    use std::collections::BTreeSet;

    fn written(version: u64, previous: Option<u64>) -> Ended {
        Ended::Acknowledged { version: Version(version), previous: previous.map(Version) }
    }

    #[test]
    fn a_key_whose_write_has_an_unknown_outcome_is_not_written_again() {
        let mut writer = Writer::new("p/", 3);
        let first = writer.keys[5].key.clone();
        writer.sequence = 9;
        assert_eq!(writer.told("p/", 5, written(70, None)), None);
        writer.sequence = 11;
        assert_eq!(writer.told("p/", 5, Ended::Unknown), None);
        assert_ne!(writer.keys[5].key, first);
        let [retired] = writer.retired.as_slice() else { panic!("{:?}", writer.retired) };
        assert_eq!(
            (&retired.key, retired.acknowledged, retired.unknown),
            (&first, Some(9), Some(11))
        );
        // The other key was never written.
        writer.sequence = 12;
        assert_eq!(writer.told("p/", 5, written(80, None)), None);
        // What is refused changes nothing.
        assert_eq!(writer.told("p/", 6, Ended::Refused), None);
        assert_eq!((writer.keys[6].acknowledged, writer.retired.len()), (None, 1));
    }

    /// The story: each key is overwritten about once a second, and its last write alone was compared. A
    /// failover that lost acknowledged writes was said to lose nothing, since later writes replaced the old
    /// values that had come back.
    #[test]
    fn a_lost_write_is_seen_by_what_the_next_write_of_its_key_replaced() {
        let mut writer = Writer::new("p/", 3);
        let mut next = |version, previous| {
            writer.sequence += 1;
            writer.told("p/", 5, written(version, previous))
        };
        assert_eq!(next(10, None), None);
        assert_eq!(next(20, Some(10)), None);
        let lost = next(25, Some(10)).expect("version 20 is lost");
        assert!(lost.contains("write 2 was acknowledged as version 20"), "{lost}");
        assert!(lost.ends_with("the next one found version 10"), "{lost}");
        assert_eq!(next(30, Some(25)), None, "it is told once");
        let lost = next(35, None).expect("the key is lost");
        assert!(lost.contains("version 30") && lost.ends_with("found no key"), "{lost}");
        let mut refused = Writer::new("p/", 4);
        refused.told("p/", 5, Ended::Refused);
        let lost = refused.told("p/", 5, written(9, Some(8))).expect("nobody wrote version 8");
        assert!(lost.contains("first write found version 8"), "{lost}");
    }

    #[test]
    fn what_is_lost_is_told_once() {
        let mut writer = Writer::new("p/", 3);
        writer.sequence = 9;
        writer.told("p/", 5, written(70, None));
        writer.told("p/", 6, Ended::Unknown);
        let lost = writer.keys[5].key.clone();
        assert!(writer.keys[5].compared(None).is_some());
        writer.retired[0].lost = true;
        writer.leave_lost("p/");
        assert_eq!((writer.keys[5].acknowledged, writer.retired.len()), (None, 0));
        let keys: BTreeSet<&String> = writer.keys.iter().map(|told| &told.key).collect();
        assert!(!keys.contains(&lost) && keys.len() == KEYS, "{keys:?}");
    }

    #[tokio::test]
    async fn writers_that_do_not_work_have_measured_nothing() {
        let options = Options::new(["127.0.0.1:1"]);
        let mut load = Load::within(options.build().expect("an address"));
        let now = Instant::now();
        load.shared.window.lock().saw(now, now, Outcome::Acknowledged);
        assert_eq!(load.stop().await.expect("no writer"), Measured::default());
        let writer = load.paused.pop().expect("a writer");
        load.working.spawn(async move { writer });
        let measured = load.stop().await.expect("the writer");
        assert_eq!((measured.acknowledged, load.paused.len()), (1, 4));
    }

    #[tokio::test]
    async fn a_writer_that_panics_does_not_keep_the_others_from_being_paused() {
        fn panics() -> Writer {
            panic!("a bug")
        }
        let options = Options::new(["127.0.0.1:1"]);
        let mut load = Load::within(options.build().expect("an address"));
        load.paused.pop().expect("a writer");
        load.working.spawn(async { panics() });
        for writer in load.paused.drain(..) {
            load.working.spawn(async move { writer });
        }
        load.add_lost("`k`".to_owned());
        let error = load.stop().await.expect_err("a writer panicked");
        assert!(format!("{error:#}").starts_with("a writer of the load: "), "{error:#}");
        assert_eq!((load.paused.len(), load.take_lost().count()), (3, 1));
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_read_is_not_said_to_be_lost() {
        // Nothing listens at a port that is held.
        let held = cairn_launch::HeldPort::any().expect("a port");
        let options = Options::new([held.address().to_string()]).deadline(Duration::from_millis(1));
        let mut load = Load::within(options.build().expect("an address"));
        let checked = load.check(Duration::ZERO).await;
        assert_eq!((checked.read, checked.lost.count()), (0, 0));
        let why = checked.unread.expect("nobody answers");
        assert!(why.contains("256 keys cannot be read back"), "{why}");
    }
}
