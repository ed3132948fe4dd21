//! Matrices being loaded.

use std::sync::Arc;

use gguf::TensorType;
use kernels::{Matrix, Packer, Pool};

use crate::{BackendError, Factors};

/// Equal matrices with consecutive rows.
pub struct Loading {
    count: usize,
    /// Bytes of one matrix in the file.
    matrix_bytes: usize,
    /// None for matrices without rows or columns; one for all, in one memory region (a thousand
    /// small regions get no huge pages, and cost the system more than their content); or one each,
    /// if the matrices do not start at a panel.
    packers: Vec<Packer>,
    /// Bytes received.
    received: usize,
    /// One for each matrix, or none.
    factors: Vec<f32>,
}

impl Loading {
    pub(super) fn start(
        ty: TensorType,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Self, BackendError> {
        let empty = count == 0 || rows == 0 || cols == 0;
        let packers = match empty {
            true => Vec::new(),
            false => match Packer::new(ty, count * rows, cols)? {
                one if one.divides_into(count) => vec![one],
                _ => (0..count).map(|_| Packer::new(ty, rows, cols)).collect::<Result<_, _>>()?,
            },
        };
        let matrix_bytes = packers.first().map_or(0, |packer| packer.row_bytes() * rows);
        Ok(Self { count, matrix_bytes, packers, received: 0, factors: Vec::new() })
    }

    /// Adds the next whole rows.
    pub(super) fn push(&mut self, pool: &Pool, mut bytes: &[u8]) -> Result<(), BackendError> {
        if let [one] = self.packers.as_mut_slice() {
            return Ok(one.push(pool, bytes)?);
        }
        while !bytes.is_empty() && !self.packers.is_empty() {
            // The last matrix refuses surplus rows.
            let at = (self.received / self.matrix_bytes).min(self.packers.len() - 1);
            let room = (at + 1) * self.matrix_bytes - self.received;
            let own = if room == 0 { bytes.len() } else { room.min(bytes.len()) };
            let (head, tail) = bytes.split_at(own);
            self.packers[at].push(pool, head)?;
            self.received += own;
            bytes = tail;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Vec<Option<Arc<Matrix>>>, BackendError> {
        let mut matrices = match self.packers.len() {
            0 => return Ok((0..self.count).map(|_| None).collect()),
            1 => self.packers.remove(0).finish_several(self.count)?,
            _ => self.packers.into_iter().map(Packer::finish).collect::<Result<_, _>>()?,
        };
        for (matrix, factor) in matrices.iter_mut().zip(self.factors) {
            matrix.set_factor(factor)?;
        }
        Ok(matrices.into_iter().map(|matrix| Some(Arc::new(matrix))).collect())
    }
}

impl Factors for Loading {
    fn set_factors(&mut self, factors: &[f32]) -> Result<(), BackendError> {
        assert_eq!(factors.len(), self.count, "each matrix has a factor");
        self.factors = factors.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLS: usize = 32;

    /// Row `n` of the file has the value `n` everywhere.
    fn rows(range: std::ops::Range<usize>) -> Vec<u8> {
        range.flat_map(|row| [row as f32; COLS]).flat_map(f32::to_le_bytes).collect()
    }

    fn load(
        count: usize,
        rows_each: usize,
        steps: &[usize],
    ) -> Result<Vec<Arc<Matrix>>, BackendError> {
        let pool = Pool::new(1).unwrap();
        let mut loading = Loading::start(TensorType::F32, count, rows_each, COLS).unwrap();
        let mut at = 0;
        for step in steps {
            loading.push(&pool, &rows(at..at + step))?;
            at += step;
        }
        Ok(loading.finish()?.into_iter().map(Option::unwrap).collect())
    }

    #[test]
    fn matrices_of_one_tensor_are_told_apart() {
        // With panels of 16 rows, in one region and in several.
        for (count, rows_each) in [(1, 5), (1, 48), (3, 16), (4, 32), (3, 5), (2, 24)] {
            for step in [1, 7, 16, count * rows_each] {
                let whole = count * rows_each;
                let mut steps = vec![step; whole / step];
                steps.extend((whole % step > 0).then_some(whole % step));
                let matrices = load(count, rows_each, &steps).unwrap();
                assert_eq!(matrices.len(), count);
                let mut row = [0.0; COLS];
                for n in 0..whole {
                    matrices[n / rows_each].row(n % rows_each, &mut row);
                    assert_eq!(row, [n as f32; COLS], "{count} of {rows_each}, by {step}");
                }
            }
        }
    }

    #[test]
    fn rows_too_few_or_too_many_are_refused() {
        for (count, rows_each) in [(1, 16), (2, 16), (2, 5)] {
            let whole = count * rows_each;
            assert!(load(count, rows_each, &[whole - 1]).is_err());
            assert!(load(count, rows_each, &[whole + 1]).is_err());
            assert!(load(count, rows_each, &[whole, 1]).is_err());
        }
    }
}
