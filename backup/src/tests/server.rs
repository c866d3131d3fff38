//! Targets at a server that speaks S3.

use crate::Target;
use crate::bucket::Limits;
use std::net::SocketAddr;
use std::time::Duration;

pub(super) use cairn_bucket::{Line, Reset, Server, answering, silent, variables};

/// Nothing here waits for as long as that.
const LONG: Duration = Duration::from_secs(120);
pub(super) const PATIENT: Limits = Limits { request: LONG, retry: LONG };
/// One try of each request.
pub(super) const IMPATIENT: Limits = Limits { request: LONG, retry: Duration::ZERO };

/// What a bucket is reached by.
pub(super) trait Reached {
    fn at(&self) -> SocketAddr;

    fn target(&self, text: &str) -> Target {
        let endpoint = format!("http://{}", self.at());
        Target::bucket(text, variables(&endpoint), Some(PATIENT)).unwrap()
    }
}

impl Reached for Server {
    fn at(&self) -> SocketAddr {
        self.address
    }
}

impl Reached for Line {
    fn at(&self) -> SocketAddr {
        self.address
    }
}
