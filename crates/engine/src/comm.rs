use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use collective::{Group, Options, ReducePlan, SPIN, Wire};
use layout::Leaves;
use link::{Encryption, HostId, Listener, MeshConfig, Met, Preference, Secret, connect_mesh};
use model::{Product, Reduce};
use protocol::{RankCall, SplitOptions, Transport, WireType};

use crate::EngineError;

/// One rank's links in one epoch, with the reductions of its model.
pub(crate) struct Comm {
    pub(crate) group: Group,
    attention: ReducePlan,
    recurrence: ReducePlan,
    feed_forward: ReducePlan,
    notes: Vec<String>,
    /// Scratch for two sums that are reduced together.
    joined: Vec<f32>,
}

/// The parameters of an epoch's links.
#[derive(Debug, Clone)]
pub(crate) struct Meeting {
    pub instance: String,
    pub epoch: u64,
    pub rank: usize,
    /// The ranks of this rank's stage.
    pub stage: Range<usize>,
    /// The addresses of each rank; the first that answers is used.
    pub endpoints: Vec<Vec<SocketAddr>>,
    /// The largest TCP segment towards an address, if it is limited.
    pub segments: Vec<(IpAddr, u16)>,
    /// The ranks to link with in a ring ([`protocol::ring_peers`]), if some pairs cannot link;
    /// `None` for all.
    pub peers: Option<Vec<usize>>,
    pub secret: [u8; 32],
    pub options: SplitOptions,
    pub latency: Duration,
    /// Whether each thread of this rank is pinned to its own CPU.
    pub is_pinned: bool,
    /// The longest message: the largest step.
    pub message_bytes_max: usize,
    /// The time for the ranks to find each other.
    pub deadline: Duration,
}

impl Comm {
    /// Links this rank with the others. Raising `abort` ends the wait, and later every wait in the
    /// epoch.
    ///
    /// # Errors
    /// A rank does not come, or its terms differ.
    pub fn connect(
        meeting: &Meeting,
        listener: &Listener,
        leaves: impl Fn(Product) -> Leaves,
        abort: Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        let config = MeshConfig {
            rank: meeting.rank,
            addrs: meeting.endpoints.clone(),
            segments: meeting.segments.clone(),
            peers: meeting.peers.clone(),
            instance: RankCall::new(&meeting.instance, meeting.rank).instance,
            epoch: meeting.epoch,
            secret: Secret::new(meeting.secret),
            preference: match meeting.options.transport {
                Transport::Auto => Preference::Auto,
                Transport::Shm => Preference::Shm,
                Transport::Tcp => Preference::Tcp,
                Transport::Rdma => Preference::Rdma,
            },
            encryption: Encryption::Sealed,
            host: HostId::current(),
            latency: meeting.latency,
            deadline: meeting.deadline,
        };
        let Met { links, notes } = match meeting.endpoints.len() {
            1 => Met::default(),
            _ => connect_mesh(listener, &config, &abort)?,
        };
        let bytes_max = meeting.message_bytes_max;
        let wire = match meeting.options.wire_type {
            WireType::F32 => Wire::F32,
            WireType::Q8 => Wire::Q8,
        };
        let spin = meeting.is_pinned.then_some(SPIN);
        let options = Options { bytes_max, wire, spin, ..Options::default() };
        let (rank, stage) = (meeting.rank, meeting.stage.clone());
        let ranks = meeting.endpoints.len();
        let mut group = Group::in_stage(rank, ranks, stage, links, abort, options)?;
        // Long sums then use the fastest algorithm on these links.
        group.measure()?;
        let plan = |product| {
            let leaves = leaves(product);
            ReducePlan::new(leaves.count(), leaves.spans())
        };
        let (attention, feed_forward) = (plan(Product::Attention)?, plan(Product::FeedForward)?);
        let recurrence = plan(Product::Recurrence)?;
        Ok(Self { group, attention, recurrence, feed_forward, notes, joined: Vec::new() })
    }

    /// Addresses of the other ranks that do not answer, as notes for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Reduce for Comm {
    type Error = EngineError;

    fn has_others(&self) -> bool {
        self.group.ranks() > 1
    }

    fn all_reduce(
        &mut self,
        product: Product,
        rows: usize,
        sums: &[f32],
        total: &mut [f32],
    ) -> Result<(), EngineError> {
        let plan = match product {
            Product::Attention => &self.attention,
            Product::Recurrence => &self.recurrence,
            // A norm scales the whole row by them.
            Product::Squares => {
                return Ok(self.group.all_reduce_exact(&self.recurrence, sums, total)?);
            }
            Product::FeedForward => &self.feed_forward,
        };
        Ok(self.group.all_reduce(plan, rows, sums, total)?)
    }

    fn all_reduce_both(
        &mut self,
        product: Product,
        rows: usize,
        sums: [&[f32]; 2],
        totals: &mut [f32],
    ) -> Result<(), EngineError> {
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        // Part by part, in the layout of one product with twice the rows.
        let [one, other] = sums.map(|sums| sums.chunks_exact((totals.len() / 2).max(1)));
        for (one, other) in one.zip(other) {
            joined.extend_from_slice(one);
            joined.extend_from_slice(other);
        }
        let done = self.all_reduce(product, 2 * rows, &joined, totals);
        self.joined = joined;
        done
    }
}

/// For a model on a single rank: the partial sums are the totals.
pub(crate) struct Alone;

impl Reduce for Alone {
    type Error = EngineError;

    fn has_others(&self) -> bool {
        false
    }

    fn all_reduce(
        &mut self,
        _: Product,
        _: usize,
        _: &[f32],
        _: &mut [f32],
    ) -> Result<(), EngineError> {
        Err(EngineError::Protocol("there are no other ranks".to_owned()))
    }

    fn all_reduce_both(
        &mut self,
        product: Product,
        rows: usize,
        sums: [&[f32]; 2],
        totals: &mut [f32],
    ) -> Result<(), EngineError> {
        self.all_reduce(product, rows, sums[0], totals)
    }
}
