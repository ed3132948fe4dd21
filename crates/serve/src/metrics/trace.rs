//! The last requests as a Chrome trace (`chrome://tracing`, Perfetto). Each request has one line
//! with its time on the way to rank 0, in its queue, in prefill and in decode. For the last two it
//! also shows how long rank 0 waited for each other rank. The trace contains no text of prompts or
//! answers.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::completion::Outcome;

/// Requests kept: an hour of a busy household, or 200 KB.
const REQUESTS_MAX: usize = 1000;

/// The record of a finished request.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub model: String,
    pub arrived: Instant,
    pub first: Option<Instant>,
    pub ended: Instant,
    pub prompt_tokens: usize,
    pub generated_tokens: usize,
    pub reason: &'static str,
    /// The outcome, if the answer is complete.
    pub outcome: Option<Outcome>,
}

/// The requests that finished last.
#[derive(Debug)]
pub(crate) struct Trace {
    /// The same moment on both clocks.
    began: (Instant, SystemTime),
    requests: Mutex<(u64, VecDeque<Ended>)>,
}

impl Default for Trace {
    fn default() -> Self {
        Self { began: (Instant::now(), SystemTime::now()), requests: Mutex::default() }
    }
}

impl Trace {
    pub(super) fn note(&self, ended: Ended) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.1.len() >= REQUESTS_MAX {
            requests.1.pop_front();
        }
        requests.0 += 1;
        requests.1.push_back(ended);
    }

    /// The JSON object of the trace event format; times are microseconds since 1970.
    pub fn json(&self) -> Value {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let first = requests.0 - requests.1.len() as u64;
        let events = requests.1.iter().enumerate();
        let events = events.flat_map(|(at, ended)| self.events(first + at as u64 + 1, ended));
        json!({ "displayTimeUnit": "ms", "traceEvents": events.collect::<Vec<_>>() })
    }

    /// A span for the whole request and one for each of its phases.
    fn events(&self, number: u64, ended: &Ended) -> Vec<Value> {
        let span = |name: &str, start: Instant, time: Duration, args: Value| {
            json!({
                "name": name, "cat": ended.model, "ph": "X", "pid": 1, "tid": number,
                "ts": self.unix_us(start), "dur": time.as_micros() as u64, "args": args,
            })
        };
        let args = json!({
            "model": ended.model, "finished_reason": ended.reason,
            "prompt_tokens": ended.prompt_tokens, "generated_tokens": ended.generated_tokens,
            "cached_tokens": ended.outcome.as_ref().map(|outcome| outcome.cached_tokens),
        });
        let whole = span("request", ended.arrived, ended.ended - ended.arrived, args);
        let (Some(outcome), Some(first)) = (&ended.outcome, ended.first) else {
            return vec![whole];
        };
        // Rank 0 reports durations; the arrival of its first token at this node anchors them.
        let before = |moment: Instant, time| moment.checked_sub(time).unwrap_or(moment);
        let prefill = before(first, outcome.prefill).max(ended.arrived);
        let queue = before(prefill, outcome.queue).max(ended.arrived);
        let none = || json!({});
        let waits = |waits: &[Duration]| json!({ "waited_us": by_rank(waits) });
        let decode = outcome.decode.min(ended.ended - first);
        vec![
            whole,
            span("arrival", ended.arrived, queue - ended.arrived, none()),
            span("queue", queue, prefill - queue, none()),
            span("prefill", prefill, first - prefill, waits(&outcome.prefill_waits)),
            span("decode", first, decode, waits(&outcome.decode_waits)),
        ]
    }

    fn unix_us(&self, moment: Instant) -> u64 {
        let (instant, time) = self.began;
        let time = match moment.checked_duration_since(instant) {
            Some(after) => time + after,
            None => time - (instant - moment),
        };
        time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
    }
}

/// How long rank 0 waited for each other rank.
fn by_rank(waits: &[Duration]) -> Value {
    let others = waits.iter().enumerate().skip(1);
    others.map(|(rank, waited)| (format!("rank {rank}"), waited.as_micros() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::Finish;

    fn ended(trace: &Trace, outcome: Option<Outcome>) -> Ended {
        let at = |ms| trace.began.0 + Duration::from_millis(ms);
        Ended {
            model: "m".to_owned(),
            arrived: at(100),
            first: Some(at(400)),
            ended: at(1000),
            prompt_tokens: 7,
            generated_tokens: 3,
            reason: "stop",
            outcome,
        }
    }

    fn outcome() -> Outcome {
        Outcome {
            finish: Finish::Stop,
            prompt_tokens: 7,
            cached_tokens: 2,
            guesses: Default::default(),
            generated_tokens: 3,
            reasoning_tokens: 0,
            queue: Duration::from_millis(50),
            prefill: Duration::from_millis(200),
            decode: Duration::from_millis(600),
            prefill_waits: [0, 30].map(Duration::from_millis).to_vec(),
            decode_waits: [0, 90].map(Duration::from_millis).to_vec(),
        }
    }

    #[test]
    fn a_request_is_cut_into_what_it_waited_for() {
        let trace = Trace::default();
        trace.note(ended(&trace, Some(outcome())));
        let json = trace.json();
        let events = json["traceEvents"].as_array().unwrap();
        let start = events[0]["ts"].as_u64().unwrap();
        let spans: Vec<_> = events
            .iter()
            .map(|event| {
                let after = event["ts"].as_u64().unwrap() - start;
                (
                    event["name"].as_str().unwrap(),
                    after / 1000,
                    event["dur"].as_u64().unwrap() / 1000,
                )
            })
            .collect();
        let expected = [
            ("request", 0, 900),
            ("arrival", 0, 50),
            ("queue", 50, 50),
            ("prefill", 100, 200),
            ("decode", 300, 600),
        ];
        assert_eq!(spans, expected);
        assert_eq!(events[0]["args"]["cached_tokens"], 2);
        assert_eq!(events[3]["args"], json!({"waited_us": {"rank 1": 30_000}}));
        assert_eq!(events[4]["args"], json!({"waited_us": {"rank 1": 90_000}}));
    }

    #[test]
    fn only_the_last_ones_are_kept_under_their_own_numbers() {
        let trace = Trace::default();
        for _ in 0..REQUESTS_MAX + 5 {
            trace.note(ended(&trace, None));
        }
        let json = trace.json();
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), REQUESTS_MAX);
        assert_eq!(
            (&events[0]["tid"], &events[REQUESTS_MAX - 1]["tid"]),
            (&json!(6), &json!(1005))
        );
    }
}
