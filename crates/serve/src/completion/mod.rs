//! From a request to an answer, independent of the dialect: messages -> the model's template ->
//! tokens -> a node -> thoughts, text and calls, with stop strings removed.
//!
//! Templates and tokenizers are read once per instance. A dialect builds a [`CompletionRequest`],
//! calls [`Completer::start`], and takes [`AnswerEvent`]s from the [`Answer`] until one is `Done`.
//! Dropping the answer cancels the work on every node.

mod answer;
mod breakers;
mod constraint;
mod embedding;
mod error;
mod fetching;
mod fill;
mod ledger;
mod lines;
mod meter;
mod mixed;
mod model;
mod models;
mod naming;
mod near;
mod pictures;
mod preset;
mod request;
mod retrieval;
mod sampling;
mod thinking;
mod words;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::on_thread;
use cluster::{ClusterStatus, GenerateEvent, GenerateRequest, InstanceState, InstanceStatus};
use futures_util::StreamExt;
use protocol::{KeepAlive, Preset, Token};
use text::Special;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ServeConfig;
use crate::metrics::{RequestMetrics, RequestWatch};
use crate::node::{Cluster, RefusalKind};

pub(crate) use answer::{Answer, AnswerEvent, FIRST_EVENT_WAIT};
pub(crate) use breakers::DEFAULT_BREAKERS;
pub(crate) use constraint::{other_of_one_name, tool_name};
pub(crate) use embedding::{Embedding, EmbeddingRequest, Norm, RankRequest, Ranked};
pub(crate) use error::CompletionError;
pub(crate) use fill::{Fill, FillFile};
pub(crate) use ledger::{Logprob, TokenLogprobs};
pub(crate) use lines::LineBounds;
pub(crate) use meter::{Finish, Outcome};
pub(crate) use mixed::PromptPiece;
pub(crate) use model::TextModel;
pub(crate) use naming::usable;
pub(crate) use request::{Chat, CompletionRequest, Format, Prompt, ToolChoice};
pub(crate) use retrieval::Purpose;
pub(crate) use sampling::random_seed;
pub(crate) use thinking::ThinkingChoice;
pub(crate) use words::{Part, Piece};

use answer::Fields;
use fetching::Fetching;
use models::Models;
use naming::{find, preset_of, unknown};
use retrieval::Retrieval;

/// Prompts rendered concurrently: a template is limited to 256 MiB, so 512 MiB in all.
const RENDERINGS_MAX: usize = 2;

/// How long a request for an unknown model waits if the node has not heard its members yet:
/// slightly longer than a node waits before it acts without them.
const SETTLE_WAIT: Duration = Duration::from_secs(5);
const SETTLE_LOOK: Duration = Duration::from_millis(100);

/// The most tokens that a text is turned into by itself: as many as a body may have values.
const TOKENIZED_MAX: usize = 1 << 20;
/// The longest text that tokens are turned into.
const TEXT_BYTES_MAX: usize = 32 << 20;

/// How long a list of models waits for a header: menus must not wait for a slow or dead node.
const HEADER_LOOK: Duration = Duration::from_secs(1);

/// Starts completions on one cluster.
pub(crate) struct Completer {
    cluster: Arc<dyn Cluster>,
    models: Models,
    /// One permit per completion in progress.
    permits: Arc<Semaphore>,
    renderings: Arc<Semaphore>,
    fetching: Fetching,
    metrics: Arc<RequestMetrics>,
    config: Arc<ServeConfig>,
}

impl Completer {
    pub fn new(
        cluster: Arc<dyn Cluster>,
        metrics: Arc<RequestMetrics>,
        config: Arc<ServeConfig>,
    ) -> Self {
        let models = Models::new(Arc::clone(&cluster));
        let permits = Arc::new(Semaphore::new(config.limits.completions_max));
        let renderings = Arc::new(Semaphore::new(RENDERINGS_MAX));
        let fetching = Fetching::new(config.fetch_picture.clone());
        Self { cluster, models, permits, renderings, fetching, metrics, config }
    }

    /// Renders and tokenises the prompt and sends it to the requested model.
    ///
    /// # Errors
    /// The model is not served or has failed; the prompt does not fit its template or context; too
    /// many completions are in progress.
    pub async fn start(&self, request: CompletionRequest) -> Result<Answer, CompletionError> {
        let mut answers = self.start_several(request, 1).await?;
        answers.pop().ok_or(CompletionError::Crashed)
    }

    /// Starts `count` answers to one request. Each answer draws its tokens with its own seed,
    /// derived from the request's.
    ///
    /// # Errors
    /// As for [`Self::start`]: either all start or none.
    pub async fn start_several(
        &self,
        request: CompletionRequest,
        count: usize,
    ) -> Result<Vec<Answer>, CompletionError> {
        let started = self.begin(request, count).await;
        started.inspect_err(|error| self.metrics.refused(error))
    }

    async fn begin(
        &self,
        mut request: CompletionRequest,
        count: usize,
    ) -> Result<Vec<Answer>, CompletionError> {
        let arrived = Instant::now();
        let permits = self.permits(count)?;
        let asked = request.model.clone();
        if let Some(preset) = self.preset(&asked) {
            request = request.with_preset(&preset);
        }
        let gone = |error| self.gone(error, &asked);
        let instance = self.served(&asked).await?;
        let context_tokens = instance.context_tokens;
        let model = self.models.get(&instance).await.map_err(gone)?;
        request.prompt = self.with_pictures(&model, request.prompt).await?;
        let prepare = move || model.prepare(&request, context_tokens);
        let prepared = self.on_thread(prepare).await?;
        let prepared = prepared.map_err(|error| self.blind(error, &instance.model))?;
        let mut answers = Vec::with_capacity(count);
        for (index, permit) in permits.into_iter().enumerate() {
            let mut request = prepared.request.clone();
            request.sampling.seed = sampling::derived_seed(request.sampling.seed, index);
            request.cache_salt = self.cache_salt(request.client);
            let prompt: Arc<[Token]> = request.prompt.as_slice().into();
            let who = (instance.model.as_str(), request.client);
            let events = self.cluster.generate(&instance.id, request).await;
            let events = events.map_err(|refusal| gone(refusal.into()))?;
            let watch = RequestWatch::new(&self.metrics, who, arrived, prompt.len());
            let fields =
                Fields { grammar: prepared.grammar_field, pictures: prepared.pictures_at.clone() };
            let words = prepared.words.clone();
            answers.push(Answer::new(events, words, fields, prompt, watch, permit));
        }
        Ok(answers)
    }

    /// The cache salt of a client: prompts share cached prefixes only under the same salt.
    fn cache_salt(&self, client: u64) -> u64 {
        let keys = self.config.api_keys.as_ref();
        let several = || keys.is_some_and(|keys| keys.now().len() > 1);
        if self.config.cache_per_key.unwrap_or_else(several) { client } else { 0 }
    }

    fn permits(&self, count: usize) -> Result<Vec<OwnedSemaphorePermit>, CompletionError> {
        let permits = (0..count).map(|_| Arc::clone(&self.permits).try_acquire_owned());
        let permits: Result<_, _> = permits.collect();
        permits.map_err(|_| CompletionError::TooMany { limit: self.config.limits.completions_max })
    }

    /// Counts a prompt's tokens for a model without running it.
    ///
    /// # Errors
    /// The model is not served or has failed; its template rejects the messages.
    pub async fn count_tokens(
        &self,
        model: &str,
        mut prompt: Prompt,
    ) -> Result<usize, CompletionError> {
        let count = async {
            let instance = self.served(model).await?;
            prompt = self.preset_prompt(model, prompt);
            let context_tokens = instance.context_tokens;
            let model = self.text_model(model).await?;
            let prompt = self.with_pictures(&model, prompt).await?;
            let count = move || model.prompt_tokens(&prompt, context_tokens);
            let counted = self.on_thread(count).await?;
            counted.map_err(|error| self.blind(error, &instance.model))
        };
        count.await.inspect_err(|error| self.metrics.refused(error))
    }

    /// The tokens of a text or a mixed prompt.
    ///
    /// # Errors
    /// They are more than [`TOKENIZED_MAX`], or the node stopped.
    pub async fn tokenize(
        &self,
        model: &Arc<TextModel>,
        prompt: Prompt,
        special: Special,
        add_bos: bool,
    ) -> Result<Vec<Token>, CompletionError> {
        let model = Arc::clone(model);
        let tokens = move || model.tokens(&prompt, special, add_bos, TOKENIZED_MAX);
        self.on_thread(tokens).await?.ok_or_else(|| {
            let field = "content";
            let message = format!(
                "{field} has over {TOKENIZED_MAX} tokens, which are the most of one request. Send \
                 it in parts"
            );
            CompletionError::Unusable { field, message }
        })
    }

    /// The text of tokens, which must be in the vocabulary.
    ///
    /// # Errors
    /// It is over [`TEXT_BYTES_MAX`], or the node stopped.
    pub async fn detokenize(
        &self,
        model: &Arc<TextModel>,
        tokens: Vec<Token>,
    ) -> Result<String, CompletionError> {
        let model = Arc::clone(model);
        let text = move || {
            let bytes = tokens.iter().map(|token| model.tokenizer.token_bytes(*token).len());
            if bytes.sum::<usize>() > TEXT_BYTES_MAX {
                return None;
            }
            let mut stream = text::TextStream::continuing(&*model.tokenizer).with_special();
            let mut text: String = tokens.iter().map(|token| stream.push(*token)).collect();
            text.push_str(&stream.finish());
            Some(text)
        };
        self.on_thread(text).await?.ok_or_else(|| {
            let field = "tokens";
            let message = format!(
                "{field} stand for a text of over {TEXT_BYTES_MAX} bytes, which are the most of \
                 one request. Send them in parts"
            );
            CompletionError::Unusable { field, message }
        })
    }

    /// The text of a prompt as a model's template renders it; `with_preset`: with the words of the
    /// preset that `model` names.
    ///
    /// # Errors
    /// The model is not served or has failed; its template rejects the messages.
    pub async fn rendered(
        &self,
        model: &str,
        prompt: Prompt,
        with_preset: bool,
    ) -> Result<String, CompletionError> {
        let prompt = if with_preset { self.preset_prompt(model, prompt) } else { prompt };
        let render = async {
            let context_tokens = self.served(model).await?.context_tokens;
            let model = self.text_model(model).await?;
            let prompt = self.with_pictures(&model, prompt).await?;
            self.on_thread(move || model.prompt_text(&prompt, context_tokens)).await?
        };
        render.await.inspect_err(|error| self.metrics.refused(error))
    }

    /// The preset of this name. Most names are models', for which no status is copied.
    fn preset(&self, name: &str) -> Option<Preset> {
        let is_one = self.cluster.presets().iter().any(|preset| preset.name == name);
        if is_one { preset_of(&self.cluster.status(), name).cloned() } else { None }
    }

    fn preset_prompt(&self, model: &str, prompt: Prompt) -> Prompt {
        match self.preset(model) {
            Some(preset) => prompt.with_preset(&preset),
            None => prompt,
        }
    }

    /// The text side of a served model.
    ///
    /// # Errors
    /// The model is not served or has failed, or its file has no usable vocabulary or template.
    pub async fn model(&self, name: &str) -> Result<Arc<TextModel>, CompletionError> {
        self.text_model(name).await.inspect_err(|error| self.metrics.refused(error))
    }

    async fn text_model(&self, name: &str) -> Result<Arc<TextModel>, CompletionError> {
        let model = self.models.get(&self.served(name).await?).await;
        model.map_err(|error| self.gone(error, name))
    }

    /// The prompt with the pictures that are to be fetched; for a model that reads text only,
    /// nothing is.
    async fn with_pictures(
        &self,
        model: &TextModel,
        prompt: Prompt,
    ) -> Result<Prompt, CompletionError> {
        if model.sees() { self.fetching.fetched(prompt).await } else { Ok(prompt.for_reader()) }
    }

    /// Whether the model of an instance sees pictures; `None` if its header takes longer than a
    /// menu can wait.
    pub async fn sees(&self, id: &str) -> Option<bool> {
        self.use_of(id).await.map(|(sees, _)| sees)
    }

    /// The same, and what the model is for.
    pub async fn use_of(&self, id: &str) -> Option<(bool, Purpose)> {
        if let Some(model) = self.models.known(id) {
            return Some((model.sees(), model.purpose()));
        }
        let header = tokio::time::timeout(HEADER_LOOK, self.cluster.model_header(id)).await;
        let header = header.ok()?.ok()?;
        let sees = matches!(vision::Config::find(&header), Ok(Some(_)));
        Some((sees, Retrieval::read(&header).purpose()))
    }

    /// Runs work on a blocking thread, so that an agent's prompt of 100 kB does not delay other
    /// requests.
    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CompletionError> {
        let permit = Arc::clone(&self.renderings).acquire_owned().await;
        let permit = permit.map_err(|_| CompletionError::Crashed)?;
        let work = move || {
            // The work continues after the client disconnects, so it keeps its permit.
            let _permit = permit;
            work()
        };
        on_thread(work).await.map_err(|_| CompletionError::Crashed)
    }

    /// Loads an unloaded model and sets how long it stays loaded. With a duration of zero it is
    /// unloaded once it has no requests.
    ///
    /// # Errors
    /// The model is not served or cannot be loaded.
    pub async fn load(
        &self,
        model: &str,
        keep_alive: Option<KeepAlive>,
    ) -> Result<(), CompletionError> {
        let instance = self.find(model).await?;
        let is_unloaded = instance.state == InstanceState::Unloaded;
        let is_done = match keep_alive {
            Some(keep) if keep == KeepAlive::secs(0) => is_unloaded,
            Some(_) => false,
            None => instance.has_generated && !is_unloaded,
        };
        if is_done {
            return Ok(());
        }
        // One generated token proves that the model works.
        let request = GenerateRequest {
            prompt: vec![0],
            max_tokens: 1,
            keep_alive,
            ..GenerateRequest::default()
        };
        let mut events = self.cluster.generate(&instance.id, request).await?;
        while let Some(event) = events.next().await {
            match event {
                GenerateEvent::Done(_) => return Ok(()),
                GenerateEvent::Failed { kind, reason } => {
                    return Err(answer::failed(kind, reason));
                }
                _ => {}
            }
        }
        Err(CompletionError::Crashed)
    }

    /// Adds the model's name, and the names of models that see, to the error of one that does not.
    fn blind(&self, error: CompletionError, model: &str) -> CompletionError {
        match error {
            CompletionError::Blind { .. } => {
                CompletionError::Blind { model: model.to_owned(), seeing: self.models.seeing() }
            }
            error => error,
        }
    }

    /// Maps the error of an instance that was stopped after the lookup to an unknown model: the
    /// node's instance id means nothing to the client.
    fn gone(&self, error: CompletionError, asked: &str) -> CompletionError {
        match error {
            CompletionError::Refused(refusal) if refusal.kind == RefusalKind::NotFound => {
                unknown(&self.cluster.status(), asked)
            }
            error => error,
        }
    }

    /// [`Self::served`], counting a refusal in the metrics.
    ///
    /// # Errors
    /// The same.
    pub async fn find(&self, model: &str) -> Result<InstanceStatus, CompletionError> {
        self.served(model).await.inspect_err(|error| self.metrics.refused(error))
    }

    /// The instance that serves a model, or a preset's model. If several do, the ready one with the
    /// fewest requests. Waits if the node does not know all instances yet.
    ///
    /// # Errors
    /// No instance serves the model, or it has failed.
    pub async fn served(&self, model: &str) -> Result<InstanceStatus, CompletionError> {
        let deadline = Instant::now() + SETTLE_WAIT;
        loop {
            let status = self.cluster.status();
            match (self.found(&status, model).await, status.unsettled) {
                (Err(CompletionError::UnknownModel { asked, .. }), Some(reason)) => {
                    if Instant::now() >= deadline {
                        return Err(CompletionError::Unsettled { asked, reason });
                    }
                    tokio::time::sleep(SETTLE_LOOK).await;
                }
                (found, _) => return found,
            }
        }
    }

    async fn found(
        &self,
        status: &ClusterStatus,
        name: &str,
    ) -> Result<InstanceStatus, CompletionError> {
        let Some(preset) = preset_of(status, name) else { return find(status, name) };
        match find(status, &preset.model) {
            Err(CompletionError::UnknownModel { .. }) => {}
            found => return found,
        }
        // The preset's model may be served under another name.
        let (asked, model) = (name.to_owned(), preset.model.clone());
        let served_as = self.cluster.identify(&preset.model).await?.served_as;
        find(status, &served_as.ok_or(CompletionError::UnservedPreset { asked, model })?)
    }
}
