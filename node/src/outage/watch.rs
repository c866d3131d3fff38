//! Looks at the other members while no leader is heard: says what the cluster waits for, and decides where the configuration
//! lets the members do so.
//!
//! What holds here: one look a second at most, and none while a leader is known; what two looks in a row agree on is said, as one
//! ERROR for as long as nobody leads where only a person can help.

use super::waiting::{Outlook, Waiting};
use super::{Automatic, Found, look};
use cairn_client::{Client, Options};
use cairn_raft::Replica;
use std::time::Duration;
use tokio::time::sleep;
use tracing::{error, warn};

const PAUSE: Duration = Duration::from_secs(1);
/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches for an outage that does not end by itself.
pub(crate) struct Watch {
    replica: Replica,
    client: Client,
    outlook: Outlook,
    automatic: Option<Automatic>,
    /// What the last look found.
    before: Option<Waiting>,
    /// What was logged last since somebody led.
    logged: Option<Waiting>,
}

impl Watch {
    /// With these client addresses of all members; `automatic` if the configuration accepts a loss.
    ///
    /// # Errors
    /// Those of [`Options::build`].
    pub(crate) fn new(
        replica: Replica,
        endpoints: Vec<String>,
        automatic: bool,
        outlook: Outlook,
    ) -> Result<Watch, cairn_client::Error> {
        let client = Options::new(endpoints).deadline(NODE_TIMEOUT).build()?;
        let automatic = automatic.then(|| Automatic::new(replica.node_id(), client.clone()));
        Ok(Watch { replica, client, outlook, automatic, before: None, logged: None })
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            sleep(PAUSE).await;
            if self.replica.status().leader.is_some() {
                self.outlook.set(None);
                (self.before, self.logged) = (None, None);
                if let Some(automatic) = &mut self.automatic {
                    automatic.forget();
                }
                continue;
            }
            let found = look(&self.client).await;
            self.tell(&found);
            if let Some(automatic) = &mut self.automatic {
                automatic.consider(found).await;
            }
        }
    }

    fn tell(&mut self, found: &Found) {
        let waiting = found.waiting();
        let before = std::mem::replace(&mut self.before, waiting.clone());
        let steady = waiting.filter(|waiting| before.is_some_and(|before| waiting.is_as(&before)));
        let sentence = steady.as_ref().and_then(|waiting| waiting.sentence(self.automatic.is_some()));
        self.outlook.set(sentence.clone());
        let Some((waiting, sentence)) = steady.zip(sentence) else { return };
        if self.logged.as_ref().is_some_and(|logged| logged.is_as(&waiting)) {
            return;
        }
        let node = self.replica.node_id();
        match waiting {
            Waiting::Decision => error!(%node, "{sentence}"),
            Waiting::Missing(_) => warn!(%node, "{sentence}"),
        }
        self.logged = Some(waiting);
    }
}
