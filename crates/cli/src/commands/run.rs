//! `sinew run`: one question, or a chat, with a model.

use std::io::{IsTerminal, Read};

use cluster::InstanceSpec;
use protocol::Nodes;

use crate::args::RunArgs;
use crate::client::Client;
use crate::commands::{chat, serve};
use crate::conversation::Conversation;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::interrupt::Interrupt;
use crate::local_cluster::{LocalCluster, any_api_address};

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
    match DataDir::find(&args.data_dir).and_then(|data_dir| Client::find(&data_dir)) {
        Ok(client) => Ok((client, None)),
        Err(CliError::NoNode { .. } | CliError::NoHome) => {
            let by_split = args.spec.options.shares.as_ref().map(Vec::len);
            let count = match &args.spec.nodes {
                Some(Nodes::Named(_)) => {
                    let text = "--nodes with names: no node runs on this machine that would know \
                                them. Start one with sinew up, or give a count";
                    return Err(CliError::Usage(text.to_owned()));
                }
                Some(Nodes::Count(count)) => *count,
                None => by_split.unwrap_or(1),
            };
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
