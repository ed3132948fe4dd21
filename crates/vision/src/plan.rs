//! From the size of a picture alone: the sizes at which the tower looks at it, its tokens, and what
//! stands around them in the prompt. Counting tokens needs no pixels.

use crate::config::Config;
use crate::projector::Sizing;
use crate::{Detail, PictureError, sizes};

/// The most tokens of a picture or a tile.
pub const TOKENS_MAX: usize = 4096;

/// The most patches: attention costs their square. Tokens of 3 by 3 patches can be as many as
/// [`TOKENS_MAX`].
const PATCHES_MAX: usize = 9 * TOKENS_MAX;

/// The most tokens of a picture with [`Detail::Low`].
pub const LOW_TOKENS: usize = 256;

/// The most tokens of a tile, for tokens of `merge` by `merge` patches.
pub(crate) fn tokens_max(merge: usize) -> usize {
    TOKENS_MAX.min(PATCHES_MAX / (merge * merge))
}

/// The same with a border, which has less than a token a side.
pub(crate) fn tokens_with_border(config: &Config) -> usize {
    let border = match config.projector.sizing {
        Sizing::Bordered => 2 * sizes::KIMI_SIDE_MAX,
        _ => 0,
    };
    tokens_max(config.merge) + border
}

/// The whole picture at one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Canvas {
    /// Width and height to which the picture is scaled.
    pub scaled: (usize, usize),
    /// Width and height with the black border on the right and at the bottom.
    pub padded: (usize, usize),
    /// Columns and rows of tiles, each seen on its own.
    pub tiles: (usize, usize),
}

impl Canvas {
    /// Without tiles and border.
    pub fn plain(width: usize, height: usize) -> Self {
        Self { scaled: (width, height), padded: (width, height), tiles: (1, 1) }
    }

    /// Width and height of a tile.
    pub fn tile(&self) -> (usize, usize) {
        (self.padded.0 / self.tiles.0, self.padded.1 / self.tiles.1)
    }
}

/// A part of a picture's place in the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// A text of the model's vocabulary, mostly one token.
    Token(&'static str),
    /// Rows of the tower, in order: a grid of `columns` by `rows` tokens, row by row. In models
    /// with M-RoPE (Qwen, GLM) the token in column `x` of row `y` has the time `t`, the height
    /// `t + y` and the width `t + x`, where `t` is the first free position, and the text after it
    /// goes on at `t + max(columns, rows)`. Others count on by one.
    Grid { columns: usize, rows: usize },
}

impl Piece {
    /// Tokens of the prompt.
    pub fn tokens(&self) -> usize {
        match self {
            Self::Token(_) => 1,
            Self::Grid { columns, rows } => columns * rows,
        }
    }
}

/// What a picture becomes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub(crate) canvases: Vec<Canvas>,
    /// Its place in the prompt, from the first token to the last.
    pub pieces: Vec<Piece>,
}

impl Plan {
    /// A plan for a picture of `width` by `height` pixels.
    ///
    /// With [`Detail::Low`] it has at most [`LOW_TOKENS`] tokens (Gemma 4: 70; Gemma 3 always has
    /// 256; Kimi K2.5's border comes on top). With [`Detail::Auto`] it has as many as the model's
    /// own processor gives. With [`Detail::High`] it has as many as the model was trained for,
    /// which are more for Gemma 4 alone. Both go up to [`TOKENS_MAX`].
    ///
    /// # Errors
    /// One side is much longer than the other, more than the model's processor accepts.
    pub fn new(
        config: &Config,
        width: usize,
        height: usize,
        detail: Detail,
    ) -> Result<Self, PictureError> {
        let canvases = sizes::canvases(config, width, height, detail)?;
        let projector = config.projector;
        let token = |text: &&'static str| Piece::Token(text);
        let mut pieces: Vec<Piece> = projector.begin.iter().map(token).collect();
        for (at, canvas) in canvases.iter().enumerate() {
            if at + 1 == canvases.len() {
                pieces.extend(projector.before_whole.iter().map(token));
            }
            add_tiles(config, canvas, at + 1 < canvases.len(), &mut pieces);
        }
        pieces.extend(projector.end.iter().map(token));
        Ok(Self { canvases, pieces })
    }

    /// Tokens of the prompt, those around the picture included.
    pub fn tokens(&self) -> usize {
        self.pieces.iter().map(Piece::tokens).sum()
    }

    /// Rows of the tower.
    pub fn rows(&self) -> usize {
        let grids = self.pieces.iter().filter(|piece| matches!(piece, Piece::Grid { .. }));
        grids.map(Piece::tokens).sum()
    }
}

/// The tiles of a canvas, row by row. `separated`: each has a token after it.
fn add_tiles(config: &Config, canvas: &Canvas, separated: bool, pieces: &mut Vec<Piece>) {
    let (columns, rows) = canvas.tiles;
    for tile in 0..columns * rows {
        add_grid(config, canvas.tile(), pieces);
        if separated {
            let is_last = tile % columns + 1 == columns;
            let axis = if is_last { "<|tile_y_separator|>" } else { "<|tile_x_separator|>" };
            pieces.push(Piece::Token(axis));
        }
    }
}

fn add_grid(config: &Config, (width, height): (usize, usize), pieces: &mut Vec<Piece>) {
    let side = config.token_side();
    let (columns, rows) = (width / side, height / side);
    let Some(separator) = config.projector.row_separator else {
        return pieces.push(Piece::Grid { columns, rows });
    };
    for row in 0..rows {
        pieces.push(Piece::Grid { columns, rows: 1 });
        if row + 1 < rows {
            pieces.push(Piece::Token(separator));
        }
    }
}
