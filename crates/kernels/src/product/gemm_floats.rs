//! Many input rows against weights of a float type: the twin of [`super::gemm`] for integers.

use super::block::Sums;
use super::gemm::{ACCESS, PANELS, Pair, Unpacked};
use super::gemv::FLOAT_RUN;
use crate::format::FloatFormat;
use crate::input::Input;
use crate::isa::Kernel;
use crate::simd::{LANES, Simd, array_of};
use std::marker::PhantomData;
use std::ops::Range;

/// Unpacks columns `cols` (one run) of a pair.
pub(super) struct UnpackFloats<'a, T> {
    pub(super) pair: Pair<'a>,
    pub(super) cols: Range<usize>,
    pub(super) unpacked: &'a mut Unpacked,
    pub(super) format: PhantomData<T>,
}

impl<T: FloatFormat> Kernel for UnpackFloats<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Pair { data, count, .. } = self.pair;
        for (panel, unpacked) in data[..count].iter().zip(&mut self.unpacked.floats) {
            assert!(panel.len() >= self.cols.end.div_ceil(T::COLS) * T::RECORD);
            for (col, to) in self.cols.clone().zip(unpacked) {
                ACCESS.fetch(s, T::at(panel.as_ptr(), col), T::BYTES * LANES);
                // SAFETY: the panel has the column, as asserted; the target is one vector.
                unsafe { s.store(to.as_mut_ptr(), T::column(s, panel.as_ptr(), col)) };
            }
        }
    }
}

/// Adds the products of the unpacked run with the same columns of each input row.
pub(super) struct FloatSums<'a> {
    pub(super) unpacked: &'a Unpacked,
    pub(super) pair: Pair<'a>,
    pub(super) cols: Range<usize>,
    pub(super) x: &'a Input,
    pub(super) rows: Range<usize>,
    pub(super) sums: Sums<'a>,
}

impl Kernel for FloatSums<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        if S::WIDE_TILES && self.pair.count == 2 {
            self.row_tiles::<S, 2>(s, 0);
        } else {
            for panel in 0..self.pair.count {
                self.row_tiles::<S, 1>(s, panel);
            }
        }
        self.sums.end(s);
    }
}

impl FloatSums<'_> {
    #[inline(always)]
    fn row_tiles<S: Simd, const P: usize>(&mut self, s: S, panel: usize) {
        let rows = self.rows.len();
        let mut row = 0;
        if S::WIDE_TILES && P == PANELS {
            while row + 8 <= rows {
                self.register_tile::<S, P, 8>(s, panel, row);
                row += 8;
            }
        }
        if S::ROW_TILES {
            while row + 4 <= rows {
                self.register_tile::<S, P, 4>(s, panel, row);
                row += 4;
            }
        }
        while row < rows {
            self.register_tile::<S, P, 1>(s, panel, row);
            row += 1;
        }
    }

    #[inline(always)]
    fn register_tile<S: Simd, const P: usize, const R: usize>(
        &mut self,
        s: S,
        panel: usize,
        first: usize,
    ) {
        let floats = self.x.floats();
        let width = self.x.cols();
        let row = self.rows.start + first;
        assert!(floats.len() >= (row + R - 1) * width + self.cols.end);
        assert!(panel + P <= self.pair.count && self.cols.len() <= FLOAT_RUN);
        let at = self.pair.at + panel;
        let mut sums: [[S::F; P]; R] = self.sums.load(s, first, at);
        // SAFETY: every column of the run and every input element lies inside its slice, as
        // asserted above; the caller of `sum_leaf` promises the output.
        unsafe {
            let x = floats.as_ptr().add(row * width + self.cols.start);
            let mut acc = [[s.splat(0.0); P]; R];
            for col in 0..self.cols.len() {
                let weights = array_of!(P, s.splat(0.0), p => {
                    s.load(self.unpacked.floats[panel + p].get_unchecked(col).as_ptr())
                });
                for r in 0..R {
                    let x = s.splat(*x.add(r * width + col));
                    for p in 0..P {
                        acc[r][p] = s.fma(weights[p], x, acc[r][p]);
                    }
                }
            }
            for r in 0..R {
                for p in 0..P {
                    sums[r][p] = s.add(sums[r][p], acc[r][p]);
                }
            }
            self.sums.store(s, first, at, sums);
        }
    }
}
