//! Runs another process of this program, which may crash without harm.

use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);

/// The exit status and the output, which must fit into a pipe; `None` if the process takes longer
/// than `max`.
///
/// # Errors
/// The process does not start.
pub fn told(mut command: Command, max: Duration) -> io::Result<Option<(ExitStatus, String)>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > max {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    };
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut text)?;
    }
    Ok(Some((status, text)))
}
