//! From a chat to an answer, in no dialect: messages -> the model's template -> tokens -> a node
//! -> text, with stop strings taken out.
//!
//! Templates and tokenizers are read once an instance. A dialect builds a [`Chat`], asks
//! [`Completer::start`], and takes [`AnswerEvent`]s from the [`Answer`] until one is `Done`;
//! dropping the answer cancels the work on every node.

mod answer;
mod chat;
mod error;
mod models;

use std::sync::Arc;

use cluster::{InstanceState, InstanceStatus};
use tokio::sync::Semaphore;

use crate::node::Cluster;

use answer::Meter;
pub(crate) use answer::{Answer, AnswerEvent, Finish, Outcome};
pub(crate) use chat::{Chat, default_sampling, random_seed};
pub(crate) use error::CompletionError;
use models::Models;

/// Starts completions on one cluster.
pub(crate) struct Completer {
    cluster: Arc<dyn Cluster>,
    models: Models,
    /// One permit a completion in work.
    permits: Arc<Semaphore>,
    permits_max: usize,
}

impl Completer {
    pub fn new(cluster: Arc<dyn Cluster>, permits_max: usize) -> Self {
        let models = Models::new(Arc::clone(&cluster));
        Self { cluster, models, permits: Arc::new(Semaphore::new(permits_max)), permits_max }
    }

    /// Renders and tokenises the chat and hands it to the model that it names.
    ///
    /// # Errors
    /// The model is not served or has given up; the messages do not fit its template or context;
    /// too many completions are in work.
    pub async fn start(&self, chat: Chat) -> Result<Answer, CompletionError> {
        let permit = Arc::clone(&self.permits)
            .try_acquire_owned()
            .map_err(|_| CompletionError::TooMany { limit: self.permits_max })?;
        let instance = self.find(&chat.model)?;
        let model = self.models.get(&instance.id).await?;
        let id = instance.id;

        // A prompt of an agent has 100 kB: rendering it would hold other requests up.
        let prepare = move || {
            let text = model.answer_text(&chat.stops);
            Ok::<_, CompletionError>((model.request(chat, instance.context_tokens)?, text?))
        };
        let prepared = tokio::task::spawn_blocking(prepare).await;
        let (request, text) = prepared.map_err(|_| CompletionError::Crashed)??;
        let meter = Meter::start(request.prompt.len());
        let events = self.cluster.generate(&id, request).await?;
        Ok(Answer::new(events, text, meter, permit))
    }

    /// The instance that takes requests for a model: of several, the ready one with the fewest.
    fn find(&self, model: &str) -> Result<InstanceStatus, CompletionError> {
        let status = self.cluster.status();
        let named = status.instances.iter().filter(|one| one.model == model || one.id == model);
        let rank = |one: &&InstanceStatus| match one.state {
            InstanceState::Ready => (0, one.requests_running),
            InstanceState::Recovering { .. } => (1, one.requests_running),
            InstanceState::Loading => (2, one.requests_running),
            InstanceState::Failed { .. } => (3, 0),
        };
        let Some(found) = named.min_by_key(rank) else {
            let mut served: Vec<String> =
                status.instances.iter().map(|one| one.model.clone()).collect();
            served.sort();
            served.dedup();
            return Err(CompletionError::UnknownModel { asked: model.to_owned(), served });
        };
        match &found.state {
            InstanceState::Failed { reason } => Err(CompletionError::ModelFailed {
                model: found.model.clone(),
                reason: reason.clone(),
            }),
            _ => Ok(found.clone()),
        }
    }
}
