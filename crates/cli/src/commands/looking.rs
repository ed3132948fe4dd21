//! Commands that show the node's state: status, events, logs, page.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use cluster::{ClusterEvent, ClusterStatus, InstanceState, NodeState, Tone};

use crate::args::{EventsArgs, LogsArgs, PageArgs, QueryArgs};
use crate::client::Client;
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::logs;
use crate::models;
use crate::output;
use crate::qr;
use crate::table;

/// Interval at which a followed log is read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Events that `status` shows.
const LATELY: usize = 3;

/// A summary in a few lines: this node, the cluster, the served models, the problems.
pub fn status(args: &QueryArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.data_dir)?)?;
    let status = client.status()?;
    if args.json {
        return print_json(&status);
    }
    summary(&status, &client.address()).iter().for_each(|line| say!("{line}"));
    let mut events = Vec::new();
    client.events(0, false, |event| {
        events.push(event);
        true
    })?;
    if !events.is_empty() {
        say!("\nlately (sinew events has all):");
    }
    let paint = paints(output::obeys(&std::io::stdout()));
    events.iter().rev().take(LATELY).rev().for_each(|event| say!("{}", line(event, paint)));
    Ok(())
}

fn summary(status: &ClusterStatus, api: &str) -> Vec<String> {
    let me = status.nodes.iter().find(|node| node.id == status.node);
    let live: Vec<_> = status.nodes.iter().filter(|n| n.state == NodeState::Live).collect();
    let used: u64 = live.iter().map(|node| node.memory_used_bytes).sum();
    let memory: u64 = live.iter().map(|node| node.memory_bytes).sum();
    let mut lines = Vec::new();
    if let Some(me) = me {
        lines.push(format!("this node   {}, sinew {}, {api}", me.name, me.version));
    }
    let all = status.nodes.len();
    let away: Vec<_> = status.nodes.iter().filter(|n| n.state != NodeState::Live).collect();
    let away = away.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
    let away = if away.is_empty() { String::new() } else { format!(" (not: {away})") };
    lines.push(format!("machines    {} of {all} reachable{away}", live.len()));
    let (used, memory) = (table::bytes(used), table::bytes(memory));
    lines.push(format!("memory      {used} of {memory} in use"));
    if status.instances.is_empty() {
        lines.push("models      none; serve one with: sinew serve MODEL".to_owned());
    }
    for (at, one) in status.instances.iter().enumerate() {
        let state = match &one.state {
            InstanceState::Loading => "loading".to_owned(),
            InstanceState::Ready => models::ready(&one.notes),
            InstanceState::Unloaded => "unloaded, the first request loads it".to_owned(),
            InstanceState::Recovering { reason } => format!("recovering: {reason}"),
            InstanceState::Failed { reason } => format!("failed: {reason}"),
        };
        let title = if at == 0 { "models" } else { "" };
        let count = one.ranks.len();
        let on = if count == 1 { "1 machine".to_owned() } else { format!("{count} machines") };
        lines.push(format!("{title:<12}{} on {on}: {state}", one.model));
    }
    lines.extend(status.notices.iter().map(|notice| format!("look at     {notice}")));
    lines
}

pub fn events(args: &EventsArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    let paint = paints(output::obeys(&std::io::stdout()));
    let is_list = args.query.json && !args.follow;
    let (mut wrong, mut list) = (None, Vec::new());
    client.events(0, args.follow, |event| {
        if args.problems && matches!(event.tone, Tone::Good | Tone::Info) {
            return true;
        }
        if is_list {
            list.push(event);
            return true;
        }
        // A closed output ends it.
        let written = match serde_json::to_string(&event) {
            Ok(json) if args.query.json => writeln!(std::io::stdout(), "{json}"),
            Ok(_) => writeln!(std::io::stdout(), "{}", line(&event, paint)),
            Err(error) => {
                wrong = Some(CliError::Refused(error.to_string()));
                return false;
            }
        };
        written.is_ok()
    })?;
    if is_list {
        print_json(&list)?;
    }
    wrong.map_or(Ok(()), Err)
}

/// The last events of the node's journal, as lines.
pub fn last_events(client: &Client, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let told = client.events(0, false, |event| {
        lines.push(line(&event, false));
        true
    });
    let skipped = lines.len().saturating_sub(count);
    let mut last = lines.split_off(skipped);
    last.extend(told.err().map(|error| error.to_string()));
    last
}

/// Whether to use colours.
fn paints(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn line(event: &ClusterEvent, paint: bool) -> String {
    let clock = serve::rfc3339(event.at_ms / 1000).replace('T', " ").replace('Z', "");
    let times = event.times.map_or(String::new(), |times| format!(" ({times} times)"));
    // Names in it come from other nodes.
    let text: String = event.text.chars().filter(|c| !c.is_control()).collect();
    let (mark, colour) = match event.tone {
        Tone::Good => ('+', "\x1b[32m"),
        Tone::Info => (' ', ""),
        Tone::Warning => ('!', "\x1b[33m"),
        Tone::Error => ('x', "\x1b[31m"),
    };
    match (paint, colour) {
        (true, colour) if !colour.is_empty() => {
            format!("{clock}  {colour}{mark} {text}{times}\x1b[0m")
        }
        _ => format!("{clock}  {mark} {text}{times}"),
    }
}

/// Prints the address of the page, with the token that lets it control the node.
pub fn page(args: &PageArgs) -> Result<(), CliError> {
    let data_dir = DataDir::find(&args.data_dir)?;
    let client = Client::here(&data_dir)?;
    let token = data_dir.admin_token();
    let token = token.map_or(String::new(), |token| format!("#admin={token}"));
    let address = format!("{}/{token}", client.api);
    say!("{address}");
    tell!("Whoever has this address can steer the node; treat it as a password.");
    let lan = data_dir.daemon().map(|daemon| daemon.lan).unwrap_or_default();
    let has_members = client.status().is_ok_and(|status| status.nodes.len() > 1);
    if !lan.is_empty() || has_members || args.guest {
        let number = client.browser_number(args.guest)?;
        pairing(&number, &lan, has_members);
        tell!("It pairs one browser, within 5 minutes, for chats. sinew keys list has it then");
        if args.guest {
            tell!("That browser has conversations of its own");
        } else {
            tell!("That browser has your conversations; for somebody else: sinew page --guest");
        }
    }
    if args.open {
        let program = match std::env::consts::OS {
            "macos" => "open",
            "windows" => "explorer",
            _ => "xdg-open",
        };
        let opened = std::process::Command::new(program).arg(&address).status();
        opened.doing(format!("cannot start {program}. Open the address yourself"))?;
    }
    Ok(())
}

/// Where a browser is paired by this number.
fn pairing(number: &str, lan: &[String], has_members: bool) {
    if let [first, ..] = lan
        && output::obeys(&std::io::stderr())
        && let Some(code) = qr::code(&format!("{first}/#pair={number}"))
    {
        eprint!("{code}");
    }
    let (first, last) = number.split_at(number.len() / 2);
    let at = lan.iter().map(|at| format!("{at}/")).collect::<Vec<_>>().join("  ");
    match (lan.is_empty(), has_members) {
        (false, _) => {
            tell!("On a phone or another machine: {at}, and there the number {first} {last}");
        }
        (true, true) => {
            tell!("On the page of another member, under Chat, Kept on: the number {first} {last}");
        }
        (true, false) => {
            tell!("The number is {first} {last}; this node takes others only with: sinew up --lan");
        }
    }
}

/// Prints the end of the node's log, even if the node does not run.
pub fn logs(args: &LogsArgs) -> Result<(), CliError> {
    let folder = DataDir::find(&args.data_dir)?.path().join(logs::FOLDER);
    let path = folder.join(logs::FILE);
    let missing = || format!("cannot read {}. A node writes it: sinew up", path.display());
    let mut lines = Vec::new();
    for part in logs::parts(&folder) {
        let file = File::open(&part).doing(missing())?;
        lines.extend(BufReader::new(file).lines().map_while(Result::ok));
    }
    if lines.is_empty() && !path.exists() {
        File::open(&path).doing(missing())?;
    }
    let end = std::fs::metadata(&path).map_or(0, |found| found.len());
    let skipped = lines.len().saturating_sub(args.lines);
    lines[skipped..].iter().for_each(|line| say!("{line}"));
    if args.follow { follow(&path, end) } else { Ok(()) }
}

/// Prints additions to a file, also after a rotation.
fn follow(path: &Path, mut at: u64) -> Result<(), CliError> {
    loop {
        std::thread::sleep(LOOK_EVERY);
        // During a rotation there is no file for a moment.
        let Ok(mut file) = File::open(path) else { continue };
        let length = file.metadata().map_or(0, |found| found.len());
        if length < at {
            at = 0;
        }
        if length == at || file.seek(SeekFrom::Start(at)).is_err() {
            continue;
        }
        let copied = std::io::copy(&mut file, &mut std::io::stdout());
        at += copied.doing("cannot print the log")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::EventKind;

    #[test]
    fn a_line_tells_when_what_and_how_bad_it_is() {
        let mut event = ClusterEvent {
            id: 1,
            at_ms: 1_700_000_000_000,
            kind: EventKind::NodeLost,
            tone: Tone::Error,
            text: "mac\u{1b}[2J was lost".to_owned(),
            node: None,
            model: None,
            times: None,
            replaces: None,
        };
        assert_eq!(line(&event, false), "2023-11-14 22:13:20  x mac[2J was lost");
        assert!(line(&event, true).ends_with("\x1b[31mx mac[2J was lost\x1b[0m"));
        (event.tone, event.times) = (Tone::Info, Some(3));
        assert_eq!(line(&event, true), "2023-11-14 22:13:20    mac[2J was lost (3 times)");
    }
}
