//! `sinew bench net`: collectives between real processes, in the rows that nccl-tests prints.
//!
//! This process is rank 0 and starts the others, each pinned to a core of its own where there are
//! enough; `--start-with` and `--addresses` put them into other network namespaces or machines.
//! `#wrong` counts elements that are not what they should be, on all ranks together.

mod children;
mod measure;
mod table;

use std::net::{AddrParseError, IpAddr};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use collective::{Algorithm, CollectiveError, Wire};
use link::{Encryption, Preference};

use protocol::WireType;

use crate::args::BenchOutput;
use crate::commands::query;
use crate::error::CliError;

use children::Children;
use measure::Meeting;

/// The most ranks: the leaves of a sum, of which each needs one.
const RANKS_MAX: usize = 16;

#[derive(Debug, Clone, Args)]
pub struct BenchNetArgs {
    /// Ranks, each a process of this machine
    #[arg(long, value_name = "N", default_value_t = 2)]
    local_nodes: usize,
    /// What carries the messages
    #[arg(long, value_enum, default_value_t = Carrier::Auto)]
    transport: Carrier,
    /// Addresses of a rank, such as 10.0.0.1,10.0.1.1, of which the first that answers is used:
    /// given once for all or once for each
    #[arg(long, value_name = "IP,IP", default_value = "127.0.0.1")]
    addresses: Vec<Addresses>,
    /// What to start the other ranks with, such as "ip netns exec right"
    #[arg(long, value_name = "COMMAND")]
    start_with: Option<String>,
    /// Delay of every message between ranks, microseconds: a slower wire, to measure with
    #[arg(long, value_name = "US", default_value_t = 0)]
    link_latency: u64,
    /// Leave TCP unencrypted, to see what encryption costs
    #[arg(long)]
    plain: bool,
    /// How sums travel
    #[arg(long, value_enum, default_value_t = Way::Auto)]
    algorithm: Way,
    /// What the sums are on the wire
    #[arg(long, value_enum, default_value_t = WireType::F32)]
    wire_type: WireType,
    /// The smallest size, bytes
    #[arg(short = 'b', long, value_name = "BYTES", default_value_t = 1 << 10)]
    min_bytes: usize,
    /// The largest size, bytes
    #[arg(short = 'e', long, value_name = "BYTES", default_value_t = 4 << 20)]
    max_bytes: usize,
    /// From one size to the next
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 4)]
    step_factor: usize,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = BenchOutput::Md)]
    output: BenchOutput,
    /// Be this rank, as the process that measures tells on standard input
    #[arg(long, hide = true)]
    as_rank: Option<usize>,
}

/// The addresses of one rank.
#[derive(Debug, Clone)]
struct Addresses(Vec<IpAddr>);

impl FromStr for Addresses {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Addresses)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Carrier {
    Auto,
    Shm,
    Tcp,
    Rdma,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    Auto,
    OneShot,
    TwoPhase,
    Ring,
}

pub fn run(args: &BenchNetArgs) -> Result<(), CliError> {
    check(args)?;
    if let Some(rank) = args.as_rank {
        let (listener, meeting) = children::meet(rank, args.addresses_of(rank))?;
        return measure::run(args, &listener, &meeting).map(|_| ());
    }
    let (mut children, listener, meeting) = Children::start(args)?;
    let measured = measure::run(args, &listener, &meeting);
    let report = measured.inspect_err(|_| children.end())?;
    children.wait()?;
    match args.output {
        BenchOutput::Md => table::print(&report),
        BenchOutput::Json => query::print_json(&report)?,
    }
    match report.wrong {
        0 => Ok(()),
        wrong => Err(CliError::Refused(format!("{wrong} elements were wrong: do not use this"))),
    }
}

fn check(args: &BenchNetArgs) -> Result<(), CliError> {
    let usage = |text: String| Err(CliError::Usage(text));
    if !(2..=RANKS_MAX).contains(&args.local_nodes) {
        return usage(format!("--local-nodes {}: 2 to {RANKS_MAX} are possible", args.local_nodes));
    }
    let given = args.addresses.len();
    if ![1, args.local_nodes].contains(&given) {
        let ranks = args.local_nodes;
        return usage(format!("--addresses was given {given} times: 1 or {ranks} are possible"));
    }
    if args.step_factor < 2 || args.min_bytes < 4 || args.max_bytes < args.min_bytes {
        return usage("sizes go from -b (at least 4) to -e in steps of -f (at least 2)".to_owned());
    }
    Ok(())
}

impl BenchNetArgs {
    fn sizes_bytes(&self) -> impl Iterator<Item = usize> {
        let (factor, max) = (self.step_factor, self.max_bytes);
        std::iter::successors(Some(self.min_bytes), move |bytes| bytes.checked_mul(factor))
            .take_while(move |bytes| *bytes <= max)
    }

    /// Where `rank` listens.
    fn addresses_of(&self, rank: usize) -> &[IpAddr] {
        &self.addresses[rank % self.addresses.len()].0
    }

    fn preference(&self) -> Preference {
        match self.transport {
            Carrier::Auto => Preference::Auto,
            Carrier::Shm => Preference::Shm,
            Carrier::Tcp => Preference::Tcp,
            Carrier::Rdma => Preference::Rdma,
        }
    }

    fn encryption(&self) -> Encryption {
        if self.plain { Encryption::Plain } else { Encryption::Sealed }
    }

    fn latency(&self) -> Duration {
        Duration::from_micros(self.link_latency)
    }

    fn wire(&self) -> Wire {
        match self.wire_type {
            WireType::F32 => Wire::F32,
            WireType::Q8 => Wire::Q8,
        }
    }

    fn algorithm(&self) -> Algorithm {
        match self.algorithm {
            Way::Auto => Algorithm::Auto,
            Way::OneShot => Algorithm::OneShot,
            Way::TwoPhase => Algorithm::TwoPhase,
            Way::Ring => Algorithm::Ring,
        }
    }
}

/// What a failing rank or link is to whoever asked for figures.
fn failed(error: CollectiveError) -> CliError {
    CliError::Refused(format!("the measurement ended early: {error}"))
}
