//! `sinew run`: one question, or a chat, with a model.

use std::io::{IsTerminal, Read, Write};

use cluster::InstanceSpec;
use serde_json::{Value, json};

use crate::args::RunArgs;
use crate::client::Client;
use crate::commands::{chat, serve};
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::interrupt::Interrupt;
use crate::local_cluster::{LocalCluster, any_api_address};
use crate::stream::{Answer, read_answer};

/// A conversation with one served model.
pub struct Conversation {
    client: Client,
    model: String,
    options: Value,
    messages: Vec<Value>,
    interrupt: Interrupt,
}

pub fn run(args: &RunArgs) -> Result<(), CliError> {
    let interrupt = Interrupt::install()?;
    let request = serve::request(&args.model, &args.spec, None);
    // The nodes that were started for this run alone end with it.
    let (client, _local) = find_or_start(args)?;
    let model = match served(&client, &request)? {
        Some(model) => model,
        None => serve::place(&client, &request)?,
    };
    let mut conversation = Conversation::new(client, model, interrupt);
    conversation.set_options(args);
    match (&args.prompt, std::io::stdin().is_terminal()) {
        (Some(prompt), _) => conversation.answer_once(prompt),
        (None, true) => chat::chat(&mut conversation),
        (None, false) => {
            let mut prompt = String::new();
            std::io::stdin().read_to_string(&mut prompt).doing("cannot read the prompt")?;
            conversation.answer_once(prompt.trim_end())
        }
    }
}

/// This machine's node if one is up, else as many nodes as the run asks for.
fn find_or_start(args: &RunArgs) -> Result<(Client, Option<LocalCluster>), CliError> {
    match Client::find(&DataDir::new(args.data_dir.data_dir.clone())) {
        Ok(client) => Ok((client, None)),
        Err(CliError::NoNode { .. }) => {
            let by_split = args.spec.options.shares.as_ref().map(Vec::len);
            let count = args.spec.nodes.or(by_split).unwrap_or(1);
            let local = LocalCluster::start(count, any_api_address())?;
            Ok((local.client()?, Some(local)))
        }
        Err(error) => Err(error),
    }
}

/// The name of the model if the cluster serves it already.
fn served(client: &Client, request: &InstanceSpec) -> Result<Option<String>, CliError> {
    let stem = std::path::Path::new(&request.model).file_stem().unwrap_or_default();
    let wanted = stem.to_string_lossy();
    let instances = client.status()?.instances;
    let found = instances.into_iter().find(|i| i.model == request.model || i.model == wanted);
    Ok(found.map(|instance| instance.model))
}

impl Conversation {
    pub fn new(client: Client, model: String, interrupt: Interrupt) -> Self {
        Self { client, model, options: json!({}), messages: Vec::new(), interrupt }
    }

    pub fn model(&self) -> &str {
        &self.model
    }

    fn set_options(&mut self, args: &RunArgs) {
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

    /// Always take the likeliest token.
    pub fn greedy(&mut self) {
        self.options["temperature"] = json!(0);
    }

    /// Forgets what was said, but not what the model was told before.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message["role"] == "system");
    }

    /// Asks, streams the answer to standard output, and remembers both.
    ///
    /// # Errors
    /// The request was refused, or its answer was cut short; the question is forgotten then.
    pub fn ask(&mut self, prompt: &str) -> Result<Answer, CliError> {
        let before = self.messages.len();
        self.messages.push(json!({ "role": "user", "content": prompt }));
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
        let mut stdout = std::io::stdout();
        let answer = read_answer(stream, &self.interrupt, |text| {
            // A closed pipe ends the answer at the next write of the summary.
            let _ = stdout.write_all(text.as_bytes());
            let _ = stdout.flush();
        });
        say!();
        answer
    }

    fn answer_once(&mut self, prompt: &str) -> Result<(), CliError> {
        let answer = self.ask(prompt)?;
        if answer.interrupted {
            return Err(CliError::Cut("Ctrl-C".to_owned()));
        }
        eprintln!("{}", answer.summary());
        Ok(())
    }

    /// Waits for Ctrl-C.
    pub fn wait_for_interrupt(&self) {
        self.interrupt.wait();
    }
}
