//! The systems under load: real processes on this machine, stopped with the run that started them.

pub mod cairn;
pub mod etcd;
pub mod process;
