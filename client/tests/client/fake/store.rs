//! The store of a [`Cluster`](super::Cluster): it applies each sequence number of a session once, like the real state
//! machine.
use bytes::Bytes;
use cairn_client::proto;
use std::collections::BTreeMap;

/// How many keys of a range the fake deletes at once.
const RANGE_KEYS: usize = 4;

fn most(delete: &proto::DeleteRange) -> usize {
    match delete.most {
        0 => RANGE_KEYS,
        most => most as usize,
    }
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) index: u64,
    pub(super) items: BTreeMap<Bytes, (Bytes, u64)>,
    /// Changes of members that were asked for.
    pub(super) changes: Vec<proto::ChangeMembersRequest>,
    pub(super) mode: i32,
    pub(super) version: u32,
    pub(super) results: BTreeMap<(Bytes, u64), proto::WriteResponse>,
}

impl Store {
    pub(super) fn write(&mut self, request: proto::WriteRequest) -> proto::WriteResponse {
        let session = request.session.unwrap();
        let id = (session.client_id, session.sequence);
        if let Some(first) = self.results.get(&id) {
            return first.clone();
        }
        self.index += 1;
        let results: Vec<_> =
            request.operations.iter().map(|operation| self.evaluate(operation)).collect();
        let applied = results.iter().all(|result| result.condition_held);
        for operation in request.operations.into_iter().filter(|_| applied) {
            match operation.kind.unwrap() {
                proto::operation::Kind::Put(put) => {
                    self.items.insert(put.key, (put.value, self.index));
                }
                proto::operation::Kind::Delete(delete) => {
                    self.items.remove(&delete.key);
                }
                proto::operation::Kind::Check(_) => {}
                proto::operation::Kind::DeleteRange(delete) => {
                    for key in self.of_range(&delete).into_iter().take(most(&delete)) {
                        self.items.remove(&key);
                    }
                }
            }
        }
        let response = proto::WriteResponse { term: 3, index: self.index, applied, results };
        self.results.insert(id, response.clone());
        response
    }

    fn evaluate(&self, operation: &proto::Operation) -> proto::OperationResult {
        let (key, condition) = match operation.kind.as_ref().unwrap() {
            proto::operation::Kind::Put(put) => (&put.key, put.condition),
            proto::operation::Kind::Delete(delete) => (&delete.key, delete.condition),
            proto::operation::Kind::Check(check) => (&check.key, check.condition),
            proto::operation::Kind::DeleteRange(delete) => return self.evaluate_range(delete),
        };
        let version = self.items.get(key).map(|(_, version)| *version);
        let condition_held = match condition.and_then(|condition| condition.kind) {
            None => true,
            Some(proto::condition::Kind::Absent(absent)) => version.is_none() == absent,
            Some(proto::condition::Kind::Version(wanted)) => version == Some(wanted),
        };
        proto::OperationResult {
            condition_held,
            existed: version.is_some(),
            version: version.unwrap_or(0),
            ..Default::default()
        }
    }

    pub(super) fn get(&self, key: &Bytes) -> proto::GetResponse {
        match self.items.get(key) {
            Some((value, version)) => {
                proto::GetResponse { found: true, value: value.clone(), version: *version }
            }
            None => proto::GetResponse::default(),
        }
    }

    fn evaluate_range(&self, delete: &proto::DeleteRange) -> proto::OperationResult {
        let (found, most) = (self.of_range(delete).len(), most(delete));
        proto::OperationResult {
            condition_held: !delete.whole || found <= most,
            deleted: found.min(most) as u32,
            more: found > most,
            ..Default::default()
        }
    }

    fn of_range(&self, delete: &proto::DeleteRange) -> Vec<Bytes> {
        let proto::Range { start, end } = delete.range.clone().unwrap();
        let from = self.items.range(start..).map(|(key, _)| key.clone());
        from.take_while(|key| end.is_empty() || *key < end).collect()
    }

    pub(super) fn list(&mut self, request: proto::ListRequest) -> proto::ListResponse {
        let mut keys: Vec<&Bytes> =
            self.items.keys().filter(|key| key.starts_with(&request.prefix)).collect();
        if !request.end.is_empty() {
            keys.retain(|key| **key < request.end);
        }
        if request.reverse {
            keys.reverse();
        }
        let after = &request.start_after;
        if !after.is_empty() {
            keys.retain(|key| if request.reverse { *key < after } else { *key > after });
        }
        let limit = if request.limit == 0 { 1000 } else { request.limit as usize };
        let item = |key: &&Bytes| {
            let (value, version) = self.items[*key].clone();
            let value = if request.keys_only { Bytes::new() } else { value };
            proto::KeyValue { key: (*key).clone(), value, version }
        };
        let items = keys.iter().take(limit).map(item).collect();
        proto::ListResponse { items, more: keys.len() > limit }
    }
}
