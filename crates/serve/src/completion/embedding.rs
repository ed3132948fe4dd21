//! Embeddings of texts: the hidden states of a served model, pooled as its file specifies.

use std::time::Instant;

use cluster::{GenerateEvent, InstanceStatus};
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::{GenerateRequest, InvalidRequest, KeepAlive, Pooling};

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
    /// The width of the vectors that the client wants.
    pub dimensions: Option<usize>,
    pub client: u64,
    /// See [`GenerateRequest::keep_alive`].
    pub keep_alive: Option<KeepAlive>,
}

/// One text's embedding.
#[derive(Debug)]
pub(crate) struct Embedding {
    /// `[width]`, of length one.
    pub values: Vec<f32>,
    pub prompt_tokens: usize,
}

impl Completer {
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
        let ready = async {
            let permit = self.permits(1)?;
            let (instance, requests) = self.prepare_texts(request).await?;
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

    async fn prepare_texts(
        &self,
        request: EmbeddingRequest,
    ) -> Result<(InstanceStatus, Vec<GenerateRequest>), CompletionError> {
        let EmbeddingRequest { model, texts, truncates, dimensions, client, keep_alive } = request;
        let instance = self.served(&model).await?;
        let context_tokens = instance.context_tokens;
        let asked = model;
        let gone = |error| self.gone(error, &asked);
        let model = self.models.get(&instance).await.map_err(gone)?;
        let pooling = model.pooling()?;
        model.check_width(dimensions)?;
        let prepare = move || -> Result<Vec<GenerateRequest>, CompletionError> {
            let prepare = |(number, text)| {
                let counted = if truncates { 1 } else { COUNTED_ALONE };
                let mut prompt = model.whole_text(text, context_tokens.saturating_mul(counted));
                if truncates {
                    prompt.truncate(context_tokens - 1);
                }
                let tokens = prompt.len();
                if tokens >= context_tokens {
                    return Err(CompletionError::LongText { number, tokens, context_tokens });
                }
                let request = request_of(prompt, pooling, client);
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

fn request_of(prompt: Vec<u32>, pooling: Pooling, client: u64) -> GenerateRequest {
    let embedding = Some(pooling);
    GenerateRequest { prompt, max_tokens: 1, embedding, client, ..GenerateRequest::default() }
}
