use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::trace::{Ended, Trace};
use super::usage::{KeyUsage, Usage};
use crate::completion::{CompletionError, Finish, Outcome};
use crate::node::RefusalKind;

/// Models with their own series, over a node's life; a cluster serves only a few.
const MODELS_MAX: usize = 64;
/// The label of all other models.
const OTHER_MODELS: &str = "other";

/// vLLM's bounds, in seconds.
const FIRST_TOKEN_BOUNDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// vLLM's bounds and three below them: a small model's step takes a few milliseconds.
const TOKEN_BOUNDS: [f64; 22] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_BOUNDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// 1, 2, 5, 10, ... up to the longest contexts.
const COUNT_BOUNDS: [f64; 17] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5];

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Metrics of the requests to models from this node's clients.
pub(crate) struct RequestMetrics {
    prompt_tokens: Family<Labels, Counter>,
    generation_tokens: Family<Labels, Counter>,
    success: Family<Labels, Counter>,
    failed: Family<Labels, Counter>,
    time_to_first_token: Histograms,
    inter_token_latency: Histograms,
    time_per_output_token: Histograms,
    e2e_latency: Histograms,
    queue_time: Histograms,
    inference_time: Histograms,
    prefill_time: Histograms,
    decode_time: Histograms,
    request_prompt_tokens: Histograms,
    request_generation_tokens: Histograms,
    models: Mutex<BTreeSet<String>>,
    pub trace: Trace,
    pub usage: Usage,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        let tokens = || Histograms::new_with_constructor(|| Histogram::new(TOKEN_BOUNDS));
        let requests = || Histograms::new_with_constructor(|| Histogram::new(REQUEST_BOUNDS));
        let counts = || Histograms::new_with_constructor(|| Histogram::new(COUNT_BOUNDS));
        Self {
            prompt_tokens: Family::default(),
            generation_tokens: Family::default(),
            success: Family::default(),
            failed: Family::default(),
            time_to_first_token: Histograms::new_with_constructor(|| {
                Histogram::new(FIRST_TOKEN_BOUNDS)
            }),
            inter_token_latency: tokens(),
            time_per_output_token: tokens(),
            e2e_latency: requests(),
            queue_time: requests(),
            inference_time: requests(),
            prefill_time: requests(),
            decode_time: requests(),
            request_prompt_tokens: counts(),
            request_generation_tokens: counts(),
            models: Mutex::default(),
            trace: Trace::default(),
            usage: Usage::default(),
        }
    }
}

impl RequestMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let counters = [
            ("prompt_tokens", "Tokens of prompts that were read", &self.prompt_tokens),
            ("generation_tokens", "Tokens that were generated", &self.generation_tokens),
            ("request_success", "Answers that ended, by finished_reason", &self.success),
            ("request_failed", "Requests that got no whole answer, by reason", &self.failed),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let times = [
            (
                "time_to_first_token",
                "From a request's arrival to its first token",
                &self.time_to_first_token,
            ),
            (
                "inter_token_latency",
                "From one token of an answer to the next",
                &self.inter_token_latency,
            ),
            (
                "request_time_per_output_token",
                "Of an answer, the mean time of a token after the first",
                &self.time_per_output_token,
            ),
            (
                "e2e_request_latency",
                "From a request's arrival to its answer's end",
                &self.e2e_latency,
            ),
            ("request_queue_time", "From a request's arrival to its first step", &self.queue_time),
            (
                "request_inference_time",
                "From a request's first step to its last token",
                &self.inference_time,
            ),
            (
                "request_prefill_time",
                "From a request's first step to its first token",
                &self.prefill_time,
            ),
            ("request_decode_time", "From a request's first token to its last", &self.decode_time),
        ];
        for (name, help, histograms) in times {
            registry.register_with_unit(name, help, Unit::Seconds, histograms.clone());
        }
        let counts = [
            ("request_prompt_tokens", "Tokens of a request's prompt", &self.request_prompt_tokens),
            (
                "request_generation_tokens",
                "Tokens of a request's answer",
                &self.request_generation_tokens,
            ),
        ];
        for (name, help, histograms) in counts {
            registry.register(name, help, histograms.clone());
        }
    }

    /// Counts a request that got no answer.
    pub fn refused(&self, error: &CompletionError) {
        self.turned_away(failure(error));
    }

    /// Counts a request refused before it reached a model.
    pub fn turned_away(&self, reason: &'static str) {
        self.failed.get_or_create(&vec![("reason", reason.to_owned())]).inc();
    }

    fn labels(&self, model: &str) -> Labels {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = models.contains(model);
        let name = match is_known || models.len() < MODELS_MAX {
            true => model,
            false => OTHER_MODELS,
        };
        if !is_known && name == model {
            models.insert(model.to_owned());
        }
        vec![("model_name", name.to_owned())]
    }
}

/// The label of an error.
fn failure(error: &CompletionError) -> &'static str {
    match error {
        CompletionError::UnknownModel { .. }
        | CompletionError::UnservedPreset { .. }
        | CompletionError::NothingServed
        | CompletionError::Unfetched { .. } => "unknown_model",
        CompletionError::ModelFailed { .. } => "model_failed",
        CompletionError::TooMany { .. } | CompletionError::Fetching { .. } => "busy",
        CompletionError::Invalid(_)
        | CompletionError::Unrenderable(_)
        | CompletionError::Stops(_)
        | CompletionError::Blind { .. }
        | CompletionError::Picture { .. }
        | CompletionError::LargePicture { .. }
        | CompletionError::LongText { .. }
        | CompletionError::LongPair { .. }
        | CompletionError::Unusable { .. } => "invalid",
        CompletionError::Unreadable(_) => "model_failed",
        CompletionError::Unsettled { .. } | CompletionError::HeaderTimeout { .. } => "unavailable",
        CompletionError::Crashed => "crashed",
        CompletionError::Lost { .. } => "lost",
        CompletionError::Refused(refusal) => match refusal.kind {
            RefusalKind::Busy => "busy",
            RefusalKind::Invalid => "invalid",
            RefusalKind::NotFound => "unknown_model",
            RefusalKind::Failed => "model_failed",
            RefusalKind::Conflict | RefusalKind::Unavailable => "unavailable",
        },
    }
}

/// Records one answer in the metrics. Dropping it before the end counts as aborted by the client.
pub(crate) struct RequestWatch {
    metrics: Arc<RequestMetrics>,
    labels: Labels,
    /// The number of the client's API key; 0 without one.
    client: u64,
    arrived: Instant,
    prompt_tokens: usize,
    generated_tokens: usize,
    first: Option<Instant>,
    last: Instant,
    has_ended: bool,
}

impl RequestWatch {
    pub fn new(
        metrics: &Arc<RequestMetrics>,
        (model, client): (&str, u64),
        arrived: Instant,
        prompt_tokens: usize,
    ) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            labels: metrics.labels(model),
            client,
            arrived,
            prompt_tokens,
            generated_tokens: 0,
            first: None,
            last: arrived,
            has_ended: false,
        }
    }

    /// Records new tokens.
    pub fn tokens(&mut self, count: usize) {
        let (metrics, labels, now) = (&self.metrics, &self.labels, Instant::now());
        if self.first.is_none() {
            self.first = Some(now);
            observe(&metrics.time_to_first_token, labels, (now - self.arrived).as_secs_f64());
            metrics.prompt_tokens.get_or_create(labels).inc_by(self.prompt_tokens as u64);
        } else {
            observe(&metrics.inter_token_latency, labels, (now - self.last).as_secs_f64());
        }
        metrics.generation_tokens.get_or_create(labels).inc_by(count as u64);
        self.generated_tokens += count;
        self.last = now;
    }

    /// Records a complete answer.
    pub fn finished(&mut self, outcome: &Outcome) {
        let reason = match outcome.finish {
            Finish::Length => "length",
            Finish::Stop | Finish::StopString(_) | Finish::ToolCalls => "stop",
        };
        self.end(reason, Some(outcome));
        let (metrics, labels) = (&self.metrics, &self.labels);
        if self.first.is_none() {
            metrics.prompt_tokens.get_or_create(labels).inc_by(self.prompt_tokens as u64);
        }
        // The queue time also covers waits before rank 0: rendering the prompt, the model's load,
        // and the owner's queue.
        let until_first = self.first.map_or(Duration::ZERO, |first| first - self.arrived);
        let queue = until_first.saturating_sub(outcome.prefill).max(outcome.queue);
        let inference = outcome.prefill + outcome.decode;
        for (histograms, time) in [
            (&metrics.queue_time, queue),
            (&metrics.inference_time, inference),
            (&metrics.prefill_time, outcome.prefill),
            (&metrics.decode_time, outcome.decode),
        ] {
            observe(histograms, labels, time.as_secs_f64());
        }
        observe(&metrics.request_prompt_tokens, labels, self.prompt_tokens as f64);
        observe(&metrics.request_generation_tokens, labels, self.generated_tokens as f64);
        if let Some(first) = self.first.filter(|_| self.generated_tokens > 1) {
            let each = (self.last - first).as_secs_f64() / (self.generated_tokens - 1) as f64;
            observe(&metrics.time_per_output_token, labels, each);
        }
    }

    /// Records an answer that was lost or refused.
    pub fn failed(&mut self, error: &CompletionError) {
        let labels = [&self.labels[..], &[("reason", failure(error).to_owned())]].concat();
        self.metrics.failed.get_or_create(&labels).inc();
        use CompletionError::{Refused, Unusable};
        let is_refused = matches!(error, Refused(_) | Unusable { .. });
        match is_refused && self.first.is_none() {
            true if !std::mem::replace(&mut self.has_ended, true) => self.note("refused", None),
            true => {}
            false => self.end("error", None),
        }
    }

    fn end(&mut self, reason: &'static str, outcome: Option<&Outcome>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            let (metrics, labels) = (&self.metrics, &self.labels);
            observe(&metrics.e2e_latency, labels, self.arrived.elapsed().as_secs_f64());
            let labels = [&labels[..], &[("finished_reason", reason.to_owned())]].concat();
            metrics.success.get_or_create(&labels).inc();
            self.note(reason, outcome);
        }
    }

    fn note(&self, reason: &'static str, outcome: Option<&Outcome>) {
        let is_read = self.first.is_some() || outcome.is_some();
        self.metrics.usage.add(
            self.client,
            KeyUsage {
                requests: 1,
                prompt_tokens: if is_read { self.prompt_tokens as u64 } else { 0 },
                cached_tokens: outcome.map_or(0, |outcome| outcome.cached_tokens as u64),
                generated_tokens: self.generated_tokens as u64,
            },
        );
        self.metrics.trace.note(Ended {
            model: self.labels[0].1.clone(),
            arrived: self.arrived,
            first: self.first,
            ended: Instant::now(),
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated_tokens,
            reason,
            outcome: outcome.cloned(),
        });
    }
}

impl Drop for RequestWatch {
    fn drop(&mut self) {
        self.end("abort", None);
    }
}

fn observe(histograms: &Histograms, labels: &Labels, value: f64) {
    histograms.get_or_create(labels).observe(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_request_waits_for_is_its_queue() {
        let metrics = Arc::new(RequestMetrics::default());
        let arrived = Instant::now() - Duration::from_secs(10);
        let mut watch = RequestWatch::new(&metrics, ("m", 0), arrived, 3);
        watch.tokens(1);
        watch.finished(&Outcome {
            finish: Finish::Stop,
            prompt_tokens: 3,
            cached_tokens: 0,
            guesses: Default::default(),
            generated_tokens: 1,
            reasoning_tokens: 0,
            queue: Duration::from_secs(1),
            prefill: Duration::from_secs(2),
            decode: Duration::ZERO,
            prefill_waits: Vec::new(),
            decode_waits: Vec::new(),
        });
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let start = "request_queue_time_seconds_sum{model_name=\"m\"} ";
        let sum = text.lines().find_map(|line| line.strip_prefix(start)).unwrap();
        // Ten seconds plus this test's own time, less two of prefill.
        assert!(sum.parse::<f64>().unwrap() >= 8.0, "{sum}");
    }

    #[test]
    fn the_number_of_models_with_series_of_their_own_is_bounded() {
        let metrics = RequestMetrics::default();
        for model in 0..2 * MODELS_MAX {
            metrics.labels(&format!("model-{model}"));
        }
        assert_eq!(metrics.models.lock().unwrap().len(), MODELS_MAX);
        assert_eq!(metrics.labels("one-more")[0].1, OTHER_MODELS);
        assert_eq!(metrics.labels("model-7")[0].1, "model-7");
    }
}
