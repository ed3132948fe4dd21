//! Scaling of pictures: the cubic and the linear filter of PIL and torchvision, which widen as they
//! reduce (antialias).
//!
//! Weights are 16-bit integers and sums are rounded to 8 bits after each direction, as torch does
//! it for 8-bit pictures, so the pixels are the same. Source of the cubic kernel: Keys, "Cubic
//! Convolution Interpolation" (1981), with a = -0.5.

use kernels::{Pool, for_each_row};

use crate::picture::Picture;

const CHANNELS: usize = 3;
/// Weights have at most this many binary digits after the point.
const PRECISION_MAX: u32 = 22;

/// A filter by the distance from a pixel's centre.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    Linear,
    Cubic,
}

impl Kernel {
    fn support(self) -> f64 {
        match self {
            Self::Linear => 1.0,
            Self::Cubic => 2.0,
        }
    }

    fn at(self, distance: f64) -> f64 {
        const A: f64 = -0.5;
        let x = distance.abs();
        match self {
            Self::Linear => (1.0 - x).max(0.0),
            Self::Cubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Self::Cubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            Self::Cubic => 0.0,
        }
    }
}

/// The sources of one output pixel along an axis.
struct Taps {
    first: usize,
    weights: Vec<i16>,
}

/// The filter of an axis: one [`Taps`] a pixel of the output.
struct Axis {
    taps: Vec<Taps>,
    /// Binary digits of a weight after the point.
    precision: u32,
}

impl Axis {
    fn new(kernel: Kernel, from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let (support, inverse) = (kernel.support() * scale.max(1.0), 1.0 / scale.max(1.0));
        let weights: Vec<(usize, Vec<f64>)> = (0..to)
            .map(|at| {
                let centre = scale * (at as f64 + 0.5);
                let first = (centre - support + 0.5).max(0.0) as usize;
                let end = ((centre + support + 0.5) as usize).min(from);
                let distance = |source: usize| (source as f64 - centre + 0.5) * inverse;
                let weights: Vec<f64> = (first..end).map(|i| kernel.at(distance(i))).collect();
                let sum: f64 = weights.iter().sum();
                (first, weights.iter().map(|weight| weight / sum).collect())
            })
            .collect();
        let largest = weights.iter().flat_map(|(_, weights)| weights).fold(0.0, |a, b| b.max(a));
        let precision = precision(largest);
        let rounded = |weight: &f64| {
            let scaled = weight * f64::from(1_u32 << precision);
            (scaled + 0.5_f64.copysign(scaled)) as i16
        };
        let taps = weights.iter().map(|(first, weights)| Taps {
            first: *first,
            weights: weights.iter().map(rounded).collect(),
        });
        Self { taps: taps.collect(), precision }
    }

    /// One output pixel's channel from the sources `of`.
    fn sum(&self, taps: &Taps, of: impl Fn(usize) -> u8) -> u8 {
        let start = 1_i32 << (self.precision - 1);
        let sources = taps.first..taps.first + taps.weights.len();
        let products = sources.zip(&taps.weights).map(|(i, w)| i32::from(of(i)) * i32::from(*w));
        ((start + products.sum::<i32>()) >> self.precision).clamp(0, 255) as u8
    }
}

/// The most digits with which the largest weight fits 16 bits.
fn precision(largest: f64) -> u32 {
    let fits = |digits: &u32| 0.5 + largest * f64::from(1_u32 << (digits + 1)) < f64::from(1 << 15);
    (0..PRECISION_MAX).find(|digits| !fits(digits)).unwrap_or(PRECISION_MAX)
}

/// `picture` scaled to `width` by `height`.
pub(crate) fn resize(
    pool: &Pool,
    picture: &Picture,
    (width, height): (usize, usize),
    kernel: Kernel,
) -> Picture {
    let mut scaled = picture.clone();
    if width != picture.width() {
        scaled = across(pool, &scaled, &Axis::new(kernel, picture.width(), width));
    }
    if height != picture.height() {
        scaled = down(pool, &scaled, &Axis::new(kernel, picture.height(), height));
    }
    scaled
}

/// Every row filtered along itself.
fn across(pool: &Pool, picture: &Picture, axis: &Axis) -> Picture {
    let (width, height) = (axis.taps.len(), picture.height());
    let mut out = vec![0; width * height * CHANNELS];
    let rows: Vec<usize> = (0..height).collect();
    for_each_row(pool, &mut out, width * CHANNELS, &rows, |row, out| {
        let stride = picture.width() * CHANNELS;
        let source = &picture.pixels()[row * stride..][..stride];
        for (taps, pixel) in axis.taps.iter().zip(out.chunks_exact_mut(CHANNELS)) {
            for (channel, out) in pixel.iter_mut().enumerate() {
                *out = axis.sum(taps, |at| source[at * CHANNELS + channel]);
            }
        }
    });
    Picture::new(width, height, out)
}

/// Every column filtered along itself.
fn down(pool: &Pool, picture: &Picture, axis: &Axis) -> Picture {
    let (stride, height) = (picture.width() * CHANNELS, axis.taps.len());
    let mut out = vec![0; stride * height];
    let rows: Vec<usize> = (0..height).collect();
    for_each_row(pool, &mut out, stride, &rows, |row, out| {
        let taps = &axis.taps[row];
        for (at, out) in out.iter_mut().enumerate() {
            *out = axis.sum(taps, |source| picture.pixels()[source * stride + at]);
        }
    });
    Picture::new(picture.width(), height, out)
}
