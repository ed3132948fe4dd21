//! A conversation with one served model, for `run`, its chat and `demo`.

use std::io::IsTerminal;

use serde_json::{Value, json};

use crate::client::Client;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::options::{Options, SETTINGS};
use crate::pictures::{self, Part};
use crate::stream::{Answer, Piece, read_answer};
use crate::wrap::Wrap;
use crate::{output, width};

/// Thoughts are shown dim, so that nobody takes them for the answer.
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// A conversation with one served model.
pub struct Conversation {
    client: Client,
    model: String,
    pub options: Options,
    messages: Vec<Value>,
    /// Stand in front of the next prompt.
    pictures: Vec<Part>,
    interrupt: Interrupt,
}

impl Conversation {
    pub fn new(client: Client, model: String, interrupt: Interrupt) -> Self {
        let (options, messages, pictures) = Default::default();
        Self { client, model, options, messages, pictures, interrupt }
    }

    pub fn model(&self) -> &str {
        &self.model
    }

    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// The system prompt.
    pub fn system(&self) -> Option<&str> {
        self.messages.iter().find(|message| is_of(message, "system"))?["content"].as_str()
    }

    pub fn set_system(&mut self, text: &str) {
        self.messages.retain(|message| !is_of(message, "system"));
        self.messages.insert(0, json!({ "role": "system", "content": text }));
    }

    /// The messages of a request.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// Goes on with another conversation.
    pub fn replace(&mut self, messages: Vec<Value>) {
        self.messages = messages;
    }

    /// Puts pictures in front of the next prompt.
    pub fn show(&mut self, pictures: Vec<Part>) {
        self.pictures.extend(pictures);
    }

    /// Those pictures, for people.
    pub fn shown(&self) -> Option<String> {
        pictures::summary(&self.pictures)
    }

    /// Drops the conversation but keeps the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| is_of(message, "system"));
    }

    /// Questions with their answers.
    pub fn turns(&self) -> usize {
        turns(&self.messages)
    }

    /// Drops the oldest turns but keeps the system message; returns how many there were.
    pub fn forget_oldest(&mut self, turns: usize) -> usize {
        forget_oldest(&mut self.messages, turns)
    }

    /// Sends a prompt, streams the answer to standard output, and adds both to the conversation.
    ///
    /// # Errors
    /// The request was refused, or its answer was cut short; the prompt is dropped then.
    pub fn ask(&mut self, prompt: Vec<Part>) -> Result<Answer, CliError> {
        self.put(prompt);
        self.answer().inspect_err(|_| self.take_back())
    }

    /// Adds a prompt to the conversation, for [`Self::answer`].
    pub fn put(&mut self, prompt: Vec<Part>) {
        let parts: Vec<Part> = self.pictures.drain(..).chain(prompt).collect();
        let content = match parts.as_slice() {
            [Part::Text(text)] => json!(text),
            parts => parts.iter().map(Part::content).collect(),
        };
        self.messages.push(json!({ "role": "user", "content": content }));
    }

    /// Drops a prompt without an answer.
    pub fn take_back(&mut self) {
        self.messages.pop_if(|message| is_of(message, "user"));
    }

    /// Streams the answer to the last prompt, and adds it to the conversation.
    ///
    /// # Errors
    /// The request was refused, or its answer was cut short; the prompt stays.
    pub fn answer(&mut self) -> Result<Answer, CliError> {
        let answer = self.stream_answer()?;
        self.messages.push(json!({ "role": "assistant", "content": answer.text }));
        Ok(answer)
    }

    fn stream_answer(&self) -> Result<Answer, CliError> {
        let mut body = self.options.body();
        body.insert("model".to_owned(), json!(self.model));
        body.insert("messages".to_owned(), json!(self.messages));
        body.insert("stream".to_owned(), json!(true));
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        let stream = self.client.chat(&Value::Object(body))?;
        let mut screen = Screen::new();
        let answer = read_answer(stream, &self.interrupt, |piece| screen.show(piece));
        screen.finish();
        answer
    }

    /// Sends a prompt; says on standard error which pictures go with it, why the answer was cut,
    /// and its figures if they are wanted.
    ///
    /// # Errors
    /// Those of [`Self::ask`], or Ctrl-C cut the answer short.
    pub fn answer_once(&mut self, prompt: Vec<Part>) -> Result<(), CliError> {
        pictures::summary(&prompt).iter().for_each(|summary| tell!("({summary})"));
        let answer = self.ask(prompt)?;
        if answer.interrupted {
            let (what, status) = ("stopped".to_owned(), self.interrupt.status());
            return Err(CliError::Left { what, status });
        }
        if self.options.verbose {
            tell!("{}", answer.summary());
        }
        self.why_cut(&answer).iter().for_each(|why| tell!("{why}"));
        Ok(())
    }

    /// Why an answer ended in mid-sentence, if it did.
    pub fn why_cut(&self, answer: &Answer) -> Option<String> {
        if !answer.cut_by_length {
            return None;
        }
        // If the node has gone, the next prompt reports that.
        let instances = self.client.status().ok()?.instances;
        let model = instances.iter().find(|one| one.model == self.model)?;
        answer.why_cut(model.context_tokens, self.options.max_tokens)
    }

    /// The model, where it runs, and what is set, in lines for people.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn describe(&self) -> Result<Vec<String>, CliError> {
        let instances = self.client.status()?.instances;
        let mut lines = vec![format!("model         {}", self.model)];
        if let Some(found) = instances.iter().find(|one| one.model == self.model) {
            let ranks = found.ranks.iter();
            let nodes = ranks.map(|rank| format!("{} ({:.0} %)", rank.node_name, rank.percent));
            lines.push(format!("context       {} tokens", found.context_tokens));
            lines.push(format!("runs on       {}", nodes.collect::<Vec<_>>().join(", ")));
        }
        lines.push(format!("turns         {}", self.turns()));
        lines.push(format!("system        {}", self.system().unwrap_or("nothing")));
        let set = SETTINGS.map(|(name, _)| format!("{name:<14}{}", self.options.shown(name)));
        lines.extend(set);
        Ok(lines)
    }

    /// Waits for Ctrl-C.
    pub fn wait_for_interrupt(&self) {
        self.interrupt.wait();
    }
}

fn is_of(message: &Value, role: &str) -> bool {
    message["role"] == role
}

fn turns(messages: &[Value]) -> usize {
    messages.iter().filter(|message| is_of(message, "assistant")).count()
}

fn forget_oldest(messages: &mut Vec<Value>, most: usize) -> usize {
    let most = most.min(turns(messages));
    let mut gone = 0;
    messages.retain(|message| {
        let stays = gone == most || is_of(message, "system");
        gone += usize::from(!stays && is_of(message, "assistant"));
        stays
    });
    gone
}

/// Where an answer is shown: thoughts only on a terminal, dim.
struct Screen {
    wrap: Option<Wrap>,
    has_colours: bool,
    is_thinking: bool,
}

impl Screen {
    fn new() -> Self {
        let stdout = std::io::stdout();
        let wrap = stdout.is_terminal().then(|| Wrap::new(width::columns_now()));
        Self { wrap, has_colours: output::obeys(&stdout), is_thinking: false }
    }

    fn show(&mut self, piece: Piece) {
        match piece {
            Piece::Thought(_) if !self.has_colours => {}
            Piece::Thought(text) => {
                if !self.is_thinking {
                    output::piece(DIM);
                }
                self.is_thinking = true;
                self.write(text);
            }
            Piece::Text(text) => {
                self.end_thought();
                self.write(text);
            }
        }
    }

    fn end_thought(&mut self) {
        if std::mem::take(&mut self.is_thinking) {
            self.write("\n\n");
            output::piece(PLAIN);
        }
    }

    fn write(&mut self, text: &str) {
        match &mut self.wrap {
            Some(wrap) => output::piece(&wrap.push(text)),
            None => output::piece(text),
        }
    }

    fn finish(mut self) {
        self.end_thought();
        self.wrap.iter_mut().for_each(|wrap| output::piece(&wrap.finish()));
        say!();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_turns_are_forgotten_and_what_the_model_is_told_stays() {
        let message = |role: &str, text: &str| json!({ "role": role, "content": text });
        let messages = [
            ("system", "s"),
            ("user", "1"),
            ("assistant", "1"),
            ("user", "2"),
            ("assistant", "2"),
            ("user", "3"),
        ];
        let mut messages = messages.map(|(role, text)| message(role, text)).to_vec();
        assert_eq!(turns(&messages), 2);
        assert_eq!(forget_oldest(&mut messages, 1), 1);
        assert_eq!(
            messages.iter().map(|one| &one["content"]).collect::<Vec<_>>(),
            ["s", "2", "2", "3"]
        );
        assert_eq!(forget_oldest(&mut messages, 5), 1);
        assert_eq!(messages, [message("system", "s"), message("user", "3")], "a prompt is no turn");
    }
}
