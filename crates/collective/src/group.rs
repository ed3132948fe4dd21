//! One rank's links to all others, and the shared state of their collectives.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use link::{Link, LinkInfo};

use crate::lane::Lane;
use crate::options::SPIN;
use crate::pipe::Pipe;
use crate::{CollectiveError, Options, Speed, goodbye};

/// One rank of an epoch.
///
/// Consecutive ranks form a *stage*; by default all ranks are one stage. Collectives run among the
/// ranks of a stage, which must all call the same ones in the same order, and count ranks from the
/// stage's first. [`Group::post`] and [`Group::take`] pass messages between stages; they, like all
/// errors, use the epoch's rank numbers.
///
/// After the first error, every call returns that error again. Dropping the group closes its
/// links, which the other ranks see.
pub struct Group {
    /// Within the stage.
    rank: usize,
    /// The epoch's number of the stage's first rank.
    pub(crate) first: usize,
    /// Ranks of the stage.
    ranks: usize,
    /// To the other ranks of the stage, in order; at least to its neighbours.
    pub(crate) lanes: Vec<Lane>,
    /// To the ranks of other stages, in order.
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) abort: Arc<AtomicBool>,
    pub(crate) options: Options,
    pub(crate) spin: Duration,
    /// Room for the parts of an all-reduce; grows to the largest and stays.
    pub(crate) scratch: Vec<f32>,
    /// Room for the quantised values to send and to receive, with [`crate::Wire::Q8`]; it grows to
    /// the largest and stays.
    pub(crate) quantised: [Vec<u8>; 2],
    /// The measured speed of the links.
    pub(crate) speed: Option<Speed>,
    failed: Option<CollectiveError>,
}

/// The traffic of a link: bytes of messages with their headers, without the transport's overhead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// The epoch's number of the other rank.
    pub peer: usize,
    pub sent_bytes: u64,
    pub received_bytes: u64,
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
        Self::in_stage(rank, ranks, 0..ranks, links, abort, options)
    }

    /// Like [`Group::new`], with collectives among the ranks of one `stage` of all `ranks`.
    ///
    /// Not every pair needs a link. Within the stage each rank has a link to all others, or only to
    /// the ranks before and after it (the last and the first are neighbours); then all collectives
    /// go round that ring. Ranks of different stages have a link where one is needed.
    pub fn in_stage(
        rank: usize,
        ranks: usize,
        stage: Range<usize>,
        links: Vec<Box<dyn Link>>,
        abort: Arc<AtomicBool>,
        options: Options,
    ) -> Result<Self, CollectiveError> {
        if !stage.contains(&rank) || stage.end > ranks {
            return Err(CollectiveError::Links { rank, problem: "is outside its own stage" });
        }
        let mut lanes: Vec<Lane> = links.into_iter().map(Lane::new).collect();
        lanes.sort_by_key(|lane| lane.peer);
        let spin = options.spin.unwrap_or_else(|| default_spin(&lanes));
        if let Some(stray) = lanes.iter().find(|lane| lane.peer >= ranks || lane.peer == rank) {
            let problem = "is not one of the group's";
            return Err(CollectiveError::Links { rank: stray.peer, problem });
        }
        if let Some(twice) = lanes.windows(2).find(|pair| pair[0].peer == pair[1].peer) {
            let problem = "has two links";
            return Err(CollectiveError::Links { rank: twice[0].peer, problem });
        }
        let (lanes, others): (Vec<_>, Vec<_>) =
            lanes.into_iter().partition(|lane| stage.contains(&lane.peer));
        check_ring(rank, &stage, &lanes)?;
        Ok(Group {
            rank: rank - stage.start,
            first: stage.start,
            ranks: stage.len(),
            lanes,
            pipes: others.into_iter().map(Pipe::new).collect(),
            abort,
            options,
            spin,
            scratch: Vec::new(),
            quantised: [Vec::new(), Vec::new()],
            speed: None,
            failed: None,
        })
    }

    /// This rank's place in its stage.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks in this stage, this one included.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Whether some pair of ranks may have no link, so that all collectives go round the ring.
    pub(crate) fn is_sparse(&self) -> bool {
        self.lanes.len() + 1 < self.ranks
    }

    /// The properties of each link: those within the stage in order of rank, then those to other
    /// stages.
    pub fn links(&self) -> impl Iterator<Item = LinkInfo> + '_ {
        let pipes = self.pipes.iter().map(|pipe| &pipe.lane);
        self.lanes.iter().chain(pipes).map(|lane| lane.link.info())
    }

    /// The total time that its successful calls have waited for other ranks. Waits of less than a
    /// microsecond are not counted.
    pub fn waited(&self) -> Duration {
        self.waits().map(|(_, waited)| waited).sum()
    }

    /// The same for each linked rank: an exchange with several ranks counts for the one with the
    /// last message.
    pub fn waits(&self) -> impl Iterator<Item = (usize, Duration)> + '_ {
        let pipes = self.pipes.iter().map(|pipe| &pipe.lane);
        self.lanes.iter().chain(pipes).map(|lane| (lane.peer, lane.waited))
    }

    /// The traffic of each link, in the order of [`Group::links`].
    pub fn traffic(&self) -> impl Iterator<Item = Traffic> + '_ {
        let pipes = self.pipes.iter().map(|pipe| &pipe.lane);
        self.lanes.iter().chain(pipes).map(|lane| {
            let Lane { peer, sent_bytes, received_bytes, .. } = *lane;
            Traffic { peer, sent_bytes, received_bytes }
        })
    }

    /// The result of [`Group::measure`].
    pub fn speed(&self) -> Option<Speed> {
        self.speed
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Checks without waiting that all ranks are still there: for a rank that is idle for long.
    /// Costs a system call for each.
    ///
    /// # Errors
    /// A rank is silent or lost.
    pub fn check_ranks(&mut self) -> Result<(), CollectiveError> {
        self.check()?;
        let checked = self.check_links();
        self.keep(checked)
    }

    /// The first error, if there was one.
    pub(crate) fn check(&self) -> Result<(), CollectiveError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Keeps the first error and reports it to the other ranks.
    pub(crate) fn keep<T>(
        &mut self,
        result: Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        result.map_err(|error| {
            let own_standstill = self.own_standstill();
            let pipes = self.pipes.iter_mut().map(|pipe| &mut pipe.lane);
            let mut lanes: Vec<_> = self.lanes.iter_mut().chain(pipes).collect();
            let error = last_said(&mut lanes, error).unless_own_fault(own_standstill);
            let message = goodbye::encode(&error);
            let others = lanes.iter_mut().filter(|lane| Some(lane.peer) != error.rank());
            others.for_each(|lane| lane.say_goodbye(&message));
            self.failed = Some(error.clone());
            error
        })
    }

    /// Index of the lane to `peer` of this stage.
    pub(crate) fn lane(&self, peer: usize) -> Result<usize, CollectiveError> {
        let rank = self.first + peer;
        let at = self.lanes.iter().position(|lane| lane.peer == rank);
        at.ok_or(CollectiveError::Links { rank, problem: "is not a peer" })
    }

    /// Index of the pipe to `rank`.
    pub(crate) fn pipe(&self, rank: usize) -> Result<usize, CollectiveError> {
        let at = self.pipes.iter().position(|pipe| pipe.lane.peer == rank);
        at.ok_or(CollectiveError::Links { rank, problem: "is of the same stage, or of none" })
    }

    /// Checks that every rank is still there.
    pub(crate) fn check_links(&mut self) -> Result<(), CollectiveError> {
        check_silence(&self.lanes, &self.pipes, self.options.silence_max)?;
        let pipes = self.pipes.iter_mut().map(|pipe| &mut pipe.lane);
        self.lanes.iter_mut().chain(pipes).try_for_each(Lane::check)
    }

    /// The length of this rank's own standstill a moment ago, if there was one.
    fn own_standstill(&self) -> Option<Duration> {
        let pipes = self.pipes.iter().map(|pipe| &pipe.lane);
        self.lanes.iter().chain(pipes).find_map(|lane| lane.link.liveness().own_standstill())
    }
}

/// An error if any rank is silent, even one that this rank does not wait for: the others wait for
/// it.
pub(crate) fn check_silence(
    lanes: &[Lane],
    pipes: &[Pipe],
    silence_max: Duration,
) -> Result<(), CollectiveError> {
    let mut lanes = lanes.iter().chain(pipes.iter().map(|pipe| &pipe.lane));
    lanes.try_for_each(|lane| lane.check_silence(silence_max))
}

/// Replaces the loss of a peer by the error in its goodbye, if it sent one.
fn last_said(lanes: &mut [&mut Lane], error: CollectiveError) -> CollectiveError {
    let CollectiveError::Lost { rank, .. } = error else {
        return error;
    };
    let lane = lanes.iter_mut().find(|lane| lane.peer == rank);
    lane.and_then(|lane| lane.find_goodbye()).unwrap_or(error)
}

/// All ranks of a stage must agree on whether sums go round its ring. So each has a link to all
/// others, or to its neighbours and to no other rank.
fn check_ring(rank: usize, stage: &Range<usize>, lanes: &[Lane]) -> Result<(), CollectiveError> {
    let (place, size) = (rank - stage.start, stage.len());
    let near = [(place + 1) % size, (place + size - 1) % size].map(|at| stage.start + at);
    for peer in stage.clone().filter(|peer| *peer != rank) {
        let is_due = lanes.len() + 1 >= size || near.contains(&peer);
        if lanes.iter().any(|lane| lane.peer == peer) != is_due {
            let problem = "has no link, or has one that no ring of its stage goes over";
            return Err(CollectiveError::Links { rank: peer, problem });
        }
    }
    Ok(())
}

/// Spins only where every rank of this machine has a core.
fn default_spin(lanes: &[Lane]) -> Duration {
    let here = 1 + lanes.iter().filter(|lane| lane.link.info().same_host).count();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if here <= cores { SPIN } else { Duration::ZERO }
}
