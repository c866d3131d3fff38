//! Saves the state of a cluster at a target: who sends it, and what the backup builds on. For the schedule
//! and for `cairn backup save`.

use cairn_backup::{ClusterId, Encryption, Head, Item, LeftOut, Manifest, Saver, Sources, Target};
use cairn_client::{Client, HeldValues, NodeStatus, Role, StateItem};
use futures::future::join_all;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::SystemTime;

/// Why the state of a cluster is not saved.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The target does not do what is asked, or what is there is of no use.
    #[error(transparent)]
    Backup(#[from] cairn_backup::Error),
    /// The member that was asked does not send its state.
    #[error(transparent)]
    Client(#[from] cairn_client::Error),
    /// A member may not be read now, and no other one may.
    #[error("{endpoint} may not be read now: {why}")]
    NotReady {
        /// The member.
        endpoint: String,
        /// Why not.
        why: String,
    },
    /// No member is known.
    #[error("no node to ask")]
    Nobody,
    /// The caller does not want it any more.
    #[error("it was broken off; the next one goes on with it")]
    BrokenOff,
}

impl SaveError {
    /// Whether it is about what a backup builds on.
    pub fn is_of_source(&self) -> bool {
        use cairn_backup::Error::{
            Damaged, History, Missing, Mixed, OtherHistory, Removed, TooMuch, Unreadable,
        };
        matches!(
            self,
            SaveError::Backup(
                Damaged { .. }
                    | History { .. }
                    | Missing { .. }
                    | Mixed { .. }
                    | OtherHistory { .. }
                    | Removed(_)
                    | TooMuch { .. }
                    | Unreadable { .. }
            )
        )
    }
}

/// A backup that was saved.
#[derive(Debug)]
pub struct Saved {
    /// What it has.
    pub manifest: Manifest,
    /// Those that were broken off, and that it went on with.
    pub resumed: Vec<String>,
    /// The base that it does not build on, and why.
    pub left_out: Option<(String, LeftOut)>,
}

/// The identities of the members, as a member tells them: a backup names them.
pub fn members_of(status: &NodeStatus) -> Vec<u64> {
    status.members.iter().map(|member| member.node_id).collect()
}

/// The members that may send their state: followers first, then the leader. Learners may not be read.
///
/// # Errors
/// Of one that may not, if no member may.
pub async fn senders(client: &Client) -> Result<Vec<(String, NodeStatus)>, SaveError> {
    client.members().await?;
    let ask = client.endpoints().into_iter().map(|endpoint| async move {
        let status = client.status(&endpoint).await;
        (endpoint, status)
    });
    let (mut found, mut refused) = (Vec::new(), None);
    for (endpoint, status) in join_all(ask).await {
        match status {
            Ok(status) if status.not_ready.is_none() => found.push((endpoint, status)),
            Ok(status) => {
                let why = status.not_ready.unwrap_or_default();
                refused = Some(SaveError::NotReady { endpoint, why });
            }
            Err(error) => refused = Some(error.into()),
        }
    }
    if found.is_empty() {
        return Err(refused.unwrap_or(SaveError::Nobody));
    }
    found.sort_by_key(|(_, status)| status.role == Role::Leader);
    Ok(found)
}

/// Saves the state of the member at `endpoint`, which has this status, since the backup `base` if there is
/// one, encrypted if that is asked for. `each` is told how many keys came, and of how many, and says whether to go on.
///
/// # Errors
/// Every one of [`SaveError`] but `NotReady` and `Nobody`.
pub async fn save(
    client: &Client,
    (endpoint, status): (&str, &NodeStatus),
    target: &Target,
    base: Option<&str>,
    encryption: Option<&Arc<Encryption>>,
    mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Saved, SaveError> {
    let members = members_of(status);
    let (name, generation) = (status.cluster.as_str(), status.generation);
    let of = ClusterId { name, generation, members: &members };
    let sources = Sources::find(target, of, base, true, encryption).await?;
    let resumes = !sources.resumes().is_empty();
    match save_beside(client, endpoint, target, &members, sources, &mut each).await {
        // What was broken off is of no use: it is damaged, not to be read, removed meanwhile, of another history, or
        // in too many objects.
        Err(error) if resumes && error.is_of_source() => {
            let sources = Sources::find(target, of, base, false, encryption).await?;
            save_beside(client, endpoint, target, &members, sources, &mut each).await
        }
        saved => saved,
    }
}

async fn save_beside(
    client: &Client,
    endpoint: &str,
    target: &Target,
    members: &[u64],
    sources: Sources,
    each: &mut impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Saved, SaveError> {
    let resumed = sources.resumes().to_vec();
    let left_out = sources.left_out().map(|(name, why)| (name.to_owned(), why));
    let held = sources.held().into_iter();
    let held = held
        .map(|held| HeldValues { through: held.through, through_key: held.through_key })
        .collect::<Vec<_>>();
    let mut state = client.operator().state(endpoint, &held).await?;
    let from = state.head().clone();
    let head = Head {
        cluster: from.cluster,
        generation: from.generation,
        cluster_version: from.cluster_version,
        term: from.term,
        index: from.index,
        release: from.release,
        base: None,
        resumes: Vec::new(),
        began: 0,
        recipients: Vec::new(),
        members: members.to_vec(),
    };
    let mut saver = Saver::begin(target, &name_of(from.index), head, sources).await?;
    let mut keys = 0;
    loop {
        let items = match state.next().await {
            Ok(Some(items)) => items,
            Ok(None) => break,
            Err(error) => {
                saver.break_off().await?;
                return Err(error.into());
            }
        };
        keys += items.len() as u64;
        if each(keys, from.keys).is_break() {
            saver.break_off().await?;
            return Err(SaveError::BrokenOff);
        }
        for StateItem { key, term, index, length, hash, value, .. } in items {
            saver.add(Item { key, term, index, length, hash, value }).await?;
        }
    }
    let manifest = saver.finish(from.keys).await?;
    Ok(Saved { manifest, resumed, left_out })
}

/// The name of a backup of this index that begins now.
fn name_of(index: u64) -> String {
    let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let now: String = now.chars().filter(|c| c.is_ascii_digit() || *c == 'T').collect();
    format!("{}-{index}", now.replace('T', "-"))
}
