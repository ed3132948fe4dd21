//! A rank's experts as slabs on disk: one file for each layer, with gate, up and down of an expert
//! beside each other in the packed form that kernels read.
//!
//! A file's identity is a hash of the model's content, the packing's version and the rank's slices.
//! Any other file gives way.

use std::path::PathBuf;
use std::sync::Arc;

use backend::{Arena, Backend, ExpertShape, MatrixShape, PackedWeights};
use layout::{Holding, Slice, Slices};
use protocol::ExpertCache;
use records::{Slabs, SlabsSpec};

use crate::ModelError;

/// Changes with the order of matrices in a slab.
const FORMAT: u32 = 1;
/// Gate, up and down.
pub(crate) const ROLES: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// The files of a rank's experts.
pub(crate) struct Shelf {
    spec: ExpertCache,
    arena: Arc<Arena>,
}

impl Shelf {
    /// Opens the folder for a rank, and checks that the disk has room for what is missing there.
    ///
    /// # Errors
    /// The device reads no slabs, the folder cannot be made, or the disk has no room.
    pub fn open<B: Backend>(spec: &ExpertCache, holding: &Holding<'_>) -> Result<Self, ModelError> {
        if !B::Matrix::IN_FILES {
            return Err(ModelError::ExpertDevice);
        }
        let failed = |source| ModelError::Slabs { path: spec.folder.clone(), source };
        std::fs::create_dir_all(&spec.folder).map_err(failed)?;
        let arena = Arc::new(Arena::new(spec.budget_bytes).map_err(failed)?);
        arena.limit(spec.bytes_per_sec_max);
        let shelf = Self { spec: spec.clone(), arena };
        let mut missing_bytes = 0;
        for layer in holding.layers.clone() {
            let slices = holding.layer(layer);
            let Some(shape) = shape_of(&slices) else { continue };
            let file = shelf.file(&slices, layer, &shape);
            let path = shelf.path(layer);
            if Slabs::open(&path, file).is_err() {
                missing_bytes += file.file_bytes();
                // Room for the file that takes its place.
                let _ = std::fs::remove_file(path);
            }
        }
        let free_bytes = records::free_bytes(&spec.folder).map_err(failed)?;
        let needed_bytes = missing_bytes.saturating_add(spec.reserve_bytes);
        if missing_bytes > 0 && needed_bytes > free_bytes {
            let folder = spec.folder.clone();
            return Err(ModelError::SlabRoom { folder, missing_bytes, needed_bytes, free_bytes });
        }
        Ok(shelf)
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The file of a layer.
    pub fn path(&self, layer: usize) -> PathBuf {
        self.spec.folder.join(format!("experts-{layer:03}.slabs"))
    }

    /// What the file of a layer has to be.
    pub fn file(&self, slices: &Slices<'_>, layer: usize, shape: &ExpertShape) -> SlabsSpec {
        let mut hasher = blake3::Hasher::new_derive_key("sinew 2026-11 slabs of experts");
        let mut text = format!("{FORMAT} {} {} {layer}", backend::PACKING, self.spec.model);
        for slice in ROLES.iter().filter_map(|role| slices.find(role)) {
            let (name, ty) = (&slice.tensor.name, slice.tensor.ty);
            let part = (slice.shape(), slice.runs(), &slice.cols);
            text.push_str(&format!("\n{name} {ty} {part:?}"));
        }
        hasher.update(text.as_bytes());
        let count = slices.get(ROLES[1]).shape()[0] as u64;
        let identity = *hasher.finalize().as_bytes();
        SlabsSpec { identity, count, slab_bytes: shape.slab_bytes() }
    }
}

/// The shape of the rank's part of each expert of a layer, without factors. `None`: it has none.
pub(super) fn shape_of(slices: &Slices<'_>) -> Option<ExpertShape> {
    let matrix = |slice: Slice<'_>| {
        let [_, rows, cols] = slice.shape();
        MatrixShape { ty: slice.tensor.ty, rows, cols, factors: None }
    };
    let [gate, up, down] = ROLES.map(|role| slices.find(role));
    let (up, down) = (up?, down?);
    let is_held = up.shape()[0] > 0 && up.shape()[0] == down.shape()[0];
    let shape = ExpertShape { gate: gate.map(matrix), up: matrix(up), down: matrix(down) };
    (is_held && shape.is_whole()).then_some(shape)
}
