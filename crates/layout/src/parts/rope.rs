//! Rotary position embedding, from the files' metadata.

use std::f64::consts::TAU;

use crate::arch::{LocalRope, RopeStyle, Rotation};
use crate::file::limits::{CONTEXT_MAX, WIDTH_MAX};
use crate::file::names;
use crate::file::{Error, Metadata};

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub style: RopeStyle,
    /// Rotated elements of each head, in layers with full attention.
    pub dims: usize,
    pub base: f32,
    pub scaling: Scaling,
    /// The factor of sine and cosine.
    pub magnitude: f32,
    /// The factor of attention scores.
    pub score_scale: f32,
    /// The rotation of layers with a window, if it differs.
    pub local: Option<LocalRotation>,
    /// The context that the model was trained for before it was stretched.
    pub original_context: usize,
    /// The coordinate by which each rotated pair turns, for places in pictures (M-RoPE): 0 is time,
    /// 1 the row, 2 the column. Text turns all pairs alike.
    pub axes: Option<Vec<u8>>,
    /// Longrope: the longest context for the file's short factors. Longer contexts use the long
    /// factors, for all positions.
    pub short_context: Option<usize>,
}

/// The rotation of layers with a window; its frequencies are not stretched.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalRotation {
    pub base: f32,
    pub dims: usize,
}

/// The stretching of frequencies for longer contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    None,
    /// All by the same factor.
    Linear {
        factor: f32,
    },
    /// Slow pairs by the factor, fast pairs not at all, a ramp between them (Peng et al., "YaRN",
    /// arXiv 2309.00071).
    Yarn {
        factor: f32,
        beta_fast: f32,
        beta_slow: f32,
        /// Whether the ramp starts and ends at whole pairs.
        is_whole: bool,
    },
}

impl Rope {
    /// `head_dims`: the elements of a head that can be rotated, in layers with full attention and
    /// in layers with a window.
    pub(crate) fn read(
        metadata: &Metadata<'_>,
        [head_dims, local_dims]: [usize; 2],
    ) -> Result<Self, Error> {
        let plain_base = metadata.positive_or("rope.freq_base", 10_000.0)?;
        let base = match metadata.arch.local_rope {
            LocalRope::Uncompressed => {
                metadata.positive_or("attention.compress_rope_freq_base", plain_base)?
            }
            _ => plain_base,
        };
        // Older files have only the factor, under either name: positions are then divided by it.
        let factor = metadata.factor_or("rope.scale_linear", 1.0)?;
        let factor = metadata.factor_or("rope.scaling.factor", factor)?;
        let scaling = match metadata.find_str("rope.scaling.type")?.unwrap_or("linear") {
            // The factors of "longrope" are tensors.
            "none" | "longrope" => Scaling::None,
            "linear" => Scaling::Linear { factor },
            "yarn" => Scaling::Yarn {
                factor,
                beta_fast: metadata.positive_or("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: metadata.positive_or("rope.scaling.yarn_beta_slow", 1.0)?,
                is_whole: metadata.find_bool("rope.scaling.yarn_truncate")?.unwrap_or(true),
            },
            other => {
                return Err(Error::Unsupported { what: format!("rope scaling \"{other}\"") });
            }
        };
        let (magnitude, score_scale) = magnitudes(metadata, scaling)?;
        let context = metadata.size("context_length", CONTEXT_MAX)?;
        let original = "rope.scaling.original_context_length";
        const DIMS: &str = "rope.dimension_count";
        let local_base = match metadata.arch.local_rope {
            LocalRope::Same => None,
            LocalRope::Unscaled | LocalRope::Uncompressed => Some(plain_base),
            LocalRope::Base(base) => Some(base),
        };
        let local = match local_base {
            None => None,
            Some(base) => Some(LocalRotation {
                base: metadata.positive_or("rope.freq_base_swa", base)?,
                dims: {
                    let dims = metadata.find_size(DIMS, WIDTH_MAX)?.unwrap_or(local_dims);
                    metadata.size_or("rope.dimension_count_swa", WIDTH_MAX, dims)?
                },
            }),
        };
        let mut dims = match metadata.arch.rotation {
            Rotation::Never => metadata.find_size(DIMS, WIDTH_MAX)?.unwrap_or(0),
            _ => metadata.size_or(DIMS, WIDTH_MAX, head_dims)?,
        };
        if metadata.arch.half_rotated_without_window {
            dims /= 2;
        }
        // Files with sections of the rotation, for images, have halves as pairs (GLM-4.1V).
        let axes = axes(metadata, dims / 2);
        let original_context = metadata.find_size(original, CONTEXT_MAX)?.unwrap_or(context);
        let has_long = metadata.directory.find_tensor(names::ROPE_FACTORS_LONG).is_some();
        let style = if axes.is_some() { RopeStyle::Neox } else { metadata.arch.rope_style };
        Ok(Self {
            style,
            dims,
            base,
            scaling,
            magnitude,
            score_scale,
            local,
            original_context,
            axes,
            short_context: (has_long && original_context < context).then_some(original_context),
        })
    }

    /// Rotated elements of each head in a layer with or without a window.
    pub fn dims_of(&self, has_window: bool) -> usize {
        self.local.filter(|_| has_window).map_or(self.dims, |local| local.dims)
    }

    /// The factor of the position for each rotated pair, in layers with full attention. `factors`,
    /// one a pair, further divide these frequencies (Llama 3's `rope_freqs`, longrope).
    pub fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let frequency = |pair: usize| {
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            (self.frequency(pair) * self.stretch(pair) / factor) as f32
        };
        (0..self.dims / 2).map(frequency).collect()
    }

    fn frequency(&self, pair: usize) -> f64 {
        f64::from(self.base).powf(-2.0 * pair as f64 / self.dims as f64)
    }

    /// The factor of a pair's frequency.
    fn stretch(&self, pair: usize) -> f64 {
        match self.scaling {
            Scaling::None => 1.0,
            Scaling::Linear { factor } => 1.0 / f64::from(factor),
            Scaling::Yarn { factor, beta_fast, beta_slow, is_whole } => {
                let last = self.dims as f64 - 1.0;
                let (low, high) = (self.pair_of_turns(beta_fast), self.pair_of_turns(beta_slow));
                let (low, high) = if is_whole { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(last));
                // The minimum width keeps the ramp from dividing by zero where both ends meet.
                let ramp = (pair as f64 - low) / (high - low).max(0.001);
                let ramp = ramp.clamp(0.0, 1.0);
                ramp / f64::from(factor) + (1.0 - ramp)
            }
        }
    }

    /// The pair that makes this number of turns over the original context, as a fraction.
    fn pair_of_turns(&self, turns: f32) -> f64 {
        let positions = self.original_context as f64;
        let dims = self.dims as f64;
        dims * (positions / (f64::from(turns) * TAU)).ln() / (2.0 * f64::from(self.base).ln())
    }
}

/// The factors of sine and cosine, and of attention's scores. YaRN sharpens attention by `0.1
/// ln(factor) + 1`, or by the file's value. Most models apply it in the rotation. DeepSeek models
/// with their own multiplier apply it to the scores, so to the plain parts as well. Mistral 3's
/// multiplier divides the rotation instead; 1 leaves it unchanged.
fn magnitudes(metadata: &Metadata<'_>, scaling: Scaling) -> Result<(f32, f32), Error> {
    const YARN_MULTIPLIER: f32 = 0.1;
    let attention_factor = metadata.factor_or("rope.scaling.attn_factor", 1.0)?;
    let Scaling::Yarn { factor, .. } = scaling else {
        return Ok((attention_factor, 1.0));
    };
    // DeepSeek V4 is stretched and not sharpened.
    let unsharpened = f32::from(metadata.arch.local_rope == LocalRope::Uncompressed);
    let multiplier = metadata.find_f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(unsharpened);
    let (at_rotation, at_scores) = match metadata.arch.latent && multiplier != 0.0 {
        true => (1.0, 1.0 + multiplier * factor.ln()),
        false => {
            let sharper = |multiplier: f32| 1.0 + YARN_MULTIPLIER * multiplier * factor.ln();
            (sharper(1.0) / sharper(multiplier), 1.0)
        }
    };
    let at_rotation = metadata.factor_or("rope.scaling.yarn_attn_factor", at_rotation)?;
    Ok((attention_factor * at_rotation, at_scores * at_scores))
}

/// The axis of each pair: runs of pairs (GLM), or one after the other while there are some of each
/// (Qwen), as `rope.dimension_sections` counts them. Pairs beyond the sections turn by time.
fn axes(metadata: &Metadata<'_>, pairs: usize) -> Option<Vec<u8>> {
    const MOST: i64 = WIDTH_MAX as i64;
    const KEY: &str = "rope.dimension_sections";
    let found = metadata.get(KEY)?;
    let sections = found.as_array().and_then(|array| array.integers());
    let sections: Vec<i64> = sections.map_or_else(Vec::new, |all| all.take(3).collect());
    let section =
        |axis: usize| sections.get(axis).map_or(0, |count| (*count).clamp(0, MOST) as usize);
    let in_runs = |pair: usize| {
        let mut end = 0;
        let axis = (0..3).find(|axis| {
            end += section(*axis);
            pair < end
        });
        axis.unwrap_or(0)
    };
    let in_turn = |pair: usize| if pair < 3 * section(pair % 3) { pair % 3 } else { 0 };
    let axis = |pair| match metadata.arch.sections_in_runs {
        true => in_runs(pair) as u8,
        false => in_turn(pair) as u8,
    };
    Some((0..pairs).map(axis).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Rope = Rope {
        style: RopeStyle::Neox,
        dims: 8,
        base: 10_000.0,
        scaling: Scaling::None,
        magnitude: 1.0,
        score_scale: 1.0,
        local: None,
        axes: None,
        original_context: 4096,
        short_context: None,
    };

    #[test]
    fn yarn_stretches_slow_pairs_and_keeps_fast_ones() {
        // Over 4096 positions the four pairs make 652, 65, 6.5 and 0.65 turns.
        let scaling =
            Scaling::Yarn { factor: 4.0, beta_fast: 32.0, beta_slow: 1.0, is_whole: true };
        let rope = Rope { scaling, ..PLAIN };
        let stretch: Vec<f64> = (0..4).map(|pair| rope.stretch(pair)).collect();
        assert_eq!(stretch, [1.0, 1.0, 1.0 - 0.75 / 2.0, 0.25]);
        // The ramp begins between the second and the third pair.
        let scaling =
            Scaling::Yarn { factor: 4.0, beta_fast: 32.0, beta_slow: 1.0, is_whole: false };
        let between = Rope { scaling, ..PLAIN };
        assert_eq!((between.stretch(1), between.stretch(3)), (1.0, 0.25));
        assert!(between.stretch(2) > rope.stretch(2));
    }

    #[test]
    fn a_ramp_without_width_is_a_step() {
        let scaling =
            Scaling::Yarn { factor: 2.0, beta_fast: 652.0, beta_slow: 652.0, is_whole: true };
        let rope = Rope { scaling, ..PLAIN };
        assert!((0..4).all(|pair| rope.stretch(pair).is_finite()));
        assert_eq!((rope.stretch(0), rope.stretch(3)), (1.0, 0.5));
    }

    #[test]
    fn pairs_turn_by_their_sections() {
        let axes = |arch: &str, sections: &[i32]| {
            let mut directory = gguf::Writer::new();
            let sections = gguf::Value::Array(gguf::Array::from_i32s(sections));
            directory.set("general.architecture", gguf::Value::String(arch.to_owned()));
            directory.set(&format!("{arch}.rope.dimension_sections"), sections);
            let header = directory.padded_header();
            let directory = gguf::Directory::parse(&header, header.len() as u64).unwrap();
            let arch = crate::arch::find(arch).unwrap();
            super::axes(&Metadata { directory: &directory, arch }, 8)
        };
        assert_eq!(axes("qwen3vl", &[3, 3, 2, 0]), Some(vec![0, 1, 2, 0, 1, 2, 0, 1]));
        assert_eq!(axes("qwen3vl", &[6, 1, 1, 0]), Some(vec![0, 1, 2, 0, 0, 0, 0, 0]));
        assert_eq!(axes("glm4moe", &[2, 3, 3, 0]), Some(vec![0, 0, 1, 1, 1, 2, 2, 2]));
        assert_eq!(axes("glm4", &[1, 1]), Some(vec![0, 1, 0, 0, 0, 0, 0, 0]));
    }
}
