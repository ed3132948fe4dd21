//! Pixels as the tower's input: one row a patch.
//!
//! Patches of a token follow each other: tokens row by row, and the patches of each row by row.
//! Attention does not depend on their order, and merging them later is then no copy.

use half::bf16;

use crate::config::Config;
use crate::picture::Picture;
use crate::plan::Canvas;

const CHANNELS: usize = 3;

/// The patches of one tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Tokens a row, and rows of tokens.
    pub columns: usize,
    pub rows: usize,
    /// Patches a side of a token.
    pub merge: usize,
}

impl Grid {
    /// Of tiles of this canvas.
    pub fn new(config: &Config, canvas: &Canvas) -> Self {
        let (width, height) = canvas.tile();
        let side = config.token_side();
        Self { columns: width / side, rows: height / side, merge: config.merge }
    }

    pub fn tokens(self) -> usize {
        self.columns * self.rows
    }

    pub fn patches(self) -> usize {
        self.tokens() * self.merge * self.merge
    }

    /// Row and column of patch `at`, counted in patches.
    pub fn place(self, at: usize) -> (usize, usize) {
        let (token, inside) = (at / (self.merge * self.merge), at % (self.merge * self.merge));
        let row = token / self.columns * self.merge + inside / self.merge;
        let column = token % self.columns * self.merge + inside % self.merge;
        (row, column)
    }
}

/// The numbers of each channel's pixel values.
pub(crate) struct Levels([[f32; 256]; CHANNELS]);

impl Levels {
    /// `(value / 255 - mean) / deviation`; in bf16 after each step where the processor does that.
    pub fn new(config: &Config) -> Self {
        let round = |x: f32| match config.projector.bf16_pixels {
            true => bf16::from_f32(x).to_f32(),
            false => x,
        };
        let mut levels = [[0.0; 256]; CHANNELS];
        for (channel, levels) in levels.iter_mut().enumerate() {
            let (mean, deviation) = (config.mean[channel], config.deviation[channel]);
            for (value, level) in levels.iter_mut().enumerate() {
                let x = round(value as f32 * (1.0 / 255.0));
                *level = round(round(x - round(mean)) / round(deviation));
            }
        }
        Self(levels)
    }
}

/// Copies of a tile's pixels, patch by patch.
pub(crate) struct Patches<'a> {
    pub levels: &'a Levels,
    /// The scaled picture; what lies outside of it is black.
    pub picture: &'a Picture,
    /// Column and row of the tile's first pixel.
    pub origin: (usize, usize),
    pub grid: Grid,
    /// Pixels a side of a patch.
    pub patch: usize,
}

impl Patches<'_> {
    /// Writes patch `at` to `out`, `[3, patch, patch]`.
    pub fn write(&self, at: usize, out: &mut [f32]) {
        let (row, column) = self.grid.place(at);
        let (x, y) = (self.origin.0 + column * self.patch, self.origin.1 + row * self.patch);
        let area = self.patch * self.patch;
        for (channel, out) in out.chunks_exact_mut(area).enumerate() {
            for (line, out) in out.chunks_exact_mut(self.patch).enumerate() {
                for (step, out) in out.iter_mut().enumerate() {
                    let value = self.pixel(x + step, y + line, channel);
                    *out = self.levels.0[channel][usize::from(value)];
                }
            }
        }
    }

    fn pixel(&self, x: usize, y: usize, channel: usize) -> u8 {
        if x >= self.picture.width() || y >= self.picture.height() {
            return 0;
        }
        self.picture.pixels()[(y * self.picture.width() + x) * CHANNELS + channel]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_of_a_token_follow_each_other() {
        let grid = Grid { columns: 2, rows: 2, merge: 2 };
        let places: Vec<_> = (0..grid.patches()).map(|at| grid.place(at)).collect();
        assert_eq!(places[..4], [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(places[4..8], [(0, 2), (0, 3), (1, 2), (1, 3)]);
        assert_eq!(places[8..10], [(2, 0), (2, 1)]);
    }

    #[test]
    fn a_patch_is_its_pixels_channel_by_channel_and_black_outside() {
        let pixels = (0..3 * 2 * 3).map(|at| at as u8).collect();
        let picture = Picture::new(3, 2, pixels);
        let levels = Levels(std::array::from_fn(|_| std::array::from_fn(|value| value as f32)));
        let grid = Grid { columns: 2, rows: 1, merge: 1 };
        let patches =
            Patches { levels: &levels, picture: &picture, origin: (0, 0), grid, patch: 2 };
        let mut out = [0.0; 12];
        patches.write(0, &mut out);
        assert_eq!(out, [0., 3., 9., 12., 1., 4., 10., 13., 2., 5., 11., 14.]);
        patches.write(1, &mut out);
        assert_eq!(out, [6., 0., 15., 0., 7., 0., 16., 0., 8., 0., 17., 0.]);
    }
}
