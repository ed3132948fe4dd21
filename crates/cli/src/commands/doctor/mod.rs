//! `sinew doctor`: checks this machine and its cluster, and says what they lack and what to type.

mod cluster;
mod gpu;
mod mac;
mod machine;
mod network;
mod rdma;

use serde::Serialize;

use crate::args::{DoctorArgs, DoctorCommand};
use crate::client::Client;
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::CliError;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    /// Neutral.
    Note,
    /// It works, and could work better.
    Better,
    /// Something does not work.
    Bad,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    area: &'static str,
    verdict: Verdict,
    /// The finding, in numbers.
    text: String,
    /// What to type or do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Finding {
    fn new(area: &'static str, verdict: Verdict, text: impl Into<String>) -> Self {
        Self { area, verdict, text: text.into(), hint: None }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

pub fn run(args: &DoctorArgs) -> Result<(), CliError> {
    match &args.part {
        Some(DoctorCommand::Rdma(args)) => rdma::rdma(args),
        Some(DoctorCommand::Gpu(args)) => gpu::gpu(args),
        None => whole(args),
    }
}

/// All findings as lines of text.
pub fn lines(data_dir: &DataDir) -> Vec<String> {
    let findings = match findings(data_dir) {
        Ok(findings) => findings,
        Err(error) => return vec![error.to_string()],
    };
    let of = |finding: &Finding| {
        let hint = finding.hint.as_ref().map_or(String::new(), |hint| format!(" -> {hint}"));
        format!("{} {:<10} {}{hint}", finding.verdict.mark(), finding.area, finding.text)
    };
    findings.iter().map(of).collect()
}

/// # Errors
/// The node is there and does not answer.
fn findings(data_dir: &DataDir) -> Result<Vec<Finding>, CliError> {
    let client = match Client::here(data_dir) {
        Err(error @ (CliError::Frozen { .. } | CliError::Unreachable { .. })) => return Err(error),
        found => found.ok(),
    };
    let status = client.as_ref().and_then(|client| client.status().ok());
    let listen = data_dir.daemon().filter(|_| client.is_some()).map(|daemon| daemon.listen);
    let mut findings = cluster::look(client.as_ref().map(|client| &*client.api), status.as_ref());
    let own =
        status.as_ref().and_then(|status| status.nodes.iter().find(|node| node.id == status.node));
    findings.extend(machine::look(data_dir.path(), own.map(|node| node.memory_bytes)));
    findings.extend(mac::look());
    findings.extend(network::look(listen));
    findings.push(rdma::finding());
    findings.push(gpu::finding(data_dir));
    Ok(findings)
}

fn whole(args: &DoctorArgs) -> Result<(), CliError> {
    let findings = findings(&DataDir::find(&args.query.data_dir)?)?;
    let bad = findings.iter().filter(|one| one.verdict == Verdict::Bad).count();
    if args.query.json {
        print_json(&findings)?;
    } else {
        findings.iter().for_each(show);
        let better = findings.iter().filter(|one| one.verdict == Verdict::Better).count();
        say!("\n{bad} to mend, {better} to better, {} looked at", findings.len());
    }
    let unfit = CliError::Unfit("this machine lacks what is marked with x above");
    if bad == 0 { Ok(()) } else { Err(unfit) }
}

impl Verdict {
    fn mark(self) -> char {
        match self {
            Self::Good => '+',
            Self::Note => ' ',
            Self::Better => '!',
            Self::Bad => 'x',
        }
    }
}

fn show(finding: &Finding) {
    explain!("{} {:<10} {}", finding.verdict.mark(), finding.area, finding.text);
    finding.hint.iter().for_each(|hint| explain!("             -> {hint}"));
}

/// The content of a file, trimmed.
fn read(path: impl AsRef<std::path::Path>) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}
