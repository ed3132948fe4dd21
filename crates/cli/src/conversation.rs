//! A conversation with one served model, for `run`, its chat and `demo`.

use std::io::IsTerminal;

use serde_json::{Value, json};

use crate::args::RunArgs;
use crate::client::Client;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::pictures::{self, Part};
use crate::stream::{Answer, read_answer};
use crate::wrap::Wrap;
use crate::{output, width};

/// A conversation with one served model.
pub struct Conversation {
    client: Client,
    model: String,
    options: Value,
    messages: Vec<Value>,
    /// Stand in front of the next prompt.
    pictures: Vec<Part>,
    interrupt: Interrupt,
}

impl Conversation {
    pub fn new(client: Client, model: String, interrupt: Interrupt) -> Self {
        let (options, messages, pictures) = (json!({}), Vec::new(), Vec::new());
        Self { client, model, options, messages, pictures, interrupt }
    }

    pub fn model(&self) -> &str {
        &self.model
    }

    pub fn set_options(&mut self, args: &RunArgs) {
        self.options["temperature"] = json!(args.temperature);
        if let Some(seed) = args.seed {
            self.options["seed"] = json!(seed);
        }
        if let Some(max_tokens) = args.max_tokens {
            self.options["max_tokens"] = json!(max_tokens);
        }
        if let Some(system) = &args.system {
            self.messages.push(json!({ "role": "system", "content": system }));
        }
    }

    /// Puts pictures in front of the next prompt.
    pub fn show(&mut self, pictures: Vec<Part>) {
        self.pictures = pictures;
    }

    /// Those pictures, for people.
    pub fn shown(&self) -> Option<String> {
        pictures::summary(&self.pictures)
    }

    /// Always takes the likeliest token.
    pub fn greedy(&mut self) {
        self.options["temperature"] = json!(0);
    }

    /// Drops the conversation but keeps the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message["role"] == "system");
    }

    /// Sends a prompt, streams the answer to standard output, and adds both to the conversation.
    ///
    /// # Errors
    /// The request was refused, or its answer was cut short; the prompt is dropped then.
    pub fn ask(&mut self, prompt: Vec<Part>) -> Result<Answer, CliError> {
        let before = self.messages.len();
        let parts: Vec<Part> = self.pictures.drain(..).chain(prompt).collect();
        let content = match parts.as_slice() {
            [Part::Text(text)] => json!(text),
            parts => parts.iter().map(Part::content).collect(),
        };
        self.messages.push(json!({ "role": "user", "content": content }));
        let answer = self.stream_answer();
        match &answer {
            Ok(answer) => {
                self.messages.push(json!({ "role": "assistant", "content": answer.text }));
            }
            Err(_) => self.messages.truncate(before),
        }
        answer
    }

    fn stream_answer(&self) -> Result<Answer, CliError> {
        let mut body = self.options.clone();
        body["model"] = json!(self.model);
        body["messages"] = json!(self.messages);
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
        let stream = self.client.chat(&body)?;
        let is_terminal = std::io::stdout().is_terminal();
        let mut wrap = is_terminal.then(|| Wrap::new(width::columns_now()));
        let answer = read_answer(stream, &self.interrupt, |piece| match &mut wrap {
            Some(wrap) => output::piece(&wrap.push(piece)),
            None => output::piece(piece),
        });
        wrap.iter_mut().for_each(|wrap| output::piece(&wrap.finish()));
        say!();
        answer
    }

    /// Sends a prompt, and prints the figures of the answer to standard error.
    ///
    /// # Errors
    /// Those of [`Self::ask`], or Ctrl-C cut the answer short.
    pub fn answer_once(&mut self, prompt: &str) -> Result<(), CliError> {
        let answer = self.ask(vec![Part::Text(prompt.to_owned())])?;
        if answer.interrupted {
            return Err(CliError::Cut("Ctrl-C".to_owned()));
        }
        tell!("{}", answer.summary());
        self.why_cut(&answer).iter().for_each(|why| tell!("{why}"));
        Ok(())
    }

    /// Why an answer ended in mid-sentence, if it did.
    pub fn why_cut(&self, answer: &Answer) -> Option<String> {
        if !answer.cut_by_length {
            return None;
        }
        let max_tokens = self.options["max_tokens"].as_u64().map(|max| max as usize);
        // If the node has gone, the next prompt reports that.
        let instances = self.client.status().ok()?.instances;
        let model = instances.iter().find(|one| one.model == self.model)?;
        answer.why_cut(model.context_tokens, max_tokens)
    }

    /// Waits for Ctrl-C.
    pub fn wait_for_interrupt(&self) {
        self.interrupt.wait();
    }
}
