//! Experts that are read from the model's own file whenever they are needed, since the disk has no
//! room for slabs: the same bytes, packed anew each time.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use backend::{ExpertShape, InPlace};
use gguf::{ReadError, Source, TensorInfo};
use layout::Slice;

use super::chunks;
use crate::ModelError;

/// One of the matrices of each expert, in the model's file.
struct Role {
    tensor: TensorInfo,
    cols: Vec<Range<usize>>,
    /// Of each expert: its runs of the tensor's rows.
    runs: Vec<Vec<Range<usize>>>,
}

/// The slabs of a layer, made from these slices of the model's file.
///
/// # Errors
/// The file has no such tensor.
pub(super) fn of_layer(
    source: &Arc<dyn Source>,
    slices: &[Slice<'_>],
    shape: &ExpertShape,
) -> Result<InPlace, ModelError> {
    let count = slices[0].shape()[0];
    let role = |slice: &Slice<'_>| -> Result<Role, ModelError> {
        let tensor = source.directory().tensor(&slice.tensor.name)?.clone();
        let runs = (0..count).map(|expert| slice.matrix(expert).runs()).collect();
        Ok(Role { tensor, cols: slice.cols.clone(), runs })
    };
    let roles = slices.iter().map(role).collect::<Result<Vec<_>, _>>()?;
    let (source, slab_bytes) = (source.clone(), shape.slab_bytes());
    // Factors are applied to what was loaded.
    let shape = shape.clone();
    let make = move |expert: usize, slab: &mut [u8]| {
        shape.pack(slab, |number, rows, out| {
            roles[number].read(source.as_ref(), expert, rows, out).map_err(io::Error::other)
        })
    };
    Ok(InPlace { count, slab_bytes, make: Arc::new(make) })
}

impl Role {
    /// Reads rows of an expert's matrix.
    fn read(
        &self,
        source: &dyn Source,
        expert: usize,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        let (mut left, mut buffer) = (out, Vec::new());
        let again = |run, out: &mut [u8]| source.read_again(run, out);
        for chunk in chunks::of_runs(&self.tensor, &self.cols, &part(&self.runs[expert], rows)) {
            let read = chunks::fill(again, &chunk, &mut buffer)?;
            let (head, tail) = left.split_at_mut(read.len());
            head.copy_from_slice(read);
            left = tail;
        }
        Ok(())
    }
}

/// What `rows` of all rows of some runs, one after the other, are.
fn part(runs: &[Range<usize>], rows: Range<usize>) -> Vec<Range<usize>> {
    let mut before = 0;
    let inside = runs.iter().filter_map(|run| {
        let start = rows.start.saturating_sub(before).min(run.len());
        let end = rows.end.saturating_sub(before).min(run.len());
        before += run.len();
        (start < end).then_some(run.start + start..run.start + end)
    });
    inside.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_in_runs() {
        let runs = [10..14, 20..21, 30..35];
        assert_eq!(part(&runs, 0..10), [10..14, 20..21, 30..35]);
        assert_eq!(part(&runs, 0..4), vec![10..14]);
        assert_eq!(part(&runs, 3..6), [13..14, 20..21, 30..31]);
        assert_eq!(part(&runs, 9..10), vec![34..35]);
        assert!(part(&runs, 5..5).is_empty());
    }
}
