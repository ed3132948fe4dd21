//! `sinew dev`: what developers compare with other engines. All output is JSON.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::{Local, LocalOptions};
use gguf::{File, Source};

use crate::args::{DevGenerateArgs, DevLogitsArgs, DevTokenizeArgs, LocalArgs};
use crate::error::{CliError, Doing};

pub fn logits(args: &DevLogitsArgs) -> Result<(), CliError> {
    let mut local = start(&args.model, &args.local, args.tokens.len())?;
    let logits = local.feed(&args.tokens)?;
    print_array(logits.iter().map(f32::to_string));
    Ok(())
}

pub fn generate(args: &DevGenerateArgs) -> Result<(), CliError> {
    let DevLogitsArgs { local, model, tokens } = &args.logits;
    let mut local = start(model, local, tokens.len() + args.n)?;
    let generated = local.generate(tokens, args.n)?;
    print_array(generated.iter().map(u32::to_string));
    Ok(())
}

pub fn tokenize(args: &DevTokenizeArgs) -> Result<(), CliError> {
    let file = File::open(&args.model)?;
    let tokenizer = text::Tokenizer::from_gguf(file.directory())?;
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).doing("cannot read the text")?;
    let special = if args.parse_special { text::Special::Parse } else { text::Special::Plain };
    print_array(tokenizer.encode(&input, special, args.add_special).iter().map(u32::to_string));
    Ok(())
}

/// Loads a model on ranks that are threads of this process.
pub fn start(model: &Path, args: &LocalArgs, context: usize) -> Result<Local, CliError> {
    let source: Arc<dyn Source> = Arc::new(File::open(model)?);
    let shares = args.split.clone().unwrap_or_else(|| vec![1; args.local_nodes]);
    if args.split.is_some() && args.local_nodes > 1 && args.local_nodes != shares.len() {
        let (split, nodes) = (shares.len(), args.local_nodes);
        let text = format!("--split gives {split} shares for {nodes} nodes: give as many");
        return Err(CliError::Usage(text));
    }
    let options = LocalOptions {
        shares,
        transport: args.transport.into(),
        link_latency: Duration::from_micros(args.link_latency),
        threads: args.threads,
        context_tokens: context,
    };
    Ok(Local::start(source, &options)?)
}

fn print_array(items: impl Iterator<Item = String>) {
    say!("[{}]", items.collect::<Vec<_>>().join(","));
}
