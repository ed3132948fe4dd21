//! The process that loads one node's memory and cores: its start and its output.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::spec::{BurnSpec, Loaded};

/// Time beyond `spec.seconds`, to fill the memory and to end the last pass.
const LATE_MAX: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub threads: usize,
    pub memory_bytes: u64,
}

/// Runs the process to its end. Dropping the future kills it.
///
/// # Errors
/// The process cannot be started, fails, or prints something other than `Loaded`.
pub(super) async fn run(command: &[String], size: Size, spec: &BurnSpec) -> io::Result<Loaded> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| io::Error::other("no program is named"))?;
    let mut process = Command::new(program);
    process.args(arguments).arg("burn-in");
    process.arg("--seconds").arg(spec.seconds.to_string());
    process.arg("--threads").arg(size.threads.to_string());
    process.arg("--memory-bytes").arg(size.memory_bytes.to_string());
    if spec.flip_bits {
        process.arg("--flip-bits");
    }
    // The process ends with its input, and therefore also with a killed daemon.
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = process.spawn()?;
    let input = child.stdin.take();
    let limit = Duration::from_secs(spec.seconds) + LATE_MAX;
    let output = timeout(limit, child.wait_with_output()).await??;
    drop(input);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or("it said nothing").to_owned();
        return Err(io::Error::other(format!("{}: {last}", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(io::Error::other)
}

/// The processes here are scripts of a Unix shell.
#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: BurnSpec =
        BurnSpec { seconds: 1, memory_bytes: None, while_serving: false, flip_bits: false };

    async fn said(script: &str) -> io::Result<Loaded> {
        let command = ["sh", "-c", script, "sh"].map(str::to_owned);
        run(&command, Size { threads: 1, memory_bytes: 1 }, &SPEC).await
    }

    #[tokio::test]
    async fn what_the_process_says_counts_and_its_failure_is_one() {
        let line = serde_json::to_string(&Loaded { wrong_bits: 3, ..Loaded::default() }).unwrap();
        assert_eq!(said(&format!("echo '{line}'")).await.unwrap().wrong_bits, 3);
        let failed = said("echo no memory >&2; exit 3").await.unwrap_err().to_string();
        assert!(failed.contains("no memory") && failed.contains('3'), "{failed}");
        assert!(said("echo nonsense").await.is_err());
        assert!(run(&[], Size { threads: 1, memory_bytes: 1 }, &SPEC).await.is_err());
    }
}
