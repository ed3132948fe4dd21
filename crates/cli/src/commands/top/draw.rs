//! Draws `sinew top`: figures, machines, models, events.

use cluster::{ClusterStatus, InstanceState, InstanceStatus, NodeState, NodeStatus, Tone};

use super::View;
use super::rates::StepTime;
use super::screen::{Line, Style, plain};
use crate::{table, width};

/// Columns of a machine's name.
const NAME: usize = 20;
/// With fewer columns, bars are shorter and words fewer.
const ROOMY: usize = 106;
/// Lines of events at the bottom, including their heading.
const EVENTS: usize = 7;
/// Smaller screens have no room for events.
const ROWS_FOR_EVENTS: usize = 20;
/// Heights of a curve's cell.
const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Good => Style::Good,
        Tone::Info => Style::Plain,
        Tone::Warning => Style::Warning,
        Tone::Error => Style::Error,
    }
}

/// Widths of the parts; with the narrow ones a screen of 80 columns shows all.
#[derive(Debug, Clone, Copy)]
struct Widths {
    columns: usize,
    /// Cells of a bar.
    bar: usize,
}

impl Widths {
    fn of(columns: usize) -> Self {
        Self { columns, bar: if columns < ROOMY { 8 } else { 16 } }
    }
}

/// The lines of a screen of `rows` rows and `columns` columns.
pub fn draw(view: &View, (rows, columns): (usize, usize)) -> Vec<Line> {
    let widths = Widths::of(columns);
    let mut lines = head(view, widths);
    let mut body = machines(&view.status, widths);
    body.push(Line::default());
    body.extend(models(view, widths));
    let events = if rows >= ROWS_FOR_EVENTS { EVENTS } else { 0 };
    let room = rows.saturating_sub(lines.len() + events);
    let skipped = view.skipped.min(body.len().saturating_sub(room));
    lines.extend(body.into_iter().skip(skipped).take(room));
    if events > 0 {
        lines.resize(rows - events, Line::default());
        lines.extend(happened(view, events, widths));
    }
    lines
}

/// Text in as many lines as it needs.
fn words(style: Style, text: &str, widths: Widths) -> Vec<Line> {
    let folded = width::fold(&plain(text), widths.columns);
    folded.split('\n').map(|line| Line::new(style, line)).collect()
}

fn head(view: &View, widths: Widths) -> Vec<Line> {
    let status = &view.status;
    let live: Vec<&NodeStatus> =
        status.nodes.iter().filter(|node| node.state == NodeState::Live).collect();
    let sum = |bytes: fn(&NodeStatus) -> u64| live.iter().map(|node| bytes(node)).sum::<u64>();
    let rate = view.rates.history.back().copied().unwrap_or(0.0).max(0.0);
    let ready = status.instances.iter().filter(|one| one.state == InstanceState::Ready).count();
    let memory = format!(
        "{} of {} in use",
        table::bytes(sum(|node| node.memory_used_bytes)),
        table::bytes(sum(|node| node.memory_bytes))
    );
    let mut lines = vec![
        Line::new(Style::Bold, "sinew").with(Style::Dim, format!("  {}  q quits", view.api)),
        Line::new(Style::Bold, format!("{rate:.1}"))
            .with(Style::Plain, " tokens/s  ")
            .with(Style::Accent, curve(&view.rates.history.iter().copied().collect::<Vec<_>>())),
        Line::new(Style::Bold, format!("{} of {}", live.len(), status.nodes.len()))
            .with(Style::Plain, " machines   ")
            .with(Style::Bold, format!("{ready} of {}", status.instances.len()))
            .with(Style::Plain, format!(" models ready   {memory}")),
    ];
    lines.extend(view.silent.iter().flat_map(|why| words(Style::Error, why, widths)));
    lines.extend(status.notices.iter().flat_map(|text| words(Style::Warning, text, widths)));
    lines.push(Line::default());
    lines
}

/// The last minute, two seconds a cell.
fn curve(rates: &[f64]) -> String {
    let most = rates.iter().copied().fold(1e-9, f64::max);
    let cell = |pair: &[f64]| {
        let rate = pair.iter().sum::<f64>() / pair.len() as f64;
        let height = (rate / most * 8.0).round() as usize;
        HEIGHTS[height.min(8).max(usize::from(rate > 0.0))]
    };
    rates.chunks(2).map(cell).collect()
}

fn machines(status: &ClusterStatus, widths: Widths) -> Vec<Line> {
    let bar = widths.bar;
    let title = format!(
        "{:<NAME$} {:<7} {:<bar$} {:>21} {:>8} {:>10}",
        "MACHINE", "STATE", "MEMORY", "", "AWAY", "LINK"
    );
    let machines = status.nodes.iter().map(|node| machine(node, status, widths));
    std::iter::once(Line::new(Style::Dim, title)).chain(machines).collect()
}

fn machine(node: &NodeStatus, status: &ClusterStatus, widths: Widths) -> Line {
    let (state, style) = match node.state {
        NodeState::Live => ("live", Style::Good),
        NodeState::Suspect => ("silent", Style::Warning),
        NodeState::Lost => ("lost", Style::Error),
    };
    let here = if node.id == status.node { " *" } else { "" };
    let part = node.memory_used_bytes as f64 / node.memory_bytes.max(1) as f64;
    let memory =
        format!("{} of {}", table::bytes(node.memory_used_bytes), table::bytes(node.memory_bytes));
    let away = node.round_trip_us.map_or(String::new(), |us| micros(us as f64));
    let me = status.nodes.iter().find(|me| me.id == status.node);
    // The best path is the first.
    let way = me.and_then(|me| me.edges.iter().find(|edge| edge.peer == node.id && edge.is_up));
    let link = way.map_or(String::new(), |edge| bits(edge.bytes_per_sec));
    let name = format!("{}{here}", short(&node.name, NAME - here.len()));
    Line::new(Style::Plain, format!("{name:<NAME$} "))
        .with(style, format!("{state:<7} "))
        .with(Style::Accent, bar(&[(part, '█')], widths.bar))
        .with(Style::Plain, format!(" {memory:>21} {away:>8} {link:>10}"))
}

fn models(view: &View, widths: Widths) -> Vec<Line> {
    if view.status.instances.is_empty() {
        let text = "No model is served. Start one with: sinew serve MODEL";
        return vec![Line::new(Style::Dim, text)];
    }
    view.status.instances.iter().flat_map(|one| model(view, one, widths)).collect()
}

fn model(view: &View, one: &InstanceStatus, widths: Widths) -> Vec<Line> {
    let (state, style, reason) = state(one);
    let rate = view.rates.tokens_per_sec(&one.id).filter(|rate| *rate >= 0.05);
    let rate = match (rate, one.last_decode_tokens_per_sec) {
        (Some(rate), _) => format!("{rate:.1} tokens/s   "),
        (None, Some(last)) => format!("last answer {last:.1} tokens/s   "),
        (None, None) => String::new(),
    };
    let figures = format!(
        "{rate}{} running, {} waiting   context {}   epoch {}",
        one.requests_running, one.requests_waiting, one.context_tokens, one.epoch
    );
    let taken = one.model.chars().count() + state.chars().count();
    let title = Line::new(Style::Bold, &one.model).with(style, format!("  {state}"));
    let gaps = "     ".len();
    let mut lines = if taken + gaps + figures.chars().count() <= widths.columns {
        vec![title.with(Style::Plain, format!("   {figures}"))]
    } else {
        let below = width::fold(&figures, widths.columns.saturating_sub(2));
        let below = below.split('\n').map(|line| Line::new(Style::Plain, format!("  {line}")));
        std::iter::once(title).chain(below).collect()
    };
    lines.extend(reason.iter().flat_map(|text| words(style, &format!("  {text}"), widths)));
    lines.extend(ranks(view, one, widths));
    lines
}

fn state(one: &InstanceStatus) -> (String, Style, Option<&str>) {
    let (done, total) = one
        .ranks
        .iter()
        .fold((0, 0), |(done, total), rank| (done + rank.loaded_bytes, total + rank.total_bytes));
    match &one.state {
        InstanceState::Loading if total > 0 => {
            (format!("loading {} %", done * 100 / total), Style::Warning, None)
        }
        InstanceState::Loading => ("loading".to_owned(), Style::Warning, None),
        InstanceState::Ready => ("ready".to_owned(), Style::Good, None),
        InstanceState::Unloaded => ("unloaded".to_owned(), Style::Plain, None),
        InstanceState::Recovering { reason } => {
            ("recovering".to_owned(), Style::Warning, Some(reason))
        }
        InstanceState::Failed { reason } => ("failed".to_owned(), Style::Error, Some(reason)),
    }
}

fn ranks(view: &View, one: &InstanceStatus, widths: Widths) -> Vec<Line> {
    let times = view.rates.step_times(&one.id);
    let whole = times.iter().flatten().map(|t| t.compute_us + t.wait_us + t.between_us);
    let longest = whole.fold(1e-9, f64::max);
    let line = |(at, rank): (usize, &cluster::RankStatus)| {
        let line = rank_line(&rank.node_name, rank.percent, rank.loaded_bytes);
        match times.get(at).copied().flatten() {
            None => line,
            Some(time) => line
                .with(Style::Accent, time_bar(time, longest, widths.bar))
                .with(Style::Dim, step(time, widths)),
        }
    };
    one.ranks.iter().enumerate().map(line).collect()
}

fn rank_line(name: &str, percent: f64, held_bytes: u64) -> Line {
    const MOST: usize = NAME - 2;
    let (name, held) = (short(name, MOST), table::bytes(held_bytes));
    Line::new(Style::Plain, format!("  {name:<MOST$} {percent:>3.0} % {held:>10} "))
}

/// The parts of a step's time, as text.
fn step(time: StepTime, widths: Widths) -> String {
    let (computing, waiting) = (micros(time.compute_us), micros(time.wait_us));
    if widths.columns < ROOMY {
        format!(" {computing} busy, {waiting} waiting")
    } else {
        format!(" {computing} computing, {waiting} waiting for others, a step")
    }
}

fn time_bar(time: StepTime, longest: f64, cells: usize) -> String {
    bar(&[(time.compute_us / longest, '█'), (time.wait_us / longest, '░')], cells)
}

fn happened(view: &View, rows: usize, widths: Widths) -> Vec<Line> {
    /// Columns of the time and the gap after it.
    const CLOCK: usize = 10;
    let events = view.events.iter().rev().flat_map(|event| {
        let times = event.times.map_or(String::new(), |times| format!(" ({times} times)"));
        let clock = &serve::rfc3339(event.at_ms / 1000)[11..19];
        let text = plain(&format!("{}{times}", event.text));
        let text = width::fold(&text, widths.columns.saturating_sub(CLOCK));
        let line = |(at, text): (usize, &str)| {
            let clock = if at == 0 { clock } else { "" };
            Line::new(Style::Dim, format!("{clock:<CLOCK$}")).with(style(event.tone), text)
        };
        text.split('\n').enumerate().map(line).collect::<Vec<_>>()
    });
    std::iter::once(Line::new(Style::Dim, "LATELY (UTC)")).chain(events.take(rows - 1)).collect()
}

/// Parts of a whole, each with its own letter.
fn bar(parts: &[(f64, char)], cells: usize) -> String {
    let mut text = String::new();
    let (mut sum, mut drawn) = (0.0, 0);
    for (part, cell) in parts {
        sum += part.clamp(0.0, 1.0);
        let end = ((sum * cells as f64).round() as usize).min(cells);
        text.extend(std::iter::repeat_n(*cell, end.saturating_sub(drawn)));
        drawn = end.max(drawn);
    }
    text.extend(std::iter::repeat_n('·', cells - drawn));
    text
}

fn short(text: &str, most: usize) -> String {
    let text = plain(text);
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

fn micros(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// Network rates are shown in bits.
fn bits(bytes_per_sec: f64) -> String {
    match bytes_per_sec * 8.0 {
        bits if bits >= 1e9 => format!("{:.1} Gb/s", bits / 1e9),
        bits => format!("{:.0} Mb/s", bits / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::top::Rates;

    #[test]
    fn bars_and_curves_are_as_they_say() {
        for (parts, expected) in [
            (&[(0.0, '#')][..], "················"),
            (&[(0.5, '#')], "########········"),
            (&[(0.25, '#'), (0.25, '-')], "####----········"),
            (&[(2.0, '#'), (1.0, '-')], "################"),
            (&[(f64::NAN, '#')], "················"),
        ] {
            assert_eq!(bar(parts, 16), expected);
        }
        assert_eq!(curve(&[0.0, 0.0, 1.0, 1.0, 100.0, 100.0, 50.0]), " ▁█▄");
        assert_eq!(curve(&[]), "");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!(short("a-very-long-name", 8), "a-very-…");
        let times = [micros(12.4), micros(1500.0), micros(2e6)];
        assert_eq!(times, ["12 us", "1.5 ms", "2.0 s"]);
        assert_eq!([bits(1.25e9), bits(12.5e6)], ["10.0 Gb/s", "100 Mb/s"]);
    }

    /// Two machines, one of them far, and a model on both that has problems.
    fn view() -> View {
        let id = |letter: &str| letter.repeat(64);
        let node = |letter: &str, name: &str, peer: &str| {
            json!({
                "id": id(letter), "name": name, "address": "10.0.0.1:8751", "state": "suspect",
                "memory_bytes": 900u64 << 30, "memory_used_bytes": 100u64 << 30, "threads": 2,
                "round_trip_us": 99_900, "measured": true, "version": "0.1.0",
                "edges": [{
                    "peer": id(peer), "address": "10.0.0.2", "local": "10.0.0.1",
                    "round_trip_us": 16.6, "bytes_per_sec": 1.2e9, "age_secs": 3, "is_up": true,
                }],
            })
        };
        let rank = |rank: usize, letter: &str, name: &str| {
            json!({
                "rank": rank, "node": id(letter), "node_name": name, "pid": 1, "share": 131, "percent": 50,
                "memory_bytes": 1, "loaded_bytes": 500u64 << 30, "total_bytes": 900u64 << 30, "kv_bytes": 1, "buffer_bytes": 1, "stats": null,
            })
        };
        let (here, far) = ("the-long-name-of-a-machine", "another-long-name-of-one");
        let why = "the other member cannot be reached: nothing was heard of it for 12 s, and";
        let status = json!({
            "node": id("a"),
            "nodes": [node("a", here, "b"), node("b", far, "a")],
            "instances": [{
                "id": "i-1", "model": "llama3.3-70b-instruct", "digest": id("0"),
                "model_bytes": 5, "owner": id("a"), "epoch": 1000, "context_tokens": 131_072,
                "state": { "state": "recovering", "reason": format!("{why} {why}") },
                "created_unix_s": 1, "transport": "auto",
                "ranks": [rank(0, "a", here), rank(1, "b", far)],
                "requests_running": 100, "requests_waiting": 100, "has_generated": true,
                "last_decode_tokens_per_sec": 1234.5,
            }],
            "notices": [format!("{why} {why}")],
        });
        let event = json!({
            "id": 1, "at_ms": 1, "kind": "node_lost", "tone": "error", "text": format!("{why} {why}"),
        });
        View {
            status: serde_json::from_value(status).unwrap(),
            rates: Rates::default(),
            events: vec![serde_json::from_value(event).unwrap()],
            silent: Some(why.to_owned()),
            api: "http://127.0.0.1:8750".to_owned(),
            skipped: 0,
        }
    }

    #[test]
    fn a_screen_of_80_columns_shows_all() {
        for columns in [80, 120] {
            let lines = draw(&view(), (40, columns));
            let text = lines.iter().map(|line| line.text() + "\n").collect::<String>();
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= columns, "{longest}\n{text}");
            for word in ["99.9 ms", "9.6 Gb/s", "epoch 1000", "heard of it for 12 s, and\n"] {
                assert!(text.contains(word), "{word}\n{text}");
            }
        }
        let time = StepTime { compute_us: 99_900.0, wait_us: 99_900.0, between_us: 1.0 };
        for columns in [80, 120] {
            let widths = Widths::of(columns);
            let line = rank_line("the-long-name-of-a-machine", 100.0, 500 << 30)
                .with(Style::Accent, time_bar(time, 1e5, widths.bar))
                .with(Style::Dim, step(time, widths));
            assert!(line.text().chars().count() <= columns, "{}", line.text());
        }
    }
}
