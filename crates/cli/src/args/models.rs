//! The clap arguments of commands about models by name.

use clap::Args;

use super::QueryArgs;

#[derive(Debug, Args)]
pub struct PullArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// Download nothing: only say whether the model is here [default: as $HF_HUB_OFFLINE says]
    #[arg(long)]
    pub offline: bool,
    /// Look for a newer version of what is here, and download what has changed
    #[arg(long, conflicts_with = "offline")]
    pub update: bool,
    /// A short name (`llama3.2`, `qwen3:8b`), `org/repo`, `org/repo:Q4_K_M`, or an address
    pub model: String,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// List the short names of models that can be downloaded instead
    #[arg(long)]
    pub catalogue: bool,
}

#[derive(Debug, Args)]
pub struct SearchArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Words of the model's name
    #[arg(required = true, value_name = "WORD")]
    pub words: Vec<String>,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// Print the chat template alone
    #[arg(long)]
    pub template: bool,
    /// Name or path
    pub model: String,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// Names from `sinew list`
    #[arg(required_unless_present = "prompts", value_name = "MODEL")]
    pub models: Vec<String>,
    /// Also the prompts that all nodes keep on disk, of every model
    #[arg(long)]
    pub prompts: bool,
}
