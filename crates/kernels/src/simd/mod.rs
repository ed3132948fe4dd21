//! Sixteen lanes at a time: the small set of vector operations that all kernels use.
//!
//! A kernel is written once, generic over [`Simd`], and compiled for each instruction set. Every
//! operation is exact or correctly rounded (IEEE 754, round to nearest even), `fma` is fused
//! everywhere, and integer products are exact, so **all instruction sets give the same bits**: an
//! old laptop and a new server can share a model without drifting apart. The scalar
//! implementation is the definition; the others are tested against it operation by operation.
//!
//! Values of a type that implements [`Simd`] prove that the machine has the instructions; only the
//! module `isa` creates them.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_codebook;
mod codebook;
pub(crate) mod fused;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_gemm;
pub(crate) mod scalar;
pub(crate) mod sizes;

/// `[body(0), body(1), ...]` of the given length; `first` has the elements' type.
///
/// `std::array::from_fn` would do, but its closure may stay a call; vector instructions inside a
/// function that is not inlined into one with the right target features become calls themselves.
macro_rules! array_of {
    ($len:expr, $first:expr, $i:ident => $body:expr) => {{
        let mut out = [$first; $len];
        for $i in 0..$len {
            out[$i] = $body;
        }
        out
    }};
}
pub(crate) use array_of;

pub use sizes::{LANES, VECTOR_BYTES};
pub(crate) use sizes::{TILE, TILE_COLS};

use crate::format::Codebook;

/// The vector operations. `F` is 16 lanes of f32, `I` 16 lanes of i32 (or 64 bytes).
///
/// # Safety of the pointer operations
/// Each reads or writes exactly 16 elements at the pointer, which needs no alignment.
#[allow(clippy::missing_safety_doc)] // Documented once, above.
pub(crate) trait Simd: Copy {
    type F: Copy;
    type I: Copy;

    /// Whether the machine has 32 wide registers, enough for two panels by six columns.
    const WIDE_TILES: bool;

    /// Whether kernels call what several of them contain, which keeps the code of slow ones small.
    const CALLS: bool = false;

    /// Whether several input rows at a time share loads, which is useless without vectors.
    const ROW_TILES: bool = true;

    fn splat(self, x: f32) -> Self::F;
    unsafe fn load(self, from: *const f32) -> Self::F;
    unsafe fn store(self, to: *mut f32, v: Self::F);
    /// Like [`Simd::store`], bypassing the caches if the machine can, for data that is not read
    /// again soon. `to` is a multiple of [`VECTOR_BYTES`]; no thread may read it before
    /// [`Simd::end_streams`].
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, v: Self::F) {
        // SAFETY: as the caller promises.
        unsafe { self.store(to, v) }
    }
    /// Ends a run of [`Simd::stream`]: later stores become visible to other threads after it.
    #[inline(always)]
    fn end_streams(self) {}
    /// Sixteen IEEE half-precision numbers.
    unsafe fn load_f16(self, from: *const u16) -> Self::F;
    /// Rounds to half precision, to nearest even.
    unsafe fn store_f16(self, to: *mut u16, v: Self::F);
    /// Sixteen bfloat16 numbers.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F;
    /// Sixteen numbers of E4M3, divided by 256; NaN counts as 480.
    unsafe fn load_e4m3(self, from: *const u8) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` if either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` if either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn abs(self, v: Self::F) -> Self::F;
    /// Zero where `x < limit`, `v` elsewhere, also where `x` is NaN.
    fn keep_from(self, v: Self::F, x: Self::F, limit: Self::F) -> Self::F;
    /// The sum of all lanes: halves are added until one lane is left.
    fn sum(self, v: Self::F) -> f32;
    /// The largest lane.
    fn top(self, v: Self::F) -> f32;
    /// The sums of several vectors, each as [`Simd::sum`] adds.
    #[inline(always)]
    fn sums<const R: usize>(self, v: [Self::F; R]) -> [f32; R] {
        array_of!(R, 0.0, r => self.sum(v[r]))
    }
    /// The largest lane of each of several vectors.
    #[inline(always)]
    fn tops<const R: usize>(self, v: [Self::F; R]) -> [f32; R] {
        array_of!(R, 0.0, r => self.top(v[r]))
    }

    fn splat_i(self, x: i32) -> Self::I;
    /// Sixteen i32, or 64 bytes.
    unsafe fn load_i(self, from: *const u8) -> Self::I;
    unsafe fn store_i(self, to: *mut u8, v: Self::I);
    /// Sixteen bytes, zero-extended.
    unsafe fn load_u8(self, from: *const u8) -> Self::I;
    /// Sixteen bytes, sign-extended.
    unsafe fn load_i8(self, from: *const u8) -> Self::I;
    /// Sixteen 16-bit numbers, zero-extended.
    unsafe fn load_u16(self, from: *const u8) -> Self::I;
    /// The low byte of each lane.
    unsafe fn store_i8(self, to: *mut i8, v: Self::I);
    /// The low two bytes of each lane.
    unsafe fn store_i16(self, to: *mut i16, v: Self::I);
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    fn xor(self, a: Self::I, b: Self::I) -> Self::I;
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn min_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shifts each lane left; bits fall off.
    fn shl(self, v: Self::I, bits: u32) -> Self::I;
    /// Shifts each lane right, zeros come in.
    fn shr(self, v: Self::I, bits: u32) -> Self::I;
    /// The low 16 bits of the products of 16-bit numbers.
    fn mul_i16(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shifts each signed 16-bit number right.
    fn shr_i16<const BITS: u32>(self, v: Self::I) -> Self::I;
    /// Lane `i` of vector `j` becomes lane `j` of vector `i`.
    fn transpose(self, v: [Self::I; LANES]) -> [Self::I; LANES];
    /// Replaces each byte (0 to 15) by its entry of the table.
    fn lookup(self, table: &[u8; 16], v: Self::I) -> Self::I;

    /// Exact for magnitudes below 2^24, to nearest even above.
    fn to_f(self, v: Self::I) -> Self::F;
    /// To the nearest integer, ties to even.
    fn to_i(self, v: Self::F) -> Self::I;
    /// The same 32 bits as a float.
    fn cast_f(self, v: Self::I) -> Self::F;
    /// The same 32 bits as an integer.
    fn cast_i(self, v: Self::F) -> Self::I;

    /// Adds to each lane the products of its four weight bytes and its four input bytes.
    ///
    /// Weights are unsigned, inputs signed and at least -127. `BIASED`: weights may exceed 127. An
    /// instruction set without an exact product for those subtracts 128 from each weight first, and
    /// [`Simd::zero_factor`] compensates.
    fn dot4<const BIASED: bool>(self, acc: Self::I, weights: Self::I, x: Self::I) -> Self::I;
    /// Adds to each lane the two products of its signed 16-bit numbers, which are at least -32767;
    /// the sum wraps around.
    fn dot2(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Four bytes in every lane.
    unsafe fn splat_x4(self, from: *const u8) -> Self::I;
    /// The factor of the input sum at the start of a dot product, if weight `zero` represents 0.
    fn zero_factor<const BIASED: bool>(self, zero: i32) -> i32;

    /// Whether products with many rows use signed weights and the inputs' unsigned memory form.
    /// Their sums then start at -128 times the weights' own sum, which all rows share, instead of
    /// at a number of each row.
    const SIGNED_WEIGHTS: bool = false;
    /// Whether they subtract 128 from the inputs as well, so that sums start at 0.
    const SIGNED_INPUTS: bool = false;
    /// Weights in the form for [`Simd::gemm_dot4`].
    #[inline(always)]
    fn gemm_weights(self, weights: Self::I, _zero: i32) -> Self::I {
        weights
    }
    /// Four input bytes in every lane for [`Simd::gemm_dot4`]; in memory they have 128 added.
    unsafe fn gemm_splat_x4(self, from: *const u8) -> Self::I;
    /// Like [`Simd::dot4`], for weights and inputs in its own form.
    #[inline(always)]
    fn gemm_dot4<const BIASED: bool>(self, acc: Self::I, weights: Self::I, x: Self::I) -> Self::I {
        self.dot4::<BIASED>(acc, weights, x)
    }

    /// Input rows that share the loads of one panel, for products with many rows: as many as the
    /// registers allow.
    const GEMM_ROWS: usize = 2;
    /// A tile's weights, from [`Simd::gemm_weights`], in the reading order of [`Simd::gemm_dots`];
    /// vectors 0 to 3 stay before the others.
    #[inline(always)]
    fn gemm_arrange(self, weights: [Self::I; TILE]) -> [Self::I; TILE] {
        weights
    }
    /// Adds to `dots[r][p]` the products of `vectors` (4 or 8) vectors of arranged weights at
    /// `weights[p]` and the four input bytes for each at `x[r]`.
    #[inline(always)]
    unsafe fn gemm_dots<const BIASED: bool, const P: usize, const R: usize>(
        self,
        dots: &mut [[Self::I; P]; R],
        weights: [*const u8; P],
        x: [*const u8; R],
        vectors: usize,
    ) {
        for i in 0..vectors {
            // SAFETY: as the caller promises.
            unsafe {
                let weights = array_of!(P, self.splat_i(0), p => {
                    self.load_i(weights[p].add(i * VECTOR_BYTES))
                });
                for r in 0..R {
                    let bytes = self.gemm_splat_x4(x[r].add(4 * i));
                    for p in 0..P {
                        dots[r][p] = self.gemm_dot4::<BIASED>(dots[r][p], weights[p], bytes);
                    }
                }
            }
        }
    }

    /// Whether products of four bytes use [`Simd::pair_sums`]. Then as many of those as fit 16 bits
    /// are added before they are widened, which is most of the work.
    const PAIR_SUMS: bool = false;
    /// The sums of two neighbouring products of signed weights and unsigned inputs, in 16 bits.
    fn pair_sums(self, _weights: Self::I, _x: Self::I) -> Self::I {
        unreachable!("this instruction set has products of four bytes")
    }
    /// Adds 16-bit numbers.
    fn add_i16(self, _a: Self::I, _b: Self::I) -> Self::I {
        unreachable!("this instruction set has products of four bytes")
    }
    /// Adds to each lane both of its signed 16-bit numbers.
    fn add_pair_sums(self, _acc: Self::I, _pairs: Self::I) -> Self::I {
        unreachable!("this instruction set has products of four bytes")
    }

    /// Lane `r` becomes the entry with the index `low[4 * r] + 256 * high[4 * r]`; the high bytes
    /// are not read if there are 256 entries. Larger indices wrap around.
    ///
    /// # Safety
    /// `low` and `high` point to 61 bytes.
    #[inline(always)]
    unsafe fn entries<const N: usize>(
        self,
        table: &[u32; N],
        low: *const u8,
        high: *const u8,
    ) -> Self::I {
        // SAFETY: as the caller promises; the array is one vector.
        unsafe {
            let all = array_of!(LANES, 0, lane => codebook::entry(table, low, high, lane));
            self.load_i(all.as_ptr().cast())
        }
    }
    /// A tile's weights, of indices of eight columns. Byte `g` of a lane of `low` (in memory) and
    /// `high` is an index, below `N`: its low byte, and the bits above. The sign of column
    /// `4 * i + j` is bit `i / 2 + 4 * (i % 2)` of byte `j` of `signs`, so that one shift puts
    /// those of a vector of weights in their places.
    ///
    /// # Safety
    /// `low` points to a vector.
    #[inline(always)]
    unsafe fn eights<const N: usize>(
        self,
        book: &Codebook<N>,
        low: *const u8,
        high: Self::I,
        signs: Self::I,
    ) -> [Self::I; TILE] {
        // SAFETY: as the caller promises.
        unsafe { codebook::eights(self, book, low, high, signs) }
    }
    /// The same for indices of four columns: twice four in a lane.
    ///
    /// # Safety
    /// `low` points to two vectors.
    #[inline(always)]
    unsafe fn fours<const N: usize>(
        self,
        book: &Codebook<N>,
        low: *const u8,
        high: [Self::I; 2],
        signs: Self::I,
    ) -> [Self::I; TILE] {
        // SAFETY: as the caller promises.
        unsafe { codebook::fours(self, book, low, high, signs) }
    }

    /// Prefetches the cache line at `from` into the first-level cache; any address is allowed.
    fn prefetch(self, from: *const u8);

    /// The same into the second-level cache.
    fn prefetch_l2(self, from: *const u8);
}
