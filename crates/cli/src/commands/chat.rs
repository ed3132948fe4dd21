//! The interactive chat of `sinew run`.

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::conversation::Conversation;
use crate::error::CliError;
use crate::pictures;

const HELP: &str = concat!(
    "  /clear   forget the conversation\n",
    "  /bye     leave (or Ctrl-D)\n",
    "  Ctrl-C   stop the answer\n",
    "  a path of a PNG, JPEG, WebP or GIF file, typed or dropped, becomes a picture",
);

/// Reads questions and streams answers until the user leaves.
pub fn chat(conversation: &mut Conversation) -> Result<(), CliError> {
    let failed = |error: ReadlineError| CliError::Usage(format!("cannot read input: {error}"));
    let mut editor = DefaultEditor::new().map_err(failed)?;
    say!("{}: ask something, or /help", conversation.model());
    conversation.shown().iter().for_each(|shown| say!("({shown})"));
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                say!("(/bye or Ctrl-D to leave)");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        match line.trim() {
            "" => {}
            "/bye" | "/exit" | "/quit" => return Ok(()),
            "/clear" => conversation.clear(),
            "/help" | "/?" => say!("{HELP}"),
            command if command.starts_with('/') && !pictures::begins(command) => {
                say!("no such command; there are:\n{HELP}")
            }
            prompt => {
                // The history only serves the arrow keys; a rejected line is no loss.
                let _ = editor.add_history_entry(prompt);
                let asked = pictures::parts(prompt).and_then(|parts| {
                    pictures::summary(&parts).iter().for_each(|summary| say!("({summary})"));
                    conversation.ask(parts)
                });
                match asked {
                    Ok(answer) if answer.interrupted => say!("(stopped)"),
                    Ok(answer) => {
                        say!("({})", answer.summary());
                        let why = conversation.why_cut(&answer);
                        why.iter().for_each(|why| say!("({why}; /clear begins anew)"));
                    }
                    Err(error) => {
                        tell!("error: {error}");
                        if error.to_string().contains("context") {
                            tell!("/clear forgets the conversation and begins anew");
                        }
                    }
                }
            }
        }
    }
}
