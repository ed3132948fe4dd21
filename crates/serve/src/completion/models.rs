//! The text side of each served model, read once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::GenerateRequest;
use tokio::sync::OnceCell;

use super::answer::AnswerText;
use super::{Chat, CompletionError};
use crate::clock::unix_secs;
use crate::node::Cluster;

/// How long a node may take to hand a model's metadata over: some megabytes, perhaps from another
/// machine. Streams are silent meanwhile.
const HEADER_WAIT: Duration = Duration::from_secs(10);

/// The models of the instances that exist, by instance id.
pub(super) struct Models {
    cluster: Arc<dyn Cluster>,
    by_instance: Mutex<HashMap<String, Arc<OnceCell<Arc<TextModel>>>>>,
}

impl Models {
    pub fn new(cluster: Arc<dyn Cluster>) -> Self {
        Self { cluster, by_instance: Mutex::default() }
    }

    /// The model of an instance. Callers that come while it is read wait for the one reading; a
    /// failure is not kept.
    ///
    /// # Errors
    /// The node does not give the header, or it holds no usable vocabulary or template.
    pub async fn get(&self, instance: &str) -> Result<Arc<TextModel>, CompletionError> {
        let cell = self.cell(instance);
        let read = cell.get_or_try_init(|| async {
            let header = self.cluster.model_header(instance);
            let header = tokio::time::timeout(HEADER_WAIT, header).await;
            let header = header.map_err(|_| CompletionError::HeaderTimeout)??;
            // A vocabulary of 200,000 entries takes a while.
            let model = tokio::task::spawn_blocking(move || TextModel::read(&header)).await;
            let model = model.map_err(|_| CompletionError::Crashed)?;
            Ok::<_, CompletionError>(Arc::new(model.map_err(CompletionError::Unreadable)?))
        });
        read.await.cloned()
    }

    /// The place of an instance's model; forgets those of instances that are gone.
    fn cell(&self, instance: &str) -> Arc<OnceCell<Arc<TextModel>>> {
        let mut by_instance = self.by_instance.lock().unwrap_or_else(PoisonError::into_inner);
        if !by_instance.contains_key(instance) {
            let status = self.cluster.status();
            by_instance.retain(|id, _| status.instances.iter().any(|one| one.id == *id));
        }
        Arc::clone(by_instance.entry(instance.to_owned()).or_default())
    }
}

/// A model's tokenizer and chat template.
pub(super) struct TextModel {
    tokenizer: Arc<text::Tokenizer>,
    template: text::ChatTemplate,
}

impl TextModel {
    fn read(header: &gguf::Directory) -> Result<Self, text::TextError> {
        let tokenizer = text::Tokenizer::from_gguf(header)?;
        for warning in tokenizer.warnings() {
            tracing::warn!(warning, "odd vocabulary");
        }
        let template = text::ChatTemplate::from_gguf(header, &tokenizer)?;
        Ok(Self { tokenizer: Arc::new(tokenizer), template })
    }

    /// The chat in tokens, as the model wants to read it, up to where its answer begins.
    ///
    /// # Errors
    /// The template refuses the messages, or they do not fit the context.
    pub fn request(
        &self,
        chat: Chat,
        context_tokens: usize,
    ) -> Result<GenerateRequest, CompletionError> {
        let render = text::Render {
            add_generation_prompt: true,
            tools: &chat.tools,
            now_unix_s: unix_secs() as i64,
            ..text::Render::default()
        };
        let prompt = self.template.render(&chat.messages, &render);
        let prompt = prompt.map_err(CompletionError::Unrenderable)?;
        let prompt = self.tokenizer.encode_prompt(&prompt);
        let room = context_tokens.saturating_sub(prompt.len());
        let request = GenerateRequest {
            prompt,
            sampling: chat.sampling,
            max_tokens: chat.max_tokens.map_or(room, |max| max.min(room)),
            end_tokens: self.tokenizer.end_ids().to_vec(),
            ..GenerateRequest::default()
        };
        request.check(context_tokens, self.tokenizer.len())?;
        Ok(request)
    }

    /// What makes text of the answer's tokens, up to the first of `stops`.
    ///
    /// # Errors
    /// Too many stop strings, an empty one, or one that is too long.
    pub fn answer_text(&self, stops: &[String]) -> Result<AnswerText, CompletionError> {
        let stops = text::StopMatcher::new(stops).map_err(CompletionError::Unrenderable)?;
        Ok(AnswerText::new(text::TextStream::new(Arc::clone(&self.tokenizer)), stops))
    }
}
