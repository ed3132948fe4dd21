//! Rotary position embedding (Su et al., "RoFormer", 2021).
//!
//! Pair `i` of a head turns by `position * inverse_frequency[i]`. Angles are computed in f64 with
//! our own sine, made of basic operations: the system's sine differs between machines, and f32
//! angles lose a thousandth of a turn at position 100,000.

use crate::pool::Pool;
use crate::rows::{for_each_run, keep_rows};
use crate::shared::SharedMut;

/// The pairing of a head's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: (0, 1), (2, 3), ... GGUF's `norm` (Llama, Mistral).
    Interleaved,
    /// Halves: (0, n/2), (1, n/2 + 1), ... GGUF's `neox` (Qwen, Gemma, gpt-oss).
    Neox,
}

/// The frequencies of a layer's rotation.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    inverse_frequencies: Vec<f32>,
    /// The axis of each pair, or none if all turn by the first.
    axes: Vec<u8>,
    magnitude: f32,
}

impl RopeTable {
    /// `inverse_frequencies[i] = base^(-2i / rot_dims) / factors[i]`, rounded to f32. `factors`
    /// (Llama 3, longrope) may be absent; `magnitude` multiplies sine and cosine (YaRN; else 1).
    ///
    /// # Panics
    /// If `rot_dims` is odd or `factors` is not `[rot_dims / 2]`.
    pub fn new(rot_dims: usize, base: f32, factors: Option<&[f32]>, magnitude: f32) -> Self {
        assert!(rot_dims.is_multiple_of(2), "rotated numbers come in pairs, not {rot_dims}");
        assert!(factors.is_none_or(|factors| factors.len() == rot_dims / 2), "one factor a pair");
        let frequency = |pair: usize| {
            let exponent = -2.0 * pair as f64 / rot_dims as f64;
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            (f64::from(base).powf(exponent) / factor) as f32
        };
        Self::from_frequencies((0..rot_dims / 2).map(frequency).collect(), magnitude)
    }

    /// A table with the given inverse frequencies, one a pair (YaRN and other schedules).
    pub fn from_frequencies(inverse_frequencies: Vec<f32>, magnitude: f32) -> Self {
        Self { inverse_frequencies, axes: Vec::new(), magnitude }
    }

    /// Pair `i` turns by coordinate `axes[i]` of a row's place ([`RopeAngles::load_places`]):
    /// patches of a picture have a row and a column, and M-RoPE a time as well.
    ///
    /// # Panics
    /// If there is not one axis for each pair, or one is not below 3.
    pub fn with_axes(mut self, axes: Vec<u8>) -> Self {
        assert_eq!(axes.len(), self.inverse_frequencies.len(), "one axis a pair");
        assert!(axes.iter().all(|axis| *axis < 3), "a place has three coordinates");
        self.axes = axes;
        self
    }

    /// One a pair.
    pub fn inverse_frequencies(&self) -> &[f32] {
        &self.inverse_frequencies
    }

    /// The factor of sine and cosine.
    pub fn magnitude(&self) -> f32 {
        self.magnitude
    }

    /// The table that reverses this one.
    pub fn inverse(&self) -> Self {
        let backwards = self.inverse_frequencies.iter().map(|frequency| -frequency);
        let (inverse_frequencies, axes) = (backwards.collect(), self.axes.clone());
        Self { inverse_frequencies, axes, magnitude: self.magnitude.recip() }
    }

    /// Rotates the first elements of `head` for `position`.
    pub(crate) fn rotate(&self, head: &mut [f32], position: u32, style: RopeStyle) {
        let turns: Vec<(f32, f32)> = self.turns([position; 3]).collect();
        rotate(&mut head[..2 * turns.len()], &turns, style);
    }

    /// Cosine and sine of each pair at `place`.
    fn turns(&self, place: [u32; 3]) -> impl Iterator<Item = (f32, f32)> {
        self.inverse_frequencies.iter().enumerate().map(move |(pair, frequency)| {
            let position = place[self.axes.get(pair).map_or(0, |axis| usize::from(*axis))];
            let (sin, cos) = sin_cos(f64::from(position) * f64::from(*frequency));
            (cos as f32 * self.magnitude, sin as f32 * self.magnitude)
        })
    }
}

/// Sines and cosines of a step's positions, computed once for all layers.
#[derive(Debug, Clone, Default)]
pub struct RopeAngles {
    pairs: usize,
    /// `[rows, pairs]` of (cosine, sine).
    turns: Vec<(f32, f32)>,
}

impl RopeAngles {
    /// No rows yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes the angles of `positions`, one a row; reuses its memory between calls.
    pub fn load(&mut self, pool: &Pool, table: &RopeTable, positions: &[u32]) {
        self.load_with(pool, table, positions.len(), |row| [positions[row]; 3]);
    }

    /// Like [`Self::load`], for places: each pair turns by the coordinate of its axis.
    pub fn load_places(&mut self, pool: &Pool, table: &RopeTable, places: &[[u32; 3]]) {
        self.load_with(pool, table, places.len(), |row| places[row]);
    }

    fn load_with(
        &mut self,
        pool: &Pool,
        table: &RopeTable,
        rows: usize,
        place: impl Fn(usize) -> [u32; 3] + Sync,
    ) {
        let pairs = table.inverse_frequencies.len();
        self.pairs = pairs;
        self.turns.resize(rows * pairs, (0.0, 0.0));
        let turns = SharedMut::new(self.turns.as_mut_ptr());
        // A sine costs as much as some tens of plain operations.
        for_each_run(pool, rows, 32 * pairs, |row| {
            for (pair, turn) in table.turns(place(row)).enumerate() {
                // SAFETY: inside `[rows, pairs]`; only this task has this row.
                unsafe { *turns.ptr().add(row * pairs + pair) = turn };
            }
        });
    }

    /// Keeps only the rows `kept`, ascending.
    pub fn keep(&mut self, kept: &[usize]) {
        keep_rows(&mut self.turns, self.pairs, kept);
        self.turns.truncate(kept.len() * self.pairs);
    }

    /// The number of rotated elements of a head.
    pub fn rotated(&self) -> usize {
        2 * self.pairs
    }

    /// Rows loaded.
    pub fn rows(&self) -> usize {
        self.turns.len().checked_div(self.pairs).unwrap_or(0)
    }
}

/// Rotates elements of each head of `x`, `[rows, heads, head_dim]` f32: as many as the angles
/// cover, from `first` on.
///
/// # Panics
/// If `x` does not have the angles' rows, or the heads are shorter than the rotated part.
pub fn rope(
    pool: &Pool,
    x: &mut [f32],
    heads: usize,
    (head_dim, first): (usize, usize),
    angles: &RopeAngles,
    style: RopeStyle,
) {
    let (width, rows, pairs) = (heads * head_dim, angles.rows(), angles.pairs);
    assert_eq!(x.len(), rows * width, "the input must be [{rows}, {heads}, {head_dim}]");
    let end = first + 2 * pairs;
    assert!(end <= head_dim, "numbers {first}..{end} of {head_dim}");
    let target = SharedMut::new(x.as_mut_ptr());
    for_each_run(pool, rows, width, |row| {
        // SAFETY: the row lies inside `x`, and belongs to this task only.
        let x = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * width), width) };
        let turns = &angles.turns[row * pairs..][..pairs];
        for head in x.chunks_exact_mut(head_dim) {
            rotate(&mut head[first..end], turns, style);
        }
    });
}

fn rotate(head: &mut [f32], turns: &[(f32, f32)], style: RopeStyle) {
    let turn = |x: &mut f32, y: &mut f32, (cos, sin): (f32, f32)| {
        (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
    };
    match style {
        RopeStyle::Interleaved => {
            for (pair, &angle) in head.chunks_exact_mut(2).zip(turns) {
                let (x, y) = pair.split_at_mut(1);
                turn(&mut x[0], &mut y[0], angle);
            }
        }
        RopeStyle::Neox => {
            let (xs, ys) = head.split_at_mut(turns.len());
            for ((x, y), &angle) in xs.iter_mut().zip(ys).zip(turns) {
                turn(x, y, angle);
            }
        }
    }
}

/// Sine and cosine only from basic operations. Angles are below 2^33 (a 32-bit position times a
/// frequency of at most a few), where the reduced angle is accurate to 1e-6 and far better below.
fn sin_cos(angle: f64) -> (f64, f64) {
    // pi / 2 in three parts, the first two with 33 bits, so that their products are exact.
    const HIGH: f64 = 1.570_796_326_734_125_6;
    const MIDDLE: f64 = 6.077_100_506_303_966e-11;
    const LOW: f64 = 2.022_266_248_795_950_6e-21;
    let quarter = (angle * std::f64::consts::FRAC_2_PI).round();
    let r = ((angle - quarter * HIGH) - quarter * MIDDLE) - quarter * LOW;
    let square = r * r;
    // Taylor series up to r^15 and r^16: the remainders are below 1e-15 for |r| <= pi / 4.
    let mut sin = 0.0;
    for k in (1..=7).rev() {
        let k = f64::from(k);
        sin = -(1.0 + sin) * square / ((2.0 * k) * (2.0 * k + 1.0));
    }
    let mut cos = 0.0;
    for k in (1..=8).rev() {
        let k = f64::from(k);
        cos = -(1.0 + cos) * square / ((2.0 * k - 1.0) * (2.0 * k));
    }
    let (sin, cos) = (r * (1.0 + sin), 1.0 + cos);
    match (quarter as i64).rem_euclid(4) {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sine_and_cosine_are_those_of_the_library() {
        for step in -100_000..100_000_i32 {
            let angle = f64::from(step) * 1.618;
            let (sin, cos) = sin_cos(angle);
            let error = (sin - angle.sin()).abs().max((cos - angle.cos()).abs());
            assert!(error < 1e-12, "sin_cos({angle}) is off by {error}");
        }
    }

    /// Pairs of a place's axes turn as those of a plain position with the same coordinate.
    #[test]
    fn pairs_turn_by_the_coordinate_of_their_axis() {
        let pool = Pool::new(2).unwrap();
        let plain = RopeTable::new(8, 10_000.0, None, 1.0);
        let axes = vec![2, 0, 1, 0];
        let places = [[3, 700, 51], [0, 9, 1]];
        let mut angles = RopeAngles::new();
        angles.load_places(&pool, &plain.clone().with_axes(axes.clone()), &places);
        for (row, place) in places.iter().enumerate() {
            for (pair, axis) in axes.iter().enumerate() {
                let mut one = RopeAngles::new();
                one.load(&pool, &plain, &[place[usize::from(*axis)]]);
                assert_eq!(angles.turns[row * 4 + pair], one.turns[pair], "{place:?}, {pair}");
            }
        }
    }

    #[test]
    fn rotation_is_that_of_complex_numbers() {
        let pool = Pool::new(2).unwrap();
        let (heads, head_dim, rot_dims) = (3, 12, 8);
        let positions = [0, 1, 77, 100_000];
        let factors = [1.0, 1.0, 4.0, 8.0];
        let table = RopeTable::new(rot_dims, 10_000.0, Some(&factors), 1.25);
        let mut angles = RopeAngles::new();
        angles.load(&pool, &table, &positions);
        assert_eq!((angles.rows(), table.inverse_frequencies().len()), (4, 4));
        let x: Vec<f32> = (0..4 * heads * head_dim).map(|i| (i as f32 * 0.7).sin()).collect();
        for style in [RopeStyle::Interleaved, RopeStyle::Neox] {
            let mut out = x.clone();
            rope(&pool, &mut out, heads, (head_dim, 0), &angles, style);
            for (index, (x, out)) in x.chunks(head_dim).zip(out.chunks(head_dim)).enumerate() {
                assert_eq!(x[rot_dims..], out[rot_dims..], "the rest of a head stays");
                for pair in 0..rot_dims / 2 {
                    let (a, b) = match style {
                        RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                        RopeStyle::Neox => (pair, pair + rot_dims / 2),
                    };
                    let exponent = -2.0 * pair as f64 / rot_dims as f64;
                    let frequency = 10_000_f64.powf(exponent) / f64::from(factors[pair]);
                    let angle = f64::from(positions[index / heads]) * frequency;
                    let (sin, cos) = (angle.sin() * 1.25, angle.cos() * 1.25);
                    let (real, imaginary) = (f64::from(x[a]), f64::from(x[b]));
                    let limit = 1e-6 + angle * 1e-7;
                    assert!((f64::from(out[a]) - (real * cos - imaginary * sin)).abs() < limit);
                    assert!((f64::from(out[b]) - (real * sin + imaginary * cos)).abs() < limit);
                }
            }
        }
    }
}
