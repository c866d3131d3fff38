//! A group commit in front of a store that has none: one thread writes the puts that wait, as one
//! batch, and answers them all. This is what an application with many clients would do.

use super::{Put, Store};
use anyhow::{Context, Result, anyhow};
use std::sync::{Arc, mpsc};
use std::thread;

/// The most puts of one batch, as many as the engine's log takes in this bench.
const MOST: usize = 64;

type Answer = mpsc::SyncSender<Result<(), String>>;

/// One client's way to the thread that writes. The thread ends with its last client.
pub struct Client {
    queue: mpsc::Sender<(Put, Answer)>,
    answer: Answer,
    answered: mpsc::Receiver<Result<(), String>>,
}

impl Client {
    /// `count` clients of one thread.
    ///
    /// # Errors
    /// The system's, if it starts no thread.
    pub fn many(store: &Arc<dyn Store>, synced: bool, count: usize) -> Result<Vec<Client>> {
        let (queue, waiting) = mpsc::channel();
        let store = Arc::clone(store);
        let write = move || write(&*store, synced, &waiting);
        thread::Builder::new().spawn(write).context("starting a thread")?;
        let client = |_| {
            let (answer, answered) = mpsc::sync_channel(1);
            Client { queue: queue.clone(), answer, answered }
        };
        Ok((0..count).map(client).collect())
    }

    /// Writes a put in a batch with others.
    ///
    /// # Errors
    /// The store's.
    pub fn put(&self, put: Put) -> Result<()> {
        self.queue.send((put, self.answer.clone())).context("the writing thread has ended")?;
        let answered = self.answered.recv().context("the writing thread has ended")?;
        answered.map_err(|error| anyhow!(error))
    }
}

fn write(store: &dyn Store, synced: bool, waiting: &mpsc::Receiver<(Put, Answer)>) {
    while let Ok(first) = waiting.recv() {
        let batch = std::iter::once(first).chain(waiting.try_iter()).take(MOST);
        let (puts, answers): (Vec<Put>, Vec<Answer>) = batch.unzip();
        let outcome = store.put(&puts, synced).map_err(|error| format!("{error:#}"));
        for answer in answers {
            // A client that is gone does not wait.
            let _ = answer.send(outcome.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::sync::Mutex;
    use std::time::Instant;

    /// Keeps the keys of each batch; the first batch waits until it may end.
    struct Recording {
        batches: Mutex<Vec<Vec<Bytes>>>,
        first: Mutex<Option<mpsc::Receiver<()>>>,
    }

    impl Store for Recording {
        fn put(&self, puts: &[Put], _synced: bool) -> Result<()> {
            let keys: Vec<Bytes> = puts.iter().map(|(key, _)| key.clone()).collect();
            self.batches.lock().unwrap().push(keys.clone());
            if let Some(until) = self.first.lock().unwrap().take() {
                until.recv().unwrap();
            }
            if keys.iter().any(|key| key == "bad") {
                anyhow::bail!("refused");
            }
            Ok(())
        }

        fn settle(&self, _until: Instant) -> Result<bool> {
            Ok(true)
        }

        fn flush(&self) -> Result<()> {
            Ok(())
        }

        fn version(&self) -> String {
            String::new()
        }

        fn settings(&self) -> String {
            String::new()
        }
    }

    fn recording() -> (Arc<Recording>, mpsc::Sender<()>) {
        let (end, until) = mpsc::channel();
        let first = Mutex::new(Some(until));
        (Arc::new(Recording { batches: Mutex::default(), first }), end)
    }

    #[test]
    fn puts_that_wait_for_a_batch_make_the_next_one_together() {
        let (store, end) = recording();
        let shared: Arc<dyn Store> = store.clone();
        let mut clients = Client::many(&shared, true, 4).unwrap();
        let send = |client: &Client, key: &'static str| {
            client.queue.send(((key.into(), Bytes::new()), client.answer.clone())).unwrap();
        };
        for (client, key) in clients.iter().zip(["1", "2", "3"]) {
            send(client, key);
        }
        // Nothing is answered before the first batch may end.
        assert!(clients.iter().all(|client| client.answered.try_recv().is_err()));
        end.send(()).unwrap();
        for client in clients.iter().take(3) {
            assert!(client.answered.recv().unwrap().is_ok());
        }
        let last = clients.pop().unwrap();
        last.put(("4".into(), Bytes::new())).unwrap();
        let batches = store.batches.lock().unwrap();
        // The first may have been taken before the others came, which then are together.
        assert!(batches.len() <= 3, "{batches:?}");
        assert_eq!(batches.concat(), ["1", "2", "3", "4"]);
    }

    #[test]
    fn a_batch_that_fails_fails_each_of_its_puts() {
        let (store, end) = recording();
        end.send(()).unwrap();
        let shared: Arc<dyn Store> = store;
        let clients = Client::many(&shared, true, 1).unwrap();
        let error = clients[0].put(("bad".into(), Bytes::new())).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
        clients[0].put(("good".into(), Bytes::new())).unwrap();
    }
}
