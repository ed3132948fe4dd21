//! The clap arguments of the measurements. [`ServeArgs`](crate::ServeArgs) are beside their
//! measurement.

use std::net::{AddrParseError, IpAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use protocol::{CacheType, SplitOptions, Strategy, Transport, WireType};

/// Ranks that run as threads of this process.
#[derive(Debug, Clone, Args)]
pub struct LocalArgs {
    /// Ranks to split the model over, all in this process
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub local_nodes: usize,
    #[command(flatten)]
    pub options: SplitOptions,
    /// Delay of every message between ranks, microseconds: a slower wire, to measure with
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub link_latency: u64,
    /// Folder for experts that are not in memory ; each model has its own
    #[arg(long, value_name = "DIR")]
    pub expert_folder: Option<PathBuf>,
    /// A ceiling for the disk that experts are read from, megabytes a second: a slower one
    #[arg(long, value_name = "MB/S")]
    pub disk_limit: Option<u64>,
    /// Link ranks along a ring only, as where not every two machines reach each other
    #[arg(long)]
    pub ring: bool,
    /// Threads of each rank; `bench model` takes several, such as 1,2
    #[arg(short, long, value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
}

/// A model, and the ranks of this process that compute it.
#[derive(Debug, Args)]
pub struct LocalModelArgs {
    #[command(flatten)]
    pub local: LocalArgs,
    /// Path of a .gguf file
    #[arg(id = "model", short = 'm', long = "model", value_name = "MODEL")]
    pub path: PathBuf,
    /// A device of ggml's libraries, as `sinew doctor gpu` names it; cpu is Sinew's own engine
    /// [default: cpu]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
}

impl LocalModelArgs {
    /// The requested device of ggml's libraries, under the user's name for it.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref().filter(|name| !name.eq_ignore_ascii_case("cpu"))
    }
}

#[derive(Debug, Args)]
pub struct ModelArgs {
    #[command(flatten)]
    pub model: LocalModelArgs,
    /// Tokens of the prompt, one test for each number; 0 leaves this test out
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512")]
    pub n_prompt: Vec<usize>,
    /// Tokens to generate, one test for each number; 0 leaves this test out
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128")]
    pub n_gen: Vec<usize>,
    /// Tokens that are in the context before the test; all tests run at each depth
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "0")]
    pub n_depth: Vec<usize>,
    /// Make up the keys and values of that context instead of computing them, on one rank: for
    /// depths that would take hours to reach
    #[arg(long)]
    pub made_up: bool,
    /// Runs of each test, after one that does not count
    #[arg(short, long, default_value_t = 5)]
    pub repetitions: usize,
    /// Read the file once before it is loaded, and say how long that took beside the loading
    #[arg(long)]
    pub read: bool,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Md)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct QualityArgs {
    #[command(flatten)]
    pub model: LocalModelArgs,
    /// The text that the model is to predict, in UTF-8
    #[arg(short, long, value_name = "TEXT")]
    pub file: PathBuf,
    /// Tokens of each chunk of the text: the first half is context, the second half is scored
    #[arg(short, long, value_name = "TOKENS", default_value_t = 512)]
    pub ctx: usize,
    /// Score only the first chunks of the text [default: all, or those of the base]
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// Compare with the probabilities in this file, from --save-base or `benches/quality.py`
    #[arg(long, value_name = "FILE")]
    pub base: Option<PathBuf>,
    /// Write this run's probabilities to a file, for other runs to be compared with
    #[arg(long, value_name = "FILE", conflicts_with = "base")]
    pub save_base: Option<PathBuf>,
    /// Likeliest tokens of each position that --save-base keeps, beside a sample of all others
    #[arg(long, value_name = "N", default_value_t = 256, requires = "save_base")]
    pub top: usize,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Md)]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Md,
    Json,
}

#[derive(Debug, Clone, Args)]
pub struct NetArgs {
    /// Ranks, each a process of this machine
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub local_nodes: usize,
    /// What carries the messages
    #[arg(long, value_enum, default_value_t = Carrier::Auto)]
    pub transport: Carrier,
    /// Addresses of a rank, such as 10.0.0.1,10.0.1.1. The first that answers is used. Given once
    /// for all ranks or once for each
    #[arg(long, value_name = "IP,IP", default_value = "127.0.0.1")]
    pub addresses: Vec<Addresses>,
    /// What to start the other ranks with, such as "ip netns exec right"
    #[arg(long, value_name = "COMMAND")]
    pub start_with: Option<String>,
    /// Delay of every message between ranks, microseconds: a slower wire, to measure with
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub link_latency: u64,
    /// Leave TCP unencrypted, to see what encryption costs
    #[arg(long)]
    pub plain: bool,
    /// How sums travel
    #[arg(long, value_enum, default_value_t = Algorithm::Auto)]
    pub algorithm: Algorithm,
    /// What the sums are on the wire
    #[arg(long, value_enum, default_value_t = WireType::F32)]
    pub wire_type: WireType,
    /// The smallest size, bytes
    #[arg(short = 'b', long, value_name = "BYTES", default_value_t = 1 << 10)]
    pub min_bytes: usize,
    /// The largest size, bytes
    #[arg(short = 'e', long, value_name = "BYTES", default_value_t = 4 << 20)]
    pub max_bytes: usize,
    /// From one size to the next
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 4)]
    pub step_factor: usize,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Md)]
    pub output: Output,
    /// Run as this rank; the measuring process sends its orders on standard input
    #[arg(long, hide = true)]
    pub as_rank: Option<usize>,
}

/// The addresses of one rank.
#[derive(Debug, Clone)]
pub struct Addresses(pub Vec<IpAddr>);

impl FromStr for Addresses {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Addresses)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Carrier {
    Auto,
    Shm,
    Tcp,
    Rdma,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    Auto,
    OneShot,
    TwoPhase,
    Ring,
}

#[derive(Debug, Args)]
pub struct SplitsArgs {
    /// Path of a .gguf file
    #[arg(short, long)]
    pub model: PathBuf,
    /// Ranks to split the model over, of one thread each, all in this process
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub local_nodes: usize,
    /// The splits to compare
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tensor,pipeline")]
    pub strategy: Vec<Strategy>,
    /// The layers of each stage of the pipeline [default: by weight]
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    pub stage_layers: Option<Vec<usize>>,
    /// How keys and values are cached
    #[arg(long, value_enum, default_value_t = CacheType::Auto)]
    pub cache_type: CacheType,
    /// What the sums that ranks exchange are on the wire; stages of one rank exchange none
    #[arg(long, value_enum, default_value_t = WireType::F32)]
    pub wire_type: WireType,
    /// How the ranks exchange activations
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Delays of every message, microseconds
    #[arg(long, value_name = "US", value_delimiter = ',', default_value = "0,3,50,300,1000")]
    pub link_latency: Vec<u64>,
    /// Tokens of the prompt
    #[arg(short = 'p', long, default_value_t = 512)]
    pub n_prompt: usize,
    /// Tokens to generate
    #[arg(short = 'n', long, default_value_t = 32)]
    pub n_gen: usize,
    /// Requests that run together in the last column
    #[arg(long, default_value_t = 4)]
    pub parallel: usize,
    /// Runs of each test, after one that does not count
    #[arg(short, long, default_value_t = 3)]
    pub repetitions: usize,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Md)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct GuessesArgs {
    #[command(flatten)]
    pub local: LocalArgs,
    /// A model that answers questions: a .gguf file, or a folder of safetensors
    #[arg(short, long)]
    pub model: PathBuf,
    /// A file with a question a line
    #[arg(short, long, value_name = "FILE")]
    pub questions: PathBuf,
    /// Tokens of an answer, at most
    #[arg(short = 'n', long, default_value_t = 128)]
    pub n_gen: usize,
    /// Rounds of all questions, after one answer that does not count
    #[arg(short, long, default_value_t = 5)]
    pub repetitions: usize,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = Output::Md)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct SynthArgs {
    /// The model that gives the shape, such as llama-3.2-1b or qwen3-moe
    #[arg(long)]
    pub shape: String,
    /// File type, such as q4_0 or q4_k_m, with the mix of types that llama-quantize writes
    #[arg(long)]
    pub quant: String,
    /// Every matrix has the type's main format, without a mix
    #[arg(long)]
    pub pure: bool,
    /// Write the header alone, a few KB, without weights and tokenizer: for sinew plan --cluster
    #[arg(long)]
    pub header: bool,
    /// The exponent of Zipf's law by which routers prefer some experts; 0: all alike
    #[arg(long, value_name = "EXPONENT", default_value_t = 0.0)]
    pub skew: f64,
    /// Seed of the weights
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Debug, Clone, Copy, Args)]
pub struct BurnInArgs {
    #[arg(long)]
    pub seconds: u64,
    #[arg(long)]
    pub threads: usize,
    #[arg(long)]
    pub memory_bytes: u64,
    #[arg(long)]
    pub flip_bits: bool,
}
