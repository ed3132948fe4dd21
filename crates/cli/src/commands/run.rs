//! `sinew run`: one question, or a chat, with a model.

use std::io::{IsTerminal, Read};
use std::path::Path;

use cluster::{Identified, InstanceSpec, InstanceStatus};
use protocol::{Mix, Nodes, SplitOptions};

use crate::args::RunArgs;
use crate::client::Client;
use crate::commands::chat::Chat;
use crate::commands::serve;
use crate::conversation::Conversation;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::interrupt::Interrupt;
use crate::local_cluster::{LocalCluster, any_api_address};
use crate::models;
use crate::pictures::{self, Part, Picture};

pub fn run(args: &RunArgs) -> Result<(), CliError> {
    let prompt = prompt(args)?;
    let shown = args.image.iter().map(|path| Picture::read(path).map(Part::Picture));
    let shown: Vec<Part> = shown.collect::<Result<_, _>>()?;
    let mut request = serve::request(&args.model, &args.spec, None);
    // The nodes that were started for this run end with it.
    let (client, local, interrupt) = find_or_start(args, &mut request)?;
    let mut presets = client.status()?.presets.to_vec().into_iter();
    let preset = presets.find(|preset| preset.name == args.model);
    if let Some(preset) = &preset {
        request.model.clone_from(&preset.model);
    }
    let model = match served(&client, &mut request)? {
        Some(found) => {
            check_wishes(&request, &found)?;
            found.model
        }
        None => {
            let settings = preset.as_ref().map(|preset| client.preset(&preset.name)).transpose()?;
            let context_tokens = settings.flatten().and_then(|preset| preset.context_tokens);
            request.context_tokens = request.context_tokens.or(context_tokens);
            let placed = serve::place(&client, &request, &interrupt);
            let placed = match &local {
                Some(_) => placed.map_err(serve::nothing_goes_on),
                None => placed,
            };
            let model = placed.map_err(|error| match DataDir::find(&args.data_dir) {
                Ok(dir) => models::with_near(error, &args.model, Some(&client), &dir),
                Err(_) => error,
            })?;
            if local.is_none() {
                tell!("{model} stays served by the node: sinew stop {model} ends that");
            }
            model
        }
    };
    let model = preset.map_or(model, |preset| preset.name);
    let mut conversation = Conversation::new(client, model, interrupt);
    conversation.options = args.options();
    args.system.iter().for_each(|system| conversation.set_system(system));
    conversation.show(shown);
    match prompt {
        Some(prompt) => conversation.answer_once(prompt),
        None => Chat::new(conversation, DataDir::find(&args.data_dir))?.run(),
    }
}

/// The question of the command line or of standard input; none for a chat. A picture's path on the
/// command line becomes that picture, as in a chat; what comes by a pipe is a text.
fn prompt(args: &RunArgs) -> Result<Option<Vec<Part>>, CliError> {
    if args.prompt.is_some() || std::io::stdin().is_terminal() {
        let Some(prompt) = &args.prompt else { return Ok(None) };
        let parts = pictures::parts(prompt)?;
        let is_blank = parts.is_empty();
        return Ok(Some(if is_blank { vec![Part::Text(prompt.clone())] } else { parts }));
    }
    let mut prompt = String::new();
    std::io::stdin().read_to_string(&mut prompt).doing("cannot read the question")?;
    if prompt.trim().is_empty() {
        let text = "standard input is empty, so there is no question. Give one as the last \
                    argument or by a pipe; a chat needs a terminal";
        return Err(CliError::Usage(text.to_owned()));
    }
    Ok(Some(vec![Part::Text(prompt.trim_end().to_owned())]))
}

/// This machine's running node, or else as many new nodes as the arguments request. Until these are
/// started, a signal ends the program.
fn find_or_start(
    args: &RunArgs,
    request: &mut InstanceSpec,
) -> Result<(Client, Option<LocalCluster>, Interrupt), CliError> {
    let data_dir = DataDir::find(&args.data_dir);
    let client = data_dir.as_ref().ok().map(Client::find);
    match client.unwrap_or(Err(CliError::NoHome)) {
        Ok(client) => Ok((client, None, Interrupt::install()?)),
        Err(CliError::NoNode { .. } | CliError::NoHome) => {
            // Those nodes have a temporary folder; models are kept in this one.
            match data_dir {
                Ok(data_dir) => models::fetch_for(request, &data_dir)
                    .map_err(|error| models::with_near(error, &args.model, None, &data_dir))?,
                Err(_) if models::is_model(Path::new(&request.model)) => {
                    request.model = models::for_node(&request.model);
                }
                // A downloaded model would be deleted at the end of the run.
                Err(error) => return Err(error),
            }
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
            let interrupt = Interrupt::install()?;
            let local = LocalCluster::start(count, any_api_address())?;
            Ok((local.client()?, Some(local), interrupt))
        }
        Err(error) => Err(error),
    }
}

/// The instance that serves the same content, if there is one; else the request gets a free name.
fn served(client: &Client, request: &mut InstanceSpec) -> Result<Option<InstanceStatus>, CliError> {
    let mut instances = client.status()?.instances;
    instances.retain(|one| one.replica_of.is_none());
    let named = instances.iter().position(|one| one.model == request.model);
    if let Some(at) = named.filter(|_| client.is_elsewhere()) {
        // That takes an API key alone; to look at files takes the admin token.
        return Ok(Some(instances.swap_remove(at)));
    }
    let Identified { served_as, name } = client.identify(&request.model)?;
    let is_taken = |name: &str| instances.iter().any(|one| one.model == name);
    if let Some(name) = name.filter(|name| served_as.is_none() && is_taken(name)) {
        let free = (2..).map(|n| format!("{name}-{n}")).find(|other| !is_taken(other));
        if let Some(free) = free.filter(|_| request.name.is_none()) {
            tell!("another model is served as {name} already; this one is served as {free}");
            request.name = Some(free);
        }
    }
    let at = instances.iter().position(|one| Some(&one.model) == served_as.as_ref());
    Ok(at.map(|at| instances.swap_remove(at)))
}

/// Whether a model is on the requested nodes.
fn are_those(asked: &Nodes, found: &InstanceStatus) -> bool {
    let is_there = |name: &String| found.ranks.iter().any(|rank| rank.node_name == *name);
    let are_named = match asked {
        Nodes::Count(_) => true,
        Nodes::Named(names) => names.iter().all(is_there),
    };
    asked.count() == found.ranks.len() && are_named
}

/// A served model keeps its settings, so the requested ones must be equal.
fn check_wishes(request: &InstanceSpec, found: &InstanceStatus) -> Result<(), CliError> {
    let (wishes, usual) = (&request.options, SplitOptions::default());
    let nodes = found.ranks.len();
    let others = [
        ("--nodes", request.nodes.as_ref().is_some_and(|asked| !are_those(asked, found))),
        ("--ctx", request.context_tokens.is_some_and(|asked| asked != found.context_tokens)),
        ("--cache-tokens", request.cache_tokens.is_some()),
        ("--mix", request.mix != Mix::default()),
        ("--split", wishes.shares.is_some()),
        ("--strategy", wishes.strategy != usual.strategy),
        ("--stages", wishes.stages.is_some()),
        ("--stage-layers", wishes.stage_layers.is_some()),
        ("--experts", wishes.experts != usual.experts),
        ("--cache-type", wishes.cache_type != usual.cache_type),
        ("--expert-memory", wishes.expert_memory.is_some()),
        ("--wire-type", wishes.wire_type != usual.wire_type),
        ("--transport", ![usual.transport, found.transport].contains(&wishes.transport)),
        ("--speculation", wishes.speculation != usual.speculation),
        ("--draft", wishes.draft.is_some()),
    ];
    let others = others.into_iter().filter(|(_, is_other)| *is_other).map(|(flag, _)| flag);
    let others: Vec<&str> = others.collect();
    match others.as_slice() {
        [] => Ok(()),
        others => Err(CliError::Usage(format!(
            "{model} is served already, on {nodes} of the nodes with a context of {context}, and \
             {flags} would change how. Leave it out, or first \"sinew stop {model}\"",
            model = found.model,
            context = found.context_tokens,
            flags = others.join(", ")
        ))),
    }
}
