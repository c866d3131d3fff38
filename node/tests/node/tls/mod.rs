//! Clusters with certificates, and who they refuse.

mod cluster;
mod command_line;
mod forged;
mod rotation;
mod strangers;
