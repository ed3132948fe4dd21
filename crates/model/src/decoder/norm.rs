//! A norm of the residual stream.

use backend::Backend;
use layout::{Config, NormKind, Slices};

use crate::ModelError;
use crate::loader::Loader;

pub(super) struct Norm<B: Backend> {
    kind: NormKind,
    eps: f32,
    gain: B::Vector,
    bias: Option<B::Vector>,
}

impl<B: Backend> Norm<B> {
    /// The norm with this role, if the model has it.
    pub fn find(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        role: &str,
    ) -> Result<Option<Self>, ModelError> {
        let Some(gain) = loader.find_vector(slices.find(role))? else { return Ok(None) };
        let bias = loader.find_vector(slices.find(&format!("{role}.bias")))?;
        Ok(Some(Self { kind: config.arch.norm_kind, eps: config.rms_eps, gain, bias }))
    }

    /// A root mean square norm with this gain.
    pub fn root_mean_square(config: &Config, gain: B::Vector) -> Self {
        Self { kind: NormKind::RootMeanSquare, eps: config.rms_eps, gain, bias: None }
    }

    /// `out = norm(x)`.
    pub fn apply(&self, backend: &mut B, x: &B::Rows, out: &mut B::Rows) {
        match self.kind {
            NormKind::RootMeanSquare => backend.rms_norm(x, &self.gain, self.eps, out),
            NormKind::Layer => backend.layer_norm(x, &self.gain, self.eps, out),
        }
        if let Some(bias) = &self.bias {
            backend.add_bias(out, bias);
        }
    }
}
