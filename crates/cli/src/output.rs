//! Standard output and standard error, either of which may be closed, full, or nobody's.
//!
//! A reader that went away (`sinew nodes | head -1`) is no reason to fail. Anything else that keeps
//! a command's answer from where it should go is: a script would take a full disk for an empty
//! cluster.

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use crate::error::{CliError, Doing};
use crate::{hints, width};

/// Why something could not be written, the first time.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Writes a line to standard output.
pub fn line(text: Arguments<'_>) {
    note(writeln!(io::stdout(), "{}", hints::complete(&text.to_string())));
}

/// Writes words to standard output, where that is a terminal in lines that it has room for.
pub fn prose(text: Arguments<'_>) {
    note(writeln!(io::stdout(), "{}", within(text, io::stdout().is_terminal())));
}

fn within(text: Arguments<'_>, is_terminal: bool) -> String {
    let text = text.to_string();
    let text = hints::complete(&text).into_owned();
    if is_terminal { width::fold(&text, width::columns()) } else { text }
}

/// Whether a stream leads to a terminal that obeys escape sequences. One that calls itself dumb, as
/// that of an editor or of a build server, shows them.
pub fn obeys(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && !is_dumb(std::env::var_os("TERM").as_deref())
}

fn is_dumb(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| term == "dumb")
}

/// Writes a piece of an answer, at once.
pub fn piece(text: &str) {
    let mut stdout = io::stdout();
    note(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

/// Writes a line to standard error. Nobody is left to be told of a failure.
pub fn aside(text: Arguments<'_>) {
    let text = within(text, io::stderr().is_terminal());
    let _ = writeln!(io::stderr(), "{text}");
}

/// Keeps the first failure to write for [`finish`].
pub fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// # Errors
/// Not all that was said until now has come where it should.
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
