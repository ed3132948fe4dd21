//! The clap arguments of `sinew run`.

use std::path::PathBuf;

use clap::Args;
use protocol::InstanceSpec;

use super::DataDir;
use crate::options::{Format, Options, Think, temperature, top_p};

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
    #[command(flatten)]
    pub spec: InstanceSpec,
    /// 0 always takes the likeliest token, 2 is the most [default: as the model's file or preset
    /// says, or 0.8]
    #[arg(long, value_parser = temperature)]
    pub temperature: Option<f32>,
    /// Only the likeliest tokens that have this probability together
    #[arg(long, value_name = "SHARE", value_parser = top_p)]
    pub top_p: Option<f32>,
    /// The same seed gives the same answer
    #[arg(long)]
    pub seed: Option<u64>,
    /// Most tokens of an answer
    #[arg(long, value_name = "TOKENS")]
    pub max_tokens: Option<usize>,
    /// Whether, or how much, a model that can think does so before it answers [default: as the
    /// model does by itself]
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true,
        default_missing_value = "on", conflicts_with = "no_think")]
    pub think: Option<Think>,
    /// Answer without thinking, as --think=off
    #[arg(long)]
    pub no_think: bool,
    /// The shape of the answer: json, or the file of a JSON schema that it is to fit
    #[arg(long, value_name = "FORMAT", value_parser = Format::read)]
    pub format: Option<Format>,
    /// Print the figures of each answer to standard error: tokens, their rate, the first one's time
    #[arg(short, long)]
    pub verbose: bool,
    /// The system prompt: what the model reads before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// A picture for the first question: a PNG, JPEG, WebP or GIF file; may be repeated
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// A name, as for `sinew pull` or from `sinew ps`, a preset, or a .gguf file; downloaded if
    /// missing
    pub model: String,
    /// The question; without one, a chat begins
    pub prompt: Option<String>,
}

impl RunArgs {
    pub fn options(&self) -> Options {
        Options {
            temperature: self.temperature,
            top_p: self.top_p,
            seed: self.seed,
            max_tokens: self.max_tokens,
            think: if self.no_think { Some(Think::Off) } else { self.think },
            format: self.format.clone(),
            verbose: self.verbose,
        }
    }
}
