//! `sinew bench net`: collectives between real processes, in the rows of nccl-tests.
//!
//! This process is rank 0 and starts the others, each pinned to its own core if there are enough;
//! `--start-with` and `--addresses` put them into other network namespaces or machines. `#wrong`
//! counts wrong elements, on all ranks together.

mod children;
mod measure;
mod table;

use std::net::IpAddr;
use std::time::Duration;

use collective::{Algorithm, CollectiveError, Wire};
use layout::STAGE_RANKS_MAX;
use link::{Encryption, Preference};
use protocol::WireType;

use crate::args::{self, Carrier, NetArgs, Output};
use crate::error::Error;
use crate::json;

use children::Children;
use measure::Meeting;

/// Measures the collectives and passes the figures on, including wrong results.
///
/// # Errors
/// The options are invalid, a rank failed, or elements were wrong.
pub fn run(args: &NetArgs, figures: impl FnOnce(&str)) -> Result<(), Error> {
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
        Output::Md => figures(&table::text(&report)),
        Output::Json => figures(&json(&report)?),
    }
    match report.wrong {
        0 => Ok(()),
        wrong => Err(Error::Failed(format!("{wrong} elements were wrong: do not use this"))),
    }
}

fn check(args: &NetArgs) -> Result<(), Error> {
    let usage = |text: String| Err(Error::Usage(text));
    if !(2..=STAGE_RANKS_MAX).contains(&args.local_nodes) {
        return usage(format!(
            "--local-nodes {}: 2 to {STAGE_RANKS_MAX} are possible",
            args.local_nodes
        ));
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

impl NetArgs {
    fn sizes_bytes(&self) -> impl Iterator<Item = usize> {
        let (factor, max) = (self.step_factor, self.max_bytes);
        std::iter::successors(Some(self.min_bytes), move |bytes| bytes.checked_mul(factor))
            .take_while(move |bytes| *bytes <= max)
    }

    /// The listen addresses of `rank`.
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
            args::Algorithm::Auto => Algorithm::Auto,
            args::Algorithm::OneShot => Algorithm::OneShot,
            args::Algorithm::TwoPhase => Algorithm::TwoPhase,
            args::Algorithm::Ring => Algorithm::Ring,
        }
    }
}

/// Converts the failure of a rank or link to an error for the user.
fn failed(error: CollectiveError) -> Error {
    Error::Failed(format!("the measurement ended early: {error}"))
}
