//! Handshakes on loopback sockets, and files that change.
#![allow(clippy::unwrap_used, clippy::panic)]

mod files;
mod handshake;
mod support;
