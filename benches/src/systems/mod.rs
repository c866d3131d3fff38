//! The systems under load: real processes on this machine. They stop with the measurement that
//! started them.

pub mod built;
pub mod cairn;
pub mod etcd;
pub mod nats;
pub mod workload;
