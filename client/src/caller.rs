//! What each request says of its client, beside the message itself.
//!
//! The story behind the generation: a client was connected to a node, which was stopped and started as
//! a cluster made anew (`cairn recover --force-new-cluster`). The transport connects again by itself,
//! without another Hello. So the client went on, with versions that meant nothing there.

use std::sync::Arc;

use parking_lot::Mutex;
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::options::Token;
use crate::proto::{GENERATION_KEY, HelloResponse, generation_text};

/// The generation of the cluster of which this node is part. One that was never part of a cluster
/// knows no members. (Its membership's term and index do not tell: those of the first one are 0.)
pub(crate) fn generation_of(hello: &HelloResponse) -> Option<u32> {
    Some(hello.generation).filter(|_| !hello.members.is_empty())
}

/// The client stays with this generation.
pub(crate) struct OtherGeneration(pub(crate) u32);

/// The client's token, and the cluster that it means. Clones are cheap and share the generation:
/// a connection that was made to a blank node names it, too, once another node has told it.
#[derive(Clone, Default)]
pub(crate) struct Caller {
    token: Option<Token>,
    meant: Arc<Mutex<Meant>>,
}

/// The generation that a client means.
#[derive(Default)]
struct Meant {
    /// That of the first formed cluster that answered.
    generation: Option<u32>,
    /// It served a request of this client, or may have. The client stays with it from then on.
    stays: bool,
}

impl Caller {
    /// A client that knows no cluster yet.
    pub(crate) fn new(token: Option<Token>) -> Caller {
        Caller { token, meant: Arc::default() }
    }

    /// The same client, as if it knew no cluster: for a Hello, which tells the node's generation.
    pub(crate) fn stranger(&self) -> Caller {
        Caller::new(self.token.clone())
    }

    /// A node told its generation. Returns the one that this client meant before, if that is another
    /// one. It means the told one now, unless it stays with the other one: a node that was left over
    /// when the cluster was made anew may have answered first.
    pub(crate) fn told(&self, generation: u32) -> Result<Option<u32>, OtherGeneration> {
        let mut meant = self.meant.lock();
        let before = meant.generation.filter(|before| *before != generation);
        match before {
            Some(other) if meant.stays => Err(OtherGeneration(other)),
            _ => {
                meant.generation = Some(generation);
                Ok(before)
            }
        }
    }

    /// A request that named this generation was served, or may take effect: the client stays with
    /// it. Returns whether it meant another one by now, which another node told meanwhile. A request
    /// that named none leaves open who served it.
    pub(crate) fn stays(&self, named: Option<u32>) -> Result<bool, OtherGeneration> {
        let mut meant = self.meant.lock();
        let other = meant.generation.filter(|other| named.is_some_and(|named| named != *other));
        match other {
            Some(other) if meant.stays => Err(OtherGeneration(other)),
            _ => {
                *meant = Meant { generation: named.or(meant.generation), stays: true };
                Ok(other.is_some())
            }
        }
    }

    pub(crate) fn generation(&self) -> Option<u32> {
        self.meant.lock().generation
    }

    /// Says who asks, and of which generation.
    pub(crate) fn add_to<M>(&self, request: &mut Request<M>, named: Option<u32>) {
        if let Some(token) = &self.token {
            token.add_to(request);
        }
        let text = named.map(generation_text);
        if let Some(value) = text.and_then(|text| MetadataValue::try_from(text).ok()) {
            request.metadata_mut().insert(GENERATION_KEY, value);
        }
    }
}
