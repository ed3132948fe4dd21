//! The arena as models and reports see it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use records::Pool;

use super::call::Call;
use super::error::ArenaError;
use super::hot;
use super::lru::Lru;
use super::shape::ExpertShape;
use super::source::SlabSource;
use super::store::{ArenaCounts, Inner, Layer};

/// The most time that a start spends on experts of the last run.
const WARM_MAX: Duration = Duration::from_secs(20);

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
            ahead_bytes: 0,
            hot: None,
        };
        Ok(Self { inner: Mutex::new(inner) })
    }

    /// Adds a layer, the model's `number`-th, with a slab of this shape for each expert.
    ///
    /// # Errors
    /// The budget is smaller than one expert.
    pub fn add(
        self: &Arc<Self>,
        number: usize,
        source: SlabSource,
        shape: ExpertShape,
    ) -> Result<StreamedLayer, ArenaError> {
        let mut inner = self.inner();
        let (count, hidden, least_bytes) = (source.count(), shape.down.cols, source.padded_bytes());
        if least_bytes > inner.budget_bytes {
            let budget_bytes = inner.budget_bytes;
            return Err(ArenaError::Budget { budget_bytes, least_bytes });
        }
        inner.layers.push(Layer { number, source, shape });
        let layer = inner.layers.len() as u32 - 1;
        Ok(StreamedLayer { arena: self.clone(), layer, count, hidden })
    }

    /// Reads the experts that were used last before the previous end, from the list at `path`, for
    /// 20 s at most; from now on keeps that list.
    pub fn warm(&self, path: PathBuf) {
        let mut inner = self.inner();
        let mut bytes = 0;
        let mut hottest = Vec::new();
        for (number, expert) in hot::read(&path) {
            let is_it = |layer: &Layer| layer.number == number;
            let Some(layer) = inner.layers.iter().position(is_it) else { continue };
            bytes += inner.slot_bytes(layer as u32);
            if bytes > inner.budget_bytes {
                break;
            }
            if (expert as usize) < inner.layers[layer].source.count() {
                hottest.push((layer as u32, expert));
            }
        }
        hottest.iter().for_each(|key| inner.read(*key, None));
        inner.hold_all(Instant::now() + WARM_MAX);
        hottest.iter().rev().for_each(|key| inner.slots.touch(*key));
        inner.hot = Some((path, Instant::now()));
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

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamedLayer {
    /// Begins to read experts that a later call of this step wants.
    pub(crate) fn prefetch(&self, experts: impl Iterator<Item = usize>) {
        self.arena.inner().prefetch(self.layer, experts.filter(|expert| *expert < self.count));
    }

    /// Begins a call for these experts, in the order of their numbers.
    pub(crate) fn begin(&self, experts: impl Iterator<Item = usize>) -> Call<'_> {
        Call::begin(self.arena.inner(), self.layer, experts)
    }
}
