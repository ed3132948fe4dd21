//! One rank's links to all others, and what their collectives share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use link::{Link, LinkInfo};

use crate::exchange::{Lane, Patience, Payload, exchange};
use crate::farewell;
use crate::wire::Op;
use crate::{CollectiveError, Options};

/// How long to poll hard when every rank here has a core: two all-reduces over loopback TCP. Longer
/// buys little, because giving up a core that nobody else wants costs half a microsecond; and where
/// two ranks are made to share one after all, each all-reduce takes as long as this.
const SPIN: Duration = Duration::from_micros(20);

/// One rank of an epoch. Every rank must call the same collectives in the same order.
///
/// After the first error, every call returns that error again. Dropping the group closes its
/// links, which the other ranks see.
pub struct Group {
    rank: usize,
    lanes: Vec<Lane>,
    abort: Arc<AtomicBool>,
    options: Options,
    spin: Duration,
    /// Room for the parts of an all-reduce; grows to the largest and stays.
    pub(crate) scratch: Vec<f32>,
    failed: Option<CollectiveError>,
}

impl Group {
    /// `links`: one to each rank but `rank`, as [`link::connect_mesh`] returns them; none for a
    /// group of one. Raising `abort` ends every wait.
    pub fn new(
        rank: usize,
        links: Vec<Box<dyn Link>>,
        abort: Arc<AtomicBool>,
        options: Options,
    ) -> Result<Self, CollectiveError> {
        let ranks = links.len() + 1;
        let mut lanes: Vec<Lane> = links.into_iter().map(Lane::new).collect();
        lanes.sort_by_key(|lane| lane.peer);
        let peers = (0..ranks).filter(|&peer| peer != rank);
        for (peer, lane) in peers.zip(&lanes) {
            if lane.peer != peer {
                let problem = "has no link, or two";
                return Err(CollectiveError::Links { rank: peer, problem });
            }
        }
        if rank >= ranks {
            return Err(CollectiveError::Links { rank, problem: "is not one of the group's" });
        }
        let spin = options.spin.unwrap_or_else(|| default_spin(&lanes));
        Ok(Group { rank, lanes, abort, options, spin, scratch: Vec::new(), failed: None })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks, this one included.
    pub fn ranks(&self) -> usize {
        self.lanes.len() + 1
    }

    /// What each link is, in order of rank.
    pub fn links(&self) -> impl Iterator<Item = LinkInfo> + '_ {
        self.lanes.iter().map(|lane| lane.link.info())
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Runs one collective on all links.
    pub(crate) fn exchange(
        &mut self,
        op: Op,
        payload: &mut impl Payload,
    ) -> Result<(), CollectiveError> {
        self.check()?;
        let patience =
            Patience { abort: &self.abort, spin: self.spin, deadline: self.options.deadline };
        let done = exchange(&mut self.lanes, &patience, op, payload);
        self.keep(done)
    }

    /// The first error, if there was one.
    pub(crate) fn check(&self) -> Result<(), CollectiveError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Keeps the first error and tells the other ranks about it.
    pub(crate) fn keep<T>(
        &mut self,
        result: Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        result.map_err(|error| {
            let error = farewell::last_words(&mut self.lanes, error);
            farewell::say(&mut self.lanes, &error);
            self.failed = Some(error.clone());
            error
        })
    }

    /// The lane to `peer`, with what a wait on it needs.
    pub(crate) fn lane(
        &mut self,
        peer: usize,
    ) -> Result<(&mut [Lane], usize, &AtomicBool, Duration), CollectiveError> {
        let at = self.lanes.iter().position(|lane| lane.peer == peer);
        let at = at.ok_or(CollectiveError::Links { rank: peer, problem: "is not a peer" })?;
        Ok((&mut self.lanes, at, &self.abort, self.spin))
    }
}

/// Spins only where every rank of this machine has a core.
fn default_spin(lanes: &[Lane]) -> Duration {
    let here = 1 + lanes.iter().filter(|lane| lane.link.info().same_host).count();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if here <= cores { SPIN } else { Duration::ZERO }
}
