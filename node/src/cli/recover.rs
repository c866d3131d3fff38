//! `cairn recover --force-new-cluster`: for a cluster of which a majority of the disks is lost for
//! good.
//!
//! What holds here: nothing is decided while a majority of the voters can be had, this node's own
//! directory counted; a survivor that answers and holds a longer log is not passed over, nor one that
//! was made anew already; nor while any node that the log or the configuration names serves this
//! cluster. All that is asked again when an operator has decided, and when a copy was made: members may
//! have come back meanwhile. Until an operator accepts, not one byte of the directory changes, whatever is
//! damaged in it; and of what is damaged a copy is kept.

use super::confirm::confirm;
use super::connect::with_certificates;
use super::exit::{Exit, UsageError};
use super::output::{Output, table_with_notes, tell};
use super::server_options::ServerOptions;
use anyhow::bail;
use cairn_client::proto::generation_text;
use cairn_client::{Error, NodeStatus, Options};
use cairn_engine::LogId;
use cairn_node::config::NodeConfig;
use cairn_node::{Environment, survey_stopped};
use cairn_raft::{MemberAddress, NodeId, Survivor, force_new_cluster};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    server: ServerOptions,

    /// Make the cluster anew of this stopped node alone: for a majority of the disks lost for good.
    /// Shows what is left; decides nothing without --accept-data-loss
    #[arg(long, required = true)]
    force_new_cluster: bool,

    /// Discard what only the other members held
    #[arg(long)]
    accept_data_loss: bool,

    /// Of a damaged directory: overwrite it though there is no room for a copy of what is damaged
    #[arg(long, requires = "accept_data_loss")]
    without_copy: bool,

    /// Do not ask
    #[arg(long, requires = "accept_data_loss")]
    yes: bool,
}

/// What is left of the cluster.
struct Left {
    survivor: Survivor,
    /// What of its directory does not verify.
    damage: Option<String>,
    /// That of this node's directory.
    generation: u32,
    /// The other voters that answer under their own identity.
    answers: Vec<Answer>,
    missing: Vec<String>,
    /// Nodes of this cluster, whatever their identities, that serve clients: they hear a leader.
    serving: Vec<String>,
}

/// What another voter says of its log.
struct Answer {
    id: NodeId,
    generation: u32,
    /// Term and index of its last entry.
    last_log: (u64, u64),
    applied_index: u64,
}

pub(crate) async fn run(args: RecoverArgs, output: &Output) -> anyhow::Result<Exit> {
    cairn_node::platform::check().map_err(cairn_node::Error::Platform)?;
    let config = NodeConfig::from_layers(&args.server.layers()?)?;
    let environment = Environment::from_files(&config)?;
    let engine = survey_stopped(&config, &environment).await?;
    let decided = decide(&args, &config, &engine, output).await;
    engine.close().await?;
    decided
}

async fn decide(
    args: &RecoverArgs,
    config: &NodeConfig,
    engine: &cairn_engine::Engine,
    output: &Output,
) -> anyhow::Result<Exit> {
    let damage = engine.damage().map(|damage| damage.to_string());
    let survivor = Survivor::of(engine)?;
    let look = async || {
        let left = survey(config, survivor.clone(), damage.clone(), engine.generation()).await;
        left.check().map(|()| left)
    };
    let left = look().await?;
    if !args.accept_data_loss {
        output.either(|| left.to_json(None), || left.explained())?;
        return Ok(Exit::Unavailable);
    }
    let own = left.survivor.id;
    if !args.yes {
        tell(&left.explained());
        let question = format!("Make cluster `{}` anew of member {own} alone?", config.cluster);
        if !confirm(&question, "add --yes")? {
            bail!("nothing was changed");
        }
        // The question may have waited for hours.
        look().await?;
    }
    let copy = match engine.begin(!args.without_copy).await {
        Err(error) if left.damage.is_some() && !args.without_copy => bail!(
            "{error}; nothing was changed. Copy the whole data directory elsewhere, then repeat this with --without-copy"
        ),
        begun => begun?,
    };
    // The copy of a large directory takes long.
    look().await?;
    let generation = rand::random_range(1..=u32::MAX);
    force_new_cluster(engine, own_address(config, &left.survivor), generation).await?;
    let text = generation_text(generation);
    output.either(
        || left.to_json(Some((&text, copy.as_deref()))),
        || {
            let copied = |copy: &String| {
                format!("What was damaged is copied to {copy}: remove it when nobody needs it.\n")
            };
            format!(
                "{}Member {own} is cluster `{}` now, alone, in mode sync, generation {text}; what only the others held is lost, \
                 and `cairn status -o json` counts it.\nStart it without `join` and `mode`, and with itself as the only one of \
                 `members`; then give each other node an empty data directory, no `members`, and `join` naming this node only, and \
                 `cairn members add` it. Clients must be started anew.",
                copy.as_ref().map(copied).unwrap_or_default(),
                config.cluster
            )
        },
    )?;
    Ok(Exit::Done)
}

/// Where the member is reached from now on: as its configuration says, else as the log has it.
fn own_address(config: &NodeConfig, survivor: &Survivor) -> MemberAddress {
    let logged = survivor.voters.get(&survivor.id).cloned().unwrap_or_default();
    let initial = config.members.get(&config.slot).cloned().unwrap_or(logged);
    MemberAddress {
        client: config.advertise_client.clone().unwrap_or(initial.client),
        peer: config.advertise_peer.clone().unwrap_or(initial.peer),
    }
}

async fn survey(
    config: &NodeConfig,
    survivor: Survivor,
    damage: Option<String>,
    generation: u32,
) -> Left {
    let (mut answers, mut missing, mut serving) = (Vec::new(), Vec::new(), Vec::new());
    let mut saw = |status: &NodeStatus, address: &str| {
        if status.cluster == config.cluster && status.leader.is_some() && status.not_ready.is_none()
        {
            serving.push(format!("{} at {address}", NodeId::from_u64(status.node_id)));
        }
    };
    for (id, address) in survivor.voters.iter().filter(|(id, _)| **id != survivor.id) {
        let status = ask(config, &address.client).await;
        if let Ok(status) = &status {
            saw(status, &address.client);
        }
        match status {
            Ok(status) if status.node_id == id.as_u64() => answers.push(Answer {
                id: *id,
                generation: status.generation,
                last_log: (status.last_log_term, status.last_log_index),
                applied_index: status.applied_index,
            }),
            Ok(status) => missing.push(format!(
                "{id} at {}: {} answers there",
                address.client,
                NodeId::from_u64(status.node_id)
            )),
            Err(error) => missing.push(format!("{id} at {}: {error}", address.client)),
        }
    }
    // Members may have moved, or have been replaced, since this node heard of them last.
    let known = |address: &str| survivor.voters.values().any(|voter| voter.client == address);
    let configured = config.members.iter().filter(|(slot, _)| **slot != config.slot);
    for (_, address) in configured.filter(|(_, address)| !known(&address.client)) {
        if let Ok(status) = ask(config, &address.client).await {
            saw(&status, &address.client);
        }
    }
    Left { survivor, damage, generation, answers, missing, serving }
}

async fn ask(config: &NodeConfig, address: &str) -> Result<NodeStatus, Error> {
    let options = Options::new([address.to_owned()]).deadline(NODE_TIMEOUT);
    with_certificates(options, config.tls_files()).build()?.status(address).await
}

impl Left {
    fn check(&self) -> anyhow::Result<()> {
        let voters = self.survivor.voters.len();
        if self.survivor.last_log.is_none() || voters == 0 {
            let nothing = "this data directory holds nothing of a cluster";
            return Err(UsageError(match &self.damage {
                None => nothing.into(),
                Some(damage) => format!(
                    "nothing of a cluster verifies in this data directory, which is damaged: {damage}. Nothing was changed. If \
                     the device can be read again later, repeat this then; else choose another survivor, and keep this \
                     directory"
                ),
            })
            .into());
        }
        if !self.survivor.voters.contains_key(&self.survivor.id) {
            return Err(UsageError(format!(
                "{} is not a voter by its own log: choose one that is",
                self.survivor.id
            ))
            .into());
        }
        let anew = self.answers.iter().find(|answer| answer.generation != self.generation);
        if let Some(Answer { id, generation, .. }) = anew {
            bail!(
                "member {id} answers and belongs to generation {}, this directory to {}: the cluster was made anew already. If \
                 this command was interrupted on this node, stop that member and repeat it. Else what this directory holds is not \
                 part of the cluster: give this node an empty one and `join`",
                generation_text(*generation),
                generation_text(self.generation)
            );
        }
        let mut there: BTreeSet<NodeId> = self.answers.iter().map(|answer| answer.id).collect();
        there.insert(self.survivor.id);
        if cairn_raft::is_quorum(&self.survivor.configurations, &there) {
            let there = there.len();
            bail!(
                "{there} of {voters} voters are there, this one counted: a majority is not lost. Start this node; if no member \
                 can be elected then, `cairn unsafe-recovery` says why"
            );
        }
        if !self.serving.is_empty() {
            bail!(
                "the cluster serves its clients: ask {}. A second cluster would be made beside it. Start this node, or give it an \
                 empty directory and `join`",
                self.serving.join(" and ")
            );
        }
        let own = self.survivor.last_log.map(|last| (last.term, last.index));
        let longer = self.answers.iter().find(|answer| Some(answer.last_log) > own);
        if let Some(Answer { id, last_log: (term, index), .. }) = longer {
            bail!(
                "member {id} answers and holds a longer log ({term}-{index}) than this one ({}): stop it and choose that one",
                text_of(self.survivor.last_log)
            );
        }
        Ok(())
    }

    fn explained(&self) -> String {
        let head = ["VOTER", "LAST LOG", "APPLIED", ""];
        let own = vec![
            self.survivor.id.to_string(),
            text_of(self.survivor.last_log),
            self.survivor.applied.map_or_else(|| "-".into(), |id| id.index.to_string()),
            "this directory".into(),
        ];
        let others = self.answers.iter().map(
            |Answer { id, last_log: (term, index), applied_index, .. }| {
                vec![
                    id.to_string(),
                    format!("{term}-{index}"),
                    applied_index.to_string(),
                    "answers".into(),
                ]
            },
        );
        let rows = std::iter::once(own).chain(others).collect();
        let damaged = |damage: &String| {
            format!(
                "\n\nThis directory is damaged: {damage}. What verifies of it is shown above, and ends at entry {}; what lay \
                 behind the damage is not in it, and may have been acknowledged. Nothing was changed so far. If the device \
                 can be read again later, repeat this then: nothing is lost by waiting. If you go on, the directory keeps \
                 what verifies, and a copy of its journal and checkpoints is set aside first.",
                text_of(self.survivor.last_log)
            )
        };
        format!(
            "{}{}\n\nOf {} voters {} are there: no majority. What only the missing ones held is lost for good if you go on; \
             nobody knows what that was. Look at the directories of all survivors first (`cairn inspect`): the one with the \
             longest log is to be chosen, and only one. A second one that is made anew is another cluster.\n\
             `cairn recover --force-new-cluster --accept-data-loss` makes this node the only voter, in mode sync.",
            table_with_notes(&head, rows, self.missing.iter().cloned()),
            self.damage.as_ref().map(damaged).unwrap_or_default(),
            self.survivor.voters.len(),
            1 + self.answers.len(),
        )
    }

    /// With the new generation, and where the copy of what was damaged is, if it is done.
    fn to_json(&self, done: Option<(&str, Option<&str>)>) -> Value {
        let one = |Answer { id, last_log: (term, index), applied_index, .. }: &Answer| {
            json!({ "node_id": id.to_string(), "last_log_term": term, "last_log_index": index,
                    "applied_index": applied_index })
        };
        json!({
            "done": done.is_some(),
            "generation": done.map(|(generation, _)| generation),
            "damage": self.damage,
            "copy": done.and_then(|(_, copy)| copy),
            "survivor": self.survivor.id.to_string(),
            "last_log_term": self.survivor.last_log.map(|last| last.term),
            "last_log_index": self.survivor.last_log.map(|last| last.index),
            "applied_index": self.survivor.applied.map(|applied| applied.index),
            "voters": self.survivor.voters.keys().map(ToString::to_string).collect::<Vec<_>>(),
            "answers": self.answers.iter().map(one).collect::<Value>(),
            "missing": self.missing,
        })
    }
}

fn text_of(id: Option<LogId>) -> String {
    id.map_or_else(|| "empty".into(), |id| format!("{}-{}", id.term, id.index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn node(slot: u16) -> NodeId {
        NodeId::new(slot, slot.into())
    }

    /// Member 1 with entry 5-100 as its last, and others that answer, with theirs.
    fn left(configurations: &[&[u16]], answers: &[(u16, (u64, u64))]) -> Left {
        let voters = configurations.iter().copied().flatten();
        let set = |slots: &&[u16]| slots.iter().map(|slot| node(*slot)).collect();
        let answer = |(slot, last_log): &(u16, (u64, u64))| Answer {
            id: node(*slot),
            generation: 0,
            last_log: *last_log,
            applied_index: 0,
        };
        Left {
            survivor: Survivor {
                id: node(1),
                last_log: Some(LogId { term: 5, index: 100 }),
                applied: None,
                voters: voters
                    .map(|slot| (node(*slot), MemberAddress::default()))
                    .collect::<BTreeMap<_, _>>(),
                configurations: configurations.iter().map(set).collect(),
            },
            damage: None,
            generation: 0,
            answers: answers.iter().map(answer).collect(),
            missing: Vec::new(),
            serving: Vec::new(),
        }
    }

    fn refusal(configurations: &[&[u16]], answers: &[(u16, (u64, u64))]) -> String {
        left(configurations, answers).check().unwrap_err().to_string()
    }

    const BEHIND: (u64, u64) = (5, 7);

    #[test]
    fn a_cluster_is_not_made_anew_while_a_majority_is_there_this_one_counted() {
        let five: &[u16] = &[1, 2, 3, 4, 5];
        left(&[five], &[]).check().unwrap();
        left(&[five], &[(2, BEHIND)]).check().unwrap();
        let refused = refusal(&[five], &[(2, BEHIND), (3, BEHIND)]);
        assert!(refused.starts_with("3 of 5 voters are there"), "{refused}");
        left(&[&[1, 2]], &[]).check().unwrap();
        assert!(refusal(&[&[1]], &[]).contains("a majority is not lost"));
    }

    #[test]
    fn in_the_middle_of_a_change_a_majority_of_each_configuration_counts() {
        // Two of each three, though of the four no more than half.
        let change: [&[u16]; 2] = [&[1, 2, 3], &[1, 2, 4]];
        assert!(refusal(&change, &[(2, BEHIND)]).contains("a majority is not lost"));
        // Three of the five, and of the second three only this one.
        let change: [&[u16]; 2] = [&[1, 2, 3], &[1, 4, 5]];
        left(&change, &[(2, BEHIND), (3, BEHIND)]).check().unwrap();
    }

    #[test]
    fn a_survivor_that_answers_with_a_longer_log_is_not_passed_over() {
        let five: &[u16] = &[1, 2, 3, 4, 5];
        for longer in [(5, 101), (6, 1)] {
            let refused = refusal(&[five], &[(4, longer)]);
            let named = format!("member {} answers and holds a longer log", node(4));
            assert!(refused.starts_with(&named), "{refused}");
        }
        for shorter in [(5, 100), (5, 99), (4, 1_000)] {
            left(&[five], &[(4, shorter)]).check().unwrap();
        }
    }

    #[test]
    fn damage_is_shown_with_what_each_way_out_keeps() {
        let damage = Some("corrupt JournalBlock in file `journal`".to_owned());
        let damaged = Left { damage, ..left(&[&[1, 2, 3]], &[]) };
        damaged.check().unwrap();
        let words = damaged.explained();
        for part in [
            "is damaged: corrupt JournalBlock",
            "ends at entry 5-100",
            "nothing is lost by waiting",
        ] {
            assert!(words.contains(part), "{words}");
        }
        let survivor = Survivor { last_log: None, ..damaged.survivor.clone() };
        let refused = Left { survivor, ..damaged }.check().unwrap_err().to_string();
        assert!(
            refused.starts_with("nothing of a cluster verifies in this data directory"),
            "{refused}"
        );
        assert!(refused.contains("Nothing was changed"), "{refused}");
    }

    /// The story: all other members of a survivor's log had been replaced while it was stopped, and their
    /// successors served the cluster. Nobody answered by a name that the log had.
    #[test]
    fn a_cluster_that_is_served_by_whomever_is_not_made_anew() {
        let serving = vec!["4.1 at b:7400".to_owned()];
        let refused = Left { serving, ..left(&[&[1, 2, 3]], &[]) }.check().unwrap_err();
        assert!(refused.to_string().contains("ask 4.1 at b:7400"), "{refused}");
    }

    #[test]
    fn a_member_that_does_not_vote_is_not_chosen() {
        assert!(refusal(&[&[2, 3, 4]], &[]).contains("is not a voter by its own log"));
    }
}
