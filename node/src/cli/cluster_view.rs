//! What the members of a configuration say of their cluster, for commands that work without one: who
//! does not answer within a moment is left out.

use super::connect::with_certificates;
use cairn_client::{NodeStatus, Options, Role};
use cairn_node::NodeConfig;
use cairn_node::failure_domains::at_one_address;
use cairn_node::outage::no_configuration;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the members may take to answer.
const LIMIT: Duration = Duration::from_secs(1);

/// The statuses of the configured members that run, of this cluster alone.
async fn statuses(config: &NodeConfig) -> Vec<NodeStatus> {
    let endpoints = config.members.values().map(|member| member.client.clone());
    let options = Options::new(endpoints).cluster(&config.cluster).deadline(LIMIT);
    let options = with_certificates(options, config.tls_files());
    let Ok(client) = options.build() else { return Vec::new() };
    let answers = client.statuses().await;
    let answers = answers.into_iter().filter_map(|(_, answer)| answer.ok());
    answers.filter(|node| node.cluster == config.cluster).collect()
}

/// The sentence for a member whose slot no member of the running cluster has.
pub(crate) async fn no_configuration_of(config: &NodeConfig) -> Option<String> {
    let answers = statuses(config).await;
    let newest = answers.iter().max_by_key(|node| node.membership)?;
    let voters = newest.members.iter().filter(|member| member.voter);
    let voters: BTreeSet<u16> = voters.map(|member| member.slot).collect();
    let member = newest.members.iter().any(|member| member.slot == config.slot);
    let outside = !voters.is_empty() && !member;
    outside.then(|| no_configuration(config.slot, &voters))
}

/// Which voters of the cluster fail together: as the members say that run, or else as the
/// configured addresses show.
pub(crate) async fn shared_failures(config: &NodeConfig) -> Vec<String> {
    let answers = statuses(config).await;
    match answers.into_iter().find(|node| node.role == Role::Leader) {
        Some(leader) => {
            leader.durability.map(|durability| durability.exceptions).unwrap_or_default()
        }
        None => at_one_address(config),
    }
}
