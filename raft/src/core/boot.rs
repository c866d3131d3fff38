//! A member's boot: what its messages announce, and what the log keeps of it.

use super::proto::Envelope;
use super::version::RELEASE_BYTES_MAX;
use cairn_engine::BootEpoch;
use std::sync::Arc;

/// One boot of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boot {
    pub(crate) epoch: BootEpoch,
    /// The version that it speaks; 0: a release before versions.
    pub(crate) version: u32,
    /// The release that it runs; empty: not said.
    pub(crate) release: Arc<str>,
}

impl Boot {
    /// What a message announces of its sender.
    pub(crate) fn announced(envelope: &Envelope) -> Boot {
        let release = match envelope.release.as_str() {
            release if release.len() <= RELEASE_BYTES_MAX => release,
            _ => "",
        };
        Boot {
            epoch: BootEpoch { number: envelope.boot_epoch, nonce: envelope.boot_nonce },
            version: envelope.version,
            release: release.into(),
        }
    }
}
