//! Embeddings of texts: the hidden states of a served model, pooled as its file says.

use cluster::GenerateEvent;
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::{GenerateRequest, Pooling};

use super::answer::{failed, lost};
use super::{Completer, CompletionError, Prompt};

/// Texts of one request that are in work at once.
const TEXTS_AT_ONCE: usize = 8;

/// Texts whose embeddings are asked for together.
#[derive(Debug)]
pub(crate) struct EmbeddingRequest {
    pub model: String,
    pub texts: Vec<Prompt>,
    /// Cut a text that does not fit the model's context; else it is refused.
    pub truncates: bool,
    pub client: u64,
}

/// One text's embedding.
#[derive(Debug)]
pub(crate) struct Embedding {
    /// `[width]`, of length one.
    pub values: Vec<f32>,
    pub prompt_tokens: usize,
}

impl Completer {
    /// The embeddings of some texts, in their order.
    ///
    /// # Errors
    /// The model is not served or cannot pool; a text does not fit; too much is in work.
    pub async fn embed(
        &self,
        request: EmbeddingRequest,
    ) -> Result<Vec<Embedding>, CompletionError> {
        let embedded = self.embed_all(request).await;
        embedded.inspect_err(|error| self.metrics.refused(error))
    }

    async fn embed_all(
        &self,
        request: EmbeddingRequest,
    ) -> Result<Vec<Embedding>, CompletionError> {
        let EmbeddingRequest { model, texts, truncates, client } = request;
        let _permit = self.permits(1)?;
        let instance = self.find(&model)?;
        let context_tokens = instance.context_tokens;
        let model = self.models.get(&instance.id).await?;
        let pooling = model.pooling()?;
        let prepare = move || -> Result<Vec<GenerateRequest>, CompletionError> {
            let prepare = |text| {
                let mut prompt = model.whole_text(text);
                if truncates {
                    prompt.truncate(context_tokens - 1);
                }
                let request = request_of(prompt, pooling, client);
                request.check(context_tokens, model.tokenizer.len())?;
                Ok(request)
            };
            texts.into_iter().map(prepare).collect()
        };
        let requests = self.on_thread(prepare).await??;
        let embed = |request| self.embed_one(&instance.id, request);
        stream::iter(requests).map(embed).buffered(TEXTS_AT_ONCE).try_collect().await
    }

    async fn embed_one(
        &self,
        instance: &str,
        request: GenerateRequest,
    ) -> Result<Embedding, CompletionError> {
        let prompt_tokens = request.prompt.len();
        let mut events = self.cluster.generate(instance, request).await?;
        while let Some(event) = events.next().await {
            match event {
                GenerateEvent::Waiting { .. } | GenerateEvent::Tokens(_) => {}
                GenerateEvent::Failed { kind, reason } => return Err(failed(kind, reason)),
                GenerateEvent::Done(done) => {
                    let values = done.embedding;
                    let values = values.ok_or_else(|| lost("the node computed no embedding"))?;
                    return Ok(Embedding { values, prompt_tokens });
                }
            }
        }
        Err(lost("the cluster ended it without a reason. Try again"))
    }
}

fn request_of(prompt: Vec<u32>, pooling: Pooling, client: u64) -> GenerateRequest {
    let embedding = Some(pooling);
    GenerateRequest { prompt, max_tokens: 1, embedding, client, ..GenerateRequest::default() }
}
