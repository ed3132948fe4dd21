//! Norms of rows, of tokens or of heads.

use kernels::{Pool, add_bias, layer_norm, rms_norm, rms_norm_in_place};

/// A norm over runs of `gain.len()` numbers.
pub(crate) struct Norm {
    /// Whether the mean stays.
    pub rms: bool,
    pub gain: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    pub eps: f32,
}

impl Norm {
    /// One without learned numbers, over `len`.
    pub fn plain(len: usize, eps: f32) -> Self {
        Self { rms: true, gain: vec![1.0; len], bias: None, eps }
    }

    /// `out` = the norm of `x`; both have the same whole rows.
    pub fn apply(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        match self.rms {
            true => rms_norm(pool, x, &self.gain, self.eps, out),
            false => layer_norm(pool, x, &self.gain, self.eps, out),
        }
        if let Some(bias) = &self.bias {
            add_bias(pool, out, bias);
        }
    }

    /// `x` = its norm.
    pub fn apply_in_place(&self, pool: &Pool, x: &mut [f32]) {
        if self.rms && self.bias.is_none() {
            return rms_norm_in_place(pool, x, &self.gain, self.eps);
        }
        let copy = x.to_vec();
        self.apply(pool, &copy, x);
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let bias = self.bias.as_ref().map_or(0, Vec::len);
        size_of::<f32>() * (self.gain.len() + bias)
    }
}
