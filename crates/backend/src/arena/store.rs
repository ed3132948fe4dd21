//! What an arena holds: layers' files, and experts of them in memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kernels::{Matrix, SharedBytes};
use records::{Buffer, Pending, Pool, Slabs};

use super::lru::Lru;
use super::shape::{ExpertShape, MatrixShape};

/// What an arena has done since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ArenaCounts {
    /// Uses of experts that were in memory, and of those that were not.
    pub hits: u64,
    pub misses: u64,
    /// Bytes that were read, and the time in which at least one read was in flight.
    pub read_bytes: u64,
    pub read_time: Duration,
    /// Time in which a step waited for a read with nothing to compute.
    pub wait_time: Duration,
}

/// What an arena has, for one call at a time.
pub(super) struct Inner {
    pub budget_bytes: u64,
    pub layers: Vec<Layer>,
    pub slots: Lru<Slot>,
    pub counts: ArenaCounts,
    pub pool: Pool,
    /// Reused by every call.
    pub wanted: Vec<Wanted>,
}

impl Inner {
    /// Bytes of the memory for an expert of a layer: that of the largest in any layer if it is not
    /// much larger, so that memory goes from one to another.
    pub fn slot_bytes(&self, layer: u32) -> u64 {
        let bytes = |layer: &Layer| layer.slabs.spec().padded_bytes() as u64;
        let (own, all) = (bytes(&self.layers[layer as usize]), self.layers.iter().map(bytes));
        all.filter(|other| *other <= own + own / 4).fold(own, u64::max)
    }
}

/// A layer's file.
pub(super) struct Layer {
    /// The model's number of it.
    pub number: usize,
    pub path: PathBuf,
    pub slabs: Slabs,
    pub shape: ExpertShape,
}

/// The place of an expert in the arena.
pub(super) enum Slot {
    Reading(Pending<std::io::Result<Buffer>>),
    Held(Arc<LoadedExpert>),
}

/// An expert of a call.
pub(super) struct Wanted {
    pub expert: u32,
    pub is_done: bool,
    /// In this call.
    pub was_read: bool,
}

impl Wanted {
    pub fn new(expert: u32) -> Self {
        Self { expert, is_done: false, was_read: false }
    }
}

/// An expert in memory.
pub(crate) struct LoadedExpert {
    pub gate: Option<Matrix>,
    pub up: Matrix,
    pub down: Matrix,
    /// What they lie in.
    bytes: Arc<Buffer>,
}

impl LoadedExpert {
    /// Expert `expert` of a layer of this shape, in a slab.
    ///
    /// # Errors
    /// The slab is shorter than the shape says.
    pub fn open(shape: &ExpertShape, expert: usize, slab: Buffer) -> Result<Self, kernels::Error> {
        let (bytes, (places, _)) = (Arc::new(slab), shape.places());
        let open = |(one, at)| open(one, expert, &bytes, at);
        let mut made = shape.matrices().zip(places).map(open);
        let mut next = || made.next().expect("a slab has two matrices at least");
        let gate = shape.gate.as_ref().map(|_| next()).transpose()?;
        let (up, down) = (next()?, next()?);
        drop(made);
        Ok(Self { gate, up, down, bytes })
    }

    /// The memory, for another expert.
    pub fn into_buffer(self) -> Option<Buffer> {
        let Self { gate, up, down, bytes } = self;
        drop((gate, up, down));
        Arc::into_inner(bytes)
    }
}

fn open(
    shape: &MatrixShape,
    expert: usize,
    bytes: &Arc<Buffer>,
    at: usize,
) -> Result<Matrix, kernels::Error> {
    let shared: SharedBytes = bytes.clone();
    let mut matrix = Matrix::from_packed(shape.ty, shape.rows, shape.cols, shared, at)?;
    if let Some(factor) = shape.factors.as_ref().and_then(|factors| factors.get(expert)) {
        matrix.set_factor(*factor)?;
    }
    Ok(matrix)
}
