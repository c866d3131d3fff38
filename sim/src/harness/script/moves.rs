//! Members that start at other addresses, and what others make of it.

use super::disks::{replacement, votes};
use super::stage::{Played, Stage};
use super::{Scenario, three, three_or_five};
use crate::harness::moves::is_logged;
use crate::harness::plan::Plan;
use bytes::Bytes;
use cairn_clients::Violation;
use cairn_raft::{Command, Condition, Operation};
use std::time::Duration;

const LOGGED: &str = "every address is in the log";

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!("member-moves-while-it-leads", three_or_five, leader_moves).seeds(6).reaches(&[
        "a leader moves",
        "it moves again at once",
        LOGGED,
    ]),
    scenario!("all-members-move-at-once", three_or_five, all_move).seeds(6).reaches(&[
        "all move at once",
        "the seed lags",
        LOGGED,
    ]),
    scenario!("members-move-one-after-another-under-clients", three_or_five, all_move_in_turn)
        .reaches(&["all members moved", LOGGED]),
    scenario!("announcement-overtaken-by-an-older-one", repeating, announced_twice)
        .seeds(6)
        .reaches(&["announced twice", LOGGED]),
    scenario!("removed-identity-announces-an-address", three, removed_elsewhere).reaches(&[
        "the removed identity is elsewhere",
        "the new identity is back",
        LOGGED,
    ]),
];

/// Three members, and many messages that arrive a second time, up to ten seconds later.
fn repeating(seed: u64) -> Plan {
    Plan { repeats_per_mille: 300, ..three(seed) }
}

impl Stage {
    /// The member's next process listens elsewhere.
    fn relocate(&self, member: usize) -> Played {
        let machine = self.machine(member)?;
        machine.relocate();
        self.cluster.count("moved address");
        self.cluster.trace.event(format!("node {} moves to {:?}", machine.slot, machine.address()));
        Ok(())
    }

    /// Waits until the leader's log has every member where it is.
    async fn logged(&self) -> Played {
        let done = || {
            let leader = self.leads(&self.all()).and_then(|(_, leader)| self.status(leader));
            leader.is_some_and(|status| {
                self.cluster.machines.iter().all(|machine| is_logged(machine, &status))
            })
        };
        self.until("every address in the log", done).await?;
        self.reached(LOGGED);
        Ok(())
    }

    /// The clients, which know the members since before they moved, go on.
    async fn clients_follow(&self) -> Played {
        let done = self.acknowledged(10).await;
        if done.is_err() {
            let detail = "their requests are not served any more";
            self.cluster.violation(Violation::new("clients find members that moved", detail));
        }
        done
    }

    /// Has the present leader apply a command.
    async fn serves(&mut self) -> Played {
        let put = Operation::Put {
            key: Bytes::from_static(b"later/moved"),
            value: "1".into(),
            condition: Condition::None,
        };
        self.command(Command { synced: false, session: None, operations: vec![put] }).await?;
        Ok(())
    }
}

/// The leader ends, and comes back elsewhere; in some seeds twice, the second time before anybody
/// logged the first. Later it leads again.
async fn leader_moves(mut stage: Stage) -> Played {
    stage.acknowledged(10).await?;
    let (leader, _, _) = stage.cast().await?;
    stage.kill(leader);
    stage.relocate(leader)?;
    stage.pass(0, 1_500).await;
    stage.start(&[leader]).await;
    stage.reached("a leader moves");
    if stage.seed.is_multiple_of(3) {
        stage.pass(0, 400).await;
        stage.kill(leader);
        stage.relocate(leader)?;
        stage.start(&[leader]).await;
        stage.reached("it moves again at once");
    }
    stage.logged().await?;
    stage.active(&stage.all()).await?;
    // Each of the others ends in turn, until the one that moved leads.
    for _ in 0..8 {
        let now = stage.leader().await?;
        if now == leader {
            break;
        }
        stage.stop(&[now]).await;
        stage.kill(now);
        stage.leader().await?;
        stage.start(&[now]).await;
        stage.active(&stage.all()).await?;
    }
    stage.clients_follow().await
}

/// All members end, and all of them come back elsewhere. Each knows one seed; in some seeds that
/// member lacks the newest entries, so that it cannot lead, and the others must find one another
/// through it. Clients that knew only the old addresses are lost; new ones are given new addresses.
async fn all_move(mut stage: Stage) -> Played {
    stage.acknowledged(10).await?;
    let lags = stage.seed.is_multiple_of(2);
    if lags {
        stage.isolate(&[0]);
        let others = stage.others(&[0]);
        stage.leader_among(&others, 0).await?;
        stage.acknowledged(20).await?;
        stage.reached("the seed lags");
    }
    stage.quiet().await;
    for member in stage.all() {
        stage.kill(member);
        stage.relocate(member)?;
    }
    stage.heal();
    stage.pass(0, 1_000).await;
    stage.start(&stage.all()).await;
    stage.reached("all move at once");
    stage.leader().await?;
    stage.serves().await?;
    stage.logged().await
}

/// One member after another moves, and clients that were connected all the time follow.
async fn all_move_in_turn(mut stage: Stage) -> Played {
    stage.acknowledged(10).await?;
    for member in stage.all() {
        stage.kill(member);
        stage.relocate(member)?;
        stage.pass(0, 1_000).await;
        stage.start(&[member]).await;
        stage.logged().await?;
        stage.active(&stage.all()).await?;
        stage.clients_follow().await?;
        // Clients ask for the members every few seconds.
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    stage.reached("all members moved");
    stage.clients_follow().await
}

/// A member moves twice; what it announced the first time arrives after what it announced the
/// second time.
async fn announced_twice(mut stage: Stage) -> Played {
    stage.acknowledged(5).await?;
    let (_, moves, _) = stage.cast().await?;
    stage.kill(moves);
    stage.relocate(moves)?;
    stage.slow(Duration::from_millis(1_200));
    stage.start(&[moves]).await;
    stage.until("a node that serves", || stage.node(moves).is_some()).await?;
    stage.pass(300, 1_000).await;
    stage.kill(moves);
    stage.usual_speed();
    stage.relocate(moves)?;
    stage.start(&[moves]).await;
    stage.reached("announced twice");
    stage.logged().await?;
    // The older announcements arrive meanwhile, and as many seconds later as a message can be.
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let leader = stage.leads(&stage.all()).and_then(|(_, leader)| stage.status(leader));
        let machine = stage.machine(moves)?;
        if leader.is_some_and(|status| !is_logged(machine, &status)) {
            let detail = "the log has the address of an earlier boot again";
            stage.cluster.violation(Violation::new("the newest address stays", detail));
        }
    }
    stage.active(&stage.all()).await?;
    stage.clients_follow().await
}

/// A lost disk is put in again when another identity has its slot, and its node starts elsewhere:
/// nobody is sent there.
async fn removed_elsewhere(mut stage: Stage) -> Played {
    stage.ahead(&stage.all()).await?;
    let (_, lost, _) = stage.cast().await?;
    let files = stage.lose_disk(lost).await?;
    stage.start(&[lost]).await;
    replacement(&stage, lost).await?;
    stage.logged().await?;
    let new = stage.exchange_disk(lost, files).await?;
    stage.machine(lost)?.lose();
    stage.relocate(lost)?;
    let elsewhere = stage.machine(lost)?.address();
    stage.start(&[lost]).await;
    stage.until("a node that serves", || stage.node(lost).is_some()).await?;
    stage.reached("the removed identity is elsewhere");
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        for member in stage.others(&[lost]) {
            let Some(status) = stage.status(member) else { continue };
            if status.members.iter().any(|known| known.address == elsewhere) {
                let detail = format!("member {member} looks for a member at {elsewhere:?}");
                let violation = Violation::new("a removed identity redirects nobody", detail);
                stage.cluster.violation(violation);
            }
        }
    }
    stage.clients_follow().await?;
    stage.exchange_disk(lost, new).await?;
    stage.relocate(lost)?;
    stage.start(&[lost]).await;
    stage.until("the new identity", || votes(&stage, lost) && stage.is_active(lost)).await?;
    stage.reached("the new identity is back");
    stage.logged().await
}
