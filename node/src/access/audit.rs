//! The audit of operators' calls: each one that was allowed is one line of the log with the target
//! `audit`; so is each one that was redirected or refused, as far as the log's limit allows, since anybody
//! can cause those. Status shows the latest. A change that takes long is asked for over and over: it
//! has one line when it begins and one when it is done.

use crate::log::UNLIMITED;
use cairn_client::shown;
use cairn_raft::NodeId;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::time::Instant;
use tracing::info;

/// Calls of one kind that status shows. Allowed ones are counted apart from those that were redirected
/// or refused, so that refusals, which anybody can cause, do not push out what changed the cluster.
const MOST_SHOWN: usize = 32;
/// Bytes of arguments and result that are kept.
const TEXT_BYTES: usize = 512;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End<'a> {
    /// It had its effect.
    Done,
    /// Why it has not had its effect yet; the caller asks again.
    UnderWay(&'a str),
    /// Who leads and is asked next; it had no effect here.
    Redirected(&'a str),
    /// Why the caller may not do it.
    Refused(&'a str),
    /// Why an allowed call failed; it may have had an effect.
    Failed(&'a str),
}

/// An audited call.
#[derive(Clone, Debug)]
pub(crate) struct AuditedCall {
    pub(crate) principal: String,
    pub(crate) call: &'static str,
    pub(crate) arguments: String,
    pub(crate) result: String,
    pub(crate) at: Instant,
    under_way: bool,
}

impl AuditedCall {
    /// Whether `other` asks for the same.
    fn repeats(&self, other: &AuditedCall) -> bool {
        (&self.principal, self.call, &self.arguments)
            == (&other.principal, other.call, &other.arguments)
    }
}

/// A schedule of these would push all other calls out: the latest of each caller is kept.
const BACKUP: &str = "backup";

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
        let calls = if allowed { &self.allowed } else { &self.refused };
        let mut calls = calls.lock();
        let asked_before = calls.iter().position(|call| call.under_way && call.repeats(&audited));
        if let Some(before) = asked_before.filter(|_| allowed) {
            calls.remove(before);
        }
        if !(audited.under_way && asked_before.is_some()) {
            let AuditedCall { principal, call, arguments, result, .. } = &audited;
            let node = self.node;
            match allowed {
                // An operator answers for these, and each changed something.
                true => {
                    info!(name: UNLIMITED, target: "audit", %node, principal, call, arguments, result, "audit: an operator's call")
                }
                // Anybody can cause these.
                false => {
                    info!(target: "audit", %node, principal, call, arguments, result, "audit: an operator's call")
                }
            }
        }
        if audited.call == BACKUP {
            calls.retain(|call| {
                (&call.principal, &call.call) != (&audited.principal, &audited.call)
            });
        }
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
    ended: Option<Ended>,
}

/// The result of a call.
struct Ended {
    result: String,
    allowed: bool,
    under_way: bool,
}

impl PendingCall<'_> {
    /// Ends the call.
    pub(crate) fn end(mut self, end: End<'_>) {
        let result = match end {
            End::Done => "ok".into(),
            End::UnderWay(what) => format!("under way: {what}"),
            End::Redirected(to) => format!("redirected: {to}"),
            End::Refused(refusal) => format!("refused: {refusal}"),
            End::Failed(why) => format!("failed: {why}"),
        };
        self.ended = Some(Ended {
            result,
            allowed: !matches!(end, End::Redirected(_) | End::Refused(_)),
            under_way: matches!(end, End::UnderWay(_)),
        });
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        let Ended { result, allowed, under_way } = self.ended.take().unwrap_or_else(|| Ended {
            result: "unknown: the caller went away before the answer".into(),
            allowed: true,
            under_way: false,
        });
        let audited = AuditedCall {
            principal: std::mem::take(&mut self.principal),
            call: self.call,
            arguments: shortened(std::mem::take(&mut self.arguments)),
            result: shortened(result),
            at: Instant::now(),
            under_way,
        };
        self.audit.record(audited, allowed);
    }
}

/// The caller wrote it: bounded, on one line.
fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_BYTES));
        text.push('…');
    }
    shown::one_line(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_shows_a_bounded_number_and_refusals_do_not_push_out_what_was_allowed() {
        let audit = Audit::new(NodeId::new(1, 1));
        audit.begin("token ops".into(), "scrub", "start".into()).end(End::Done);
        drop(audit.begin("token ops".into(), "scrub", "pause".into()));
        for number in 0..3 * MOST_SHOWN {
            let refusal = "ß".repeat(TEXT_BYTES);
            audit
                .begin("token ada".into(), "scrub", number.to_string())
                .end(End::Refused(&refusal));
        }
        let latest = audit.latest();
        assert_eq!(latest.len(), MOST_SHOWN + 2);
        assert_eq!((latest[0].principal.as_str(), latest[0].result.as_str()), ("token ops", "ok"));
        assert!(latest[1].result.starts_with("unknown"), "{}", latest[1].result);
        let last = latest.last().expect("the latest");
        assert_eq!(last.arguments, (3 * MOST_SHOWN - 1).to_string());
        assert!(last.result.starts_with("refused: ß") && last.result.len() <= TEXT_BYTES + 3);
    }

    /// The story: a call that changed the mode met its deadline before the answer. It counted as refused, and
    /// strangers' refusals had used up the lines that the log has for these.
    #[test]
    fn an_allowed_call_that_fails_is_not_among_those_that_anybody_can_cause() {
        let audit = Audit::new(NodeId::new(1, 1));
        let ask = |call, end: End<'_>| audit.begin("token ops".into(), call, "".into()).end(end);
        ask("set-mode", End::UnderWay("not done within 5 ms; it may still happen"));
        ask("scrub", End::Failed("the disk is full"));
        for _ in 0..3 * MOST_SHOWN {
            ask("scrub", End::Refused("no"));
        }
        let latest = audit.latest();
        assert!(latest[0].result.starts_with("under way: not done"), "{}", latest[0].result);
        assert_eq!(latest[1].result, "failed: the disk is full");
        assert_eq!(latest.len(), MOST_SHOWN + 2);
    }

    /// A schedule asks each hour, for years.
    #[test]
    fn backups_push_no_other_call_out_and_each_caller_has_its_latest() {
        let audit = Audit::new(NodeId::new(1, 1));
        let ask = |principal: &str, call, arguments: &str, end: End<'_>| {
            audit.begin(principal.into(), call, arguments.into()).end(end);
        };
        ask("token ops", "set-mode", "sync", End::Done);
        for number in 0..3 * MOST_SHOWN {
            for member in ["member 1", "member 2"] {
                ask(member, BACKUP, &format!("beside {number} earlier ones"), End::Done);
            }
            ask("member 1", BACKUP, "everything", End::Refused("two already"));
            // Another call of the same caller is none of them.
            ask("member 2", "drain", "end", End::Refused("no"));
        }
        let latest = audit.latest();
        let of = |call: &str| -> Vec<[&str; 3]> {
            let calls = latest.iter().filter(|shown| shown.call == call);
            calls.map(|c| [&*c.principal, &*c.arguments, &*c.result]).collect()
        };
        let last = format!("beside {} earlier ones", 3 * MOST_SHOWN - 1);
        let expected = [
            ["member 1", last.as_str(), "ok"],
            ["member 2", last.as_str(), "ok"],
            ["member 1", "everything", "refused: two already"],
        ];
        assert_eq!(of(BACKUP), expected);
        assert_eq!(of("set-mode"), [["token ops", "sync", "ok"]]);
        assert_eq!(of("drain").len(), MOST_SHOWN - 1, "beside the backup that was refused");
    }

    #[test]
    fn a_change_that_is_asked_for_over_and_over_is_shown_once_with_what_it_came_to() {
        let audit = Audit::new(NodeId::new(1, 1));
        let ask = |arguments: &str, end: End<'_>| {
            audit.begin("token ops".into(), "change-members", arguments.into()).end(end);
        };
        let shown = || -> Vec<(String, String)> {
            let calls = audit.latest().into_iter();
            calls.map(|call| (call.arguments, call.result)).collect()
        };
        let pair = |arguments: &str, result: &str| (arguments.to_string(), result.to_string());
        ask("add slot 4", End::UnderWay("a copy"));
        ask("add slot 5", End::UnderWay("a copy"));
        ask("add slot 4", End::UnderWay("a vote"));
        let both =
            [pair("add slot 5", "under way: a copy"), pair("add slot 4", "under way: a vote")];
        assert_eq!(shown(), both);
        ask("add slot 4", End::Done);
        ask("add slot 4", End::Done);
        let ended = [both[0].clone(), pair("add slot 4", "ok"), pair("add slot 4", "ok")];
        assert_eq!(shown(), ended);
    }
}
