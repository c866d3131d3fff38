//! The audit of operators' calls: each one, allowed or refused, is one line of the log with the
//! target `audit`; status shows the latest.

use cairn_raft::NodeId;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::time::Instant;
use tracing::info;

/// Calls of one kind that status shows. Allowed and refused ones are counted apart, so that
/// refusals, which anybody can cause, do not push out what changed the cluster.
const MOST_SHOWN: usize = 32;
/// Bytes of arguments and result that are kept.
const TEXT_BYTES: usize = 512;

/// An audited call.
#[derive(Clone, Debug)]
pub(crate) struct AuditedCall {
    pub(crate) principal: String,
    pub(crate) call: &'static str,
    pub(crate) arguments: String,
    pub(crate) result: String,
    pub(crate) at: Instant,
}

/// The audit of one node.
pub(crate) struct Audit {
    node: NodeId,
    allowed: Mutex<VecDeque<AuditedCall>>,
    refused: Mutex<VecDeque<AuditedCall>>,
}

impl Audit {
    pub(crate) fn new(node: NodeId) -> Audit {
        Audit { node, allowed: Mutex::default(), refused: Mutex::default() }
    }

    /// Begins to audit a call.
    pub(crate) fn begin(
        &self,
        principal: String,
        call: &'static str,
        arguments: String,
    ) -> PendingCall<'_> {
        PendingCall { audit: self, principal, call, arguments, ended: None }
    }

    fn record(&self, audited: AuditedCall, allowed: bool) {
        let AuditedCall { principal, call, arguments, result, .. } = &audited;
        info!(target: "audit", node = %self.node, principal, call, arguments, result, "audit: an operator's call");
        let calls = if allowed { &self.allowed } else { &self.refused };
        let mut calls = calls.lock();
        if calls.len() == MOST_SHOWN {
            calls.pop_front();
        }
        calls.push_back(audited);
    }

    /// The latest calls, the oldest first.
    pub(crate) fn latest(&self) -> Vec<AuditedCall> {
        let mut calls: Vec<_> = self.allowed.lock().iter().cloned().collect();
        calls.extend(self.refused.lock().iter().cloned());
        calls.sort_by_key(|call| call.at);
        calls
    }
}

/// A call that is being served. It is recorded when it ends, even if its caller goes away before
/// the answer: then it may have taken effect.
pub(crate) struct PendingCall<'a> {
    audit: &'a Audit,
    principal: String,
    call: &'static str,
    arguments: String,
    /// The result, and whether the call was allowed.
    ended: Option<(String, bool)>,
}

impl PendingCall<'_> {
    /// Ends the call. `refusal`: why it had no effect.
    pub(crate) fn end(mut self, refusal: Option<&str>) {
        self.ended = Some(match refusal {
            None => ("ok".into(), true),
            Some(refusal) => (format!("refused: {refusal}"), false),
        });
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        let unknown = || ("unknown: the caller went away before the answer".into(), true);
        let (result, allowed) = self.ended.take().unwrap_or_else(unknown);
        let audited = AuditedCall {
            principal: std::mem::take(&mut self.principal),
            call: self.call,
            arguments: shortened(std::mem::take(&mut self.arguments)),
            result: shortened(result),
            at: Instant::now(),
        };
        self.audit.record(audited, allowed);
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_BYTES));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_shows_a_bounded_number_and_refusals_do_not_push_out_what_was_allowed() {
        let audit = Audit::new(NodeId::new(1, 1));
        audit.begin("token ops".into(), "scrub", "start".into()).end(None);
        drop(audit.begin("token ops".into(), "scrub", "pause".into()));
        for number in 0..3 * MOST_SHOWN {
            let refusal = "ß".repeat(TEXT_BYTES);
            audit.begin("token ada".into(), "scrub", number.to_string()).end(Some(&refusal));
        }
        let latest = audit.latest();
        assert_eq!(latest.len(), MOST_SHOWN + 2);
        assert_eq!((latest[0].principal.as_str(), latest[0].result.as_str()), ("token ops", "ok"));
        assert!(latest[1].result.starts_with("unknown"), "{}", latest[1].result);
        let last = latest.last().expect("the latest");
        assert_eq!(last.arguments, (3 * MOST_SHOWN - 1).to_string());
        assert!(last.result.starts_with("refused: ß") && last.result.len() <= TEXT_BYTES + 3);
    }
}
