//! The line editor of a chat: several lines at once, and a history over sessions.

use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};

use super::command;
use super::keyboard::Keyboard;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output;

/// Begins and ends a question of several lines.
pub const FENCE: &str = "\"\"\"";
/// Questions that the history keeps: months of chats.
const HISTORY_MAX: usize = 1000;
/// The history leaves out longer questions: people paste documents, and do not search for them.
const HISTORY_BYTES_MAX: usize = 16 << 10;
/// Terminals without cursor movement, in which the editor reads plain lines.
const PLAIN_TERMINALS: [&str; 3] = ["dumb", "cons25", "emacs"];

/// What a person typed.
pub enum Input {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the end of the terminal.
    End,
}

pub struct LineEditor {
    editor: Editor<Help, FileHistory>,
    keyboard: Option<Keyboard>,
    history: Option<PathBuf>,
}

impl LineEditor {
    /// With the history in a file, if there is a place for it.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub fn new(history: Option<PathBuf>, keyboard: Option<Keyboard>) -> Result<Self, CliError> {
        let config = Config::builder().max_history_size(HISTORY_MAX).map_err(failed)?;
        let config = config.history_ignore_dups(true).map_err(failed)?.build();
        let mut editor = Editor::with_config(config).map_err(failed)?;
        if let Some(path) = history.as_deref().filter(|path| path.exists())
            && let Err(error) = editor.load_history(path)
        {
            tell!("note: {} is not read: {error}. Delete it to begin anew", path.display());
        }
        let further = keyboard.as_ref().map(|keyboard| Box::new(keyboard.further()) as Further);
        editor.set_helper(Some(Help { further }));
        Ok(Self { editor, keyboard, history })
    }

    /// Reads one question or command.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub fn read(&mut self, prompt: &str) -> Result<Input, CliError> {
        // The editor writes to the terminal beside the standard output's buffer.
        output::piece("");
        let editor = &mut self.editor;
        let line = match &self.keyboard {
            Some(keyboard) => keyboard.reading(|| editor.readline(prompt)),
            None => editor.readline(prompt),
        };
        match line {
            Ok(line) => Ok(Input::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
            Err(ReadlineError::Eof) => Ok(Input::End),
            // The keyboard's thread has ended with the terminal.
            Err(ReadlineError::Io(_)) if self.keyboard.is_some() => Ok(Input::End),
            Err(error) => Err(failed(error)),
        }
    }

    /// Keeps a question for the arrow keys and Ctrl-R, in this session and later ones.
    pub fn keep(&mut self, question: &str) {
        if question.len() > HISTORY_BYTES_MAX {
            return;
        }
        // A question that is not kept is no loss.
        let _ = self.editor.add_history_entry(question);
        if let Some(path) = &self.history {
            let _ = self.editor.append_history(path);
        }
    }

    /// A question that Enter alone agrees to. Other text was typed before the question came, so it
    /// is no answer.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub fn agrees(&mut self, question: &str) -> Result<bool, CliError> {
        loop {
            let Input::Text(text) = self.read(&format!("{question} [Y/n] "))? else {
                return Ok(false);
            };
            match text.trim().to_lowercase().as_str() {
                "" | "y" | "yes" => return Ok(true),
                "n" | "no" => return Ok(false),
                _ => {}
            }
        }
    }
}

/// The keyboard of a terminal with cursor movement. Without one, what is typed during an answer is
/// lost; all else works.
pub fn keyboard(interrupt: &Interrupt) -> Option<Keyboard> {
    let name = std::env::var("TERM").unwrap_or_default();
    let is_plain = PLAIN_TERMINALS.contains(&name.as_str());
    if is_plain { None } else { Keyboard::open(interrupt.clone()).ok() }
}

fn failed(error: ReadlineError) -> CliError {
    CliError::Usage(format!("cannot read input: {error}"))
}

/// Whether a text begins several lines and does not end them.
fn is_open(text: &str) -> bool {
    let inner = text.trim_start().strip_prefix(FENCE);
    inner.is_some_and(|inner| !inner.trim_end().ends_with(FENCE))
}

/// The text without the marks around several lines.
pub fn unfenced(text: &str) -> &str {
    let text = text.trim();
    let inner = text.strip_prefix(FENCE).and_then(|inner| inner.strip_suffix(FENCE));
    inner.map_or(text, str::trim)
}

type Further = Box<dyn Fn()>;

/// What the editor asks of a chat.
struct Help {
    /// Asks the keyboard for a further line.
    further: Option<Further>,
}

impl Validator for Help {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        if is_open(context.input()) {
            self.further.iter().for_each(|further| further());
            return Ok(ValidationResult::Incomplete);
        }
        Ok(ValidationResult::Valid(None))
    }
}

impl Completer for Help {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let names = command::names().filter(|name| name.starts_with(&line[..at]));
        let names = if line.starts_with('/') { names.map(str::to_owned).collect() } else { vec![] };
        Ok((0, names))
    }
}

impl Hinter for Help {
    type Hint = String;
}

impl Highlighter for Help {}

impl Helper for Help {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_quotes_begin_and_end_several_lines() {
        for open in ["\"\"\"", "\"\"\"one", " \"\"\"one\ntwo\" \"\""] {
            assert!(is_open(open), "{open:?}");
        }
        for closed in ["", "one", "one \"\"\"", "\"\"\"\"\"\"", "\"\"\"one\ntwo\"\"\" "] {
            assert!(!is_open(closed), "{closed:?}");
        }
        assert_eq!(unfenced("\"\"\"\none\n\ntwo\n\"\"\""), "one\n\ntwo");
        assert_eq!(unfenced(" one "), "one");
    }

    #[test]
    fn the_history_is_private_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        for session in 0..2 {
            let mut editor = LineEditor::new(Some(path.clone()), None).unwrap();
            for at in 0..HISTORY_MAX {
                editor.keep(&format!("question {session} {at}"));
            }
            editor.keep("two\nlines");
            editor.keep(&"x".repeat(HISTORY_BYTES_MAX + 1));
        }
        assert!(!store::private::is_open_to_others(&std::fs::metadata(&path).unwrap()));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("two\\nlines") && !text.contains("xxx"));
        assert!(text.lines().count() <= HISTORY_MAX + 1, "{}", text.lines().count());
    }
}
