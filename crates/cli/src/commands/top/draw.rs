//! How `sinew top` looks: figures, machines, models, what happened.

use cluster::{ClusterStatus, InstanceState, InstanceStatus, NodeState, NodeStatus, Tone};

use super::View;
use super::rates::StepTime;
use super::screen::{Line, Style, plain};
use crate::table;

/// Cells of a bar.
const BAR: usize = 16;
/// Lines of events below everything else, with their heading.
const EVENTS: usize = 7;
/// On a smaller screen there is no room for events.
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

/// The lines of a screen of so many rows.
pub fn draw(view: &View, rows: usize) -> Vec<Line> {
    let mut lines = head(view);
    let mut body = machines(&view.status);
    body.push(Line::default());
    body.extend(models(view));
    let events = if rows >= ROWS_FOR_EVENTS { EVENTS } else { 0 };
    let room = rows.saturating_sub(lines.len() + events);
    let skipped = view.skipped.min(body.len().saturating_sub(room));
    lines.extend(body.into_iter().skip(skipped).take(room));
    if events > 0 {
        lines.resize(rows - events, Line::default());
        lines.extend(happened(view, events));
    }
    lines
}

fn head(view: &View) -> Vec<Line> {
    let status = &view.status;
    let live: Vec<&NodeStatus> =
        status.nodes.iter().filter(|node| node.state == NodeState::Live).collect();
    let sum = |bytes: fn(&NodeStatus) -> u64| live.iter().map(|node| bytes(node)).sum::<u64>();
    let rate = view.rates.history.back().copied().unwrap_or(0.0);
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
    lines.extend(view.silent.as_ref().map(|why| Line::new(Style::Error, why)));
    lines.extend(status.notices.iter().map(|text| Line::new(Style::Warning, text)));
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

fn machines(status: &ClusterStatus) -> Vec<Line> {
    let title = format!(
        "{:<20} {:<9} {:<BAR$} {:>21} {:>8} {:>10}",
        "MACHINE", "STATE", "MEMORY", "", "AWAY", "LINK"
    );
    let machines = status.nodes.iter().map(|node| machine(node, status));
    std::iter::once(Line::new(Style::Dim, title)).chain(machines).collect()
}

fn machine(node: &NodeStatus, status: &ClusterStatus) -> Line {
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
    // The best way is the first.
    let way = me.and_then(|me| me.edges.iter().find(|edge| edge.peer == node.id && edge.is_up));
    let link = way.map_or(String::new(), |edge| bits(edge.bytes_per_sec));
    Line::new(Style::Plain, format!("{:<20} ", short(&format!("{}{here}", node.name), 20)))
        .with(style, format!("{state:<9} "))
        .with(Style::Accent, bar(&[(part, '█')]))
        .with(Style::Plain, format!(" {memory:>21} {away:>8} {link:>10}"))
}

fn models(view: &View) -> Vec<Line> {
    if view.status.instances.is_empty() {
        let text = "No model is served. Start one with: sinew serve MODEL";
        return vec![Line::new(Style::Dim, text)];
    }
    view.status.instances.iter().flat_map(|one| model(view, one)).collect()
}

fn model(view: &View, one: &InstanceStatus) -> Vec<Line> {
    let (state, style, reason) = state(one);
    let rate = view.rates.tokens_per_sec(&one.id).filter(|rate| *rate >= 0.05);
    let rate = match (rate, one.last_decode_tokens_per_sec) {
        (Some(rate), _) => format!("{rate:.1} tokens/s   "),
        (None, Some(last)) => format!("{last:.1} tokens/s in the last answer   "),
        (None, None) => String::new(),
    };
    let figures = format!(
        "   {rate}{} running, {} waiting   context {}   epoch {}",
        one.requests_running, one.requests_waiting, one.context_tokens, one.epoch
    );
    let title = Line::new(Style::Bold, &one.model).with(style, format!("  {state}"));
    let mut lines = vec![title.with(Style::Plain, figures)];
    lines.extend(reason.map(|text| Line::new(style, format!("  {text}"))));
    lines.extend(ranks(view, one));
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

fn ranks(view: &View, one: &InstanceStatus) -> Vec<Line> {
    let times = view.rates.step_times(&one.id);
    let whole = times.iter().flatten().map(|t| t.compute_us + t.wait_us + t.between_us);
    let longest = whole.fold(1e-9, f64::max);
    let shares: u32 = one.ranks.iter().map(|rank| rank.share).fold(0, u32::saturating_add);
    let rank = |(at, rank): (usize, &cluster::RankStatus)| {
        let percent = 100.0 * f64::from(rank.share) / f64::from(shares.max(1));
        let (name, held) = (short(&rank.node_name, 18), table::bytes(rank.loaded_bytes));
        let line = Line::new(Style::Plain, format!("  {name:<18} {percent:>4.0} % {held:>10}  "));
        match times.get(at).copied().flatten() {
            None => line,
            Some(time) => line.with(Style::Accent, time_bar(time, longest)).with(
                Style::Dim,
                format!(
                    " {} computing, {} waiting for others, a step",
                    micros(time.compute_us),
                    micros(time.wait_us)
                ),
            ),
        }
    };
    one.ranks.iter().enumerate().map(rank).collect()
}

fn time_bar(time: StepTime, longest: f64) -> String {
    bar(&[(time.compute_us / longest, '█'), (time.wait_us / longest, '░')])
}

fn happened(view: &View, rows: usize) -> Vec<Line> {
    let events = view.events.iter().rev().take(rows - 1).map(|event| {
        let times = event.times.map_or(String::new(), |times| format!(" ({times} times)"));
        let clock = serve::rfc3339(event.at_ms / 1000);
        Line::new(Style::Dim, format!("{}  ", &clock[11..19]))
            .with(style(event.tone), format!("{}{times}", event.text))
    });
    std::iter::once(Line::new(Style::Dim, "LATELY (UTC)")).chain(events).collect()
}

/// Parts of a whole, each in its own letter.
fn bar(parts: &[(f64, char)]) -> String {
    let mut text = String::new();
    let (mut sum, mut drawn) = (0.0, 0);
    for (part, cell) in parts {
        sum += part.clamp(0.0, 1.0);
        let end = ((sum * BAR as f64).round() as usize).min(BAR);
        text.extend(std::iter::repeat_n(*cell, end.saturating_sub(drawn)));
        drawn = end.max(drawn);
    }
    text.extend(std::iter::repeat_n('·', BAR - drawn));
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

/// What a network carries is told in bits.
fn bits(bytes_per_sec: f64) -> String {
    match bytes_per_sec * 8.0 {
        bits if bits >= 1e9 => format!("{:.1} Gb/s", bits / 1e9),
        bits => format!("{:.0} Mb/s", bits / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_curves_are_as_they_say() {
        for (parts, expected) in [
            (&[(0.0, '#')][..], "················"),
            (&[(0.5, '#')], "########········"),
            (&[(0.25, '#'), (0.25, '-')], "####----········"),
            (&[(2.0, '#'), (1.0, '-')], "################"),
            (&[(f64::NAN, '#')], "················"),
        ] {
            assert_eq!(bar(parts), expected);
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
}
