//! Surveys the other members while no leader is known. Reports a blocked election, and starts an
//! unsafe recovery if the configuration allows it.
//!
//! What holds here: at most one survey a second, and none while a leader is known. Only what two
//! surveys in a row agree on is reported. If only an operator can help, the log has one ERROR line
//! until there is a leader again.

use super::election_blocked::{ElectionBlocked, ElectionBlockedState, Outside};
use super::{Automatic, MemberSurvey, survey};
use cairn_client::{Client, Options};
use cairn_raft::Replica;
use cairn_tls::Files;
use std::time::Duration;
use tokio::time::sleep;
use tracing::{error, warn};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches for an outage that does not end on its own.
pub(crate) struct Watch {
    replica: Replica,
    /// Where to ask as long as this member knows no others.
    seeds: Vec<String>,
    tls: Option<Files>,
    /// Asks at these endpoints.
    client: Option<(Vec<String>, Client)>,
    election_blocked_state: ElectionBlockedState,
    automatic: Option<Automatic>,
    /// What the last survey found.
    before: Option<ElectionBlocked>,
    /// What was logged last about a member that is in no configuration.
    logged_outside: Option<String>,
    /// What was logged last since a leader was known.
    logged: Option<ElectionBlocked>,
}

impl Watch {
    /// `seeds`: client addresses to ask as long as this member knows no others. `tls`: this member's
    /// certificates. `automatic`: the configuration accepts data loss.
    pub(crate) fn new(
        replica: Replica,
        (seeds, tls): (Vec<String>, Option<Files>),
        automatic: bool,
        election_blocked_state: ElectionBlockedState,
    ) -> Watch {
        let automatic = automatic.then(|| Automatic::new(replica.node_id()));
        Watch {
            replica,
            seeds,
            tls,
            client: None,
            election_blocked_state,
            automatic,
            before: None,
            logged_outside: None,
            logged: None,
        }
    }

    fn options(&self, endpoints: Vec<String>) -> Options {
        let options = Options::new(endpoints).deadline(NODE_TIMEOUT);
        match &self.tls {
            Some(Files { ca, certificate, key }) => options.tls(ca, certificate, key),
            None => options,
        }
    }

    /// A client of the members where they are now. Where they were before, nobody is missing.
    fn client(&mut self) -> Result<Client, cairn_client::Error> {
        let members = self.replica.status().members;
        let mut endpoints: Vec<String> =
            members.into_iter().map(|member| member.address.client).collect();
        if endpoints.is_empty() {
            endpoints.clone_from(&self.seeds);
        }
        match &self.client {
            Some((known, client)) if *known == endpoints => Ok(client.clone()),
            _ => {
                let client = self.options(endpoints.clone()).build()?;
                self.client = Some((endpoints, client.clone()));
                Ok(client)
            }
        }
    }

    /// Runs until dropped.
    pub(crate) async fn run(mut self) {
        loop {
            sleep(POLL_INTERVAL).await;
            if self.replica.status().leader.is_some() {
                self.election_blocked_state.set(None, None);
                (self.before, self.logged) = (None, None);
                if let Some(automatic) = &mut self.automatic {
                    automatic.forget();
                }
                continue;
            }
            let client = match self.client() {
                Ok(client) => client,
                Err(error) => {
                    warn!(node = %self.replica.node_id(), %error, "cannot ask the other members");
                    continue;
                }
            };
            let found = survey(&client).await;
            self.report(&found);
            if let Some(automatic) = &mut self.automatic {
                automatic.consider(&client, found).await;
            }
        }
    }

    /// Logs each such sentence once.
    fn report_no_configuration(&mut self, sentence: &String) {
        if self.logged_outside.replace(sentence.clone()).as_ref() != Some(sentence) {
            warn!(node = %self.replica.node_id(), "{sentence}");
        }
    }

    fn report(&mut self, found: &MemberSurvey) {
        let election_blocked = found.election_blocked();
        let before = std::mem::replace(&mut self.before, election_blocked.clone());
        let stable = election_blocked.filter(|election_blocked| {
            before.is_some_and(|before| election_blocked.is_as(&before))
        });
        let sentence = stable
            .as_ref()
            .and_then(|election_blocked| election_blocked.sentence(self.automatic.is_some()));
        let outside = match self.replica.votes() {
            true => None,
            false => found.outside(self.replica.node_id().slot()),
        };
        if let Some(Outside::NoConfiguration(sentence)) = &outside {
            self.report_no_configuration(sentence);
        }
        self.election_blocked_state.set(sentence.clone(), outside);
        let Some((election_blocked, sentence)) = stable.zip(sentence) else { return };
        if self.logged.as_ref().is_some_and(|logged| logged.is_as(&election_blocked)) {
            return;
        }
        let node = self.replica.node_id();
        match election_blocked {
            ElectionBlocked::Decision => error!(%node, "{sentence}"),
            ElectionBlocked::Missing(_) => warn!(%node, "{sentence}"),
        }
        self.logged = Some(election_blocked);
    }
}
