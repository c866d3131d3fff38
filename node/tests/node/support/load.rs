//! Writers against a cluster, and what they must find afterwards.
//!
//! Each writer puts new keys, and overwrites its own register with rising numbers. After each
//! disaster every acknowledged key must exist with its value, and each register must hold a number
//! between the last one acknowledged and the last one tried.

use cairn_client::{Client, Error};
use futures::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const WRITERS: u64 = 16;
const VALUE_BYTES: usize = 1024;

/// What each writer tried, and the results.
#[derive(Clone, Debug, Default)]
pub struct Written {
    writer: u64,
    /// Numbers of keys that were acknowledged.
    acknowledged: Vec<u64>,
    /// The last number tried, acknowledged or not.
    last_tried: u64,
    register_acknowledged: u64,
    register_tried: u64,
    unknown: u64,
    acknowledged_at: Vec<Instant>,
}

#[derive(Debug, Default)]
pub struct History {
    writers: Vec<Written>,
}

impl History {
    pub fn merge(&mut self, writers: Vec<Written>) -> &History {
        self.writers = writers;
        self
    }

    /// The longest time without any acknowledgement from `start` on.
    pub fn longest_pause_after(&self, start: Instant) -> Duration {
        let mut times: Vec<Instant> = self
            .writers
            .iter()
            .flat_map(|written| written.acknowledged_at.iter().copied())
            .filter(|time| *time >= start)
            .collect();
        times.push(start);
        times.sort();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(Duration::MAX)
    }

    /// Reads everything back. Returns the number of keys checked and of unknown outcomes.
    pub async fn check(&self, client: &Client) -> (usize, u64) {
        let keys = self.writers.iter().flat_map(|written| {
            written.acknowledged.iter().map(move |number| (written.writer, *number))
        });
        let missing: Vec<String> = futures::stream::iter(keys)
            .map(|(writer, number)| async move {
                let key = key(writer, number);
                let found = client.get(key.clone()).await.expect("a read after the disaster");
                (found.map(|item| item.value) != Some(value(writer, number).into())).then_some(key)
            })
            .buffer_unordered(64)
            .filter_map(|missing| async { missing })
            .collect()
            .await;
        assert!(
            missing.is_empty(),
            "{} acknowledged writes are missing or wrong: {missing:?}",
            missing.len()
        );
        for written in &self.writers {
            let found =
                client.get(register(written.writer)).await.expect("a read after the disaster");
            let found = found.map_or(0, |item| {
                String::from_utf8(item.value.to_vec()).expect("text").parse().expect("a number")
            });
            let allowed = written.register_acknowledged..=written.register_tried;
            assert!(
                allowed.contains(&found),
                "register {}: {found} is not in {allowed:?}",
                written.writer
            );
        }
        let checked = self.writers.iter().map(|written| written.acknowledged.len()).sum();
        (checked, self.writers.iter().map(|written| written.unknown).sum())
    }
}

fn key(writer: u64, number: u64) -> String {
    format!("writer-{writer}/{number:08}")
}

fn value(writer: u64, number: u64) -> Vec<u8> {
    let pattern = format!("{writer}:{number};");
    pattern.bytes().cycle().take(VALUE_BYTES).collect()
}

fn register(writer: u64) -> String {
    format!("register-{writer}")
}

pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Written>>,
}

impl Load {
    pub fn start(client: &Client, history: &History) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let writers = (0..WRITERS)
            .map(|writer| {
                let before =
                    history.writers.iter().find(|written| written.writer == writer).cloned();
                let before = before.unwrap_or(Written { writer, ..Written::default() });
                tokio::spawn(write(
                    client.clone(),
                    before,
                    Arc::clone(&stop),
                    Arc::clone(&acknowledged),
                ))
            })
            .collect();
        Load { stop, acknowledged, writers }
    }

    pub async fn wait_for_acknowledgements(&self, more: u64) {
        let until = self.acknowledged.load(Ordering::SeqCst) + more;
        while self.acknowledged.load(Ordering::SeqCst) < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for twice as many acknowledgements as there are writers, so that at least one belongs
    /// to a write that began after the disaster.
    pub async fn wait_for_acknowledgements_after_outage(&self, since: Instant) {
        self.wait_for_acknowledgements(WRITERS * 2).await;
        println!(
            "{} acknowledgements within {} ms of the kill",
            WRITERS * 2,
            since.elapsed().as_millis()
        );
    }

    pub async fn stop(self) -> Vec<Written> {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        for writer in self.writers {
            all.push(writer.await.expect("a writer"));
        }
        all
    }
}

async fn write(
    client: Client,
    mut written: Written,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> Written {
    while !stop.load(Ordering::SeqCst) {
        let overwrite = written.last_tried % 4 == 3;
        written.last_tried += 1;
        let result = if overwrite {
            written.register_tried += 1;
            client.put(register(written.writer), written.register_tried.to_string()).await
        } else {
            client
                .put(
                    key(written.writer, written.last_tried),
                    value(written.writer, written.last_tried),
                )
                .await
        };
        match result {
            Ok(_) => {
                if overwrite {
                    written.register_acknowledged = written.register_tried;
                } else {
                    written.acknowledged.push(written.last_tried);
                }
                written.acknowledged_at.push(Instant::now());
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Err(Error::OutcomeUnknown { .. }) => written.unknown += 1,
            // The client says that it was not applied. The writer continues with the next key.
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("writer {}: {error}", written.writer),
        }
    }
    written
}
