//! What an arena holds: layers' files, and experts of them in memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::{Matrix, SharedBytes};
use records::{Buffer, Pending, Pool};

use super::hot::{self, Use};
use super::lru::{Key, Lru};
use super::shape::{ExpertShape, MatrixShape};
use super::source::SlabSource;

/// How often the experts in memory are listed for the next start.
const HOT_EVERY: Duration = Duration::from_secs(30);

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
    /// Bytes that were asked for in advance since the last call began.
    pub ahead_bytes: u64,
    /// Where the experts that were used last are listed, and when that was done.
    pub hot: Option<(PathBuf, Instant)>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some((path, _)) = self.hot.take() {
            hot::write(&path, self.uses(), true);
        }
    }
}

impl Inner {
    /// Bytes of the memory for an expert of a layer: that of the largest in any layer if it is not
    /// much larger, so that memory goes from one to another.
    pub fn slot_bytes(&self, layer: u32) -> u64 {
        let bytes = |layer: &Layer| layer.source.padded_bytes();
        let (own, all) = (bytes(&self.layers[layer as usize]), self.layers.iter().map(bytes));
        all.filter(|other| *other <= own + own / 4).fold(own, u64::max)
    }

    /// Begins to read an expert, into `buffer` if there is one.
    pub fn read(&mut self, key: Key, buffer: Option<Buffer>) {
        let bytes = self.slot_bytes(key.0);
        let into = Some(buffer.unwrap_or_else(|| Buffer::zeroed(bytes as usize)));
        let pending = self.layers[key.0 as usize].source.read(&self.pool, key.1, into);
        self.slots.insert(key, Slot::Reading(pending), bytes);
    }

    /// Takes an expert out of memory. Its buffer comes back if it has `bytes`.
    pub fn evict(&mut self, key: Key, bytes: u64) -> Option<Buffer> {
        let Some(Slot::Held(expert)) = self.slots.remove(key) else { return None };
        let own = Arc::into_inner(expert).and_then(LoadedExpert::into_buffer);
        own.map(Buffer::whole).filter(|own| own.len() as u64 == bytes)
    }

    /// Begins to read experts that a later call of this step wants, into half of the arena at most.
    pub fn prefetch(&mut self, layer: u32, experts: impl Iterator<Item = usize>) {
        let bytes = self.slot_bytes(layer);
        for expert in experts {
            let key = (layer, expert as u32);
            if self.slots.contains(key) {
                self.slots.touch(key);
                continue;
            }
            self.ahead_bytes += bytes;
            if self.ahead_bytes > self.budget_bytes / 2 {
                return;
            }
            let mut buffer = None;
            while self.slots.bytes() + bytes > self.budget_bytes {
                let is_held = |(_, slot): &(Key, &Slot)| matches!(slot, Slot::Held(_));
                let Some((oldest, _)) = self.slots.iter().find(is_held) else { return };
                buffer = self.evict(oldest, bytes).or(buffer);
            }
            self.read(key, buffer);
        }
    }

    /// Waits for what is being read; drops what does not come in time.
    pub fn hold_all(&mut self, deadline: Instant) {
        let keys: Vec<Key> = self.slots.iter().map(|(key, _)| key).collect();
        for key in keys {
            let Some(slot) = self.slots.get_mut(key) else { continue };
            let Slot::Reading(pending) = slot else { continue };
            let shape = &self.layers[key.0 as usize].shape;
            let read = pending.wait(deadline).and_then(Result::ok);
            let opened = read.and_then(|slab| LoadedExpert::open(shape, key.1 as usize, slab).ok());
            match opened {
                Some(opened) => *slot = Slot::Held(Arc::new(opened)),
                None => drop(self.slots.remove(key)),
            }
        }
    }

    /// The experts in memory, the one used last first.
    fn uses(&self) -> Vec<Use> {
        let number = |(layer, expert): Key| (self.layers[layer as usize].number, expert);
        self.slots.iter().rev().map(|(key, _)| number(key)).collect()
    }

    /// Lists the experts in memory for the next start, if that is due.
    pub fn note_hot(&mut self) {
        let now = Instant::now();
        let Some((path, noted)) = &mut self.hot else { return };
        if now.duration_since(*noted) >= HOT_EVERY {
            *noted = now;
            let path = path.clone();
            hot::write(&path, self.uses(), false);
        }
    }
}

/// A layer's experts below memory.
pub(super) struct Layer {
    /// The model's number of it.
    pub number: usize,
    pub source: SlabSource,
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
