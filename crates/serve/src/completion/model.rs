use std::sync::Arc;

use protocol::{GenerateRequest, InvalidRequest, Sampler, Sampling, SamplingChoice};
use text::{Placed, Placeholder, ReplyParser, Special, TextStream};

use super::breakers::Breakers;
use super::constraint::{Target, converted, grammar, held};
use super::lines::Lines;
use super::retrieval::{Purpose, Retrieval};
use super::words::{CallRules, Words};
use super::{Chat, CompletionError, CompletionRequest, Prompt, PromptPiece, pictures, sampling};
use crate::clock::unix_secs;
use crate::pictures::Picture;

/// A prompt that is too long is counted up to this multiple of the context, because clients shorten
/// it by the reported count. Counting further is not worth the memory.
const COUNTED_CONTEXTS: usize = 4;
/// The same limit for requests that only count tokens.
pub(super) const COUNTED_ALONE: usize = 64;

/// The text side of a served model: its tokenizer, its template and its file's sampling settings.
pub(crate) struct TextModel {
    pub tokenizer: Arc<text::Tokenizer>,
    pub template: text::ChatTemplate,
    sampling: Sampling,
    pub(super) retrieval: Retrieval,
    /// The vision tower, if there is one; or why it cannot be used.
    vision: Result<Option<vision::Config>, String>,
    breakers: Breakers,
}

/// A request ready to send, and the parser of its answer.
#[derive(Clone)]
pub(super) struct Prepared {
    pub request: GenerateRequest,
    /// The request field that sets the grammar.
    pub grammar_field: Option<&'static str>,
    /// The paths of the pictures, in the order of the prompt.
    pub pictures_at: Vec<String>,
    pub words: Words,
}

impl TextModel {
    pub(super) fn read(header: &gguf::Directory) -> Result<Self, text::TextError> {
        let tokenizer = text::Tokenizer::from_gguf(header)?;
        for warning in tokenizer.warnings() {
            tracing::warn!(warning, "odd vocabulary");
        }
        let template = text::ChatTemplate::from_gguf(header, &tokenizer);
        let sampling = sampling::defaults(header);
        let vision = vision::Config::find(header).map_err(|error| error.to_string());
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            template,
            sampling,
            retrieval: Retrieval::read(header),
            vision,
            breakers: Breakers::default(),
        })
    }

    /// Whether the model sees pictures.
    pub fn sees(&self) -> bool {
        matches!(self.vision, Ok(Some(_)))
    }

    pub fn purpose(&self) -> Purpose {
        self.retrieval.purpose()
    }

    /// A text to embed, with the tokens that the model expects before and after it. Stops once
    /// there are more than `tokens_max` tokens.
    pub(super) fn whole_text(&self, text: Prompt, tokens_max: usize) -> Vec<u32> {
        match text {
            Prompt::Text(text) => {
                self.tokenizer.encode_some(&text, Special::Plain, true, tokens_max)
            }
            Prompt::Tokens(tokens) => tokens,
            Prompt::Mixed(pieces) => self.mixed_tokens(&pieces, Special::Plain, true, tokens_max),
            Prompt::Chat(_) | Prompt::Fill(_) => Vec::new(),
        }
    }

    /// The request in tokens, up to the start of the answer.
    ///
    /// # Errors
    /// The template rejects the messages, they do not fit the context, or the requested format is
    /// not supported.
    pub(super) fn prepare(
        &self,
        request: &CompletionRequest,
        context_tokens: usize,
    ) -> Result<Prepared, CompletionError> {
        self.retrieval.check_answers()?;
        let context_tokens =
            request.context_max.map_or(context_tokens, |max| max.min(context_tokens));
        let request = &converted(request, &self.tokenizer)?;
        let limits = [context_tokens, context_tokens.saturating_mul(COUNTED_CONTEXTS)];
        let mut prompt = self.read_prompt(&request.prompt, context_tokens, limits)?;
        let places = std::mem::take(&mut prompt.placed);
        let at = |place: &Placed| request.prompt.pictures()[place.number].at.clone();
        let pictures_at = places.iter().map(at).collect();
        let pictures = placed(&request.prompt, places);
        let words = |parser, calls| self.words(request, parser, calls);
        let reply = self.template.reply_format();
        let words = match &request.prompt {
            Prompt::Chat(chat) => {
                let tools = chat.offered_tools();
                let mut parser =
                    ReplyParser::new(reply, &prompt.text, tools).held(held(chat, &request.format));
                if chat.only_offered {
                    parser = parser.only_offered();
                }
                let calls = CallRules {
                    offered: !tools.is_empty(),
                    single: chat.single_call,
                    short_ids: reply.has_short_call_ids(),
                };
                words(Some(parser), calls)?
            }
            _ => words(None, CallRules::default())?,
        };
        let target = Target { tokenizer: &self.tokenizer, reply, prompt: &prompt.text };
        let (grammar, grammar_field) = grammar(request, &target)?.unzip();
        let room = context_tokens.saturating_sub(prompt.tokens.len());
        let mut end_tokens = reply.end_ids(&self.tokenizer);
        if let Prompt::Fill(_) = &request.prompt {
            end_tokens.extend(self.fill_ends());
        }
        if request.ignore_eos {
            end_tokens.clear();
        }
        let generate = GenerateRequest {
            prompt: prompt.tokens,
            pictures,
            answered: Vec::new(),
            sampling: self.drawn_by(&request.sampling),
            max_tokens: request.max_tokens.map_or(room, |max| max.min(room)),
            min_tokens: request.min_tokens,
            end_tokens,
            logprobs: request.logprobs,
            grammar,
            client: request.client,
            cache_salt: 0,
            keep_alive: request.keep_alive,
            ..GenerateRequest::default()
        };
        let is_biased = |token| generate.sampling.logit_bias.iter().any(|(one, _)| *one == token);
        generate.check(context_tokens, self.tokenizer.len()).map_err(|error| match error {
            InvalidRequest::UnknownToken { token, .. } if !is_biased(token) => {
                let message = format!("prompt: {error}");
                CompletionError::Unusable { field: "prompt", message }
            }
            error => error.into(),
        })?;
        Ok(Prepared { request: generate, grammar_field, pictures_at, words })
    }

    /// Tokenises a request's prompt, up to [`COUNTED_ALONE`] times the context, and returns the
    /// count.
    ///
    /// # Errors
    /// The template rejects the messages, or the prompt exceeds that limit.
    pub(super) fn prompt_tokens(
        &self,
        prompt: &Prompt,
        context_tokens: usize,
    ) -> Result<usize, CompletionError> {
        let counted = context_tokens.saturating_mul(COUNTED_ALONE);
        Ok(self.read_prompt(prompt, context_tokens, [counted; 2])?.tokens.len())
    }

    /// Like [`Self::prompt_tokens`], but returns the rendered text of a chat, with a mark in the
    /// place of each picture.
    ///
    /// # Errors
    /// The same.
    pub(super) fn prompt_text(
        &self,
        prompt: &Prompt,
        context_tokens: usize,
    ) -> Result<String, CompletionError> {
        let counted = context_tokens.saturating_mul(COUNTED_ALONE);
        let read = self.read_prompt(prompt, context_tokens, [counted; 2])?;
        match prompt {
            Prompt::Chat(chat) if !chat.pictures.is_empty() => {
                let placeholders = self.placeholders(prompt)?;
                self.shown(chat, &placeholders)
            }
            _ => Ok(read.text),
        }
    }

    /// The sampling settings of a request with this choice.
    pub(crate) fn sampling(&self, choice: &SamplingChoice) -> Sampling {
        let logit_bias = sampling::biases(choice, &self.tokenizer);
        Sampling { logit_bias, ..sampling::chosen(choice, &self.sampling) }
    }

    /// The same as the engine gets it: without what changes nothing, and with texts as tokens.
    fn drawn_by(&self, choice: &SamplingChoice) -> Sampling {
        let mut sampling = self.sampling(choice).simplified();
        if sampling.has(Sampler::Dry) {
            let texts = choice.dry_sequence_breakers.as_deref();
            sampling.dry_breakers = self.breakers.of(texts, &self.tokenizer);
        }
        sampling
    }

    /// A prompt in tokens, and for a chat its text. A text that exceeds `tokens_max` by its length
    /// alone is refused before it is tokenised. Any other text is encoded until it exceeds
    /// `counted` tokens.
    fn read_prompt(
        &self,
        prompt: &Prompt,
        context_tokens: usize,
        [tokens_max, counted]: [usize; 2],
    ) -> Result<text::Prompt, CompletionError> {
        let placeholders = self.placeholders(prompt)?;
        check_sizes(prompt, &placeholders, context_tokens)?;
        let too_many = |bytes, prompt_tokens| {
            let has_none = placeholders.is_empty();
            Err(CompletionError::from(match has_none {
                true => {
                    let tokens_min = prompt_tokens;
                    InvalidRequest::TooManyBytes { bytes, tokens_min, context_tokens }
                }
                // Few bytes of a picture are many tokens.
                false => InvalidRequest::TooLong { prompt_tokens, context_tokens },
            }))
        };
        let (bytes, tokens_min) = self.least(prompt, &placeholders);
        if tokens_min > tokens_max {
            return too_many(bytes, tokens_min);
        }
        let read = match prompt {
            Prompt::Chat(chat) => self.render(chat, &placeholders, counted)?,
            Prompt::Text(text) => {
                let tokens = self.tokenizer.encode_prompt_some(text, counted);
                text::Prompt { tokens, ..text::Prompt::default() }
            }
            Prompt::Tokens(tokens) => {
                return Ok(text::Prompt { tokens: tokens.clone(), ..text::Prompt::default() });
            }
            Prompt::Mixed(pieces) => {
                let tokens = self.mixed_tokens(pieces, Special::Parse, true, counted);
                text::Prompt { tokens, ..text::Prompt::default() }
            }
            Prompt::Fill(fill) => {
                let tokens = self.fill_tokens(fill, context_tokens)?;
                text::Prompt { tokens, ..text::Prompt::default() }
            }
        };
        match read.tokens.len() {
            tokens if tokens > counted => too_many(bytes.max(read.text.len()), tokens),
            _ => Ok(read),
        }
    }

    /// What stands in a prompt for its pictures.
    ///
    /// # Errors
    /// The model's tower cannot be used, or a picture cannot.
    fn placeholders(&self, prompt: &Prompt) -> Result<Vec<Placeholder>, CompletionError> {
        let pictures = prompt.pictures();
        match &self.vision {
            _ if pictures.is_empty() => Ok(Vec::new()),
            Ok(Some(config)) => pictures::placeholders(config, &self.tokenizer, pictures),
            Ok(None) => Err(CompletionError::blind()),
            Err(why) => {
                let message = format!("the model cannot see, for {why}");
                Err(CompletionError::Unusable { field: "messages", message })
            }
        }
    }

    /// The prompt's bytes of text, and the fewest tokens that they and its pictures can be. For a
    /// chat, assistant messages do not count: a template may drop old thoughts.
    pub(super) fn least(&self, prompt: &Prompt, placeholders: &[Placeholder]) -> (usize, usize) {
        let least = |text: &str| (text.len(), self.tokenizer.tokens_min(text));
        match prompt {
            Prompt::Text(text) => least(text),
            // Texts to fill in are cut.
            Prompt::Tokens(_) | Prompt::Fill(_) => (0, 0),
            Prompt::Mixed(pieces) => {
                let each = pieces.iter().map(|piece| match piece {
                    PromptPiece::Text(text) => least(text),
                    PromptPiece::Tokens(tokens) => (0, tokens.len()),
                });
                each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            }
            Prompt::Chat(chat) => {
                let said = chat.messages.iter().filter(|message| message.role != "assistant");
                let each = said.map(|message| {
                    let text = Placeholder::without(&message.content, placeholders);
                    least(text.trim())
                });
                let rows = placeholders.iter().map(|one| (0, one.tokens.len()));
                each.chain(rows).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            }
        }
    }

    fn render(
        &self,
        chat: &Chat,
        placeholders: &[Placeholder],
        tokens_max: usize,
    ) -> Result<text::Prompt, CompletionError> {
        self.rendering(chat, placeholders, |render| {
            self.template.prompt_some(&self.tokenizer, &chat.messages, render, tokens_max)
        })
    }

    /// The rendered text of a chat with pictures.
    fn shown(&self, chat: &Chat, placeholders: &[Placeholder]) -> Result<String, CompletionError> {
        self.rendering(chat, placeholders, |render| {
            self.template.shown(&self.tokenizer, &chat.messages, render)
        })
    }

    fn rendering<T>(
        &self,
        chat: &Chat,
        placeholders: &[Placeholder],
        render: impl FnOnce(&text::Render) -> Result<T, text::TextError>,
    ) -> Result<T, CompletionError> {
        let mut variables = chat.variables.clone();
        let thinking = chat.thinking.or_variables(&mut variables).settings(&self.template)?;
        let rendering = text::Render {
            add_generation_prompt: true,
            tools: chat.offered_tools(),
            thinking,
            extra: Some(&variables),
            continue_last: chat.continue_last,
            placeholders,
            now_unix_s: unix_secs() as i64,
        };
        render(&rendering).map_err(|error| match error {
            text::TextError::TemplateUnusable { .. } => CompletionError::Unreadable(error),
            refused => CompletionError::Unrenderable(refused),
        })
    }

    fn words(
        &self,
        request: &CompletionRequest,
        parser: Option<ReplyParser>,
        calls: CallRules,
    ) -> Result<Words, CompletionError> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let stream = match &parser {
            Some(_) => TextStream::new(Arc::clone(&tokenizer))
                .showing(self.template.reply_format().marker_ids(&tokenizer)),
            None => TextStream::continuing(Arc::clone(&tokenizer)),
        };
        let stops = text::StopMatcher::new(&request.stops).map_err(CompletionError::Stops)?;
        let stop_strings = request.stops.clone();
        Ok(Words {
            tokenizer,
            stream,
            parser,
            stops,
            stop_strings,
            lines: Lines::new(request.lines),
            tokens: request.tokens,
            calls,
            state: Default::default(),
        })
    }
}

/// Checks that each picture fits the context.
///
/// # Errors
/// The first that does not.
fn check_sizes(
    prompt: &Prompt,
    placeholders: &[Placeholder],
    context_tokens: usize,
) -> Result<(), CompletionError> {
    let sized = prompt.pictures().iter().zip(placeholders);
    match sized
        .map(|(picture, one)| (picture, one.tokens.len()))
        .find(|(_, n)| *n >= context_tokens)
    {
        Some((Picture { at, .. }, tokens)) => {
            Err(CompletionError::LargePicture { at: at.clone(), tokens, context_tokens })
        }
        None => Ok(()),
    }
}

/// The pictures of a prompt in its order, with the places of their rows.
fn placed(prompt: &Prompt, places: Vec<Placed>) -> Vec<protocol::Picture> {
    let pictures = prompt.pictures();
    let placed = places.into_iter().map(|Placed { number, at }| {
        let Picture { detail, file, .. } = &pictures[number];
        protocol::Picture { at, detail: *detail, file: file.clone() }
    });
    placed.collect()
}
