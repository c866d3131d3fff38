//! What members do over links that carry little.

use super::members::Members;
use super::*;
use crate::core::command::{Condition, Operation};

/// The story: a value that took longer on its way than an answer may take was sent from its beginning
/// again and again. Heartbeats arrived, so the leader stayed, and nothing was committed behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_takes_longer_than_an_answer_is_committed() {
    const BYTES: usize = 6 << 20;
    let members = Members::over(Some(2 << 20), 3, |_| 1000).await;
    let put = Operation::Put {
        key: "k".into(),
        value: vec![7; BYTES].into(),
        condition: Condition::None,
    };
    let command = Command { synced: false, session: None, operations: vec![put] };
    let written = async {
        // A leader may change on a busy machine.
        while members.leader_now().await.write(command.clone()).await.is_err() {
            runtime::sleep(Duration::from_millis(20)).await;
        }
    };
    runtime::timeout(Duration::from_secs(120), written).await.expect("committed");
}
