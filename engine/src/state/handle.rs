//! The handle of an engine. The floors above add its methods.

use super::Shared;
use std::sync::Arc;

/// An open data directory. Clones share it. Dropping the last clone ends the engine like a crash of
/// the process, without the clean shutdown of [`Engine::close`].
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    _ends: Arc<EndOnDrop>,
}

struct EndOnDrop(Arc<Shared>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let begun = {
            let mut state = self.0.state.lock();
            state.closing = true;
            state.begun
        };
        if !begun {
            // There is no writer that would say so.
            self.0.progress.lock().writer_ended = true;
        }
        self.0.signals.ends();
    }
}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>) -> Engine {
        Engine { _ends: Arc::new(EndOnDrop(shared.clone())), shared }
    }
}
