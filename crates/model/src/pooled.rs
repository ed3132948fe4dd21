//! What a model computes of a pooled hidden state: the dense layers of an embedding, and the scores
//! of a classifier. Rank 0 does it alone, for it is one row a text.

use std::sync::Arc;

use backend::{Backend, soft_cap, softmax};
use gguf::{Source, Strided};
use layout::{Config, names};

use crate::ModelError;
use crate::embedding::Table;

/// The most elements of a dense layer or a classifier; published ones have up to five million.
const ELEMENTS_MAX: usize = 1 << 26;

/// Sums of a product, added at its end.
const LANES: usize = 16;

pub struct Pooled {
    source: Arc<dyn Source>,
    width: usize,
    /// The layers of an embedding, one after the other.
    dense: Vec<Dense>,
    classifier: Option<Classifier>,
    /// The rows of the output matrix, if tokens can be labels.
    output: Option<Table>,
}

/// A matrix with its bias, of numbers.
struct Dense {
    /// `[outputs, inputs]`.
    weights: Vec<f32>,
    inputs: usize,
    bias: Option<Vec<f32>>,
}

struct Classifier {
    hidden: Option<Dense>,
    /// The gain of the norm after it, and its epsilon (ModernBERT, which has GELU before it).
    norm: Option<(Vec<f32>, f32)>,
    output: Option<Dense>,
    /// Whether scores are a softmax (Qwen3-Reranker).
    normalised: bool,
}

impl Pooled {
    /// # Errors
    /// A tensor has another shape than the model's width requires, or cannot be read.
    pub fn open<B: Backend>(
        backend: &mut B,
        source: Arc<dyn Source>,
        config: &Config,
    ) -> Result<Self, ModelError> {
        let width = config.width;
        let mut dense = Vec::new();
        let mut inputs = width;
        for name in names::DENSE {
            if let Some(layer) = Dense::find(backend, source.as_ref(), name, inputs)? {
                inputs = layer.outputs();
                dense.push(layer);
            }
        }
        let classifier = Classifier::find(backend, source.as_ref(), config)?;
        let output = match config.encoder {
            Some(_) => None,
            None => {
                let tied = source.directory().find_tensor(names::OUTPUT).is_none();
                let name = if tied { names::EMBEDDING } else { names::OUTPUT };
                Table::open(source.as_ref(), name, [width, config.vocab]).ok()
            }
        };
        Ok(Self { source, width, dense, classifier, output })
    }

    /// Whether it can score: by a classifier in the file, or with tokens as labels.
    pub fn has_scores(&self, labels: &[u32]) -> bool {
        self.classifier.is_some() || (self.output.is_some() && !labels.is_empty())
    }

    /// The embedding of a pooled state, `[width]`.
    pub fn embedding(&self, state: Vec<f32>) -> Vec<f32> {
        self.dense.iter().fold(state, |state, layer| layer.of(&state))
    }

    /// The scores of a pooled state, `[width]`: those of the file's classifier, or the softmax of
    /// the logits of `labels`, which are tokens. None without either.
    ///
    /// # Errors
    /// The bytes of the output matrix cannot be read.
    pub fn scores<B: Backend>(
        &mut self,
        backend: &mut B,
        state: &[f32],
        labels: &[u32],
    ) -> Result<Vec<f32>, ModelError> {
        if let Some(classifier) = &self.classifier {
            return Ok(classifier.of(state));
        }
        let Some(table) = self.output.as_mut().filter(|_| !labels.is_empty()) else {
            return Ok(Vec::new());
        };
        let mut rows = Vec::new();
        table.look_up(self.source.as_ref(), backend, labels, &mut rows)?;
        let mut scores: Vec<f32> =
            rows.chunks_exact(self.width).map(|row| product(row, state)).collect();
        softmax(&mut scores);
        Ok(scores)
    }
}

impl Classifier {
    fn find<B: Backend>(
        backend: &mut B,
        source: &dyn Source,
        config: &Config,
    ) -> Result<Option<Self>, ModelError> {
        let hidden = Dense::find(backend, source, names::CLASSIFIER, config.width)?;
        let inputs = hidden.as_ref().map_or(config.width, Dense::outputs);
        let has_norm = source.directory().find_tensor(names::CLASSIFIER_NORM).is_some();
        let gain = has_norm.then(|| floats(source, names::CLASSIFIER_NORM, inputs)).transpose()?;
        let output = Dense::find(backend, source, names::CLASSIFIER_OUTPUT, inputs)?;
        if hidden.is_none() && output.is_none() {
            return Ok(None);
        }
        let norm = gain.map(|gain| (gain, config.rms_eps));
        Ok(Some(Self { hidden, norm, output, normalised: config.encoder.is_none() }))
    }

    fn of(&self, state: &[f32]) -> Vec<f32> {
        let mut state = state.to_vec();
        if let Some(hidden) = &self.hidden {
            state = hidden.of(&state);
            match &self.norm {
                Some((gain, eps)) => {
                    backend::exact_gelu(&mut state);
                    normalise(&mut state, gain, *eps);
                }
                // The cap of 1 is the hyperbolic tangent.
                None if self.output.is_some() => soft_cap(&mut state, 1.0),
                None => {}
            }
        }
        let mut scores = self.output.as_ref().map_or(state.clone(), |output| output.of(&state));
        if self.normalised {
            softmax(&mut scores);
        }
        scores
    }
}

impl Dense {
    fn find<B: Backend>(
        backend: &mut B,
        source: &dyn Source,
        [name, bias]: [&'static str; 2],
        inputs: usize,
    ) -> Result<Option<Self>, ModelError> {
        let Some(tensor) = source.directory().find_tensor(name) else { return Ok(None) };
        let outputs = tensor.rows();
        if outputs.saturating_mul(inputs) > ELEMENTS_MAX {
            let what = format!("\"{name}\" of {outputs} rows; at most {ELEMENTS_MAX} numbers");
            return Err(ModelError::Impossible { what });
        }
        let mut table = Table::open(source, name, [inputs, outputs])?;
        let (mut weights, rows) = (Vec::new(), (0..outputs as u32).collect::<Vec<_>>());
        table.look_up(source, backend, &rows, &mut weights)?;
        let bias = source.directory().find_tensor(bias).map(|_| floats(source, bias, outputs));
        Ok(Some(Self { weights, inputs, bias: bias.transpose()? }))
    }

    fn outputs(&self) -> usize {
        self.weights.len() / self.inputs
    }

    fn of(&self, x: &[f32]) -> Vec<f32> {
        let mut out: Vec<f32> =
            self.weights.chunks_exact(self.inputs).map(|row| product(row, x)).collect();
        if let Some(bias) = &self.bias {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
        out
    }
}

/// The sum of products, in an order that depends on the length alone.
fn product(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (a_rest, b_rest) = (a.chunks_exact(LANES).remainder(), b.chunks_exact(LANES).remainder());
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// A layer norm without a bias, summed from left to right.
pub(crate) fn normalise(row: &mut [f32], gain: &[f32], eps: f32) {
    let count = row.len() as f64;
    let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let squares: f64 = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
    let scale = 1.0 / (squares / count + f64::from(eps)).sqrt();
    for (x, gain) in row.iter_mut().zip(gain) {
        *x = ((f64::from(*x) - mean) * scale) as f32 * gain;
    }
}

/// The `count` numbers of an F32 vector.
pub(crate) fn floats(
    source: &dyn Source,
    name: &str,
    count: usize,
) -> Result<Vec<f32>, ModelError> {
    let tensor = layout::checked_vector(source.directory(), name, count)?;
    let mut bytes = vec![0; count * size_of::<f32>()];
    let piece = bytes.len() as u64;
    let pieces = Strided { start: tensor.range.start, piece, stride: piece, count: 1 };
    let read = source.read(pieces, &mut bytes);
    read.map_err(|source| ModelError::Read { name: name.to_owned(), source })?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}
