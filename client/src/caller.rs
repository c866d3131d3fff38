//! What each request says of its client, beside the message itself.
//!
//! The story behind the generation: a client was connected to a node, which was stopped and started as
//! a cluster made anew (`cairn recover --force-new-cluster`). The transport connects again by itself,
//! without another Hello. So the client went on, with versions that meant nothing there.

use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};

use crate::options::Token;
use crate::proto::{GENERATION_KEY, HelloResponse, generation_text};

/// The generation of the cluster of which this node is part. One that was never part of a cluster
/// knows no members. (Its membership's term and index do not tell: those of the first one are 0.)
pub(crate) fn generation_of(hello: &HelloResponse) -> Option<u32> {
    Some(hello.generation).filter(|_| !hello.members.is_empty())
}

/// The client's token, and the cluster that it means. Clones are cheap.
#[derive(Clone, Default)]
pub(crate) struct Caller {
    token: Option<Token>,
    generation: Option<MetadataValue<Ascii>>,
}

impl Caller {
    /// A client that knows no cluster yet.
    pub(crate) fn new(token: Option<Token>) -> Caller {
        Caller { token, generation: None }
    }

    /// The same, once a node has answered.
    pub(crate) fn of_cluster(&self, hello: &HelloResponse) -> Caller {
        let text = generation_of(hello).map(generation_text);
        Caller { generation: text.and_then(|text| text.parse().ok()), ..self.clone() }
    }

    pub(crate) fn add_to<M>(&self, request: &mut Request<M>) {
        if let Some(token) = &self.token {
            token.add_to(request);
        }
        if let Some(generation) = &self.generation {
            request.metadata_mut().insert(GENERATION_KEY, generation.clone());
        }
    }
}
