//! Limits of a feed-forward block's hidden elements, from the file.

use crate::arch::Activation;
use crate::file::{Error, Metadata};

/// Soft limits: `x` becomes `beta * tanh(x / beta)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Situ {
    /// The limit of the gate.
    pub beta: f32,
    /// The limit of the gate's factor, if it has one.
    pub linear_beta: Option<f32>,
}

impl Situ {
    /// `None` for models with another activation.
    pub(crate) fn read(metadata: &Metadata<'_>) -> Result<Option<Self>, Error> {
        const BETA: &str = "activation.situ_beta";
        const LINEAR_BETA: &str = "activation.situ_linear_beta";
        if metadata.arch.activation != Activation::Situ {
            return Ok(None);
        }
        let (beta, linear_beta) = (metadata.f32(BETA)?, metadata.f32(LINEAR_BETA)?);
        if beta <= 0.0 {
            let what = format!("{} is {beta}; it must be above 0", metadata.key(BETA));
            return Err(Error::Impossible { what });
        }
        // Files write 0 for "not limited".
        let linear_beta = Some(linear_beta).filter(|beta| *beta > 0.0);
        Ok(Some(Self { beta, linear_beta }))
    }
}

/// The limits of the hidden elements of each layer's routed experts and of its shared one; files
/// write 0 for none.
pub(crate) fn clamps(
    metadata: &Metadata<'_>,
    layers: usize,
) -> Result<Vec<[Option<f32>; 2]>, Error> {
    let mut found = vec![[None; 2]; layers];
    for (at, key) in ["swiglu_clamp_exp", "swiglu_clamp_shexp"].into_iter().enumerate() {
        let limits = metadata.numbers_of_layers(key, layers)?;
        for (clamps, limit) in found.iter_mut().zip(limits) {
            clamps[at] = limit.filter(|limit| *limit > 0.0);
        }
    }
    Ok(found)
}
