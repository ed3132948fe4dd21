//! `sinew dev`: figures for comparison with other engines. All output is JSON.

use std::io::Read;
use std::path::Path;

use bench::local;
use gguf::Source;

use crate::args::{DevGenerateArgs, DevLogitsArgs, DevTokenizeArgs};
use crate::error::{CliError, Doing};
use crate::progress::TERMINAL;

pub fn logits(args: &DevLogitsArgs) -> Result<(), CliError> {
    check_context(&args.model, args.tokens.len())?;
    let mut local = local::start(&args.model, &args.local, args.tokens.len(), &TERMINAL)?;
    let logits = local.feed(&args.tokens)?;
    print_array(logits.iter().map(f32::to_string));
    Ok(())
}

pub fn generate(args: &DevGenerateArgs) -> Result<(), CliError> {
    let DevLogitsArgs { local, model, tokens } = &args.logits;
    let mut local = local::start(model, local, tokens.len() + args.n, &TERMINAL)?;
    let generated = local.generate(tokens, args.n)?;
    print_array(generated.iter().map(u32::to_string));
    Ok(())
}

pub fn tokenize(args: &DevTokenizeArgs) -> Result<(), CliError> {
    let file = checkpoint::open(&args.model)?;
    let tokenizer = text::Tokenizer::from_gguf(file.directory())?;
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input).doing("cannot read the text")?;
    let special = if args.parse_special { text::Special::Parse } else { text::Special::Plain };
    print_array(tokenizer.encode(&input, special, args.add_special).iter().map(u32::to_string));
    Ok(())
}

/// Refuses more tokens than the model's context has, as nodes do.
fn check_context(model: &Path, tokens: usize) -> Result<(), CliError> {
    let file = checkpoint::open(model)?;
    let most = layout::Outline::read(file.directory())?.config.context_max;
    match tokens <= most {
        true => Ok(()),
        false => Err(CliError::Usage(format!(
            "{tokens} tokens were given, and the model's context has {most}. Give at most {most}"
        ))),
    }
}

fn print_array(items: impl Iterator<Item = String>) {
    say!("[{}]", items.collect::<Vec<_>>().join(","));
}
