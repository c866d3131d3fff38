//! Captures what the code under test logs. An ERROR means that a person should look, so it fails
//! the run, except the engine's ERROR about a fault that the simulation arranged.

use super::clock::virtual_time;
use super::lives::HUNG;
use super::missing::Logged;
use super::script::DISCARDED_ERROR;
use cairn_disk::ARRANGED;
use parking_lot::Mutex;
use std::fmt::Write;
use std::sync::Arc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A subscriber that keeps errors and prints events of level `shown` or above. It does not keep
/// spans: they would cost more than the simulation.
pub(super) struct Capture {
    errors: Arc<Mutex<Vec<Logged>>>,
    shown: Option<Level>,
}

impl Capture {
    /// The subscriber, and the errors that it collects.
    pub(super) fn new(shown: Option<Level>) -> (Capture, Arc<Mutex<Vec<Logged>>>) {
        let errors = Arc::new(Mutex::new(Vec::new()));
        (Capture { errors: errors.clone(), shown }, errors)
    }
}

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours =
            metadata.target().starts_with("cairn") || metadata.target().starts_with("openraft");
        ours && metadata.is_event() && *metadata.level() <= self.shown.unwrap_or(Level::ERROR)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut line = Line(String::new());
        event.record(&mut line);
        let text = format!("{} {}:{}", metadata.level(), metadata.target(), line.0);
        if self.shown.is_some() {
            eprintln!(
                "{:>14.9} node {} {text}",
                virtual_time().as_secs_f64(),
                madsim::plugin::node()
            );
        }
        // The engine must log an arranged error. openraft logs what it will retry as an error; what
        // it cannot survive stops it, and other checks see that.
        if *metadata.level() == Level::ERROR
            && metadata.target().starts_with("cairn")
            && (!(text.contains(ARRANGED) || text.contains(HUNG))
                || !metadata.target().starts_with("cairn_engine"))
        {
            // Members alone log this, in tasks of their hosts.
            let host = text.contains(DISCARDED_ERROR).then(madsim::plugin::node);
            self.errors.lock().push(Logged { text, host, at: virtual_time() });
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
