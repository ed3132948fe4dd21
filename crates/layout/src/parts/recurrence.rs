//! Layers with a state, which is passed from position to position instead of attention: which
//! layers have one, and their sizes.

pub(crate) mod wiring;

use crate::arch::{Arch, HeadOrder, RecurrenceKind};
use crate::file::Error;
use crate::file::Metadata;
use crate::file::limits::{LAYERS_MAX, TAPS_MAX, WIDTH_MAX};

/// Columns of a state that are adjacent in memory.
const STATE_LANES: usize = 16;

/// The default period of full attention (Qwen3-Next).
const ATTENTION_EVERY: usize = 4;

/// The part of a layer before its feed-forward half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    Attention,
    Recurrence,
}

/// The halves of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerHalves {
    pub mixer: Option<Mixer>,
    pub feed_forward: bool,
}

/// The sizes of a model's recurrent layers. Queries, keys and values are the rule's terms; Mamba-2
/// calls them C, B and x, a short convolution has three inputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recurrence {
    pub kind: RecurrenceKind,
    pub k_heads: usize,
    pub v_heads: usize,
    /// Elements of a head's query and key, and of its value. Its state is `[k_dim, v_dim]`.
    pub k_dim: usize,
    pub v_dim: usize,
    /// Positions of the convolution, including the row's own.
    pub taps: usize,
    /// The lowest logarithm of a decay, below 0, in models that bound it (Kimi K3).
    pub decay_bound: Option<f32>,
}

/// Widths of a rank's recurrent buffers, in elements of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecurrentWidths {
    /// Queries and keys, each.
    pub k: usize,
    /// Values, and outputs.
    pub v: usize,
    pub decay: usize,
    pub beta: usize,
    /// The gate on outputs.
    pub gate: usize,
    /// Low-rank projections of decays and gates.
    pub low_rank: usize,
    /// The number of all heads, if a norm needs their squares from every rank.
    pub squares: usize,
}

impl Recurrence {
    /// The sizes of the layers with a state, if `halves` has any.
    pub(crate) fn read(
        metadata: &Metadata<'_>,
        halves: &[LayerHalves],
        width: usize,
    ) -> Result<Option<Self>, Error> {
        let Some(kind) = metadata.arch.recurrence else { return Ok(None) };
        if halves.iter().all(|layer| layer.mixer != Some(Mixer::Recurrence)) {
            return Ok(None);
        }
        let size = |name| metadata.size(name, WIDTH_MAX);
        let taps = |name| metadata.size(name, TAPS_MAX);
        let found = match kind {
            RecurrenceKind::GatedDelta(_) | RecurrenceKind::Mamba => {
                let (inner, v_heads) = (size("ssm.inner_size")?, size("ssm.time_step_rank")?);
                if !inner.is_multiple_of(v_heads) {
                    let what = format!("{inner} numbers (ssm.inner_size) in {v_heads} heads");
                    return Err(Error::Impossible { what });
                }
                Self {
                    kind,
                    k_heads: size("ssm.group_count")?,
                    v_heads,
                    k_dim: size("ssm.state_size")?,
                    v_dim: inner / v_heads,
                    taps: taps("ssm.conv_kernel")?,
                    decay_bound: None,
                }
            }
            RecurrenceKind::KimiDelta => {
                let (heads, dim) = (size("attention.head_count")?, size("kda.head_dim")?);
                Self {
                    kind,
                    k_heads: heads,
                    v_heads: heads,
                    k_dim: dim,
                    v_dim: dim,
                    taps: taps("ssm.conv_kernel")?,
                    decay_bound: {
                        let is_bounded = metadata.find_bool("kda.safe_gate")? != Some(false);
                        metadata.find_f32("kda.gate_lower_bound")?.filter(|_| is_bounded)
                    },
                }
            }
            RecurrenceKind::ShortConvolution => {
                Self::convolution(width, taps("shortconv.l_cache")?)
            }
        };
        found.check()?;
        Ok(Some(found))
    }

    fn check(&self) -> Result<(), Error> {
        let Self { k_heads, v_heads, k_dim, v_dim, .. } = *self;
        if !v_heads.is_multiple_of(k_heads) {
            let what = format!("{v_heads} heads with a state cannot share {k_heads} keys evenly");
            return Err(Error::Impossible { what });
        }
        if let Some(bound) = self.decay_bound.filter(|bound| *bound >= 0.0) {
            let what = format!("decays bounded by e^{bound}, with which a state would grow");
            return Err(Error::Impossible { what });
        }
        let state = (v_heads as u128) * (k_dim as u128) * (v_dim as u128);
        let widest = (k_heads as u128 * k_dim as u128).max(v_heads as u128 * v_dim as u128);
        let limit = u128::from(WIDTH_MAX) * 16;
        if widest > limit || state > limit * 16 {
            let what = format!("a state of {state} numbers a layer; {} are possible", limit * 16);
            return Err(Error::Impossible { what });
        }
        Ok(())
    }

    /// Value heads of each key head.
    pub fn group(&self) -> usize {
        self.v_heads / self.k_heads
    }

    pub(crate) fn is_tiled(&self) -> bool {
        self.kind == RecurrenceKind::GatedDelta(HeadOrder::Tiled)
    }

    /// Whether outputs are normalised over several heads, so that ranks add up their squares.
    pub fn has_group_norm(&self) -> bool {
        self.kind == RecurrenceKind::Mamba
    }

    /// The key head of each of `value_heads`, counted from `first`.
    pub fn keys_of(&self, value_heads: impl Iterator<Item = usize>, first: usize) -> Vec<u32> {
        let key = |head: usize| match self.is_tiled() {
            true => head % self.k_heads,
            false => head / self.group(),
        };
        value_heads.map(|head| (key(head) - first) as u32).collect()
    }

    /// The widths for a rank with these numbers of heads.
    pub(crate) fn widths(&self, k_heads: usize, v_heads: usize) -> RecurrentWidths {
        let (k, v) = (k_heads * self.k_dim, v_heads * self.v_dim);
        let plain = RecurrentWidths { k, v, decay: 0, beta: 0, gate: 0, low_rank: 0, squares: 0 };
        match self.kind {
            RecurrenceKind::GatedDelta(_) => {
                RecurrentWidths { decay: v_heads, beta: v_heads, gate: v, ..plain }
            }
            RecurrenceKind::KimiDelta => {
                let (decay, low_rank) = (v_heads * self.k_dim, self.k_dim);
                RecurrentWidths { decay, beta: v_heads, gate: v, low_rank, ..plain }
            }
            RecurrenceKind::Mamba => {
                RecurrentWidths { decay: v_heads, gate: v, squares: self.v_heads, ..plain }
            }
            RecurrenceKind::ShortConvolution => plain,
        }
    }

    /// f32 elements of a rank's state: for each head `[k_dim, v_dim]`, padded to whole vectors, and
    /// the last positions of the convolution.
    pub(crate) fn state_numbers(&self, widths: &RecurrentWidths) -> u64 {
        let history = self.taps as u64 - 1;
        let whole = |numbers: u64| numbers.next_multiple_of(STATE_LANES as u64);
        if self.kind == RecurrenceKind::ShortConvolution {
            return whole(history * widths.v as u64);
        }
        let heads = (widths.v / self.v_dim) as u64;
        let state = heads * (self.k_dim * self.v_dim.next_multiple_of(STATE_LANES)) as u64;
        state + whole(history * (2 * widths.k + widths.v) as u64)
    }

    /// The sizes of a short convolution over `channels` channels.
    pub(crate) fn convolution(channels: usize, taps: usize) -> Self {
        Self {
            kind: RecurrenceKind::ShortConvolution,
            k_heads: channels,
            v_heads: channels,
            k_dim: 1,
            v_dim: 1,
            taps,
            decay_bound: None,
        }
    }

    /// f32 elements of `rows` rows that a state keeps while they are speculated.
    pub(crate) fn kept_numbers(widths: &RecurrentWidths, rows: usize) -> u64 {
        let row = (2 * widths.k + widths.v + widths.decay + widths.beta) as u64;
        (row * rows as u64).next_multiple_of(STATE_LANES as u64)
    }
}

/// The halves of each layer to run.
pub(crate) fn halves(metadata: &Metadata<'_>, layers: usize) -> Result<Vec<LayerHalves>, Error> {
    let arch: &Arch = metadata.arch;
    let kv_heads = metadata.of_layers("attention.head_count_kv", layers)?;
    let attends: Vec<bool> = match arch.recurrence {
        None => vec![true; layers],
        Some(RecurrenceKind::GatedDelta(_)) => attending(metadata, layers)?,
        Some(_) => kv_heads.iter().map(|heads| heads.is_none_or(|heads| heads > 0)).collect(),
    };
    let hidden = metadata.of_layers("feed_forward_length", layers)?;
    let half = |(attends, hidden): (bool, Option<u64>)| {
        let feed_forward = !arch.single_halves || hidden.is_some_and(|hidden| hidden > 0);
        let mixer = match attends {
            true => Some(Mixer::Attention),
            false if arch.single_halves && feed_forward => None,
            false => Some(Mixer::Recurrence),
        };
        LayerHalves { mixer, feed_forward: feed_forward && !(arch.single_halves && attends) }
    };
    Ok(attends.into_iter().zip(hidden).map(half).collect())
}

/// The attending layers of a gated delta net model; the file lists them or gives a period.
fn attending(metadata: &Metadata<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    const KEY: &str = "attention.recurrent_layers";
    if metadata.get(KEY).is_some() {
        let recurrent = metadata.of_layers(KEY, layers)?;
        return Ok(recurrent.into_iter().map(|flag| flag == Some(0)).collect());
    }
    let every = metadata.size_or("full_attention_interval", LAYERS_MAX, ATTENTION_EVERY)?;
    Ok((0..layers).map(|layer| (layer + 1).is_multiple_of(every)).collect())
}
