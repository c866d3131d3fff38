//! `cairn upgrade`: which versions run, and the end of an upgrade.

use super::ConnectOptions;
use super::confirm;
use super::exit::Exit;
use super::members::ClusterView;
use super::output::{Output, table_with_notes};
use anyhow::bail;
use cairn_client::{Client, Error, Member, MemberVersion};
use cairn_raft::NodeId;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Args)]
pub(crate) struct UpgradeArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show which version each member runs, and whether the upgrade may be finished or taken back
    Check {
        #[command(flatten)]
        connect: ConnectOptions,
    },
    /// Begin to use what the new version brought. No earlier release runs in this cluster after that.
    /// Asks first
    Finish {
        /// Do not ask
        #[arg(long)]
        yes: bool,

        #[command(flatten)]
        connect: ConnectOptions,
    },
}

pub(crate) async fn run(args: UpgradeArgs, output: &Output) -> anyhow::Result<Exit> {
    match args.action {
        Action::Check { connect } => {
            let (found, seen) = ask(&connect.client()?).await?;
            output.either(|| seen.as_json(), || seen.as_text(&found))?;
            Ok(Exit::Done)
        }
        Action::Finish { yes, connect } => finish(yes, &connect.client()?, output).await,
    }
}

async fn finish(yes: bool, client: &Client, output: &Output) -> anyhow::Result<Exit> {
    let (_, seen) = ask(client).await?;
    let version = seen.newest;
    if version > seen.cluster {
        if !seen.blocks.is_empty() {
            return Err(Error::Refused { message: seen.blocks.join("; ") }.into());
        }
        let question = format!(
            "The cluster's version rises from {} to {version}. After that no release of version {} runs in this cluster, and this \
             cannot be taken back.\nFinish the upgrade?",
            seen.cluster,
            version - 1
        );
        if !yes && !confirm::confirm(&question, "add --yes")? {
            bail!("nothing was changed");
        }
        client.operator().finish_upgrade(version).await?;
    }
    output.either(
        || json!({ "cluster_version": version }),
        || format!("the cluster's version is {version}"),
    )?;
    Ok(Exit::Done)
}

async fn ask(client: &Client) -> anyhow::Result<(ClusterView, Seen)> {
    let found = ClusterView::ask(client).await?;
    // Which nodes answer at all decides nothing: the log says what each member runs.
    let versions =
        found.nodes().filter_map(|node| Some((node.applied_index, node.versions.as_ref()?)));
    let newest = versions.max_by_key(|(applied, _)| *applied).map(|(_, versions)| versions);
    let logged = newest.map(|versions| versions.members.clone()).unwrap_or_default();
    let known = found.nodes().filter_map(|node| node.versions.as_ref());
    let cluster = known.map(|versions| versions.cluster).max().unwrap_or(1);
    let members = found.members.iter().map(|member| {
        let status = found.status(member);
        let own = status.map(|node| {
            let version = node.versions.as_ref().map_or(0, |versions| versions.own);
            (version, node.server_version.clone())
        });
        Runs::of(member, own, logged.iter().find(|logged| logged.node_id == member.node_id))
    });
    let seen = Seen::of(cluster, members.collect());
    Ok((found, seen))
}

/// What a member runs.
#[derive(Clone, Debug)]
struct Runs {
    slot: u16,
    node_id: u64,
    voter: bool,
    /// What it says, or the log if it does not answer. `None`: neither.
    version: Option<u32>,
    release: Option<String>,
    /// What the log says.
    logged: Option<u32>,
    answers: bool,
}

impl Runs {
    fn of(member: &Member, own: Option<(u32, String)>, logged: Option<&MemberVersion>) -> Runs {
        let answers = own.is_some();
        let (version, release) = match own {
            Some((version, release)) => (Some(version), Some(release)),
            None => (
                logged.map(|logged| logged.version),
                logged.and_then(|logged| logged.release.clone()),
            ),
        };
        Runs {
            slot: member.slot,
            node_id: member.node_id,
            voter: member.voter,
            version,
            release,
            logged: logged.map(|logged| logged.version),
            answers,
        }
    }

    /// Why the cluster's version cannot rise to this one.
    fn blocks(&self, version: u32) -> Option<String> {
        if self.logged >= Some(version) && self.version >= Some(version) {
            return None;
        }
        let slot = self.slot;
        Some(match self.version {
            Some(own) if own >= version => {
                format!(
                    "slot {slot}: the leader has not logged its start yet; look again in a moment"
                )
            }
            Some(own) => format!(
                "slot {slot} runs version {own}: start a release of version {version} there"
            ),
            None => format!("slot {slot}: nothing is known of what it runs; start it"),
        })
    }
}

/// Where an upgrade stands.
#[derive(Clone, Debug)]
struct Seen {
    cluster: u32,
    /// The highest version that a member runs.
    newest: u32,
    /// Why the cluster's version cannot rise to that.
    blocks: Vec<String>,
    members: Vec<Runs>,
}

impl Seen {
    fn of(cluster: u32, mut members: Vec<Runs>) -> Seen {
        members.sort_by_key(|member| (member.slot, member.node_id));
        let newest = members.iter().filter_map(|member| member.version).max();
        let newest = newest.unwrap_or(cluster).max(cluster);
        let blocks = members.iter().filter_map(|member| member.blocks(newest));
        let blocks = if newest > cluster { blocks.collect() } else { Vec::new() };
        Seen { cluster, newest, blocks, members }
    }

    fn is_open(&self) -> bool {
        self.newest > self.cluster
    }

    fn as_json(&self) -> Value {
        let member = |member: &Runs| {
            json!({
                "slot": member.slot,
                "node_id": NodeId::from_u64(member.node_id).to_string(),
                "voter": member.voter,
                "version": member.version,
                "release": member.release,
                "answers": member.answers,
            })
        };
        json!({
            "cluster_version": self.cluster,
            "newest_version": self.newest,
            "may_finish": self.is_open() && self.blocks.is_empty(),
            "may_go_back": self.is_open(),
            "blocks": self.blocks,
            "members": self.members.iter().map(member).collect::<Value>(),
        })
    }

    fn verdict(&self) -> Vec<String> {
        let Seen { cluster, newest, blocks, .. } = self;
        if !self.is_open() {
            return vec![format!(
                "nothing to finish: no member runs a later version than {cluster}"
            )];
        }
        let back = format!(
            "until `cairn upgrade finish` each member may go back to a release of version {cluster}"
        );
        match blocks.is_empty() {
            true => vec![
                format!(
                    "every member runs version {newest}: `cairn upgrade finish` begins to use it"
                ),
                back,
            ],
            false => {
                let head = format!("the upgrade to version {newest} cannot be finished yet:");
                std::iter::once(head).chain(blocks.iter().cloned()).chain([back]).collect()
            }
        }
    }

    fn as_text(&self, found: &ClusterView) -> String {
        let row = |member: &Runs| {
            let state = found.members.iter().find(|known| known.node_id == member.node_id);
            vec![
                member.slot.to_string(),
                NodeId::from_u64(member.node_id).to_string(),
                if member.voter { "yes" } else { "no" }.to_string(),
                member.version.map_or_else(|| "?".into(), |version| version.to_string()),
                member.release.clone().unwrap_or_else(|| "?".into()),
                state.map(|member| found.state(member).to_string()).unwrap_or_default(),
            ]
        };
        let head = ["SLOT", "NODE", "VOTER", "VERSION", "RELEASE", "STATE"];
        let rows = self.members.iter().map(row).collect();
        format!(
            "the cluster's version is {}\n{}",
            self.cluster,
            table_with_notes(&head, rows, self.verdict())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(slot: u16, version: Option<u32>, logged: Option<u32>) -> Runs {
        let node_id = NodeId::new(slot, 0xab).as_u64();
        Runs { slot, node_id, voter: true, version, release: None, logged, answers: true }
    }

    fn seen(cluster: u32, members: &[(Option<u32>, Option<u32>)]) -> Seen {
        let members = (1..).zip(members).map(|(slot, (own, logged))| runs(slot, *own, *logged));
        Seen::of(cluster, members.collect())
    }

    #[test]
    fn an_upgrade_may_be_finished_once_every_member_runs_the_new_version_and_the_log_says_so() {
        let open =
            seen(1, &[(Some(2), Some(2)), (Some(1), Some(1)), (Some(2), Some(1)), (None, None)]);
        assert!(open.is_open());
        assert_eq!(open.blocks.len(), 3, "{:?}", open.blocks);
        assert_eq!(open.blocks[0], "slot 2 runs version 1: start a release of version 2 there");
        assert!(open.blocks[1].starts_with("slot 3: the leader has not logged its start yet"));
        assert!(open.blocks[2].starts_with("slot 4: nothing is known"));
        assert!(open.verdict().concat().contains("may go back to a release of version 1"));
        let ready = seen(1, &[(Some(2), Some(2)), (Some(2), Some(2))]);
        assert!(ready.is_open() && ready.blocks.is_empty());
        let json = ready.as_json();
        assert_eq!((&json["may_finish"], &json["newest_version"]), (&json!(true), &json!(2)));
    }

    #[test]
    fn without_a_later_version_there_is_nothing_to_finish() {
        for seen in [seen(1, &[(Some(1), Some(1)), (None, None)]), seen(2, &[(None, None)])] {
            assert!(!seen.is_open() && seen.blocks.is_empty());
            assert!(seen.verdict()[0].starts_with("nothing to finish"));
            assert_eq!(seen.as_json()["may_finish"], json!(false));
        }
    }
}
