//! `sinew plan`, as clap reads it.

use std::path::PathBuf;

use clap::Args;
use protocol::InstanceSpec;

use super::QueryArgs;

#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    #[command(flatten)]
    pub spec: InstanceSpec,
    /// Requests that may run at once [default: 16]
    #[arg(long, value_name = "N")]
    pub parallel: Option<usize>,
    /// Plan for the machines that this file describes, instead of the cluster that runs; see
    /// examples/clusters
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// Path of a .gguf file, or a name from `sinew list`; with --cluster also a shape and a type,
    /// such as qwen3-235b:q8_0
    pub model: String,
}
