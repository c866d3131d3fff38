//! What an application that traces its requests sees of those to the cluster.
//!
//! What holds here: one test, in a binary of its own. `tracing` asks a subscriber for each place in the code once, and a test
//! in another thread that comes to a place at the same time may find that nobody wants it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "client/fake/mod.rs"]
#[allow(dead_code, reason = "the tests of the client use the rest")]
mod fake;

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Instrument, Metadata, Subscriber};

use cairn_client::proto::error_detail::Reason;
use cairn_client::{Error, Range};
use fake::watches::{begun, plays};
use fake::{Cluster, Node, Step, not_leader, options};

/// A span that was begun.
#[derive(Clone)]
struct Begun {
    name: &'static str,
    parent: Option<u64>,
    /// Each with a space before it.
    fields: String,
}

#[derive(Default)]
struct Trace {
    begun: Vec<Begun>,
    /// The fields of each event, with its message.
    events: Vec<String>,
    /// Those that are entered, by their numbers from 1.
    entered: Vec<u64>,
}

/// Keeps the spans and the events of the client and of the test.
#[derive(Clone, Default)]
struct Tracer(Arc<Mutex<Trace>>);

impl Tracer {
    /// All spans of this name, with their numbers.
    fn named(&self, name: &str) -> Vec<(u64, Begun)> {
        let begun = self.0.lock().unwrap().begun.clone();
        (1..).zip(begun).filter(|(_, span)| span.name == name).collect()
    }
}

impl Subscriber for Tracer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "app" || metadata.target().starts_with("cairn_client")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut trace = self.0.lock().unwrap();
        let mut fields = Fields(String::new());
        attributes.record(&mut fields);
        let parent = trace.entered.last().copied();
        trace.begun.push(Begun { name: attributes.metadata().name(), parent, fields: fields.0 });
        Id::from_u64(trace.begun.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = Fields(String::new());
        values.record(&mut fields);
        let at = usize::try_from(span.into_u64()).unwrap() - 1;
        self.0.lock().unwrap().begun[at].fields += &fields.0;
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().events.push(fields.0);
    }

    fn enter(&self, span: &Id) {
        self.0.lock().unwrap().entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        let mut trace = self.0.lock().unwrap();
        assert_eq!(trace.entered.pop(), Some(span.into_u64()), "spans end in turn");
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

/// The story: an attempt that failed logged what the node had said, and a refusal names the key that the caller may not read. An
/// exporter put that into the span, and with it into a collector that others read.
#[tokio::test]
async fn a_request_is_a_span_of_its_caller_with_one_for_each_attempt_and_without_keys() {
    let tracer = Tracer::default();
    // Every task of the test runs on this thread.
    let _traced = tracing::subscriber::set_default(tracer.clone());
    let cluster = Cluster::new("test");
    let (follower, leader) = (Node::start(&cluster).await, Node::start(&cluster).await);
    follower.always(not_leader(&leader.address));
    let client = options(&[&follower]).connect().await.unwrap();

    let request = tracing::info_span!(target: "app", "request");
    let written = client.put("private", "secret").instrument(request).await.unwrap();
    let refused = client.put_if_absent("private", "secret").await;
    assert!(matches!(refused, Err(Error::ConditionFailed { .. })), "{refused:?}");
    assert_eq!(client.get("private").await.unwrap().unwrap().value, "secret");
    let denied = "`ada` may not read key `private`".to_owned();
    leader.plays([Step::RefuseSaying(Reason::PermissionDenied, denied)]);
    let said = client.get("private").await.unwrap_err().to_string();
    assert!(said.contains("`private`"), "the caller is told: {said}");
    let damaged = "the value of key `private` was damaged on its way".to_owned();
    leader.plays([Step::RefuseSaying(Reason::ValueDamaged, damaged)]);
    assert_eq!(client.get("private").await.unwrap().unwrap().value, "secret");

    let playing = [&follower, &leader].map(|node| plays(node, |begin| vec![begun(&begin)]));
    let watch = client.watch(Range::prefix("private")).begin().await.unwrap();
    playing.iter().for_each(tokio::task::JoinHandle::abort);

    let requests = tracer.named("request");
    let [(request, _)] = requests.as_slice() else { panic!("one request") };
    let writes = tracer.named("cairn.write");
    let [(first, put), (_, conditional)] = writes.as_slice() else { panic!("two writes") };
    assert_eq!(put.parent, Some(*request));
    assert_eq!(conditional.parent, None);
    let ended = format!(" version={} outcome=\"done\"", written.version.0);
    for field in [" operations=1", " synced=false", " otel.kind=\"client\"", ended.as_str()] {
        assert!(put.fields.contains(field), "{field} of{}", put.fields);
    }
    assert!(
        conditional.fields.ends_with(" outcome=\"condition_failed\""),
        "{}",
        conditional.fields
    );
    let attempts = tracer.named("cairn.attempt");
    let of_put = attempts.iter().filter(|(_, attempt)| attempt.parent == Some(*first));
    let tried: Vec<&str> = of_put.map(|(_, attempt)| attempt.fields.as_str()).collect();
    let endpoint = |node: &Node| format!(" endpoint={:?}", node.address);
    assert_eq!(tried, [endpoint(&follower), endpoint(&leader)]);
    let gets = tracer.named("cairn.get");
    let [(_, get), (_, denied), (_, again)] = gets.as_slice() else { panic!("three reads") };
    let found = format!(" version={} outcome=\"done\"", written.version.0);
    assert!(get.fields.ends_with(&found), "{}", get.fields);
    assert!(again.fields.ends_with(&found), "{}", again.fields);
    assert!(denied.fields.contains(" outcome=\"failed\""), "{}", denied.fields);

    let watches = tracer.named("cairn.watch");
    let [(_, begin)] = watches.as_slice() else { panic!("one watch") };
    let at = format!(" version={} outcome=\"done\"", watch.position().index);
    assert!(begin.fields.ends_with(&at), "{}", begin.fields);

    let trace = tracer.0.lock().unwrap();
    for kind in ["not_leader", "refused", "not_sent"] {
        let said = format!(" failure=\"{kind}\"");
        assert!(trace.events.iter().any(|event| event.contains(&said)), "{kind}");
    }
    let failed = |event: &String| event.contains("endpoint failed");
    assert!(trace.events.iter().any(failed), "{:?}", trace.events);
    let spans = trace.begun.iter().map(|span| &span.fields);
    for fields in spans.chain(&trace.events) {
        let private = fields.contains("private") || fields.contains("secret");
        assert!(!private, "{fields}");
    }
}
