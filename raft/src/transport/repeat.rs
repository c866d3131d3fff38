//! Messages that arrive a second time, late: only where a simulation asks for it.
//!
//! A connection delivers a request once. But who gets no answer asks again, on another connection, while the first request may
//! still be on its way: what is received may have been received before, and long ago. Each request says all that it needs to be
//! refused or taken for what it is, whatever happened since.

use super::connection::Client;
use crate::core::runtime;

/// Sends the message to whom `client` leads once more, later. What is answered is of no use to anybody.
pub(super) fn again<M, F>(
    client: &Client,
    message: impl FnOnce() -> M,
    send: impl FnOnce(Client, M) -> F + Send + 'static,
) where
    M: Send + 'static,
    F: Future + Send,
{
    let Some(later) = runtime::repeat_after() else { return };
    let (client, message) = (client.clone(), message());
    runtime::spawn(async move {
        runtime::sleep(later).await;
        drop(send(client, message).await);
    });
}
