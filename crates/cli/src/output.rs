//! Standard output and standard error, which may be closed or full.
//!
//! A reader that stops early (`sinew nodes | head -1`) is no failure. Any other failed write is: a
//! script would otherwise take a full disk for an empty cluster.

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use crate::error::{CliError, Doing};
use crate::{hints, width};

/// The first failed write.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Writes a line to standard output.
pub fn line(text: Arguments<'_>) {
    note(writeln!(io::stdout(), "{}", hints::complete(&text.to_string())));
}

/// Writes prose to standard output, folded to the width of a terminal.
pub fn prose(text: Arguments<'_>) {
    note(writeln!(io::stdout(), "{}", within(text, io::stdout().is_terminal())));
}

fn within(text: Arguments<'_>, is_terminal: bool) -> String {
    let text = text.to_string();
    let text = hints::complete(&text).into_owned();
    if is_terminal { width::fold(&text, width::columns()) } else { text }
}

/// Whether a stream leads to a terminal that interprets escape sequences. Terminals that call
/// themselves dumb, as in editors or build servers, print them.
pub fn obeys(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && !is_dumb(std::env::var_os("TERM").as_deref()) && platform_obeys()
}

#[cfg(unix)]
fn platform_obeys() -> bool {
    true
}

/// A console interprets them once it is told to.
#[cfg(windows)]
fn platform_obeys() -> bool {
    static OBEYS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *OBEYS.get_or_init(win32::console::obeys_sequences)
}

fn is_dumb(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| term == "dumb")
}

/// Writes a piece of an answer, at once.
pub fn piece(text: &str) {
    let mut stdout = io::stdout();
    note(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

/// Writes a line to standard error. A failure cannot be reported anywhere.
pub fn aside(text: Arguments<'_>) {
    let text = within(text, io::stderr().is_terminal());
    let _ = writeln!(io::stderr(), "{text}");
}

/// Keeps the first failed write for [`finish`].
pub fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// # Errors
/// Part of the output was not written.
pub fn finish() -> Result<(), CliError> {
    note(io::stdout().flush());
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner).take();
    failed.map_or(Ok(()), Err).doing("cannot write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_that_calls_itself_dumb_obeys_nothing() {
        assert!(is_dumb(Some(OsStr::new("dumb"))));
        assert!(!is_dumb(Some(OsStr::new("xterm-256color"))) && !is_dumb(None));
    }
}
