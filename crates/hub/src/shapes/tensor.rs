//! One tensor of a shape, and what its name says of it.

/// One tensor of a file.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    /// Fastest-varying first.
    pub dims: Vec<u64>,
    /// 0 for tensors outside of layers.
    pub layer: u64,
}

/// What a made-up weight is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    Random,
    /// Norms, scales and the like.
    One,
    /// Decay of a state: a negative number for each head.
    Decay,
    /// Experts of each token, by their numbers.
    Ids,
}

impl Tensor {
    /// Its name within a layer.
    pub fn role(&self) -> &str {
        match self.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((_, role)) => role,
            None => &self.name,
        }
    }

    /// Whether it makes the values of attention.
    pub(crate) fn is_value(&self) -> bool {
        matches!(self.role(), "attn_v.weight" | "attn_qkv.weight")
    }

    pub fn fill(&self) -> Fill {
        let role = self.role();
        let ones = ["exp_probs_b.bias", "ssm_dt.bias", "ssm_d", "rope_freqs.weight"];
        match role {
            "ssm_a" => Fill::Decay,
            "ffn_gate_tid2eid.weight" => Fill::Ids,
            _ if ones.contains(&role) => Fill::One,
            _ if role.ends_with("norm.weight") || role.contains("scale") => Fill::One,
            _ if role.contains("_norm_") => Fill::One,
            _ => Fill::Random,
        }
    }
}
