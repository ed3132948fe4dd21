//! `sinew report`: one text with what a report of a fault needs, to be read before it is sent.
//!
//! It has no prompts and no answers, because nothing that it reads has any: the node's log and its
//! journal are without them at every level. What is secret or says who one is goes in [`redact`].

mod redact;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use cluster::{ClusterStatus, InstanceStatus, NodeStatus};

use crate::args::ReportArgs;
use crate::client::Client;
use crate::commands::{doctor, looking};
use crate::data_dir::{self, DataDir};
use crate::error::{CliError, Doing};
use crate::{logs, machine, models, table};
use redact::Redactor;

/// The journal's last events, and the log's last warnings and errors.
const EVENTS_MAX: usize = 200;
const LOG_LINES_MAX: usize = 200;
/// Characters of a line of the log.
const LINE_CHARS_MAX: usize = 1000;

/// The beginning of a report.
const HEAD: &str = "\
This is for a report of a fault. Read it first, and cut what you do not want to send. Left out are
keys, tokens, prompts, answers, public addresses, and where your folders lie. Names of machines and
of models are in it.";

pub fn report(args: &ReportArgs) -> Result<(), CliError> {
    let data_dir = DataDir::find(&args.data_dir)?;
    let text = redactor(&data_dir).clean(&gather(&data_dir));
    let path = args.output.as_path();
    if path == Path::new("-") {
        say!("{text}");
        return Ok(());
    }
    let doing = || format!("cannot write {}", path.display());
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create_new(true);
    let mut file = store::private::file(options).open(path).doing(doing())?;
    std::io::Write::write_all(&mut file, text.as_bytes()).doing(doing())?;
    say!("{} has {} lines. Read it before you send it.", path.display(), text.lines().count());
    Ok(())
}

fn gather(data_dir: &DataDir) -> String {
    let client = Client::here(data_dir);
    let status = client.as_ref().ok().and_then(|client| client.status().ok());
    let mut text = String::new();
    let mut part = |title: &str, lines: Vec<String>| {
        let lines = if lines.is_empty() { vec!["none".to_owned()] } else { lines };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n## {title}\n\n{}", lines.join("\n"));
    };
    part("Versions and machine", versions());
    part("Variables that are set, without their values", variables());
    part("What the doctor finds", doctor::lines(data_dir));
    let silent = || match &client {
        Ok(_) => vec!["the node does not answer".to_owned()],
        Err(error) => vec![error.to_string()],
    };
    part("The cluster", status.as_ref().map_or_else(silent, cluster_lines));
    let plans = status.iter().flat_map(|status| &status.instances).flat_map(plan_lines);
    part("Served models and their plans", plans.collect());
    let events = client.as_ref().ok().map(|client| looking::last_events(client, EVENTS_MAX));
    part("The journal's last events (UTC)", events.unwrap_or_default());
    part("Warnings and errors of the log", log_lines(&data_dir.path().join(logs::FOLDER)));
    format!("# sinew report\n\n{HEAD}\n{text}")
}

fn versions() -> Vec<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let threads = std::thread::available_parallelism().map_or(0, |count| count.get());
    vec![
        format!("sinew {}", env!("CARGO_PKG_VERSION")),
        format!("{os} {arch} {}", kernel.trim()),
        format!("{threads} processors, {} of memory", table::bytes(machine::memory_bytes().bytes)),
    ]
}

fn variables() -> Vec<String> {
    let ours = ["SINEW_", "HF_", "OLLAMA_", "GGML_", "CUDA_", "HTTP_PROXY", "HTTPS_PROXY"];
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let is_ours = |name: &String| ours.iter().any(|one| name.to_ascii_uppercase().starts_with(one));
    let mut names: Vec<String> = names.filter(is_ours).collect();
    names.sort();
    names
}

fn cluster_lines(status: &ClusterStatus) -> Vec<String> {
    let node = |node: &NodeStatus| {
        let is_it = if node.id == status.node { " (this one)" } else { "" };
        let device = node.device.as_ref().map_or("CPU".to_owned(), |device| device.name.clone());
        let trip = node.round_trip_us.map_or(String::new(), |us| format!(", {us} us away"));
        let drained = if node.drained { ", drained" } else { "" };
        format!(
            "{}{is_it}: {:?}{drained}, sinew {}, {device}, {} threads, {} of {} used{trip}",
            node.name,
            node.state,
            node.version,
            node.threads,
            table::bytes(node.memory_used_bytes),
            table::bytes(node.memory_bytes),
        )
    };
    status.nodes.iter().map(node).chain(status.notices.iter().cloned()).collect()
}

fn plan_lines(one: &InstanceStatus) -> Vec<String> {
    let mut lines = vec![format!(
        "{}: {:?}, context {}, epoch {}, {} requests",
        one.model, one.state, one.context_tokens, one.epoch, one.requests_running
    )];
    let rank = |rank: &cluster::RankStatus| {
        format!("  rank {} on {}: {:.0} %", rank.rank, rank.node_name, rank.percent)
    };
    lines.extend(one.ranks.iter().map(rank));
    let rates = (one.last_decode_tokens_per_sec, one.prediction);
    lines.extend(rates.0.map(|rate| format!("  last answer: {rate:.1} tokens/s")));
    lines.extend(
        rates.1.map(|found| format!("  predicted: {:.1} tokens/s", found.decode_tokens_per_sec)),
    );
    lines.extend(one.placement.iter().chain(&one.notes).map(|line| format!("  {line}")));
    lines
}

/// The last lines of the node's log that are warnings or errors.
fn log_lines(folder: &Path) -> Vec<String> {
    let is_wrong = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().take(3).collect();
        words.contains(&"WARN") || words.contains(&"ERROR")
    };
    let mut lines = Vec::new();
    for part in logs::parts(folder) {
        let bytes = fs::read(part).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let short = |line: &str| line.chars().take(LINE_CHARS_MAX).collect::<String>();
        lines.extend(text.lines().filter(is_wrong).map(short));
    }
    let skipped = lines.len().saturating_sub(LOG_LINES_MAX);
    lines.split_off(skipped)
}

/// With what this machine knows to be secret, and where the user's folders are.
fn redactor(data_dir: &DataDir) -> Redactor {
    let mut secrets: Vec<String> = data_dir.admin_token().into_iter().collect();
    let token = models::hub_settings(false).token;
    secrets.extend(token.map(|token| token.secret().to_owned()));
    let is_secret =
        |name: &str| ["TOKEN", "KEY", "SECRET", "PASS"].iter().any(|part| name.contains(part));
    let set = std::env::vars_os()
        .filter(|(name, _)| is_secret(&name.to_string_lossy().to_ascii_uppercase()));
    secrets.extend(set.map(|(_, value)| value.to_string_lossy().into_owned()));
    let home = data_dir::set(store::HOME).map(|home| home.to_string_lossy().into_owned());
    let own = data_dir.path().to_string_lossy().into_owned();
    let mut places = vec![(own, "DATA")];
    places.extend(home.map(|home| (home, "~")));
    places.extend(
        std::env::var("USER").ok().filter(|user| user.len() > 3).map(|user| (user, "<user>")),
    );
    Redactor::new(secrets, places)
}
