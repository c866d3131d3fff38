//! `cairn top`: a view of the cluster that stays on the terminal, or one frame of it as text.
//!
//! ```text
//!  scrape   what a node's HTTP port tells
//!  view     what a frame shows: statuses and scrapes of two looks, and what `cairn health` finds
//!  draw     a frame on cells
//!  screen   the terminal and its keys
//! ```
//!
//! What holds here: the cluster is only asked. The terminal is as it was before on every way out.

mod draw;
mod scrape;
mod screen;
mod view;

use super::ConnectOptions;
use super::connect::time;
use super::exit::{Exit, UsageError};
use super::health::ask_all;
use super::http::{HttpReader, address};
use super::output::Output;
use super::signals::{hangups, termination};
use cairn_client::{Client, Error};
use cairn_node::health::Answer;
use clap::Args;
use draw::Chosen;
use futures::future::{join, join_all};
use screen::{Key, Screen};
use std::io::{self, IsTerminal};
use std::task::Poll;
use std::time::{Duration, Instant};
use view::{Look, Trend, View};

/// How long one node may take. A node that is down must not delay the answers of the others.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bounds of the time between two looks.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// A terminal that is gone is seen by the next frame.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct TopArgs {
    /// Print one frame as text and end; with -o json, one document
    #[arg(long)]
    once: bool,

    /// Time between two looks at the cluster, from 100ms to 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    interval: Duration,

    /// `listen.http` of members, host:port each, separated by commas: they tell requests and their
    /// times, memory, and space by what it is. Default: those of the cluster that `cairn dev` runs here
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', value_parser = address)]
    http: Vec<String>,

    #[command(flatten)]
    connect: ConnectOptions,
}

pub(crate) async fn run(args: TopArgs, output: &Output) -> anyhow::Result<Exit> {
    let interval = args.interval.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
    let once = args.once || output.is_json();
    let on_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !once && !on_terminal {
        let why = "standard input and output are no terminal: `cairn status` shows the members once, and \
                   `cairn top --once` prints one frame";
        return Err(UsageError(why.into()).into());
    }
    let found = args.connect.http_found();
    let source = Source {
        client: args.connect.client_within(NODE_TIMEOUT)?,
        http: args.connect.http_within(NODE_TIMEOUT, None)?,
        addresses: if args.http.is_empty() { found } else { args.http },
    };
    match once {
        true => print(&source, interval, output).await,
        false => watch(&source, interval).await,
    }
}

/// Whom to ask.
struct Source {
    client: Client,
    http: HttpReader,
    addresses: Vec<String>,
}

impl Source {
    /// Looks at the cluster after this time. May be cancelled.
    async fn look_after(&self, time: Duration) -> Look {
        tokio::time::sleep(time).await;
        // Before they are asked: they answer at once, and the look ends with the slowest. By that end the rates
        // would be wrong when a member begins to hang, or ceases to.
        let at = Instant::now();
        let asked = self.addresses.iter().map(|address| scrape::ask(&self.http, address));
        let (report, scrapes) = join(ask_all(&self.client), join_all(asked)).await;
        Look { at, report, scrapes }
    }
}

/// Prints what was between two looks.
async fn print(source: &Source, interval: Duration, output: &Output) -> anyhow::Result<Exit> {
    let mut trend = Trend::default();
    trend.add(source.look_after(Duration::ZERO).await);
    let look = source.look_after(interval).await;
    let (exit, why) = exit_of(&look.report.answers);
    let view = trend.add(look);
    let document = serde_json::to_value(&view)?;
    output.either(|| document, || draw::text(&view))?;
    if output.is_json() && exit != Exit::Done {
        output.error(&format!("{why}; what is known is on standard output"), exit as u8);
    }
    Ok(exit)
}

/// The exit code of a frame, and why it is that one: whether it is well is what the frame says.
fn exit_of(answers: &[Answer]) -> (Exit, &'static str) {
    let denied = |(_, answer): &Answer| answer.as_ref().is_err_and(Error::is_denied);
    if answers.iter().any(|(_, answer)| answer.is_ok()) {
        (Exit::Done, "a node answers")
    } else if answers.iter().any(denied) {
        (Exit::NotAllowed, "a node does not allow it")
    } else {
        (Exit::Unavailable, "no node answers")
    }
}

/// Shows frame after frame until a key, a signal or the end of the terminal ends it.
async fn watch(source: &Source, interval: Duration) -> anyhow::Result<Exit> {
    let mut ended = std::pin::pin!(termination());
    let mut hangups = hangups()?;
    let mut hung_up = std::pin::pin!(async {
        match &mut hangups {
            Some(hangups) => {
                hangups.recv().await;
            }
            None => std::future::pending().await,
        }
    });
    // Heard from now on: a signal that ends the process by itself would leave the terminal raw.
    if let Poll::Ready(signal) = futures::poll!(ended.as_mut()) {
        signal?;
        return Ok(Exit::Done);
    }
    let mut screen = Screen::open()?;
    let mut keys = screen::keys();
    let (mut trend, mut chosen, mut view) = (Trend::default(), Chosen::default(), None::<View>);
    let mut looking = Box::pin(source.look_after(Duration::ZERO));
    loop {
        screen.show(view.as_ref(), chosen)?;
        tokio::select! {
            biased;
            signal = &mut ended => {
                signal?;
                return Ok(Exit::Done);
            }
            () = &mut hung_up => return Ok(Exit::Done),
            key = keys.recv() => {
                let rows = view.as_ref().map_or(0, |view| view.members.len());
                match key.and_then(|key| after(key, chosen, rows)) {
                    Some(next) => chosen = next,
                    None => return Ok(Exit::Done),
                }
            }
            look = &mut looking => {
                let next = trend.add(look);
                chosen.member = chosen.member.min(next.members.len().saturating_sub(1));
                view = Some(next);
                looking.set(source.look_after(interval));
            }
        }
    }
}

/// What is chosen after a key; `None`: it ends the view.
fn after(key: Key, chosen: Chosen, rows: usize) -> Option<Chosen> {
    let Chosen { member, help } = chosen;
    match key {
        Key::End => None,
        Key::Up => Some(Chosen { member: member.saturating_sub(1), help }),
        Key::Down => Some(Chosen { member: (member + 1).min(rows.saturating_sub(1)), help }),
        Key::Help => Some(Chosen { member, help: !help }),
        Key::Resized => Some(chosen),
    }
}

#[cfg(test)]
mod tests;
