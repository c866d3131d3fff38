//! Puts and gets on the shipped engine, by its mode, its sync settings and the number of clients.
//!
//! What holds here: one engine is made and closed and opened again with other settings, so that
//! rounds alternate over the settings. The keys that are read were all written before.

use super::super::finding::waits;
use super::super::{Context, Settings, little_check};
use super::mixed::{Mix, Round, key};
use super::plan::{Plan, Setting};
use crate::measure::{Payloads, Samples, spread_of};
use crate::report::{Check, Figure, Table};
use crate::subject::{EngineLog, lay_out, open_engine_with};
use anyhow::{Context as _, Result};
use cairn_engine::Mode;
use cairn_engine::io::Backend;

const NAME: &str = "intervals-engine";

pub(super) const TITLE: &str = "Cairn's sync settings";
pub(super) const PUT_RATE: &str = "put rate";
pub(super) const PUT_P99: &str = "put p99";
pub(super) const SYNCS: &str = "syncs";
pub(super) const COLUMNS: [(&str, &str); 8] = [
    (PUT_RATE, "/s"),
    ("put p50", "µs"),
    (PUT_P99, "µs"),
    ("get p50", "µs"),
    ("get p99", "µs"),
    (SYNCS, "/s"),
    ("checkpoints", "/s"),
    ("rate × mean", ""),
];

/// A setting with a number of clients.
pub(super) struct Cell {
    setting: Setting,
    clients: usize,
    rounds: Vec<Round>,
}

/// Measures all settings that are justified here.
pub(super) async fn measure(context: &Context<'_>, plan: &Plan) -> Result<Vec<Cell>> {
    let justified = plan.settings.iter().filter(|one| one.refused(context.settings).is_none());
    let justified: Vec<Setting> = justified.copied().collect();
    let mut cells: Vec<Cell> = justified
        .iter()
        .flat_map(|setting| plan.clients.iter().map(|clients| (*setting, *clients)))
        .map(|(setting, clients)| Cell { setting, clients, rounds: Vec::new() })
        .collect();
    let Some(first) = justified.first() else { return Ok(cells) };
    let engine = context.engine(NAME, plan.bytes, |boot| first.options(boot, 1)).await?;
    let log = EngineLog::start(engine, plan.retain_bytes());
    context.step("writing the keys")?;
    let payloads = Payloads::new(1, 1);
    let (keys, limit) = (plan.keys(), plan.fill_limit);
    let keys = lay_out(&log, &payloads, key, keys, limit, &context.stop).await?;
    close(log).await?;
    let mut boot_nonce = 1;
    for round in 0..plan.rounds {
        let mut due: Vec<Setting> = justified.clone();
        due.retain(|setting| round < plan.rounds_of(setting));
        if round % 2 == 1 {
            // No setting always follows the same one.
            due.reverse();
        }
        for setting in &due {
            context.step(&format!("round {} of {}: {}", round + 1, plan.rounds, setting.name()))?;
            boot_nonce += 1;
            let path = context.place.path(NAME);
            let options = |boot| setting.options(boot, boot_nonce);
            let engine = open_engine_with(&path, Backend::Auto, options).await?;
            let log = EngineLog::start(engine, plan.retain_bytes());
            let load = Mix { log: &log, payloads: &payloads, keys, seed: boot_nonce };
            for cell in cells.iter_mut().filter(|cell| cell.setting == *setting) {
                context.stop.check()?;
                let window = plan.window_of(setting);
                let measured = load.round(context, cell.clients, plan.warm_up, window).await;
                cell.rounds.push(measured.with_context(|| setting.row(cell.clients))?);
            }
            close(log).await?;
        }
    }
    context.place.remove(NAME)?;
    Ok(cells)
}

/// Closes the engine so that the next open finds everything applied.
async fn close(log: EngineLog) -> Result<()> {
    log.engine().checkpoint().await?;
    Ok(log.engine().close().await?)
}

/// The table. `direct` is whether writes bypass the page cache.
pub(super) fn table(plan: &Plan, settings: &Settings, cells: &[Cell], direct: bool) -> Table {
    let mut table = Table::new(TITLE, &COLUMNS);
    for setting in &plan.settings {
        if let Some(reason) = setting.refused(settings) {
            for count in plan.clients {
                table.not_made(setting.row(*count), &*reason);
            }
        }
        let answered_by = match (setting.mode, direct) {
            (Mode::Sync, _) => "disk",
            (_, true) => "device",
            (_, false) => "page cache",
        };
        for cell in cells.iter().filter(|cell| cell.setting == *setting) {
            table.measured(setting.row(cell.clients), answered_by, figures(&cell.rounds));
        }
    }
    table
}

fn figures(rounds: &[Round]) -> Vec<Option<Figure>> {
    let each = |of: &dyn Fn(&Round) -> f64| spread_of(rounds, of);
    let per_second = |round: &Round, count: u64| count as f64 / round.all.elapsed.as_secs_f64();
    vec![
        each(&|round| round.puts.rate()),
        each(&|round| round.puts.quantile_us(0.5)),
        each(&|round| round.puts.quantile_us(0.99)),
        each(&|round| round.gets.quantile_us(0.5)),
        each(&|round| round.gets.quantile_us(0.99)),
        each(&|round| per_second(round, round.syncs)),
        each(&|round| per_second(round, round.checkpoints)),
        each(&|round| round.all.under_way()),
    ]
}

/// Where the size of the directory was in the way.
pub(super) fn waits_notes(cells: &[Cell], engine_bytes: u64) -> Vec<String> {
    let note = |cell: &Cell| {
        let times = cell.rounds.iter().map(|round| round.waited).sum();
        waits(&cell.setting.row(cell.clients), times, engine_bytes, engine_bytes < Plan::MOST_BYTES)
    };
    cells.iter().filter_map(note).collect()
}

/// Little's law for each cell, puts and gets together.
pub(super) fn checks(cells: &[Cell]) -> Vec<Check> {
    let check = |cell: &Cell| {
        let all: Vec<Samples> = cell.rounds.iter().map(|round| round.all.clone()).collect();
        little_check(&cell.setting.row(cell.clients), &all, cell.clients)
    };
    cells.iter().map(check).collect()
}
