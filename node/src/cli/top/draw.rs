//! Draws a frame of `cairn top` onto cells of any number.
//!
//! What holds here: what does not fit is left out, from the least important on: the verdict and the members
//! stay longest. Texts come from a [`View`], which made them safe.

use super::view::{Part, Row, Times, View};
use cairn_node::config::format_rounded;
use cairn_node::health::{Finding, Severity};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Block, Clear, Paragraph, Row as TableRow, Sparkline, StatefulWidget, Table, TableState, Widget,
    Wrap,
};
use std::collections::VecDeque;

/// What stands for a number that nobody told.
const NONE: &str = "-";
/// How wide `--once` prints.
const TEXT_COLUMNS: u16 = 120;
/// Lines of a frame beside its members and findings.
const OTHER_LINES: usize = 16;
const MOST_LINES: usize = 1000;
/// The columns of the members with their widths, the most important first.
const COLUMNS: [(&str, u16); 11] = [
    ("SLOT", 4),
    (ENDPOINT, 20),
    ("ROLE", 11),
    ("APPLIED", 9),
    ("LAG", 6),
    ("LATE", 6),
    ("PUTS/S", 7),
    ("GETS/S", 7),
    ("PUT P99", 8),
    ("MEMORY", 8),
    ("FREE", 8),
];
/// The one that a narrow terminal cuts off: a number that is cut off is another number.
const ENDPOINT: &str = "ENDPOINT";
const CHOSEN: &str = "> ";

const HELP: [&str; 9] = [
    "q, Esc, Ctrl-C  end",
    "up, down        another member",
    "?               show this, or hide it",
    "",
    "LAG   entries that are committed and not applied here",
    "LATE  for how long it lacks something",
    "-     nobody told it; --http asks for more",
    "p50, p99: half of the requests, and all but one in",
    "a hundred, took at most so long",
];

/// What the person who looks has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// The member whose details are shown, by its row.
    pub(super) member: usize,
    pub(super) help: bool,
}

/// Draws the frame.
pub(super) fn draw(view: &View, chosen: Chosen, area: Rect, buffer: &mut Buffer) {
    let areas = Areas::of(view, area);
    title(view).render(areas.title, buffer);
    verdict(view).render(areas.verdict, buffer);
    Paragraph::new(traffic(view)).render(areas.traffic, buffer);
    plots(view, areas.plots, buffer);
    members(view, chosen.member, areas.members, buffer);
    if let Some(row) = view.members.get(chosen.member) {
        Paragraph::new(details(row)).render(areas.details, buffer);
    }
    Paragraph::new(findings(view)).wrap(Wrap { trim: false }).render(areas.findings, buffer);
    dim(Line::raw("q end   up, down another member   ? help")).render(areas.footer, buffer);
    if chosen.help {
        help(area, buffer);
    }
}

/// The frame as text, with all members and findings.
pub(super) fn text(view: &View) -> String {
    let width = usize::from(TEXT_COLUMNS);
    let lines = |line: String| line.chars().count() / width + 2;
    let findings: usize = view.findings.iter().map(|finding| lines(finding.line())).sum();
    let height = (OTHER_LINES + view.members.len() * 2 + findings).min(MOST_LINES);
    let area = Rect::new(0, 0, TEXT_COLUMNS, u16::try_from(height).unwrap_or(u16::MAX));
    let mut buffer = Buffer::empty(area);
    draw(view, Chosen::default(), area, &mut buffer);
    let rows = buffer.content().chunks(width).map(|cells| {
        let (mut line, mut covered) = (String::new(), 0);
        for cell in cells {
            // A wide character covers the cells behind it.
            if covered == 0 {
                line.push_str(cell.symbol());
            }
            covered = Line::raw(cell.symbol()).width().max(covered).saturating_sub(1);
        }
        line.trim_end().to_owned()
    });
    let rows: Vec<String> =
        rows.filter(|line| !line.is_empty() && !line.starts_with("q end")).collect();
    rows.join("\n")
}

/// Where each part is drawn; one for which there is no space has no height.
struct Areas {
    title: Rect,
    verdict: Rect,
    traffic: Rect,
    plots: Rect,
    members: Rect,
    details: Rect,
    findings: Rect,
    footer: Rect,
}

impl Areas {
    fn of(view: &View, area: Rect) -> Areas {
        let rows = u16::try_from(view.members.len()).unwrap_or(u16::MAX).saturating_add(1);
        let mut left = area.height;
        let mut take = |wanted: u16| {
            let taken = wanted.min(left);
            left -= taken;
            taken
        };
        // The most important first.
        let (title, verdict) = (take(1), take(1));
        let members = take(rows.min((area.height / 2).max(2)));
        let few_findings = take(if view.findings.is_empty() { 1 } else { 3 });
        let (traffic, details, footer) = (take(2), take(3), take(1));
        let plots = take(4);
        let findings = few_findings + take(u16::MAX);
        // From the top to the bottom.
        let mut top = area.y;
        let mut next = |height: u16| {
            let area = Rect { y: top, height, ..area };
            top = top.saturating_add(height);
            area
        };
        Areas {
            title: next(title),
            verdict: next(verdict),
            traffic: next(traffic),
            plots: next(plots),
            members: next(members),
            details: next(details),
            findings: next(findings),
            footer: next(footer),
        }
    }
}

fn title(view: &View) -> Line<'_> {
    let leader = match view.leader {
        Some(slot) => format!("slot {slot} leads"),
        None => "no leader".to_owned(),
    };
    let name = Span::styled("cairn top", Style::new().add_modifier(Modifier::BOLD));
    Line::from(vec![name, Span::raw(format!("  {}  term {}  {leader}", view.cluster, view.term))])
}

fn verdict(view: &View) -> Line<'_> {
    let colour = match view.severity {
        "well" => Color::Green,
        "critical" => Color::Red,
        _ => Color::Yellow,
    };
    let word = Span::styled(
        view.severity.to_uppercase(),
        Style::new().fg(colour).add_modifier(Modifier::BOLD),
    );
    Line::from(vec![word, Span::raw("  "), Span::raw(view.words.as_str())])
}

fn traffic(view: &View) -> Vec<Line<'_>> {
    let traffic = &view.traffic;
    let entries = format!("entries/s {}", number(traffic.entries_per_second));
    let of = |name, rate, times: Times| {
        let Times { p50_us, p99_us } = times;
        format!("{name} {}  p50 {}  p99 {}", number(rate), micros(p50_us), micros(p99_us))
    };
    let puts = of("puts/s", traffic.puts_per_second, traffic.puts);
    let gets = of("gets/s", traffic.gets_per_second, traffic.gets);
    let basis = match (view.unread.first(), traffic.told_by) {
        (Some(why), _) => why.clone(),
        (None, 0) => "requests and memory: --http with the listen.http of each member".into(),
        (None, told) => format!("requests as {told} of {} members tell", view.members.len()),
    };
    vec![Line::raw(format!("{puts}    {gets}")), Line::raw(format!("{entries}    {basis}"))]
}

/// The last minutes: puts and gets, or what is committed where nobody told those.
fn plots(view: &View, area: Rect, buffer: &mut Buffer) {
    let history = &view.history;
    let told = history.puts_per_second.iter().any(Option::is_some);
    let (left, right) = match told {
        true => (("puts/s", &history.puts_per_second), ("gets/s", &history.gets_per_second)),
        false => (("entries/s", &history.entries_per_second), ("gets/s", &history.gets_per_second)),
    };
    let [left_area, right_area] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2_u16).areas(area);
    plot(left, left_area, buffer);
    plot(right, right_area, buffer);
}

fn plot((name, rates): (&str, &VecDeque<Option<u64>>), area: Rect, buffer: &mut Buffer) {
    let most = number(rates.iter().flatten().max().copied());
    let label = Rect { height: area.height.min(1), ..area };
    dim(Line::raw(format!("{name}, at most {most}"))).render(label, buffer);
    let below = Rect {
        y: area.y.saturating_add(label.height),
        height: area.height.saturating_sub(label.height),
        ..area
    };
    let earlier = rates.len().saturating_sub(usize::from(area.width));
    let shown = rates.iter().skip(earlier).copied();
    Sparkline::default().data(shown).style(Style::new().fg(Color::Cyan)).render(below, buffer);
}

/// The columns for which there is space.
fn columns(width: u16) -> Vec<(&'static str, u16)> {
    let mut left = width.saturating_sub(2);
    let mut columns = Vec::new();
    for (name, wanted) in COLUMNS {
        let space = u16::from(!columns.is_empty());
        let given = wanted.min(left.saturating_sub(space));
        if given == 0 || (given < wanted && name != ENDPOINT) {
            break;
        }
        left = left.saturating_sub(given + space);
        columns.push((name, given));
    }
    columns
}

fn members(view: &View, chosen: usize, area: Rect, buffer: &mut Buffer) {
    let columns = columns(area.width);
    if columns.is_empty() {
        return;
    }
    let head = TableRow::new(columns.iter().map(|(name, _)| *name));
    let head = head.style(Style::new().add_modifier(Modifier::BOLD));
    let rows = view.members.iter().map(|row| {
        let cells = cells(row).into_iter().take(columns.len());
        TableRow::new(cells).style(style(row))
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(rows, widths)
        .header(head)
        .highlight_symbol(CHOSEN)
        .row_highlight_style(Style::new().add_modifier(Modifier::BOLD));
    let mut state = TableState::default().with_selected(Some(chosen));
    StatefulWidget::render(table, area, buffer, &mut state);
}

fn style(row: &Row) -> Style {
    match (row.slot, &row.why) {
        (None, _) => Style::new().fg(Color::Red),
        (Some(_), Some(_)) => Style::new().fg(Color::Yellow),
        (Some(_), None) => Style::new(),
    }
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.slot.map_or_else(|| "?".into(), |slot| slot.to_string()),
        row.endpoint.clone(),
        row.role.clone(),
        number(row.applied_index),
        number(row.lag_entries),
        micros(row.lag_ms.map(|ms| ms.saturating_mul(1000))),
        number(row.puts_per_second),
        number(row.gets_per_second),
        micros(row.put_times.p99_us),
        bytes(row.resident_bytes),
        bytes(row.free_bytes),
    ]
}

/// Three lines about the chosen member.
fn details(row: &Row) -> Vec<Line<'static>> {
    let id = row.node_id.as_deref().unwrap_or(NONE);
    let why = row.why.as_deref().map_or_else(String::new, |why| format!(": {why}"));
    let who = format!("{} ({id}), {}{why}", row.endpoint, row.role);
    let percent = |part: Option<u64>, whole: Option<u64>| {
        let part = part?.saturating_mul(100);
        part.checked_div(whole?)
    };
    let used = percent(row.index_bytes, row.index_limit_bytes);
    let keys = used.map_or_else(|| NONE.into(), |used| format!("{used}%"));
    let states = match row.space.is_empty() {
        true => format!("live {}, free {}", bytes(row.live_bytes), bytes(row.free_bytes)),
        false => parts(&row.space),
    };
    let of = bytes(row.data_bytes);
    let unsynced = bytes(row.unsynced_bytes);
    let space = format!("space of {of}: {states}; for keys {keys} used; not synced {unsynced}");
    let held =
        if row.memory.is_empty() { String::new() } else { format!(": {}", parts(&row.memory)) };
    let memory = format!(
        "memory {}{held}; gets p50 {}, p99 {}",
        bytes(row.resident_bytes),
        micros(row.get_times.p50_us),
        micros(row.get_times.p99_us)
    );
    vec![Line::raw(who), Line::raw(space), Line::raw(memory)]
}

fn parts(parts: &[Part]) -> String {
    let part =
        |part: &Part| format!("{} {}", part.name.replace('_', " "), format_rounded(part.bytes));
    let held = parts.iter().filter(|part| part.bytes > 0).map(part);
    held.collect::<Vec<_>>().join(", ")
}

fn findings(view: &View) -> Vec<Line<'static>> {
    if view.findings.is_empty() {
        return vec![dim(Line::raw("nothing is at risk"))];
    }
    let line = |finding: &Finding| {
        let colour = match finding.severity {
            Severity::Critical => Color::Red,
            Severity::Warning => Color::Yellow,
            _ => Color::DarkGray,
        };
        let severity = Span::styled(finding.severity.name(), Style::new().fg(colour));
        Line::from(vec![severity, Span::raw(format!(": {}", finding.line()))])
    };
    view.findings.iter().map(line).collect()
}

fn help(area: Rect, buffer: &mut Buffer) {
    let width = HELP.iter().map(|line| line.len()).max().unwrap_or(0) + 4;
    let size = |wanted: usize, most: u16| u16::try_from(wanted).unwrap_or(most).min(most);
    let (width, height) = (size(width, area.width), size(HELP.len() + 2, area.height));
    let shown = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    Clear.render(shown, buffer);
    let lines: Vec<Line<'_>> = HELP.iter().map(|line| Line::raw(*line)).collect();
    Paragraph::new(lines).block(Block::bordered().title("cairn top")).render(shown, buffer);
}

fn dim(line: Line<'_>) -> Line<'_> {
    line.style(Style::new().add_modifier(Modifier::DIM))
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(|| NONE.into(), |number| number.to_string())
}

fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| NONE.into(), format_rounded)
}

/// A time in the unit that a person would take.
fn micros(us: Option<u64>) -> String {
    let tenth = |number: u64, unit: u64| (number / unit, number % unit * 10 / unit);
    match us {
        None => NONE.into(),
        Some(0) => "0".into(),
        Some(us @ 1..1_000) => format!("{us}us"),
        Some(us @ 1_000..1_000_000) => {
            let (whole, tenths) = tenth(us, 1_000);
            if whole < 10 { format!("{whole}.{tenths}ms") } else { format!("{whole}ms") }
        }
        Some(us) => {
            let (whole, tenths) = tenth(us, 1_000_000);
            if whole < 10 { format!("{whole}.{tenths}s") } else { format!("{whole}s") }
        }
    }
}
