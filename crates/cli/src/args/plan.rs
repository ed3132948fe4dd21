//! The clap arguments of `sinew plan`.

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
    /// Plan for each of these numbers of nodes, such as 1..64 or 2,4,8, and run each plan in
    /// simulated time: what more machines like the last of the file would do
    #[arg(long, value_name = "COUNTS", value_parser = counts, requires = "cluster")]
    pub scale: Option<Counts>,
    /// With --scale: how much the time of each piece of work and of each message varies, in per
    /// cent of its average
    #[arg(long, value_name = "PERCENT", default_value_t = 10, requires = "scale")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub jitter: u8,
    /// Path of a .gguf file, or a name from `sinew list`; with --cluster also a shape,
    /// perhaps with a type: llama3.3:70b, qwen3:235b-a22b:q8_0
    pub model: String,
}

/// Numbers of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts(pub Vec<usize>);

fn counts(text: &str) -> Result<Counts, String> {
    let number = |text: &str| match text.trim().parse() {
        Ok(count) if (1..=layout::RANKS_MAX).contains(&count) => Ok(count),
        _ => Err(format!("{text:?} is no number of nodes from 1 to {}", layout::RANKS_MAX)),
    };
    let counts = match text.split_once("..") {
        Some((first, last)) => (number(first)?..=number(last)?).collect(),
        None => text.split(',').map(number).collect::<Result<Vec<_>, _>>()?,
    };
    if counts.is_empty() {
        return Err("the first number is above the last".to_owned());
    }
    Ok(Counts(counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_a_range_or_a_list() {
        assert_eq!(counts("1..4"), Ok(Counts(vec![1, 2, 3, 4])));
        assert_eq!(counts("2,4, 64"), Ok(Counts(vec![2, 4, 64])));
        for wrong in ["", "0", "65", "4..2", "1..", "a", "1,,2", "-1"] {
            assert!(counts(wrong).is_err(), "{wrong:?}");
        }
    }
}
