//! A rank's experts as slabs on disk: one file for each layer, with gate, up and down of an expert
//! beside each other in the packed form that kernels read.
//!
//! A file's identity is a hash of the model's content, the packing's version and the rank's slices.
//! Any other file gives way.

use std::path::PathBuf;
use std::sync::Arc;

use gguf::Source;

use backend::{Arena, Backend, ExpertShape, MatrixShape, PackedWeights};
use layout::{Holding, Slice, Slices};
use protocol::ExpertCache;
use records::{Slabs, SlabsSpec};

use crate::ModelError;
use crate::error::SlabRoom;

/// Changes with the order of matrices in a slab.
const FORMAT: u32 = 1;
/// Gate, up and down.
pub(crate) const ROLES: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// The files of a rank's experts.
pub(crate) struct Shelf {
    spec: ExpertCache,
    arena: Arc<Arena>,
    /// The layers for whose files the disk has no room. Their experts are read from `model`.
    in_place: Vec<usize>,
    model: Arc<dyn Source>,
    note: Option<String>,
}

impl Shelf {
    /// Opens the folder for a rank, and looks for which of the missing files the disk has room.
    ///
    /// # Errors
    /// The device reads no slabs, the folder cannot be made, or neither this disk has room nor has
    /// it the model's file.
    pub fn open<B: Backend>(
        spec: &ExpertCache,
        holding: &Holding<'_>,
        model: &Arc<dyn Source>,
    ) -> Result<Self, ModelError> {
        if !B::Matrix::IN_FILES {
            return Err(ModelError::ExpertDevice);
        }
        let failed = |source| ModelError::Slabs { path: spec.folder.clone(), source };
        std::fs::create_dir_all(&spec.folder).map_err(failed)?;
        let arena = Arc::new(Arena::new(spec.budget_bytes).map_err(failed)?);
        arena.limit(spec.bytes_per_sec_max);
        let (in_place, model) = (Vec::new(), model.clone());
        let mut shelf = Self { spec: spec.clone(), arena, in_place, model, note: None };
        let (missing_bytes, free_bytes) = shelf.find_room(holding).map_err(failed)?;
        if shelf.in_place.is_empty() {
            return Ok(shelf);
        }
        let (folder, reserve_bytes) = (spec.folder.clone(), spec.reserve_bytes);
        let room = SlabRoom { folder, missing_bytes, free_bytes, reserve_bytes };
        if !shelf.model.is_local() {
            return Err(ModelError::SlabRoom(room));
        }
        let layers = shelf.in_place.len();
        shelf.note = Some(format!(
            "the experts of {layers} layers are read from the model's file and packed each time, \
             which is slower than slabs: {room}"
        ));
        Ok(shelf)
    }

    /// Looks which files are missing, and which of them the disk has room for. Returns the bytes of
    /// the missing ones, and those that are free.
    fn find_room(&mut self, holding: &Holding<'_>) -> std::io::Result<(u64, u64)> {
        let mut missing = Vec::new();
        for layer in holding.layers.clone() {
            let slices = holding.layer(layer);
            let Some(shape) = shape_of(&slices) else { continue };
            let file = self.file(&slices, layer, &shape);
            let path = self.path(layer);
            if Slabs::open(&path, file).is_err() {
                missing.push((layer, file.file_bytes()));
                // Room for the file that takes its place.
                let _ = std::fs::remove_file(path);
            }
        }
        let free_bytes = records::free_bytes(&self.spec.folder)?;
        let mut room_bytes = free_bytes.saturating_sub(self.spec.reserve_bytes);
        let needed_bytes: u64 = missing.iter().map(|(_, bytes)| bytes).sum();
        for (layer, bytes) in missing {
            match room_bytes.checked_sub(bytes) {
                Some(left) => room_bytes = left,
                None => self.in_place.push(layer),
            }
        }
        Ok((needed_bytes, free_bytes))
    }

    /// The model's file, if experts of this layer are read from it.
    pub fn in_place(&self, layer: usize) -> Option<&Arc<dyn Source>> {
        self.in_place.contains(&layer).then_some(&self.model)
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Reads the experts that were used last before the previous end.
    pub fn warm(&self) {
        self.arena.warm(self.spec.folder.join("hot"));
    }

    /// What the user should know, a sentence.
    pub fn note(&self) -> Option<&String> {
        self.note.as_ref()
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
