//! Shell completions and manual pages, generated from the command line's definition.

use std::io::Write;

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::error::{CliError, Doing};

/// Writes completions for a shell.
pub fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "sinew", &mut text);
    std::io::stdout().write_all(&text).doing("cannot write the completions")
}

/// Writes the manual: its first page, or a page for each command.
pub fn man(args: &ManArgs) -> Result<(), CliError> {
    let Some(folder) = &args.folder else {
        let mut text = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut text).doing("cannot make the page")?;
        return std::io::stdout().write_all(&text).doing("cannot write the page");
    };
    std::fs::create_dir_all(folder).doing(format!("cannot make {}", folder.display()))?;
    clap_mangen::generate_to(Cli::command(), folder)
        .doing(format!("cannot write into {}", folder.display()))
}
