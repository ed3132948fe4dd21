//! Embeddings of texts: the hidden states of a served model, pooled as its file specifies; and
//! scores of pairs of texts.

use std::time::Instant;

use cluster::{GenerateEvent, InstanceStatus};
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::{EmbeddingOptions, GenerateRequest, InvalidRequest, KeepAlive, Pooling};

use super::answer::{failed, lost};
use super::model::COUNTED_ALONE;
use super::{Completer, CompletionError, Finish, Outcome, Prompt};
use crate::metrics::RequestWatch;

/// Texts of one request that are processed concurrently.
const TEXTS_AT_ONCE: usize = 8;

/// A request for the embeddings of one or more texts.
#[derive(Debug)]
pub(crate) struct EmbeddingRequest {
    pub model: String,
    pub texts: Vec<Prompt>,
    /// Whether to cut a text that does not fit the model's context; otherwise it is refused.
    pub truncates: bool,
    /// The width of the vectors that the client wants: their first elements, of length one.
    pub dimensions: Option<usize>,
    pub norm: Norm,
    pub client: u64,
    /// See [`GenerateRequest::keep_alive`].
    pub keep_alive: Option<KeepAlive>,
}

/// What a request becomes: an instance, and what it is asked.
type Ready = (InstanceStatus, Vec<GenerateRequest>);

/// A length that becomes one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Norm {
    #[default]
    Euclidean,
    /// The vector stays as the model makes it.
    Kept,
    /// The largest element becomes that of a 16-bit integer, as llama-server has it.
    Largest,
    /// The root of the sum of the elements' powers: 1 is the sum.
    Power(u32),
}

/// The largest element behind [`Norm::Largest`].
const LARGEST: f64 = 32760.0;

/// Pairs that are longer than the context are counted up to this multiple of it.
const COUNTED_CONTEXTS: usize = 4;

/// One text's embedding.
#[derive(Debug)]
pub(crate) struct Embedding {
    /// `[width]`, of length one by the request's norm; or the scores of a pair.
    pub values: Vec<f32>,
    pub prompt_tokens: usize,
}

/// A query and the texts to order.
#[derive(Debug)]
pub(crate) struct RankRequest {
    pub model: String,
    pub query: String,
    pub documents: Vec<String>,
    /// What a causal reranker shall look for, in place of its default.
    pub instruction: Option<String>,
    /// Whether to cut a document that does not fit the model's context; otherwise it is refused.
    pub truncates: bool,
    /// The most tokens of a pair, if fewer than the context.
    pub tokens_max: Option<usize>,
    /// Whether scores are the classifier's, in place of values from 0 to 1.
    pub raw: bool,
    pub client: u64,
}

/// A document's score.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranked {
    /// Its place among the request's documents.
    pub index: usize,
    pub score: f32,
    pub prompt_tokens: usize,
}

impl Completer {
    /// The scores of the documents, the best first; of equal ones the earlier first.
    ///
    /// # Errors
    /// The model is not served or no reranker; a document does not fit; too many completions are in
    /// progress.
    pub async fn rank(&self, request: RankRequest) -> Result<Vec<Ranked>, CompletionError> {
        let raw = request.raw;
        let scored = self.pooled(Instant::now(), self.prepare_pairs(request)).await?;
        let mut ranked = Vec::with_capacity(scored.len());
        for (index, embedding) in scored.into_iter().enumerate() {
            let score = match embedding.values.as_slice() {
                // A classifier with one output gives a logit.
                [logit] if raw => *logit,
                [logit] => sigmoid(*logit),
                [yes, _] => *yes,
                scores => return Err(labelled(scores.len())),
            };
            ranked.push(Ranked { index, score, prompt_tokens: embedding.prompt_tokens });
        }
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index)));
        Ok(ranked)
    }

    async fn prepare_pairs(&self, request: RankRequest) -> Result<Ready, CompletionError> {
        let instance = self.served(&request.model).await?;
        let context_tokens = instance.context_tokens;
        let gone = |error| self.gone(error, &request.model);
        let model = self.models.get(&instance).await.map_err(gone)?;
        let ranker = model.retrieval.ranker(&model.tokenizer)?;
        let tokens_max = request.tokens_max.map_or(context_tokens, |own| own.min(context_tokens));
        let prepare = move || -> Result<Vec<GenerateRequest>, CompletionError> {
            let RankRequest { query, documents, instruction, truncates, client, .. } = request;
            let instruction = instruction.as_deref();
            let prepare = |(number, document): (usize, String)| {
                let texts = [query.as_str(), document.as_str()];
                let pair = match truncates {
                    true => ranker.pair_within(&model.tokenizer, texts, instruction, tokens_max),
                    false => {
                        let counted = tokens_max.saturating_mul(COUNTED_CONTEXTS);
                        ranker.pair(&model.tokenizer, texts, instruction, counted)
                    }
                };
                let tokens = pair.tokens.len();
                if tokens > tokens_max {
                    let context_tokens = tokens_max;
                    return Err(CompletionError::LongPair { number, tokens, context_tokens });
                }
                let options = EmbeddingOptions {
                    raw: true,
                    scores: true,
                    labels: ranker.labels.clone(),
                    first_tokens: pair.first_tokens,
                };
                let request = request_of(pair.tokens, ranker.pooling, options, client);
                request.check(context_tokens, model.tokenizer.len())?;
                Ok(request)
            };
            (1..).zip(documents).map(prepare).collect()
        };
        Ok((instance, self.on_thread(prepare).await??))
    }

    /// The embeddings of the texts, in order.
    ///
    /// # Errors
    /// The model is not served or cannot pool; a text does not fit; too many completions are in
    /// progress.
    pub async fn embed(
        &self,
        request: EmbeddingRequest,
    ) -> Result<Vec<Embedding>, CompletionError> {
        let arrived = Instant::now();
        let (dimensions, norm) = (request.dimensions, request.norm);
        let mut embeddings = self.pooled(arrived, self.prepare_texts(request)).await?;
        for embedding in &mut embeddings {
            embedding.values.truncate(dimensions.unwrap_or(usize::MAX));
            if is_raw(dimensions, norm) {
                norm.apply(&mut embedding.values);
            }
        }
        Ok(embeddings)
    }

    /// The vectors of the requests that `prepare` makes, in order.
    async fn pooled(
        &self,
        arrived: Instant,
        prepare: impl Future<Output = Result<Ready, CompletionError>>,
    ) -> Result<Vec<Embedding>, CompletionError> {
        let ready = async {
            let permit = self.permits(1)?;
            let (instance, requests) = prepare.await?;
            Ok::<_, CompletionError>((permit, instance, requests))
        };
        let ready = ready.await.inspect_err(|error| self.metrics.refused(error));
        let (_permit, instance, requests) = ready?;
        let embed = async |request: GenerateRequest| {
            let prompt_tokens = request.prompt.len();
            let who = (instance.model.as_str(), request.client);
            let mut watch = RequestWatch::new(&self.metrics, who, arrived, prompt_tokens);
            let embedded = self.embed_one(&instance.id, request, &mut watch).await;
            let embedded = embedded.map_err(|error| self.gone(error, &instance.model));
            embedded.inspect_err(|error| watch.failed(error))
        };
        stream::iter(requests).map(embed).buffered(TEXTS_AT_ONCE).try_collect().await
    }

    async fn prepare_texts(&self, request: EmbeddingRequest) -> Result<Ready, CompletionError> {
        let EmbeddingRequest { model, texts, truncates, dimensions, norm, client, keep_alive } =
            request;
        let instance = self.served(&model).await?;
        let context_tokens = instance.context_tokens;
        let asked = model;
        let gone = |error| self.gone(error, &asked);
        let model = self.models.get(&instance).await.map_err(gone)?;
        let pooling = model.retrieval.pooling()?;
        let raw = is_raw(model.retrieval.cut_to(dimensions)?, norm);
        let prepare = move || -> Result<Vec<GenerateRequest>, CompletionError> {
            let prepare = |(number, text)| {
                let counted = if truncates { 1 } else { COUNTED_ALONE };
                let mut prompt = model.whole_text(text, context_tokens.saturating_mul(counted));
                if truncates && prompt.len() > context_tokens {
                    prompt.truncate(context_tokens);
                    // What is pooled may be the end, and encoders expect one.
                    if let (Some(end), Some(last)) = (model.tokenizer.ending(), prompt.last_mut()) {
                        *last = end;
                    }
                }
                let tokens = prompt.len();
                if tokens > context_tokens {
                    return Err(CompletionError::LongText { number, tokens, context_tokens });
                }
                let options = EmbeddingOptions { raw, ..EmbeddingOptions::default() };
                let request = request_of(prompt, pooling, options, client);
                let request = GenerateRequest { keep_alive, ..request };
                request.check(context_tokens, model.tokenizer.len()).map_err(of_input)?;
                Ok(request)
            };
            (1..).zip(texts).map(prepare).collect()
        };
        Ok((instance, self.on_thread(prepare).await??))
    }

    async fn embed_one(
        &self,
        instance: &str,
        request: GenerateRequest,
        watch: &mut RequestWatch,
    ) -> Result<Embedding, CompletionError> {
        let prompt_tokens = request.prompt.len();
        let cache_salt = self.cache_salt(request.client);
        let request = GenerateRequest { cache_salt, ..request };
        let mut events = self.cluster.generate(instance, request).await?;
        while let Some(event) = events.next().await {
            match event {
                GenerateEvent::Waiting { .. }
                | GenerateEvent::Began(_)
                | GenerateEvent::Tokens(_) => {}
                GenerateEvent::Failed { kind, reason } => return Err(failed(kind, reason)),
                GenerateEvent::Done(done) => {
                    let values = done.embedding;
                    let values = values.ok_or_else(|| lost("the node computed no embedding"))?;
                    watch.finished(&Outcome {
                        finish: Finish::Stop,
                        prompt_tokens: done.prompt_tokens,
                        cached_tokens: done.cached_tokens,
                        guesses: done.guesses,
                        generated_tokens: 0,
                        reasoning_tokens: 0,
                        queue: done.queue,
                        prefill: done.prefill,
                        decode: done.decode,
                        prefill_waits: done.waits,
                        decode_waits: Vec::new(),
                    });
                    return Ok(Embedding { values, prompt_tokens });
                }
            }
        }
        Err(lost("the cluster ended it without a reason. Try again"))
    }
}

/// An error of a text or its tokens.
fn of_input(error: InvalidRequest) -> CompletionError {
    CompletionError::Unusable { field: "input", message: format!("input: {error}") }
}

/// Whether the vector that the model makes is needed as it is.
fn is_raw(dimensions: Option<usize>, norm: Norm) -> bool {
    dimensions.is_some() || norm != Norm::Euclidean
}

fn request_of(
    prompt: Vec<u32>,
    pooling: Pooling,
    embedding_options: EmbeddingOptions,
    client: u64,
) -> GenerateRequest {
    let embedding = Some(pooling);
    let request = GenerateRequest { prompt, max_tokens: 1, embedding, ..Default::default() };
    GenerateRequest { embedding_options, client, ..request }
}

impl Norm {
    fn apply(self, values: &mut [f32]) {
        let numbers = || values.iter().map(|value| f64::from(*value).abs());
        let length = match self {
            Self::Kept => return,
            Self::Largest => numbers().fold(0.0, f64::max) / LARGEST,
            Self::Euclidean => numbers().map(|x| x * x).sum::<f64>().sqrt(),
            Self::Power(power) => {
                let power = f64::from(power);
                numbers().map(|x| x.powf(power)).sum::<f64>().powf(1.0 / power)
            }
        };
        if length > 0.0 {
            values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
        }
    }
}

fn labelled(count: usize) -> CompletionError {
    let message = format!(
        "the model's classifier has {count} outputs, and texts are ordered by one, or by yes and \
         no. Serve a reranker"
    );
    CompletionError::Unusable { field: "model", message }
}

fn sigmoid(logit: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_gets_the_length_that_is_asked_for() {
        for (norm, wanted) in [
            (Norm::Euclidean, [0.6, -0.8]),
            (Norm::Kept, [3.0, -4.0]),
            (Norm::Largest, [24570.0, -32760.0]),
            (Norm::Power(1), [3.0 / 7.0, -4.0 / 7.0]),
            (Norm::Power(2), [0.6, -0.8]),
        ] {
            let mut values = [3.0, -4.0];
            norm.apply(&mut values);
            assert_eq!(values, wanted, "{norm:?}");
        }
        let mut nothing = [0.0];
        Norm::Power(3).apply(&mut nothing);
        assert_eq!(nothing, [0.0]);
    }
}
