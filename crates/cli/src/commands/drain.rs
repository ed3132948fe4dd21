//! `sinew drain` and `sinew undrain`: empties a node, and ends that state again.

use crate::args::DrainArgs;
use crate::client::{Client, DrainProgress};
use crate::commands::query::print_json_line;
use crate::data_dir::DataDir;
use crate::error::CliError;

pub fn drain(args: &DrainArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    let mut told = String::new();
    let drained = client.drain(&args.node, |progress| {
        if args.query.json {
            return print_json_line(progress);
        }
        let words = words(progress);
        if words != told {
            say!("{words}");
            told = words;
        }
    })?;
    if !args.query.json {
        let node = drained.node;
        say!("{node} is empty and can be switched off; to use it again: sinew undrain {node}");
    }
    Ok(())
}

pub fn undrain(args: &DrainArgs) -> Result<(), CliError> {
    let client = Client::find(&DataDir::find(&args.query.data_dir)?)?;
    client.undrain(&args.node)?;
    if args.query.json {
        print_json_line(&serde_json::json!({ "undrained": args.node }));
    } else {
        say!("{} has work again as soon as that pays", args.node);
    }
    Ok(())
}

/// The models that are still on a node, with their targets.
fn words(progress: &DrainProgress) -> String {
    let left = progress.left.iter().map(|left| match left.notes.as_slice() {
        [] => left.model.clone(),
        notes => format!("{} ({})", left.model, notes.join("; ")),
    });
    match left.collect::<Vec<_>>().join(", ") {
        left if left.is_empty() => format!("{}: its last workers end", progress.node),
        left => format!("{} still has {left}", progress.node),
    }
}
