use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use protocol::{Generation, RequestId};

use crate::{GenerateDone, GenerateRequest};

/// Requests that wait for one instance: about a minute at a second each.
pub(super) const WAITING_MAX: usize = 64;
/// How often a waiting request is told that it still waits.
const REMINDER: Duration = Duration::from_secs(2);

/// The requests of one instance: those that wait, in order, and those that rank 0 has.
#[derive(Debug)]
pub(super) struct Requests {
    waiting: VecDeque<(RequestId, GenerateRequest)>,
    running: BTreeSet<RequestId>,
    running_max: usize,
    last: RequestId,
    reminded_at: Duration,
}

impl Requests {
    pub(super) fn new(running_max: usize) -> Self {
        let (waiting, running) = (VecDeque::new(), BTreeSet::new());
        Self { waiting, running, running_max, last: 0, reminded_at: Duration::ZERO }
    }

    /// Puts a request at the end of the queue; `None` if that is full.
    pub(super) fn submit(&mut self, request: GenerateRequest) -> Option<RequestId> {
        if self.waiting.len() >= WAITING_MAX {
            return None;
        }
        self.last += 1;
        self.waiting.push_back((self.last, request));
        Some(self.last)
    }

    /// The requests that may start now.
    pub(super) fn take_ready(&mut self) -> Vec<(RequestId, GenerateRequest)> {
        let free = self.running_max.saturating_sub(self.running.len());
        let ready: Vec<_> = self.waiting.drain(..free.min(self.waiting.len())).collect();
        self.running.extend(ready.iter().map(|(request, _)| *request));
        ready
    }

    /// Takes a request out, wherever it is; true if it runs, so that its worker must be told. It
    /// counts as running until the worker says that it has ended.
    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        self.waiting.retain(|(waiting, _)| *waiting != request);
        self.running.contains(&request)
    }

    /// Notes that a running request has ended; false if it was none.
    pub(super) fn finish(&mut self, request: RequestId) -> bool {
        self.running.remove(&request)
    }

    pub(super) fn take_running(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.running).into_iter().collect()
    }

    pub(super) fn take_waiting(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.waiting).into_iter().map(|(request, _)| request).collect()
    }

    pub(super) fn waiting(&self) -> Vec<RequestId> {
        self.waiting.iter().map(|(request, _)| *request).collect()
    }

    pub(super) fn is_waiting(&self, request: RequestId) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == request)
    }

    pub(super) fn is_running(&self, request: RequestId) -> bool {
        self.running.contains(&request)
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether those who wait should hear again; true at most once each [`REMINDER`].
    pub(super) fn is_reminder_due(&mut self, now: Duration) -> bool {
        let due = !self.waiting.is_empty() && now >= self.reminded_at + REMINDER;
        if due || self.waiting.is_empty() {
            self.reminded_at = now;
        }
        due
    }
}

/// A worker's account of a request, as its client sees it, and its decode rate in tokens per
/// second, where there is one.
pub(super) fn account(generation: &Generation) -> (Option<f64>, GenerateDone) {
    let steps = generation.generated_tokens.saturating_sub(1);
    let timed = steps > 0 && generation.decode_us > 0;
    let rate = timed.then(|| steps as f64 * 1e6 / generation.decode_us as f64);
    let done = GenerateDone {
        reason: generation.reason,
        prompt_tokens: generation.prompt_tokens,
        generated_tokens: generation.generated_tokens,
        cached_tokens: generation.cached_tokens,
        queue: Duration::from_micros(generation.queue_us),
        prefill: Duration::from_micros(generation.prefill_us),
        decode: Duration::from_micros(generation.decode_us),
    };
    (rate, done)
}
