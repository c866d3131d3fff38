//! The members, by the newest membership that one of them knows, and what each says of itself.

use crate::cli::exit::UsageError;
use crate::cli::output::silence;
use cairn_client::{Client, Error, Member, NodeStatus, Role};
use cairn_node::failure_domains::listed;
use std::collections::BTreeSet;

/// What the members answered.
pub(in crate::cli) struct ClusterView {
    /// The members of the newest membership that a node knows.
    pub(in crate::cli) members: Vec<Member>,
    /// Each known node's `host:port`, and its status, or why there is none.
    pub(in crate::cli) answers: Vec<(String, Result<NodeStatus, Error>)>,
}

impl ClusterView {
    /// Asks every known node at once.
    ///
    /// # Errors
    /// If no node answers, or the cluster is not formed.
    pub(in crate::cli) async fn ask(client: &Client) -> anyhow::Result<ClusterView> {
        let members = client.members().await?;
        let answers = client.statuses().await;
        let nodes = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        if members.is_empty() {
            let why = nodes().find_map(|node| node.not_ready.clone());
            let tried = client.endpoints();
            let last_error = why.unwrap_or_else(|| "the cluster is not formed".into());
            return Err(Error::Unavailable { tried, last_error, source: None }.into());
        }
        let newest = nodes().filter(|node| !node.members.is_empty());
        let newest = newest.max_by_key(|node| node.membership);
        let members = newest.map_or(members, |node| node.members.clone());
        Ok(ClusterView { members, answers })
    }

    /// Every status.
    pub(in crate::cli) fn nodes(&self) -> impl Iterator<Item = &NodeStatus> {
        self.answers.iter().filter_map(|(_, answer)| answer.as_ref().ok())
    }

    /// The status of this member.
    pub(in crate::cli) fn status(&self, member: &Member) -> Option<&NodeStatus> {
        self.nodes().find(|node| node.node_id == member.node_id)
    }

    /// The status of the node that leads; of two that say so, of the one with the later term.
    pub(in crate::cli) fn leader(&self) -> Option<&NodeStatus> {
        self.nodes().filter(|node| node.role == Role::Leader).max_by_key(|node| node.term)
    }

    /// Whether this member leads.
    pub(in crate::cli) fn leads(&self, member: &Member) -> bool {
        self.leader().is_some_and(|leader| leader.node_id == member.node_id)
    }

    /// The member of a slot.
    pub(in crate::cli) fn member(&self, slot: u16) -> Option<&Member> {
        // In the middle of a replacement a slot has two: the voter is the one that counts.
        let mut members = self.members.iter().filter(|member| member.slot == slot);
        let first = members.next();
        first.filter(|member| member.voter).or_else(|| members.next().or(first))
    }

    /// The error that nobody has a slot.
    pub(in crate::cli) fn nobody(&self, slot: u16) -> UsageError {
        let slots = listed(&self.members.iter().map(|member| member.slot).collect());
        UsageError(format!("no member has slot {slot}; the members are slots {slots}"))
    }

    /// The member's state, or why it is not known.
    pub(in crate::cli) fn state(&self, member: &Member) -> &'static str {
        if let Some(node) = self.status(member) {
            return node.member_state.name();
        }
        let at_its_address = |(endpoint, _): &&(String, _)| *endpoint == member.client_address;
        match self.answers.iter().find(at_its_address) {
            Some((_, Err(reason))) => silence(reason),
            Some((_, Ok(_))) => "another node answers there",
            None => "unreachable",
        }
    }

    /// The slots that vote.
    pub(in crate::cli) fn voters(&self) -> BTreeSet<u16> {
        self.members.iter().filter(|member| member.voter).map(|member| member.slot).collect()
    }
}
