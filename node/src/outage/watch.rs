//! Surveys the other members while no leader is known. Reports a blocked election, and starts an
//! unsafe recovery if the configuration allows it.
//!
//! What holds here: at most one survey a second, and none while a leader is known. Only what two
//! surveys in a row agree on is reported. If only an operator can help, the log has one ERROR line
//! until there is a leader again.

use super::election_blocked::{ElectionBlocked, ElectionBlockedState};
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
    client: Client,
    election_blocked_state: ElectionBlockedState,
    automatic: Option<Automatic>,
    /// What the last survey found.
    before: Option<ElectionBlocked>,
    /// What was logged last since a leader was known.
    logged: Option<ElectionBlocked>,
}

impl Watch {
    /// The client addresses of all members, and this member's certificates. `automatic`: the configuration accepts
    /// data loss.
    ///
    /// # Errors
    /// Those of [`Options::build`].
    pub(crate) fn new(
        replica: Replica,
        (endpoints, tls): (Vec<String>, Option<Files>),
        automatic: bool,
        election_blocked_state: ElectionBlockedState,
    ) -> Result<Watch, cairn_client::Error> {
        let mut options = Options::new(endpoints).deadline(NODE_TIMEOUT);
        if let Some(Files { ca, certificate, key }) = tls {
            options = options.tls(ca, certificate, key);
        }
        let client = options.build()?;
        let automatic = automatic.then(|| Automatic::new(replica.node_id(), client.clone()));
        Ok(Watch { replica, client, election_blocked_state, automatic, before: None, logged: None })
    }

    /// Runs until dropped.
    pub(crate) async fn run(mut self) {
        loop {
            sleep(POLL_INTERVAL).await;
            if self.replica.status().leader.is_some() {
                self.election_blocked_state.set(None);
                (self.before, self.logged) = (None, None);
                if let Some(automatic) = &mut self.automatic {
                    automatic.forget();
                }
                continue;
            }
            let found = survey(&self.client).await;
            self.report(&found);
            if let Some(automatic) = &mut self.automatic {
                automatic.consider(found).await;
            }
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
        self.election_blocked_state.set(sentence.clone());
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
