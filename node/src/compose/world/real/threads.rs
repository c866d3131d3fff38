//! The threads of a server beside its main one, which replicates and stores.

use crate::config::NodeConfig;
use tokio::runtime::{Builder, Handle, Runtime};

/// The most threads for client connections that are started by default.
const DEFAULT_MOST: usize = 8;
/// Up to this many processors, the main thread serves the clients too: a request then costs no
/// switch to another thread.
const SHARED_UP_TO: usize = 2;

/// Where client connections are served.
pub(in crate::compose) struct ClientThreads(Option<Runtime>);

impl ClientThreads {
    /// Starts the threads that the configuration asks for.
    ///
    /// # Errors
    /// The system's, if a thread cannot be started.
    pub(in crate::compose) fn start(config: &NodeConfig) -> std::io::Result<ClientThreads> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = config.client_threads.unwrap_or_else(|| default_count(processors));
        if count == 0 {
            return Ok(ClientThreads(None));
        }
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(count).thread_name("cairn-clients").enable_all();
        builder.build().map(|runtime| ClientThreads(Some(runtime)))
    }

    /// Where to spawn the server for clients.
    pub(in crate::compose) fn handle(&self) -> Handle {
        self.0.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }
}

impl Drop for ClientThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Waiting for the threads would block the main one.
            runtime.shutdown_background();
        }
    }
}

fn default_count(processors: usize) -> usize {
    match processors {
        0..=SHARED_UP_TO => 0,
        more => (more - 1).min(DEFAULT_MOST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_share_the_main_thread_and_large_ones_have_a_bound() {
        let counts = [1, 2, 3, 4, 9, 64].map(default_count);
        assert_eq!(counts, [0, 0, 2, 3, 8, 8]);
    }
}
