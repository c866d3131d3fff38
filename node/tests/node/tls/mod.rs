//! Clusters with certificates, and who they refuse.

mod cluster;
mod command_line;
mod ends;
mod forged;
mod rotation;
mod strangers;
