//! The server under test: one streamed request, timed piece by piece.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::args::{Endpoint, ServeArgs};
use crate::error::Error;

/// The longest that one request may take: an hour is more than any benchmark needs.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest line of a stream: a hundred times the largest event that servers send.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// The outcome of one request; the text is the reason of a failure.
pub type Outcome = Result<Sample, String>;

/// The times of one complete answer, from the moment of sending its request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// To the first piece of text.
    pub first_token: Duration,
    /// To the last event.
    pub end_to_end: Duration,
    /// Between pieces of text.
    pub gaps: Vec<Duration>,
    /// As counted by the server.
    pub prompt_tokens: Option<usize>,
    /// As counted by the server; without its count, the number of pieces of text.
    pub output_tokens: usize,
}

pub struct Server {
    agent: ureq::Agent,
    url: String,
    key: Option<String>,
    pub model: String,
    endpoint: Endpoint,
    ignore_eos: bool,
    temperature: f32,
}

impl Server {
    /// # Errors
    /// The server does not answer, or lists no model.
    pub fn new(args: &ServeArgs) -> Result<Self, Error> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(REQUEST_TIMEOUT))
            .build();
        let url = args.url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        if !url.starts_with("http://") {
            let text = format!("--url {}: give one that begins with http://", args.url);
            return Err(Error::Usage(text));
        }
        let mut server = Self {
            agent: config.into(),
            url,
            key: std::env::var("OPENAI_API_KEY").ok(),
            model: String::new(),
            endpoint: args.endpoint,
            ignore_eos: !args.stop_at_eos,
            temperature: args.temperature,
        };
        server.model = match &args.model {
            Some(model) => model.clone(),
            None => server.first_model()?,
        };
        Ok(server)
    }

    fn first_model(&self) -> Result<String, Error> {
        let url = format!("{}/v1/models", self.url);
        let answer = self.with_key(self.agent.get(&url)).call();
        let mut answer = answer.map_err(|error| {
            let text = format!("{} does not answer: {error}. Is a server up there?", self.url);
            Error::Failed(text)
        })?;
        let listed: Value = answer.body_mut().read_json().unwrap_or_default();
        let first = listed["data"][0]["id"].as_str().map(str::to_owned);
        first.ok_or_else(|| {
            Error::Failed(format!("{url} lists no model. Serve one, or name it with --model"))
        })
    }

    /// Sends one request and reads its answer to the end.
    ///
    /// # Errors
    /// The server refused it, or the answer was incomplete.
    pub fn ask(&self, prompt: &str, output_tokens: usize) -> Outcome {
        let path = match self.endpoint {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Completions => "/v1/completions",
        };
        let request = self.with_key(self.agent.post(format!("{}{path}", self.url)));
        let body = self.body(prompt, output_tokens);
        let start = Instant::now();
        let answer = request.send_json(&body);
        let mut answer = answer.map_err(|error| format!("the request failed: {error}"))?;
        if !answer.status().is_success() {
            let status = answer.status();
            let body: Value = answer.body_mut().read_json().unwrap_or_default();
            return Err(format!("status {status}: {}", error_message(&body["error"])));
        }
        read_answer(answer.into_body().into_reader(), || start.elapsed())
    }

    fn body(&self, prompt: &str, output_tokens: usize) -> Value {
        let mut body = json!({
            "model": self.model,
            "max_tokens": output_tokens,
            "temperature": self.temperature,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        match self.endpoint {
            Endpoint::Chat => body["messages"] = json!([{ "role": "user", "content": prompt }]),
            Endpoint::Completions => body["prompt"] = json!(prompt),
        }
        if self.ignore_eos {
            body["ignore_eos"] = json!(true);
        }
        body
    }

    fn with_key<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }
}

/// Reads server-sent events to `[DONE]`; `now` returns the time since the request was sent.
///
/// # Errors
/// An event is an error or no JSON, or the stream ends before `[DONE]`: an answer that was cut
/// short must not count as a fast one.
fn read_answer(stream: impl Read, now: impl Fn() -> Duration) -> Outcome {
    let mut sample = Sample::default();
    let mut last_piece = None;
    let (mut pieces, mut counted) = (0, None);
    let mut lines = BufReader::new(stream);
    loop {
        let line = next_line(&mut lines)?.ok_or("the stream ended before its end")?;
        let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
        if data == "[DONE]" {
            break;
        }
        let at = now();
        let event: Value = serde_json::from_str(data)
            .map_err(|error| format!("an event is no JSON ({error}): {data}"))?;
        if !event["error"].is_null() {
            return Err(error_message(&event["error"]));
        }
        sample.end_to_end = at;
        if has_text(&event["choices"][0]) {
            match last_piece.replace(at) {
                None => sample.first_token = at,
                Some(before) => sample.gaps.push(at - before),
            }
            pieces += 1;
        }
        let usage = &event["usage"];
        sample.prompt_tokens = count(&usage["prompt_tokens"]).or(sample.prompt_tokens);
        counted = count(&usage["completion_tokens"]).or(counted);
    }
    sample.output_tokens = counted.unwrap_or(pieces);
    if last_piece.is_none() {
        // All of it was control tokens, or was held back until the end.
        sample.first_token = sample.end_to_end;
    }
    if sample.output_tokens == 0 {
        return Err("the answer is empty".to_owned());
    }
    Ok(sample)
}

fn next_line(lines: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    let read = lines.take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
    let read = read.map_err(|error| format!("the stream broke: {error}"))?;
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
}

/// Whether a choice of an event has any piece of the answer. A first event that only names the role
/// is no token.
fn has_text(choice: &Value) -> bool {
    let delta = &choice["delta"];
    let texts = [&choice["text"], &delta["content"], &delta["reasoning_content"]];
    let some = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    texts.into_iter().any(some) || some(&delta["reasoning"]) || delta["tool_calls"].is_array()
}

fn count(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|count| count.try_into().ok())
}

/// The text of an error in any of the usual formats.
fn error_message(error: &Value) -> String {
    let text = error.as_str().or_else(|| error["message"].as_str());
    text.map_or_else(|| error.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Reads a stream with an event every 10 ms.
    fn read(events: &[&str]) -> Outcome {
        let text: String = events.iter().map(|event| format!("{event}\n\n")).collect();
        let clock = Cell::new(0);
        read_answer(text.as_bytes(), || {
            clock.set(clock.get() + 10);
            Duration::from_millis(clock.get())
        })
    }

    const ROLE: &str = r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#;
    const PIECE: &str = r#"data: {"choices":[{"delta":{"content":"a"}}]}"#;
    const THOUGHT: &str = r#"data: {"choices":[{"delta":{"reasoning_content":"a"}}]}"#;
    const TEXT: &str = r#"data: {"choices":[{"text":"a"}]}"#;
    const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}"#;
    const DONE: &str = "data: [DONE]";

    #[test]
    fn an_answer_is_timed_piece_by_piece() {
        let ms = Duration::from_millis;
        let sample = read(&[ROLE, ": keep-alive", THOUGHT, PIECE, PIECE, USAGE, DONE]).unwrap();
        let expected = Sample {
            first_token: ms(20),
            end_to_end: ms(50),
            gaps: vec![ms(10), ms(10)],
            prompt_tokens: Some(7),
            output_tokens: 5,
        };
        assert_eq!(sample, expected);
        let sample = read(&[TEXT, TEXT, "data:[DONE]"]).unwrap();
        assert_eq!((sample.output_tokens, sample.prompt_tokens), (2, None));
        let silent = read(&[USAGE, DONE]).unwrap();
        assert_eq!((silent.first_token, silent.end_to_end), (ms(10), ms(10)));
    }

    #[test]
    fn what_is_not_whole_has_failed() {
        let lost = r#"data: {"error":{"message":"node b was lost"}}"#;
        for (events, why) in [
            (&[PIECE][..], "before its end"),
            (&[PIECE, lost], "node b was lost"),
            (&["data: {oops"], "no JSON"),
            (&[ROLE, DONE], "empty"),
        ] {
            let error = read(events).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
