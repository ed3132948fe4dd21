//! A norm over groups of heads (Mamba-2). Each rank sums the squares of its own heads. Ranks that
//! share a group exchange these sums. Every rank adds them in the order of heads, so the result
//! does not depend on the split.

/// A rank's heads among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupNorm {
    /// Elements of a head.
    pub head_dim: usize,
    /// The rank's first head, and the number of heads on all ranks.
    pub first_head: usize,
    pub heads_all: usize,
    /// Heads that are normalised together.
    pub group_heads: usize,
}

impl GroupNorm {
    /// The sums of squares of one row's heads `x`, `[heads * head_dim]`, written to their indices
    /// in `out`, `[heads_all]`.
    pub(crate) fn squares(&self, x: &[f32], out: &mut [f32]) {
        let heads = x.chunks_exact(self.head_dim);
        for (head, out) in heads.zip(&mut out[self.first_head..]) {
            *out = kernels::sum_of_squares(head);
        }
    }

    /// `x = x / sqrt(mean of its group's squares + eps) * gain` for one row's heads, with the
    /// `squares` of all heads, `[heads_all]`.
    pub(crate) fn normalise(&self, x: &mut [f32], squares: &[f32], gain: &[f32], eps: f32) {
        let heads = x.chunks_exact_mut(self.head_dim).zip(gain.chunks_exact(self.head_dim));
        let mut known = None;
        for (at, (x, gain)) in heads.enumerate() {
            let group = (self.first_head + at) / self.group_heads;
            let scale = match known {
                Some((of, scale)) if of == group => scale,
                _ => self.scale(&squares[group * self.group_heads..], eps),
            };
            known = Some((group, scale));
            for (x, gain) in x.iter_mut().zip(gain) {
                *x = *x * scale * gain;
            }
        }
    }

    /// The factor of a group's heads; `squares` starts with theirs.
    fn scale(&self, squares: &[f32], eps: f32) -> f32 {
        let sum: f32 = squares[..self.group_heads].iter().sum();
        kernels::inverse_rms(sum, self.group_heads * self.head_dim, eps)
    }
}
