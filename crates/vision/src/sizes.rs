//! The sizes at which each model's processor looks at a picture. Source: the image processors of
//! transformers 5.24, whose rounding is kept.

use crate::Detail;
use crate::PictureError;
use crate::config::Config;
use crate::plan::{Canvas, LOW_TOKENS, tokens_max};
use crate::projector::Sizing;

/// The largest ratio of sides for Qwen and GLM.
const RATIO_MAX: usize = 200;
/// Budgets of Gemma 4 in tokens: low, automatic, high.
const GEMMA4_TOKENS: [usize; 3] = [70, 280, 1120];
/// The most patches a side for Kimi K2.5.
pub(crate) const KIMI_SIDE_MAX: usize = 512;
/// The most tiles for Llama 4.
const LLAMA4_TILES_MAX: usize = 16;

/// The canvases of a picture, in the order in which the tower sees them.
pub(crate) fn canvases(
    config: &Config,
    width: usize,
    height: usize,
    detail: Detail,
) -> Result<Vec<Canvas>, PictureError> {
    let size = (width, height);
    Ok(match config.projector.sizing {
        Sizing::Smart { fewest, most, enlarges } => {
            vec![smart(config, size, detail, (fewest, most, enlarges))?]
        }
        Sizing::Budget => vec![budget(config, size, detail)?],
        Sizing::Bordered => vec![bordered(config, size, detail)],
        Sizing::Fixed => vec![Canvas::plain(config.image_size, config.image_size)],
        Sizing::LongestEdge => vec![longest_edge(config, size, detail)],
        Sizing::Tiled => tiled(config.image_size, size, detail),
    })
}

/// The most tokens for `detail`, where the processor's own limit is `own`.
fn tokens_most(config: &Config, detail: Detail, own: usize) -> usize {
    let most = config.tokens.map_or(own, |tokens| tokens.1).clamp(1, tokens_max(config.merge));
    if detail == Detail::Low { most.min(LOW_TOKENS) } else { most }
}

/// Multiples of a token's side, between the fewest and the most tokens.
fn smart(
    config: &Config,
    size: (usize, usize),
    detail: Detail,
    (fewest, own, enlarges): (usize, usize, bool),
) -> Result<Canvas, PictureError> {
    let factor = config.token_side();
    let fewest = config.tokens.map_or(fewest, |tokens| tokens.0).min(tokens_max(config.merge));
    let most = tokens_most(config, detail, own).max(fewest);
    let (mut width, mut height) = size;
    if enlarges && (width < factor || height < factor) {
        let scale = (factor as f64 / width as f64).max(factor as f64 / height as f64);
        width = (width as f64 * scale) as usize;
        height = (height as f64 * scale) as usize;
    }
    if width.max(height) > RATIO_MAX * width.min(height) {
        let (width, height) = (size.0 as u32, size.1 as u32);
        return Err(PictureError::Ratio { width, height, most: RATIO_MAX as u32 });
    }
    let (w, h, side) = (width as f64, height as f64, factor as f64);
    let rounded = |x: f64| (x / side).round_ties_even() as usize * factor;
    let (mut out_w, mut out_h) = (rounded(w), rounded(h));
    let (pixels_fewest, pixels_most) = (fewest * factor * factor, most * factor * factor);
    if out_w * out_h > pixels_most {
        let beta = (w * h / pixels_most as f64).sqrt();
        let floor = |x: f64| ((x / beta / side).floor() as usize * factor).max(factor);
        (out_w, out_h) = (floor(w), floor(h));
    } else if out_w * out_h < pixels_fewest {
        let beta = (pixels_fewest as f64 / (w * h)).sqrt();
        let ceil = |x: f64| (x * beta / side).ceil() as usize * factor;
        (out_w, out_h) = (ceil(w), ceil(h));
    }
    Ok(Canvas::plain(out_w, out_h))
}

/// The largest multiples of a token's side with the picture's proportions and at most a budget of
/// tokens (Gemma 4).
fn budget(config: &Config, size: (usize, usize), detail: Detail) -> Result<Canvas, PictureError> {
    let side = config.token_side();
    let own = GEMMA4_TOKENS[match detail {
        Detail::Low => 0,
        Detail::Auto => 1,
        Detail::High => 2,
    }];
    let most = config.tokens.map_or(own, |tokens| tokens.1).clamp(1, tokens_max(config.merge));
    let (width, height) = (size.0 as f64, size.1 as f64);
    let factor = ((most * side * side) as f64 / (width * height)).sqrt();
    let floor = |x: f64| (factor * x / side as f64).floor() as usize * side;
    // One token thick, and as long as the proportions or the budget allow.
    let long = |x: f64| ((x.floor() as usize) * side).min(most * side);
    let scaled = match (floor(width), floor(height)) {
        (0, 0) => (side, side),
        (0, _) => (side, long(height / width)),
        (_, 0) => (long(width / height), side),
        both => both,
    };
    Ok(Canvas::plain(scaled.0, scaled.1))
}

/// Never enlarged, and with a border to multiples of a token's side (Kimi K2.5).
fn bordered(config: &Config, (width, height): (usize, usize), detail: Detail) -> Canvas {
    let (patch, side) = (config.patch, config.token_side());
    let area = config.merge * config.merge;
    let own = config.pixels_max.map_or(usize::MAX, |pixels| pixels / (patch * patch) / area);
    let patches_most = tokens_most(config, detail, own) * area;
    let patches = (width / patch).max(1) * (height / patch).max(1);
    let longest = KIMI_SIDE_MAX * patch;
    let fit = |pixels: usize| longest as f64 / pixels as f64;
    let total = (patches_most as f64 / patches as f64).sqrt();
    let scale = total.min(fit(height)).min(fit(width)).min(1.0);
    let scaled = |pixels: usize| ((pixels as f64 * scale) as usize).clamp(1, longest);
    let scaled = (scaled(width), scaled(height));
    let padded = (scaled.0.next_multiple_of(side), scaled.1.next_multiple_of(side));
    Canvas { scaled, padded, tiles: (1, 1) }
}

/// Never enlarged by more than a token, and with a longest edge (Pixtral).
fn longest_edge(config: &Config, (width, height): (usize, usize), detail: Detail) -> Canvas {
    let side = config.token_side();
    let own = (config.image_size / side) * (config.image_size / side);
    let most = tokens_most(config, detail, own);
    let longest = config.image_size.min(most.isqrt().max(1) * side);
    let ratio = (height as f64 / longest as f64).max(width as f64 / longest as f64);
    let scaled =
        |pixels: usize| if ratio > 1.0 { (pixels as f64 / ratio) as usize } else { pixels };
    let up = |pixels: usize| scaled(pixels).max(1).next_multiple_of(side);
    Canvas::plain(up(width), up(height))
}

/// Tiles of `side` that hold the picture best, and the whole picture in one tile (Llama 4).
fn tiled(side: usize, size: (usize, usize), detail: Detail) -> Vec<Canvas> {
    let whole = Canvas::plain(side, side);
    let (columns, rows) = match detail {
        Detail::Low => (1, 1),
        _ => best_tiles(side, size),
    };
    let padded = (columns * side, rows * side);
    // Not enlarged beyond one tile.
    let limit = |pixels: usize, padded: usize| pixels.max(side).min(padded);
    let limit = (limit(size.0, padded.0), limit(size.1, padded.1));
    let scaled = within(size, limit);
    let canvas = Canvas { scaled, padded, tiles: (columns, rows) };
    if columns * rows > 1 { vec![canvas, whole] } else { vec![canvas] }
}

/// The largest size with the proportions of `size` inside `limit`.
fn within((width, height): (usize, usize), limit: (usize, usize)) -> (usize, usize) {
    let scale = (limit.0 as f64 / width as f64, limit.1 as f64 / height as f64);
    let other = |pixels: usize, scale: f64, limit: usize| {
        ((pixels as f64 * scale) as usize).min(limit).max(1)
    };
    if scale.0 < scale.1 {
        (limit.0, other(height, scale.0, limit.1))
    } else {
        (other(width, scale.1, limit.0), limit.1)
    }
}

/// Columns and rows: those that enlarge the picture least, or else reduce it least; of equal ones,
/// the fewest tiles, and of these the first in the processor's list.
fn best_tiles(side: usize, (width, height): (usize, usize)) -> (usize, usize) {
    // In f32, as tensors are.
    let scale = |(columns, rows): (usize, usize)| {
        let fit = |tiles: usize, pixels: usize| (tiles * side) as f32 / pixels as f32;
        fit(columns, width).min(fit(rows, height))
    };
    let all = tile_shapes();
    let enlarging = all.iter().map(|shape| scale(*shape)).filter(|scale| *scale >= 1.0);
    let best = enlarging.min_by(f32::total_cmp).unwrap_or_else(|| {
        let reducing = all.iter().map(|shape| scale(*shape));
        reducing.max_by(f32::total_cmp).expect("there are shapes")
    });
    let fitting = all.into_iter().filter(|shape| scale(*shape) == best);
    fitting.min_by_key(|(columns, rows)| columns * rows).expect("the best is one of them")
}

/// All shapes of up to [`LLAMA4_TILES_MAX`] tiles as columns and rows, in the processor's order: by
/// their proportions as these first occur, from the most tiles to one.
fn tile_shapes() -> Vec<(usize, usize)> {
    let mut by_ratio: Vec<Vec<(usize, usize)>> = Vec::new();
    for tiles in (1..=LLAMA4_TILES_MAX).rev() {
        for rows in (1..=tiles).filter(|rows| tiles % rows == 0) {
            let shape = (tiles / rows, rows);
            let same = |group: &&mut Vec<(usize, usize)>| group[0].0 * rows == shape.0 * group[0].1;
            match by_ratio.iter_mut().find(same) {
                Some(group) => group.push(shape),
                None => by_ratio.push(vec![shape]),
            }
        }
    }
    by_ratio.concat()
}
