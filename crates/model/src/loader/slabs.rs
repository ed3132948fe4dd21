//! Loads a layer's experts as slabs: opens their file, or writes it, expert by expert, so that
//! memory never has a whole layer.

use std::path::Path;

use backend::{Backend, ExpertShape, PackedWeights, SlabSource, StreamedLayer};
use layout::{Slice, Slices};
use records::{Buffer, Slabs, SlabsSpec, SlabsWriter};

use super::shelf::{ROLES, Shelf, shape_of};
use super::{Loader, in_place};
use crate::ModelError;

/// The routed experts of layer `layer`, whose file is written if there is none and the disk has
/// room for it; `None` for a layer without any on this rank.
///
/// # Errors
/// The model or the disk cannot be read or written, or the budget is below one expert.
pub(crate) fn load_layer<B: Backend>(
    loader: &mut Loader<'_, B>,
    shelf: &Shelf,
    slices: &Slices<'_>,
    layer: usize,
) -> Result<Option<StreamedLayer>, ModelError> {
    let Some(mut shape) = shape_of(slices) else { return Ok(None) };
    let found: Vec<Slice<'_>> = ROLES.iter().filter_map(|role| slices.find(role)).collect();
    let file = shelf.file(slices, layer, &shape);
    let path = shelf.path(layer);
    let opened = Slabs::open(&path, file);
    if opened.is_ok() || shelf.in_place(layer).is_some() {
        found.iter().for_each(|slice| (loader.progress)(slice.file_bytes()));
    }
    let source = match (opened, shelf.in_place(layer)) {
        (Ok(slabs), _) => SlabSource::File(path, slabs),
        (Err(_), Some(model)) => SlabSource::InPlace(in_place::of_layer(model, &found, &shape)?),
        (Err(_), None) => {
            let slabs = write(loader, &found, &shape, &path, file)?;
            SlabSource::File(path, slabs)
        }
    };
    for (matrix, slice) in shape.matrices_mut().zip(&found) {
        matrix.factors = loader.factors(slice)?;
    }
    let added = shelf.arena().add(layer, source, shape);
    Ok(Some(added.map_err(|error| ModelError::Device(error.into()))?))
}

/// Writes a layer's file.
fn write<B: Backend>(
    loader: &mut Loader<'_, B>,
    slices: &[Slice<'_>],
    shape: &ExpertShape,
    path: &Path,
    file: SlabsSpec,
) -> Result<Slabs, ModelError> {
    let failed = |source| ModelError::Slabs { path: path.to_owned(), source };
    let mut writer = SlabsWriter::create(path, file).map_err(failed)?;
    let mut slab = Buffer::zeroed(file.padded_bytes());
    // They stay on disk.
    let device_bytes = loader.device_bytes;
    for expert in 0..file.count {
        let own = slices.iter().map(|slice| loader.matrix(&slice.matrix(expert as usize)));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        shape.fill(own.iter().filter_map(PackedWeights::packed), &mut slab);
        writer.write(expert, &mut slab).map_err(failed)?;
    }
    loader.device_bytes = device_bytes;
    writer.finish().map_err(|error| failed(std::io::Error::other(error.to_string())))
}
