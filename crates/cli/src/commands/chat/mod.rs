//! The interactive chat of `sinew run`.

mod command;
mod editor;
mod kept;
mod keyboard;

use std::path::Path;

use command::Command;
use editor::{Input, LineEditor};
use kept::{Chats, Kept};

use crate::conversation::Conversation;
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::options::SETTINGS;
use crate::pictures::{self, Part, Picture};

/// A chat at a terminal.
pub struct Chat {
    conversation: Conversation,
    editor: LineEditor,
    /// `/save` and `/load` report the error.
    chats: Result<Chats, CliError>,
}

impl Chat {
    /// # Errors
    /// The terminal cannot be read.
    pub fn new(
        conversation: Conversation,
        data_dir: Result<DataDir, CliError>,
    ) -> Result<Self, CliError> {
        let chats = data_dir.and_then(|data_dir| Chats::new(&data_dir));
        let keyboard = editor::keyboard(conversation.interrupt());
        let editor = LineEditor::new(chats.as_ref().ok().map(Chats::history), keyboard)?;
        Ok(Self { conversation, editor, chats })
    }

    /// Reads questions and streams answers until the user leaves.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub fn run(&mut self) -> Result<(), CliError> {
        say!("{}: ask something, or /help", self.conversation.model());
        self.conversation.shown().iter().for_each(|shown| say!("({shown})"));
        loop {
            let line = match self.editor.read("> ")? {
                Input::Text(line) => line,
                Input::Interrupted => {
                    say!("(/bye or Ctrl-D to leave)");
                    continue;
                }
                Input::End => return Ok(()),
            };
            let line = line.trim();
            if editor::unfenced(line).is_empty() {
                continue;
            }
            let done = if line.starts_with('/') && !pictures::begins(line) {
                match command::parse(line) {
                    Ok(Command::Bye) => return Ok(()),
                    Ok(command) => self.obey(command),
                    Err(why) => Err(CliError::Usage(why)),
                }
            } else {
                self.editor.keep(line);
                self.ask(editor::unfenced(line))
            };
            if let Err(error) = done {
                tell!("error: {error}");
            }
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), CliError> {
        let conversation = &mut self.conversation;
        match command {
            Command::Help => explain!("{}", command::help()),
            Command::System("") => match conversation.system() {
                Some(system) => say!("{system}"),
                None => say!("there is no system prompt. To set one: /system TEXT"),
            },
            Command::System(text) => conversation.set_system(text),
            Command::Set("", _) => {
                for (name, values) in SETTINGS {
                    say!("  {name:<13}{:<16}{values}", conversation.options.shown(name));
                }
            }
            Command::Set(name, value) => {
                conversation.options.set(name, value).map_err(CliError::Usage)?;
                say!("({name}: {})", conversation.options.shown(name));
            }
            Command::Show => conversation.describe()?.iter().for_each(|line| say!("{line}")),
            Command::Image(path) => {
                let parts = pictures::parts(path)?;
                conversation.show(match parts.as_slice() {
                    [Part::Picture(_)] => parts,
                    _ => vec![Part::Picture(Picture::read(Path::new(path))?)],
                });
                conversation.shown().iter().for_each(|shown| say!("({shown})"));
            }
            Command::Forget => self.forget(),
            Command::Clear => conversation.clear(),
            Command::Save(name) => {
                let (model, messages) = (conversation.model(), conversation.messages());
                let kept = Kept { model: model.to_owned(), messages: messages.to_vec() };
                say!("kept in {}", self.chats()?.save(name, &kept)?.display());
            }
            Command::Load("") => match self.chats()?.names().as_slice() {
                [] => say!("no conversation is kept. To keep this one: /save NAME"),
                names => names.iter().for_each(|(name, title)| {
                    if name == title { say!("  {name}") } else { say!("  {name}  {title}") }
                }),
            },
            Command::Load(name) => {
                let kept = self.chats()?.load(name)?;
                let conversation = &mut self.conversation;
                if kept.model != conversation.model() {
                    say!("(it was with {})", kept.model);
                }
                conversation.replace(kept.messages);
                say!("(it has {})", turns(conversation.turns()));
            }
            Command::Bye => {}
        }
        Ok(())
    }

    fn chats(&self) -> Result<&Chats, CliError> {
        self.chats.as_ref().map_err(|error| CliError::Usage(error.to_string()))
    }

    /// Asks, and offers to forget the oldest turns if the question does not fit beside them.
    fn ask(&mut self, question: &str) -> Result<(), CliError> {
        let parts = pictures::parts(question)?;
        pictures::summary(&parts).iter().for_each(|summary| say!("({summary})"));
        self.conversation.put(parts);
        let mut has_agreed = false;
        loop {
            let answer = match self.conversation.answer() {
                Ok(answer) => answer,
                Err(CliError::ContextFull(why)) if self.conversation.turns() > 0 => {
                    if !has_agreed {
                        tell!("{why}");
                        if !self.editor.agrees("Forget the oldest turns and go on?")? {
                            self.conversation.take_back();
                            return Ok(());
                        }
                        has_agreed = true;
                    }
                    self.forget();
                    continue;
                }
                Err(error) => {
                    self.conversation.take_back();
                    return Err(error);
                }
            };
            if answer.interrupted {
                say!("(stopped)");
            } else if self.conversation.options.verbose {
                tell!("({})", answer.summary());
            }
            let why = self.conversation.why_cut(&answer);
            why.iter().for_each(|why| tell!("({why})"));
            return Ok(());
        }
    }

    /// Forgets the older half, so that answers have room for a while.
    fn forget(&mut self) {
        let gone = self.conversation.forget_oldest(self.conversation.turns().div_ceil(2));
        say!("({} forgotten, {} stay)", turns(gone), self.conversation.turns());
    }
}

fn turns(count: usize) -> String {
    if count == 1 { "1 turn".to_owned() } else { format!("{count} turns") }
}
