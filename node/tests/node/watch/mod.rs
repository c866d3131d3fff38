//! Watches against real processes, as the protocol has them: what is told, to whom, and for how long.

mod ends;
mod follows;
mod many;
mod requests;
mod stops;

use crate::metrics::metrics;
use crate::support::{Cluster, POLL, WAIT_LIMIT};
use cairn_client::Client;
use cairn_client::proto::kv_client::KvClient;
use cairn_client::proto::watch_ended::Why;
use cairn_client::proto::{self, watch_part, watch_request};
use futures::channel::mpsc;
use std::collections::BTreeMap;
use std::time::Instant;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// A stream of watches.
pub struct Watches {
    requests: mpsc::UnboundedSender<proto::WatchRequest>,
    messages: Streaming<proto::WatchResponse>,
}

impl Watches {
    /// # Errors
    /// Why nobody answers there.
    pub async fn open(endpoint: &str) -> Result<Watches, String> {
        Watches::open_as(endpoint, None).await
    }

    /// The same, with this token.
    pub async fn open_as(endpoint: &str, token: Option<&str>) -> Result<Watches, String> {
        let channel = Channel::from_shared(format!("http://{endpoint}")).expect("a URI");
        let channel = channel.connect().await.map_err(|error| error.to_string())?;
        let mut stub = KvClient::new(channel).max_decoding_message_size(64 << 20);
        let (requests, sent) = mpsc::unbounded();
        let mut request = Request::new(sent);
        if let Some(token) = token {
            let bearer = format!("Bearer {token}").parse().expect("a value");
            request.metadata_mut().insert("authorization", bearer);
        }
        let opened = stub.watch(request).await.map_err(|status| status.to_string())?;
        Ok(Watches { requests, messages: opened.into_inner() })
    }

    pub fn ask(&self, kind: Option<watch_request::Kind>) {
        // A stream that has ended says why when it is read.
        self.requests.unbounded_send(proto::WatchRequest { kind }).ok();
    }

    pub fn begin(&self, id: u64, range: proto::Range, after: Option<proto::Position>) {
        let begin = proto::WatchBegin { id, range: Some(range), after, keys_only: false };
        self.ask(Some(watch_request::Kind::Begin(begin)));
    }

    pub fn end(&self, id: u64) {
        self.ask(Some(watch_request::Kind::End(id)));
    }

    /// The next message, or how the stream ended.
    pub async fn message(&mut self) -> Result<Option<proto::WatchResponse>, Status> {
        let next = tokio::time::timeout(WAIT_LIMIT, self.messages.message());
        next.await.expect("a node says something every 5 seconds")
    }

    /// The next part that is told. The stream goes on.
    pub async fn part(&mut self) -> Vec<proto::WatchPart> {
        loop {
            let message = self.message().await.expect("it goes on").expect("it goes on");
            if !message.parts.is_empty() {
                return message.parts;
            }
        }
    }

    /// The end that is the only part of the next message.
    pub async fn ended(&mut self, id: u64) -> proto::WatchEnded {
        let parts = self.part().await;
        let [proto::WatchPart { id: of, kind: Some(watch_part::Kind::Ended(ended)) }] = &parts[..]
        else {
            panic!("{parts:?}")
        };
        assert_eq!(*of, id, "{ended:?}");
        ended.clone()
    }
}

/// All keys that begin with this.
pub fn prefix(prefix: &str) -> proto::Range {
    let range = cairn_client::Range::prefix(prefix.to_owned());
    let end = range.end().cloned().unwrap_or_default();
    proto::Range { start: range.start().clone(), end }
}

/// A client with one watch, which goes on at another node where one ends it, or is gone.
pub struct Follower {
    endpoints: Vec<String>,
    range: proto::Range,
    stream: Option<Watches>,
    /// Everything up to this was told.
    pub through: Option<proto::Position>,
    pub changes: Vec<proto::Change>,
    /// Why it went on elsewhere.
    pub moved: Vec<String>,
}

impl Follower {
    /// It begins at the first of the nodes.
    pub fn new(endpoints: &[String], range: proto::Range) -> Follower {
        let (endpoints, changes) = (endpoints.to_vec(), Vec::new());
        Follower { endpoints, range, stream: None, through: None, changes, moved: Vec::new() }
    }

    /// One that goes on behind this position.
    pub fn after(self, position: proto::Position) -> Follower {
        Follower { through: Some(position), ..self }
    }

    /// Returns once it knows where it began.
    pub async fn begun(mut self) -> Follower {
        self.until(0).await;
        self
    }

    /// Follows until everything up to this index is told.
    pub async fn until(&mut self, index: u64) {
        let began = Instant::now();
        while self.through.is_none_or(|through| through.index < index) || self.stream.is_none() {
            if let Err(why) = self.step().await {
                assert!(began.elapsed() < WAIT_LIMIT, "nobody goes on: {why}, {:?}", self.moved);
                self.moved.push(why);
                self.stream = None;
                self.endpoints.rotate_left(1);
                // An entry of which not all was told comes again as a whole.
                let through = self.through.map_or(0, |through| through.index);
                self.changes.retain(|change| index_of(change) <= through);
                tokio::time::sleep(POLL).await;
            }
        }
    }

    async fn step(&mut self) -> Result<(), String> {
        if self.stream.is_none() {
            let stream = Watches::open(&self.endpoints[0]).await?;
            stream.begin(1, self.range.clone(), self.through);
            self.stream = Some(stream);
            // What comes first says where it begins.
            return self.step_on(true).await;
        }
        self.step_on(false).await
    }

    async fn step_on(&mut self, begins: bool) -> Result<(), String> {
        let stream = self.stream.as_mut().expect("open");
        let message = stream.message().await.map_err(|status| status.to_string())?;
        let message = message.ok_or("the stream ended")?;
        let began = |part: &proto::WatchPart| matches!(part.kind, Some(watch_part::Kind::Began(_)));
        let ended = |part: &proto::WatchPart| matches!(part.kind, Some(watch_part::Kind::Ended(_)));
        assert!(!begins || message.parts.iter().all(|part| began(part) || ended(part)));
        for part in message.parts {
            assert_eq!(part.id, 1);
            match part.kind.expect("a kind") {
                watch_part::Kind::Began(at) => {
                    if let Some(through) = self.through {
                        assert_eq!(at.index, through.index, "it begins where it was asked to");
                    }
                    self.through = Some(at);
                }
                watch_part::Kind::Changes(told) => self.take(told),
                watch_part::Kind::Ended(ended) => {
                    let moves = [Why::Move, Why::Compacted].contains(&ended.why());
                    assert!(moves, "{ended:?}");
                    return Err(format!("{ended:?}"));
                }
            }
        }
        if let Some(through) = message.through {
            assert!(self.changes.last().is_none_or(|last| index_of(last) <= through.index));
            self.advance(through);
        }
        Ok(())
    }

    fn take(&mut self, told: proto::WatchChanges) {
        let through = self.through.map_or(0, |through| through.index);
        for change in told.changes {
            let last = self.changes.last().map_or(0, index_of);
            assert!(index_of(&change) >= last, "behind entry {last}: {change:?}");
            assert!(index_of(&change) > through, "all up to {through} was told: {change:?}");
            self.changes.push(change);
        }
        if let Some(through) = told.through {
            self.advance(through);
        }
    }

    fn advance(&mut self, through: proto::Position) {
        assert!(self.through.is_none_or(|before| before.index <= through.index), "{through:?}");
        self.through = Some(through);
    }

    /// Each change as [`Write`] has it.
    pub fn told(&self) -> Vec<Write> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let told = |change: &proto::Change| Write {
            index: index_of(change),
            key: text(&change.key),
            value: (!change.deleted).then(|| text(&change.value)),
            previous: change.previous,
        };
        self.changes.iter().map(told).collect()
    }
}

pub fn index_of(change: &proto::Change) -> u64 {
    change.at.expect("an entry").index
}

/// What a write that was acknowledged changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    pub index: u64,
    pub key: String,
    /// `None`: it was deleted.
    pub value: Option<String>,
    pub previous: u64,
}

/// Puts and deletes keys that begin with this, which nobody else writes.
pub async fn write(client: Client, prefix: String, count: usize) -> Vec<Write> {
    let (mut writes, mut versions) = (Vec::new(), BTreeMap::<String, u64>::new());
    for number in 0..count {
        let key = format!("{prefix}{}", number % 5);
        let previous = versions.get(&key).copied().unwrap_or(0);
        let deletes = previous > 0 && number % 3 == 2;
        let value = (!deletes).then(|| format!("{number} ").repeat(1 + number % 200));
        let written = match &value {
            Some(value) => client.put(key.clone(), value.clone()).await,
            None => client.delete(key.clone()).await,
        };
        let index = written.expect("it is written at last").version.0;
        match deletes {
            true => versions.remove(&key),
            false => versions.insert(key.clone(), index),
        };
        writes.push(Write { index, key, value, previous });
    }
    writes
}

/// The writes of several clients, by index, and the last index.
pub async fn write_all(client: &Client, writers: usize, count: usize) -> (Vec<Write>, u64) {
    let all = (0..writers).map(|writer| write(client.clone(), format!("{writer}/"), count));
    let mut all: Vec<Write> = futures::future::join_all(all).await.into_iter().flatten().collect();
    all.sort();
    let last = all.last().map_or(0, |write| write.index);
    (all, last)
}

/// Returns once the first node has so many watches.
pub async fn until_open(cluster: &Cluster, count: usize) {
    let sample = format!("\ncairn_watches {count}\n");
    let open = async || metrics(cluster, 0).contains(&sample).then_some(());
    cluster.until("so many watches are open", open).await;
}
