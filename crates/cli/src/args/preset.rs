//! The clap arguments of `sinew preset`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::QueryArgs;

#[derive(Debug, Subcommand)]
pub enum PresetCommand {
    /// Make a preset, or change one: all nodes of the cluster know it
    Create(PresetCreateArgs),
    /// List the presets
    List(QueryArgs),
    /// Print a preset as a Modelfile
    Show(PresetNamedArgs),
    /// Remove a preset; its model stays
    Rm(PresetNamedArgs),
}

#[derive(Debug, Args)]
pub struct PresetCreateArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// Read a Modelfile of Ollama's: its FROM, PARAMETER, SYSTEM and MESSAGE lines
    #[arg(short, long, value_name = "MODELFILE")]
    pub file: Option<PathBuf>,
    /// The model, or another preset, which gives what is not set here
    #[arg(long, value_name = "MODEL", required_unless_present = "file")]
    pub from: Option<String>,
    /// The system prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// A setting, such as temperature=0.2, context=16384, stop=END, think=off or keep_alive=1h;
    /// may be repeated. A wrong name lists all
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// The name that programs use like a model's
    pub name: String,
}

#[derive(Debug, Args)]
pub struct PresetNamedArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// Name from `sinew preset list`
    pub name: String,
}
