//! Messages that arrive a second time, late: only in a simulation that asks for it.
//!
//! A connection delivers a request once. But a sender that gets no answer sends it again on another
//! connection, while the first request may still be on its way: a received request may have been
//! received before, and long ago. So each request contains all that the receiver needs to refuse it
//! or to treat it correctly, whatever happened since.

use super::connection::Client;
use crate::core::runtime;

/// Sends the message a second time, later, through `client`. The answer is dropped.
pub(super) fn deliver_duplicate<M, F>(
    client: &Client,
    message: impl FnOnce() -> M,
    send: impl FnOnce(Client, M) -> F + Send + 'static,
) where
    M: Send + 'static,
    F: Future + Send,
{
    let Some(later) = runtime::duplicate_after() else { return };
    let (client, message) = (client.clone(), message());
    runtime::spawn(async move {
        runtime::sleep(later).await;
        drop(send(client, message).await);
    });
}
