//! The arena as models and reports see it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use records::{Pool, Slabs};

use super::call::Call;
use super::error::ArenaError;
use super::lru::Lru;
use super::shape::ExpertShape;
use super::store::{ArenaCounts, Inner, Layer};

/// A rank's experts below memory.
pub struct Arena {
    inner: Mutex<Inner>,
}

/// A layer's experts in an arena.
pub struct StreamedLayer {
    arena: Arc<Arena>,
    layer: u32,
    /// This rank's routed experts.
    pub(crate) count: usize,
    /// This rank's hidden elements of each of them.
    pub(crate) hidden: usize,
}

impl Arena {
    /// # Errors
    /// The system starts no threads.
    pub fn new(budget_bytes: u64) -> std::io::Result<Self> {
        let inner = Inner {
            budget_bytes,
            layers: Vec::new(),
            slots: Lru::default(),
            counts: ArenaCounts::default(),
            pool: Pool::new()?,
            wanted: Vec::new(),
        };
        Ok(Self { inner: Mutex::new(inner) })
    }

    /// Adds a layer, the model's `number`-th: the file at `path`, with a slab of this shape for
    /// each expert.
    ///
    /// # Errors
    /// The budget is smaller than one expert.
    pub fn add(
        self: &Arc<Self>,
        number: usize,
        path: PathBuf,
        slabs: Slabs,
        shape: ExpertShape,
    ) -> Result<StreamedLayer, ArenaError> {
        let mut inner = self.inner();
        let (spec, hidden) = (*slabs.spec(), shape.down.cols);
        let least_bytes = spec.padded_bytes() as u64;
        if least_bytes > inner.budget_bytes {
            let budget_bytes = inner.budget_bytes;
            return Err(ArenaError::Budget { budget_bytes, least_bytes });
        }
        inner.layers.push(Layer { number, path, slabs, shape });
        let layer = inner.layers.len() as u32 - 1;
        let count = spec.count as usize;
        Ok(StreamedLayer { arena: self.clone(), layer, count, hidden })
    }

    pub fn counts(&self) -> ArenaCounts {
        let inner = self.inner();
        let read = inner.pool.counts();
        ArenaCounts { read_bytes: read.bytes, read_time: read.busy, ..inner.counts }
    }

    /// Bytes of the experts in memory, and what they may become.
    pub fn bytes(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.slots.bytes(), inner.budget_bytes)
    }

    /// Sets a ceiling of bytes per second for the disk; `None` takes it away.
    pub fn limit(&self, bytes_per_sec: Option<u64>) {
        self.inner().pool.limit(bytes_per_sec);
    }

    /// The bytes per second at which the disk gives slabs, from at most `bytes_max` of a layer.
    pub fn measure(&self, bytes_max: u64) -> Option<f64> {
        let inner = self.inner();
        let layer = inner.layers.iter().max_by_key(|layer| layer.slabs.spec().file_bytes())?;
        inner.pool.measure(layer.slabs.file(), bytes_max).ok()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamedLayer {
    /// Begins a call for these experts, in the order of their numbers.
    pub(crate) fn begin(&self, experts: impl Iterator<Item = usize>) -> Call<'_> {
        Call::begin(self.arena.inner(), self.layer, experts)
    }
}
