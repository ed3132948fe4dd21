//! `sinew serve`, and placing a model for the other commands.

use protocol::InstanceSpec;

use crate::args::ServeArgs;
use crate::client::Client;
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::progress::ProgressLine;
use crate::{models, table};

pub fn serve(args: &ServeArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    if args.name.is_some() && args.models.len() > 1 {
        let text = "--name is for one model; serve the others by themselves".to_owned();
        return Err(CliError::Usage(text));
    }
    for model in &args.models {
        let mut request = request(model, &args.spec, args.parallel);
        request.name.clone_from(&args.name);
        request.copies = args.copies.map(usize::from);
        (request.on_request, request.keep_alive) = (args.on_request, args.keep_alive);
        let ready = place(&client, &request)?;
        if args.query.json {
            print_json(&serde_json::json!({ "model": ready, "api": client.api }))?;
        } else {
            match args.on_request {
                true => say!("{ready} is loaded by the first request to {}/v1", client.api),
                false => say!("{ready} is ready at {}/v1", client.api),
            }
            if let Some(copies) = args.copies.filter(|copies| *copies > 1) {
                tell!("its file is being copied, until {copies} nodes have it: sinew status");
            }
        }
    }
    Ok(())
}

/// What a node is asked for. Paths are made absolute: the node has another working directory.
pub fn request(model: &str, spec: &InstanceSpec, parallel: Option<usize>) -> InstanceSpec {
    let model = models::for_node(model);
    let mut options = spec.options.clone();
    options.draft = options.draft.map(|path| std::fs::canonicalize(&path).unwrap_or(path));
    InstanceSpec { model, sequences_max: parallel, options, ..spec.clone() }
}

/// Places a model, showing the progress of loading and why it is split as it is; returns the name
/// to ask for it by.
pub fn place(client: &Client, request: &InstanceSpec) -> Result<String, CliError> {
    let bar = ProgressLine::new();
    let mut said = String::new();
    let ready = client.serve(request, |progress| {
        if let Some(reason) = progress.reason.as_ref().filter(|_| progress.status == "pulling")
            && *reason != said
        {
            said.clone_from(reason);
            bar.clear();
            tell!("{}: {}", request.model, table::tame(reason));
        }
        bar.show(&progress.status, progress.done_bytes, progress.total_bytes);
    });
    bar.clear();
    let ready = ready?;
    let instances = client.status()?.instances;
    let placed = instances.into_iter().find(|instance| instance.id == ready.instance);
    // One that is gone again was stopped by somebody else this very moment.
    let placed = placed.ok_or_else(|| {
        CliError::Refused(format!("{} was stopped before it could be used", request.model))
    })?;
    // The choice, and the next best.
    placed.placement.iter().take(2).for_each(|line| tell!("{line}"));
    placed.notes.iter().for_each(|note| tell!("note: {note}"));
    Ok(placed.model)
}
