//! `sinew serve`, and placing a model for the other commands.

use protocol::InstanceSpec;

use crate::args::{Copies, ServeArgs};
use crate::client::{Client, ServeProgress, ShareProgress};
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::progress::ProgressLines;
use crate::{models, table};

pub fn serve(args: &ServeArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    if args.name.is_some() && args.models.len() > 1 {
        let text = "--name is for one model; serve the others by themselves".to_owned();
        return Err(CliError::Usage(text));
    }
    let interrupt = Interrupt::install()?;
    for model in &args.models {
        let preset = client.preset(model)?;
        let base = preset.as_ref().map_or(model, |preset| &preset.model);
        let mut request = request(base, &args.spec, args.parallel);
        let context_tokens = preset.and_then(|preset| preset.context_tokens);
        request.context_tokens = request.context_tokens.or(context_tokens);
        request.name.clone_from(&args.name);
        (request.copies, request.copies_if_room) = match args.copies {
            Copies::Auto => (Some(2), true),
            Copies::Count(count) => (Some(usize::from(count)).filter(|count| *count > 1), false),
        };
        (request.on_request, request.keep_alive) = (args.on_request, args.keep_alive);
        let ready = place(&client, &request, &interrupt)?;
        if args.query.json {
            print_json(&serde_json::json!({ "model": ready, "api": client.address() }))?;
        } else {
            match args.on_request {
                true => say!("{ready} is loaded by the first request to {}/v1", client.address()),
                false => say!("{ready} is ready at {}/v1", client.address()),
            }
            if let Copies::Count(copies @ 2..) = args.copies {
                tell!(
                    "its file is being copied until {copies} nodes have it: sinew list says where it lies"
                );
            }
        }
    }
    Ok(())
}

/// The request to a node. Paths are made absolute, because the node has another working directory.
pub fn request(model: &str, spec: &InstanceSpec, parallel: Option<usize>) -> InstanceSpec {
    let model = models::for_node(model);
    let mut options = spec.options.clone();
    let whole = |path: std::path::PathBuf| dunce::canonicalize(&path).unwrap_or(path);
    options.draft = options.draft.map(whole);
    let mmproj = spec.mmproj.clone().map(whole);
    InstanceSpec { model, mmproj, sequences_max: parallel, options, ..spec.clone() }
}

/// Places a model and shows the progress of loading and the reasons for its split; returns the name
/// for requests.
pub fn place(
    client: &Client,
    request: &InstanceSpec,
    interrupt: &Interrupt,
) -> Result<String, CliError> {
    models::check_offline(client, &request.model)?;
    let mut bars = ProgressLines::new();
    let mut said = String::new();
    let ready = client.serve(request, |progress| {
        if interrupt.take() {
            let (what, status) = (left(&request.model, progress), interrupt.status());
            return Err(CliError::Left { what, status });
        }
        if let Some(reason) = progress.reason.as_ref().filter(|_| progress.status == "pulling")
            && *reason != said
        {
            said.clone_from(reason);
            bars.clear();
            tell!("{}: {}", request.model, table::tame(reason));
        }
        bars.show(&shown(progress));
        Ok(())
    });
    bars.clear();
    let ready = ready.map_err(models::with_variables)?;
    let instances = client.status()?.instances;
    let placed = instances.into_iter().find(|instance| instance.id == ready.instance);
    // If it is missing, another user has stopped it at this moment.
    let placed = placed.ok_or_else(|| {
        CliError::Refused(format!("{} was stopped before it could be used", request.model))
    })?;
    // The choice, and the next best.
    placed.placement.iter().take(2).for_each(|line| tell!("{line}"));
    placed.notes.iter().for_each(|note| tell!("note: {note}"));
    Ok(placed.model)
}

/// The lines of progress, with done and total bytes: for each node, or for all together.
fn shown(progress: &ServeProgress) -> Vec<(String, u64, u64)> {
    let status = &progress.status;
    if progress.nodes.is_empty() {
        return vec![(status.clone(), progress.done_bytes, progress.total_bytes)];
    }
    let share = |share: &ShareProgress| {
        (format!("{status} on {}", share.node), share.done_bytes, share.total_bytes)
    };
    progress.nodes.iter().map(share).collect()
}

/// The error of a command whose nodes end with it: nothing goes on.
pub fn nothing_goes_on(error: CliError) -> CliError {
    match error {
        CliError::Left { status, .. } => CliError::Left { what: "stopped".to_owned(), status },
        other => other,
    }
}

/// The text about a model whose serving is no longer awaited.
fn left(model: &str, progress: &ServeProgress) -> String {
    if progress.instance.is_empty() {
        return format!(
            "{model} is no longer fetched. What has come is kept: the same command goes on from \
             there"
        );
    }
    format!(
        "{model} goes on loading without this command. `sinew ps` shows how far it is; \
         `sinew stop {}` ends it",
        progress.instance
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_a_line_and_who_leaves_hears_what_goes_on() {
        let told = serde_json::json!({
            "status": "loading", "instance": "i-7", "done_bytes": 3, "total_bytes": 10,
            "nodes": [
                { "node": "a", "done_bytes": 1, "total_bytes": 4 },
                { "node": "b", "done_bytes": 2, "total_bytes": 6 },
            ],
        });
        let mut progress: ServeProgress = serde_json::from_value(told).unwrap();
        let lines = shown(&progress);
        assert_eq!(lines, [("loading on a".to_owned(), 1, 4), ("loading on b".to_owned(), 2, 6)]);
        assert!(left("m", &progress).contains("`sinew stop i-7` ends it"));
        progress.nodes.clear();
        progress.instance.clear();
        assert_eq!(shown(&progress), [("loading".to_owned(), 3, 10)]);
        assert!(left("m", &progress).contains("no longer fetched"));
    }
}
