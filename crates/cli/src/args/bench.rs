//! The clap arguments of measurements: the options of `bench`, and the place of this machine's
//! libraries.

use clap::{Args, Subcommand};

use super::{BenchClusterArgs, DataDir, GpuLibraries};

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Prefill and decode speed of a model, as llama-bench prints it
    Model(BenchModelArgs),
    /// How well a model predicts a text: perplexity, and the divergence from another run
    Quality(BenchQualityArgs),
    /// Collectives between processes of this machine, as nccl-tests prints them
    Net(bench::NetArgs),
    /// Ways to split a model, at several link latencies, beside what the cost model says
    Splits(bench::SplitsArgs),
    /// What guessed tokens gain in answers to questions
    Guesses(bench::GuessesArgs),
    /// A server under load, ours or any that speaks OpenAI's API, in the terms of vllm bench serve
    Serve(bench::ServeArgs),
    /// A device of ggml's: its memory, its arithmetic, and what a cut between ranks costs
    Device(BenchDeviceArgs),
    /// A burn-in: all nodes' memory, cores and links loaded for a stated time, and checked
    Cluster(BenchClusterArgs),
}

#[derive(Debug, Args)]
pub struct BenchDeviceArgs {
    #[command(flatten)]
    pub data_dir: DataDir,
    #[command(flatten)]
    pub libraries: GpuLibraries,
    /// As `sinew doctor gpu` names it; ggml-cpu is the libraries' own engine
    #[arg(long, value_name = "NAME")]
    pub device: String,
    /// Threads of this machine, for a device that computes with them [default: all]
    #[arg(short, long, value_name = "N")]
    pub threads: Option<usize>,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = bench::Output::Md)]
    pub output: bench::Output,
}

#[derive(Debug, Args)]
pub struct BenchModelArgs {
    #[command(flatten)]
    pub bench: bench::ModelArgs,
    #[command(flatten)]
    pub libraries: GpuLibraries,
    #[command(flatten)]
    pub data_dir: DataDir,
}

#[derive(Debug, Args)]
pub struct BenchQualityArgs {
    #[command(flatten)]
    pub bench: bench::QualityArgs,
    #[command(flatten)]
    pub libraries: GpuLibraries,
    #[command(flatten)]
    pub data_dir: DataDir,
}
