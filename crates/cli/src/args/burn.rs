//! The clap arguments of burn-ins.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{QueryArgs, values};

#[derive(Debug, Args)]
pub struct BenchClusterArgs {
    #[command(flatten)]
    pub query: QueryArgs,
    /// How long, such as 60s, 10m or 12h
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub time: Duration,
    /// Memory that each node fills [default: half of what models may still have there]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub memory: Option<u64>,
    /// Also while a model is served, whose answers become slow
    #[arg(long)]
    pub while_serving: bool,
    /// Turn over one bit in each node's memory and one on each link, to see that it is found
    #[arg(long)]
    pub flip_bits: bool,
}

#[derive(Debug, Args)]
pub struct WorkerArgs {
    #[command(subcommand)]
    pub command: Option<WorkerCommand>,
}

#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// Load this machine, until the time or the input ends
    BurnIn(bench::BurnInArgs),
}

/// Parses the duration of a burn-in.
fn duration(text: &str) -> Result<Duration, String> {
    let secs = protocol::seconds(text).map(|secs| secs.ceil() as u64);
    secs.filter(|secs| cluster::BURN_SECS.contains(secs)).map(Duration::from_secs).ok_or_else(
        || {
            let (low, high) = cluster::BURN_SECS.into_inner();
            format!("expected {low}s to {}h, such as 60s, 10m or 12h", high / 3600)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        for (text, secs) in [
            ("60s", Some(60)),
            ("5", Some(5)),
            ("10m", Some(600)),
            ("72h", Some(259_200)),
            ("0s", None),
            ("73h", None),
            ("1d", None),
            ("", None),
            ("-1s", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(duration(text).ok().map(|time| time.as_secs()), secs, "{text:?}");
        }
    }
}
