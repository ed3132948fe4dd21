//! Equal units of a byte string in another order.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::folder::Weights;
use crate::recipe::Recipe;

/// Runs of a view this near to each other are read together with the bytes between them.
const SPAN_BYTES_MAX: u64 = 1 << 20;
/// Runs of at least this length are read one by one.
const RUN_BYTES_MIN: u64 = 32 << 10;
/// Views with shorter runs, such as transposed matrices, are taken from whole slabs in memory.
const SCATTERED_BYTES_MAX: u64 = 512;
/// The longest slab; an expert's matrix of a large model has 100 MB.
const SLAB_BYTES_MAX: u64 = 512 << 20;
/// Slabs in memory: several threads read neighbours.
const KEPT: usize = 2;

/// An array of `dims`, whose element at some index is the unit at `base` plus the sum of the index
/// times `strides`.
#[derive(Debug)]
pub(crate) struct View {
    pub of: Recipe,
    /// Bytes of a unit.
    pub unit: u64,
    /// Counts, slowest first.
    pub dims: Vec<u64>,
    /// In units; 0 repeats.
    pub strides: Vec<u64>,
    /// The first unit.
    pub base: u64,
}

/// A run of bytes: its place in the source, and its length.
type Run = (u64, usize);

/// A view, and the start of a slab in it.
type Key = (usize, u64);

/// The slabs that were read last.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<VecDeque<(Key, Arc<Vec<u8>>)>>);

impl View {
    /// Fills `out` with the bytes from `start` on.
    pub fn read(&self, weights: &Weights, mut start: u64, mut out: &mut [u8]) -> io::Result<()> {
        if let Some(axis) = self.slab_axis() {
            return self.read_slabs(weights, axis, start, out);
        }
        let mut span = Vec::new();
        while !out.is_empty() {
            let (runs, bytes) = self.runs(start, out.len());
            let (now, rest) = out.split_at_mut(bytes);
            match runs[..] {
                [(from, _)] => self.of.read(weights, from, now)?,
                _ => self.read_span(weights, &runs, &mut span, now)?,
            }
            (out, start) = (rest, start + bytes as u64);
        }
        Ok(())
    }

    /// The place in the source of the byte at `at`, and the bytes from there on that lie together.
    fn run_at(&self, at: u64) -> (u64, u64) {
        let (mut index, offset) = (at / self.unit, at % self.unit);
        let (mut unit, mut units_left) = (self.base, 1);
        let last = self.dims.len() - 1;
        for (axis, (dim, stride)) in self.dims.iter().zip(&self.strides).enumerate().rev() {
            let place = index % dim;
            if axis == last && *stride == 1 {
                units_left = dim - place;
            }
            unit += place * stride;
            index /= dim;
        }
        (unit * self.unit + offset, units_left * self.unit - offset)
    }

    /// The next runs that are read together, and their bytes.
    fn runs(&self, mut start: u64, left: usize) -> (Vec<Run>, usize) {
        let (mut runs, mut bytes) = (Vec::<Run>::new(), 0);
        let (mut low, mut high) = (u64::MAX, 0);
        while bytes < left {
            let (from, len) = self.run_at(start);
            let len = len.min((left - bytes) as u64);
            let (new_low, new_high) = (low.min(from), high.max(from + len));
            if !runs.is_empty() && (len >= RUN_BYTES_MIN || new_high - new_low > SPAN_BYTES_MAX) {
                break;
            }
            (low, high) = (new_low, new_high);
            runs.push((from, len as usize));
            (start, bytes) = (start + len, bytes + len as usize);
            if len >= RUN_BYTES_MIN {
                break;
            }
        }
        (runs, bytes)
    }

    /// Reads the bytes around runs at once, and takes the runs from them.
    fn read_span(
        &self,
        weights: &Weights,
        runs: &[Run],
        span: &mut Vec<u8>,
        mut out: &mut [u8],
    ) -> io::Result<()> {
        let low = runs.iter().map(|(from, _)| *from).min().unwrap_or(0);
        let high = runs.iter().map(|(from, len)| from + *len as u64).max().unwrap_or(0);
        span.resize((high - low) as usize, 0);
        self.of.read(weights, low, span)?;
        for (from, len) in runs {
            let (now, rest) = out.split_at_mut(*len);
            now.copy_from_slice(&span[(from - low) as usize..][..*len]);
            out = rest;
        }
        Ok(())
    }

    /// The first axis that is inside a slab, in a view of short runs far from each other.
    fn slab_axis(&self) -> Option<usize> {
        let last = self.dims.len() - 1;
        let run = if self.strides[last] == 1 { self.dims[last] } else { 1 } * self.unit;
        let is_scattered = run <= SCATTERED_BYTES_MAX && self.extent(0) > SPAN_BYTES_MAX;
        let fits = |axis: &usize| self.extent(*axis) <= SLAB_BYTES_MAX;
        (0..=last).find(fits).filter(|_| is_scattered)
    }

    /// Bytes of the source from the first to the last unit of the axes from `axis` on.
    fn extent(&self, axis: usize) -> u64 {
        let steps = self.dims[axis..].iter().zip(&self.strides[axis..]);
        (steps.map(|(dim, stride)| (dim - 1) * stride).sum::<u64>() + 1) * self.unit
    }

    fn read_slabs(
        &self,
        weights: &Weights,
        axis: usize,
        mut start: u64,
        mut out: &mut [u8],
    ) -> io::Result<()> {
        let slab_len = self.dims[axis..].iter().product::<u64>() * self.unit;
        while !out.is_empty() {
            let slab_start = start / slab_len * slab_len;
            let left = (slab_start + slab_len - start).min(out.len() as u64) as usize;
            let (now, rest) = out.split_at_mut(left);
            let (from, _) = self.run_at(slab_start);
            let slab = self.slab(weights, (slab_start, from), self.extent(axis))?;
            self.gather(&slab, from, start, now);
            (out, start) = (rest, start + left as u64);
        }
        Ok(())
    }

    /// Fills `out` from a slab that lies at `from` in the source.
    fn gather(&self, slab: &[u8], from: u64, mut start: u64, mut out: &mut [u8]) {
        let unit = self.unit as usize;
        let (len, stride) = (self.dims[self.dims.len() - 1], self.strides[self.dims.len() - 1]);
        while !out.is_empty() {
            let source = &slab[(self.run_at(start).0 - from) as usize..];
            let skip = (start % self.unit) as usize;
            let left = (len - start / self.unit % len) as usize;
            let bytes = match skip == 0 && out.len() >= unit {
                true => left.min(out.len() / unit) * unit,
                false => (unit - skip).min(out.len()),
            };
            let (now, rest) = out.split_at_mut(bytes);
            let step = stride as usize * unit;
            match unit {
                _ if bytes < unit => now.copy_from_slice(&source[..bytes]),
                2 => copy_units::<2>(source, step, now),
                4 => copy_units::<4>(source, step, now),
                _ => now.chunks_mut(unit).enumerate().for_each(|(at, out)| {
                    out.copy_from_slice(&source[at * step..][..unit]);
                }),
            }
            (out, start) = (rest, start + bytes as u64);
        }
    }

    /// A slab's bytes, which lie at `from` in the source.
    fn slab(
        &self,
        weights: &Weights,
        (start, from): (u64, u64),
        len: u64,
    ) -> io::Result<Arc<Vec<u8>>> {
        let key = (std::ptr::from_ref(self).addr(), start);
        let lock = || weights.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, slab)) = lock().iter().find(|(known, _)| *known == key) {
            return Ok(slab.clone());
        }
        // The source may have slabs of its own, so the lock is free meanwhile.
        let mut bytes = vec![0; len as usize];
        self.of.read(weights, from, &mut bytes)?;
        let slab = Arc::new(bytes);
        let mut kept = lock();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back((key, slab.clone()));
        Ok(slab)
    }
}

/// Copies units of `N` bytes that are `step` bytes apart.
fn copy_units<const N: usize>(source: &[u8], step: usize, out: &mut [u8]) {
    for (at, out) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        out.copy_from_slice(&source[at * step..][..N]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_units_come_from_slabs() {
        // Three matrices of 1000 rows and 1201 columns, transposed.
        let (matrices, rows, columns) = (3, 1000, 1201);
        let number = |at: u64| (at * 7 % 65521) as u16;
        let bytes: Vec<u8> =
            (0..matrices * rows * columns).flat_map(|at| number(at).to_le_bytes()).collect();
        let view = View {
            of: Recipe::Fixed(bytes.into()),
            unit: 2,
            dims: vec![matrices, columns, rows],
            strides: vec![rows * columns, 1, columns],
            base: 0,
        };
        assert_eq!(view.slab_axis(), Some(0), "all of it is one slab");
        for axis in [0, 1] {
            let weights = Weights::default();
            let start = (rows * columns - 3) * 2 + 1;
            let mut out = vec![0; 2 * (rows * columns) as usize];
            view.read_slabs(&weights, axis, start, &mut out).unwrap();
            let wanted = |byte: u64| {
                let at = byte / 2;
                let (matrix, inside) = (at / (rows * columns), at % (rows * columns));
                let (column, row) = (inside / rows, inside % rows);
                let source = matrix * rows * columns + row * columns + column;
                number(source).to_le_bytes()[(byte % 2) as usize]
            };
            for (at, byte) in out.iter().enumerate() {
                assert_eq!(*byte, wanted(start + at as u64), "{axis} {at}");
            }
        }
    }
}
