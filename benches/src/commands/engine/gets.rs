//! Gets: alone, while the disk is synced over and over, and beside puts.

use super::{Arguments, Subjects, limit};
use crate::fio::Access;
use crate::progress::Step;
use crate::raw::RawLines;
use crate::report::{Line, Ratio, Report, merged};
use anyhow::Result;
use cairn_experiments::{Getter, Putter, Samples, drive};

/// Puts beside gets, and before each sync.
const PUTS: usize = 10;

pub(super) async fn measure(
    arguments: &Arguments,
    subjects: &Subjects,
    report: &mut Report,
) -> Result<()> {
    let Subjects { log, payloads, raw } = subjects;
    let getters = |seed| Getter::many(log, payloads, arguments.depth, seed);
    let putters = |seed| Putter::many(log, payloads, arguments.value_bytes, PUTS, seed);
    let mut lines = RawLines::new(Access::Read);
    let (mut alone, mut puts, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
    let step = Step::new("measuring");
    for round in 0..arguments.rounds {
        let seed = round as u64 + 1;
        lines.round(raw, seed, report).await?;
        let samples = drive(getters(seed), limit(arguments)).await?;
        step.say(&format!("round {}: {:.0} gets/s", round + 1, samples.rate()));
        alone.push(samples);
        puts.push(
            beside_puts(
                drive(getters(seed), limit(arguments)),
                drive(putters(seed), limit(arguments)),
            )
            .await?,
        );
        let load = beside_puts(
            drive(getters(seed), limit(arguments)),
            drive(putters(seed), limit(arguments)),
        );
        let engine = log.engine();
        let sync = async {
            loop {
                if let Err(error) = engine.sync().await {
                    return error;
                }
            }
        };
        tokio::select! {
            samples = load => syncs.push(samples?),
            error = sync => return Err(error.into()),
        }
    }
    drop(step);
    let depth = arguments.depth;
    report.lines.push(Line::new("engine gets", &merged(&alone)?, depth));
    report.lines.push(Line::new(
        format!("engine gets beside {PUTS} putters"),
        &merged(&puts)?,
        depth,
    ));
    let name = "the same, synced over and over";
    report.lines.push(Line::new(name, &merged(&syncs)?, depth));
    let (name, fastest) = lines.report(report, depth)?;
    report.set("compared with", name);
    let ratio = Ratio::new("engine gets / raw reads", &alone, fastest);
    let value = ratio.value;
    report.ratios.push(ratio);
    if let Some(least) = arguments.assert_ratio {
        let name = format!("engine gets / raw reads is at least {least}");
        report.check(name, value >= least, format!("{value:.2}"));
    }
    Ok(())
}

/// The samples of the gets.
async fn beside_puts(
    gets: impl Future<Output = Result<Samples>>,
    puts: impl Future<Output = Result<Samples>>,
) -> Result<Samples> {
    let (gets, puts) = tokio::join!(gets, puts);
    puts?;
    gets
}
