//! How what a node reports looks in JSON: identities as `slot.incarnation` and times as numbers, whose
//! names end with their unit.

use crate::proto::generation_text;
use serde::Serializer;
use std::collections::BTreeSet;
use std::time::Duration;

fn node_id_text(id: u64) -> String {
    format!("{}.{:x}", id >> 48, id & ((1 << 48) - 1))
}

pub(crate) fn node_id<S: Serializer>(id: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&node_id_text(*id))
}

pub(crate) fn some_node_id<S: Serializer>(id: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => node_id(id, to),
        None => to.serialize_none(),
    }
}

pub(crate) fn configurations<S: Serializer>(
    configurations: &[BTreeSet<u64>],
    to: S,
) -> Result<S::Ok, S::Error> {
    let voters =
        |voters: &BTreeSet<u64>| -> Vec<_> { voters.iter().map(|id| node_id_text(*id)).collect() };
    to.collect_seq(configurations.iter().map(voters))
}

pub(crate) fn generation<S: Serializer>(generation: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&generation_text(*generation))
}

pub(crate) fn first<S: Serializer>((number, _): &(u64, u64), to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(*number)
}

pub(crate) fn seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(time.as_secs())
}

pub(crate) fn some_seconds<S: Serializer>(
    time: &Option<Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => seconds(time, to),
        None => to.serialize_none(),
    }
}

pub(crate) fn millis<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

pub(crate) fn some_millis<S: Serializer>(
    time: &Option<Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => millis(time, to),
        None => to.serialize_none(),
    }
}
