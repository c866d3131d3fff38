//! The streams of watches that a [`Node`] has: the test tells what the node tells.
use super::Node;
use cairn_client::proto::{self, watch_ended, watch_part, watch_request};
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tonic::{Status, Streaming};

type Told = Result<proto::WatchResponse, Status>;
pub(super) type Tells = Pin<Box<dyn Stream<Item = Told> + Send>>;

/// The streams that were opened, for whoever plays the node.
#[derive(Clone)]
pub(super) struct Opened {
    new: mpsc::UnboundedSender<WatchStream>,
    opened: Arc<Mutex<mpsc::UnboundedReceiver<WatchStream>>>,
}

impl Opened {
    pub(super) fn none() -> Opened {
        let (new, opened) = mpsc::unbounded_channel();
        Opened { new, opened: Arc::new(Mutex::new(opened)) }
    }

    /// Takes a stream that a client opens. Returns what the node tells.
    pub(super) fn open(&self, mut requests: Streaming<proto::WatchRequest>) -> Tells {
        let (ask, asked) = mpsc::unbounded_channel();
        let (tells, mut told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                if ask.send(request.kind.unwrap()).is_err() {
                    break;
                }
            }
        });
        self.new.send(WatchStream { asked, tells: Some(tells) }).unwrap();
        Box::pin(futures::stream::poll_fn(move |context| told.poll_recv(context)))
    }

    pub(super) async fn next(&self) -> WatchStream {
        self.opened.lock().await.recv().await.unwrap()
    }
}

/// The node answers the begin of each watch with these parts.
pub fn plays(
    node: &Node,
    told: impl Fn(proto::WatchBegin) -> Vec<proto::WatchPart> + Clone + Send + 'static,
) -> JoinHandle<()> {
    let node = node.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, told) = (node.watched().await, told.clone());
            tokio::spawn(async move {
                while let Some(asked) = stream.asked().await {
                    if let watch_request::Kind::Begin(begin) = asked {
                        stream.tells(told(begin));
                    }
                }
            });
        }
    })
}

/// One stream, at its node's end. Dropped, it breaks.
pub struct WatchStream {
    asked: mpsc::UnboundedReceiver<watch_request::Kind>,
    tells: Option<mpsc::UnboundedSender<Told>>,
}

impl WatchStream {
    /// The next request; `None` once the client has left.
    pub async fn asked(&mut self) -> Option<watch_request::Kind> {
        self.asked.recv().await
    }

    /// The next request, which begins a watch. It is not begun yet.
    pub async fn begin(&mut self) -> proto::WatchBegin {
        match self.asked().await {
            Some(watch_request::Kind::Begin(begin)) => begin,
            asked => panic!("a watch begins, not {asked:?}"),
        }
    }

    /// The same, and begins it: where it is asked to, or behind entry 10.
    pub async fn begun(&mut self) -> proto::WatchBegin {
        let begin = self.begin().await;
        self.tells([begun(&begin)]);
        begin
    }

    /// The next request, which ends a watch. Returns its number.
    pub async fn end(&mut self) -> u64 {
        match self.asked().await {
            Some(watch_request::Kind::End(id)) => id,
            asked => panic!("a watch ends, not {asked:?}"),
        }
    }

    pub fn tells(&self, parts: impl IntoIterator<Item = proto::WatchPart>) {
        let parts = parts.into_iter().collect();
        self.sends(Ok(proto::WatchResponse { parts, through: None }));
    }

    /// Marks the progress of all its watches.
    pub fn marks(&self, through: u64) {
        self.sends(Ok(proto::WatchResponse { parts: vec![], through: Some(at(through)) }));
    }

    /// The client may have left.
    pub fn sends(&self, told: Told) {
        let _ = self.tells.as_ref().unwrap().send(told);
    }

    /// Ends without a status. The client may go on asking.
    pub fn breaks(&mut self) {
        self.tells = None;
    }
}

/// An entry of term 3.
pub fn at(index: u64) -> proto::Position {
    proto::Position { term: 3, index }
}

pub fn began(id: u64, behind: proto::Position) -> proto::WatchPart {
    proto::WatchPart { id, kind: Some(watch_part::Kind::Began(behind)) }
}

/// Begins it where it is asked to, or behind entry 10.
pub fn begun(begin: &proto::WatchBegin) -> proto::WatchPart {
    began(begin.id, begin.after.unwrap_or(at(10)))
}

pub fn put(key: &str, index: u64) -> proto::Change {
    let (key, value) = (key.to_owned().into(), "value".into());
    proto::Change { key, at: Some(at(index)), value, ..proto::Change::default() }
}

/// All of these changes, and of every entry up to `through`; without it more of the last one follows.
pub fn changes(
    id: u64,
    changes: impl IntoIterator<Item = proto::Change>,
    through: Option<u64>,
) -> proto::WatchPart {
    let changes = changes.into_iter().collect();
    let changes = proto::WatchChanges { changes, through: through.map(at) };
    proto::WatchPart { id, kind: Some(watch_part::Kind::Changes(changes)) }
}

pub fn ended(id: u64, why: watch_ended::Why) -> proto::WatchPart {
    ended_with(id, why, 20)
}

/// The history of the node begins behind this entry.
pub fn compacted(id: u64, oldest: u64) -> proto::WatchPart {
    ended_with(id, watch_ended::Why::Compacted, oldest)
}

/// The node has applied 10 entries behind the begin of its history.
fn ended_with(id: u64, why: watch_ended::Why, oldest: u64) -> proto::WatchPart {
    let (now, message) = (Some(at(oldest + 10)), "it said why".to_owned());
    let oldest = Some(at(oldest));
    let ended = proto::WatchEnded { why: why.into(), oldest, now, message };
    proto::WatchPart { id, kind: Some(watch_part::Kind::Ended(ended)) }
}
