use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cluster::on_thread;
use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::bounds::within_range;
use super::error::ApiError;
use crate::config::Limits;

/// Bytes read and discarded from a refused body, so that its sender receives the answer.
const DRAIN_BYTES_MAX: usize = 64 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// Bytes of memory per byte of a body until the answer starts: the body, its JSON, the messages,
/// the rendered prompt and its tokens.
const COST: usize = 8;
/// Bytes of memory per JSON value, which may be a single byte of text.
const VALUE_BYTES: usize = 128;
/// Bodies above the size limit divided by this leave a quarter of the memory to smaller ones.
const LARGE_PART: usize = 32;
/// JSON values of one body: enough for the tokens of the longest prompts.
const VALUES_MAX: usize = 1 << 20;
/// Bytes per permit of the memory for requests.
const PERMIT_BYTES: usize = 1024;
/// After so many bytes of a body that arrives at once, other requests have their turn.
const BLOCK_BYTES: usize = 1 << 20;
/// Larger bodies are parsed on a blocking thread, so that they delay no other request.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// Reads request bodies within limits.
pub(crate) struct Intake {
    limits: Limits,
    /// One permit per [`PERMIT_BYTES`] of memory for requests.
    memory: Arc<Semaphore>,
    memory_permits: usize,
}

/// A request's share of the memory. The guard that creates it holds it until the answer starts.
#[derive(Clone, Default)]
pub(crate) struct Share(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Share {
    fn keep(&self, more: OwnedSemaphorePermit) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_mut() {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
    }
}

impl Intake {
    pub fn new(limits: Limits) -> Self {
        // The largest body must fit beside others.
        let least = limits.body_bytes_max.saturating_mul(2 * COST);
        let permits = limits.requests_memory_max.max(least).div_ceil(PERMIT_BYTES);
        let memory_permits = permits.min(Semaphore::MAX_PERMITS);
        Self { limits, memory: Arc::new(Semaphore::new(memory_permits)), memory_permits }
    }

    /// Reads a request's JSON body.
    ///
    /// # Errors
    /// 413 if the body is too large, 408 if it is too slow, 429 if the memory is full, 400 if it is
    /// not JSON or has the wrong type (with the field's path).
    pub async fn read_json<T>(&self, request: Request) -> Result<T, ApiError>
    where
        T: DeserializeOwned + Send + 'static,
    {
        self.read_as(request, Ok).await
    }

    /// Reads a request's JSON body and converts it.
    ///
    /// # Errors
    /// As for [`Self::read_json`], and those of `make`.
    pub async fn read_as<T, U>(
        &self,
        request: Request,
        make: impl FnOnce(T) -> Result<U, ApiError> + Send + 'static,
    ) -> Result<U, ApiError>
    where
        T: DeserializeOwned,
        U: Send + 'static,
    {
        let share = request.extensions().get::<Share>().cloned().unwrap_or_default();
        let blocks = self.read(request, &share).await?;
        let memory = Arc::clone(&self.memory);
        let is_large = blocks.len() > 1 || blocks.iter().any(|one| one.len() > INLINE_BYTES_MAX);
        let parse = move || {
            let body = match <[Vec<u8>; 1]>::try_from(blocks) {
                Ok([only]) => only,
                Err(blocks) => blocks.concat(),
            };
            let values = values(&body);
            if values > VALUES_MAX {
                let message = format!("the body has over {VALUES_MAX} values. Send fewer");
                return Err(ApiError::invalid("invalid_body", message));
            }
            share.keep(take(&memory, values * VALUE_BYTES)?);
            let parsed = parse(&body)?;
            drop(body);
            make(parsed)
        };
        if !is_large {
            return parse();
        }
        aside(parse).await?
    }

    async fn read(&self, request: Request, share: &Share) -> Result<Vec<Vec<u8>>, ApiError> {
        let (parts, body) = request.into_parts();
        let (bytes_max, time_max) = (self.limits.body_bytes_max, self.limits.body_timeout);
        let mut stream = body.into_data_stream();
        let announced = content_length(&parts.headers);
        let read = async {
            if announced.is_some_and(|length| length > bytes_max as u64) {
                return Err(too_large(bytes_max));
            }
            self.collect(&mut stream, announced.unwrap_or(0) as usize, share).await
        };
        let read = tokio::time::timeout(time_max, read).await.unwrap_or_else(|_| {
            let secs = time_max.as_secs();
            let message = format!("the body did not arrive within {secs} s. Send it again");
            Err(ApiError::request(StatusCode::REQUEST_TIMEOUT, "request_timeout", message))
        });
        if read.is_err() {
            drain(&parts.headers, stream).await;
        }
        read
    }

    /// Reads the body as it arrives, in blocks of [`BLOCK_BYTES`]: a growing vector would be copied
    /// on the runtime's threads. The announced length is reserved at once, so that of many large
    /// bodies the first are read completely instead of a part of each.
    async fn collect(
        &self,
        stream: &mut BodyDataStream,
        announced: usize,
        share: &Share,
    ) -> Result<Vec<Vec<u8>>, ApiError> {
        let bytes_max = self.limits.body_bytes_max;
        let mut counted = announced;
        share.keep(self.take_for(announced, announced)?);
        let (mut blocks, mut block, mut len) = (Vec::new(), Vec::new(), 0);
        while let Some(chunk) = stream.next().await {
            let broken = |error| ApiError::invalid("invalid_body", format!("broken body: {error}"));
            let chunk: Bytes = chunk.map_err(broken)?;
            len += chunk.len();
            if len > bytes_max {
                return Err(too_large(bytes_max));
            }
            if len > counted {
                share.keep(self.take_for(len, len - counted)?);
                counted = len;
            }
            block.extend_from_slice(&chunk);
            if block.len() >= BLOCK_BYTES {
                blocks.push(std::mem::take(&mut block));
                tokio::task::yield_now().await;
            }
        }
        if blocks.is_empty() || !block.is_empty() {
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// Memory for a request of this size that comes from this node's disk.
    ///
    /// # Errors
    /// 413 if a body may not be as large; 429 if the memory is full.
    pub fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        if bytes > self.limits.body_bytes_max {
            return Err(too_large(self.limits.body_bytes_max));
        }
        self.take_for(bytes, bytes)
    }

    /// Reserves memory for `more` bytes of a body that then has `len` bytes.
    fn take_for(&self, len: usize, more: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let is_large = len > self.limits.body_bytes_max / LARGE_PART;
        let left = if is_large { self.memory_permits / 4 } else { 0 };
        if self.memory.available_permits() < left + (more * COST).div_ceil(PERMIT_BYTES) {
            return Err(full());
        }
        take(&self.memory, more * COST)
    }
}

/// Does work that may take a while where it delays no other request.
///
/// # Errors
/// 500 if the node stops meanwhile.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    on_thread(work).await.map_err(|_| {
        let message = "the node stopped in the middle of the request. Send it again";
        ApiError::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    })
}

/// Writes a long answer's JSON where that delays no other request, and straight to its bytes: a
/// tree of values would take ten times as many.
///
/// # Errors
/// 500 if the node stops meanwhile.
pub(crate) async fn long_json<T: Serialize + Send + 'static>(
    answer: T,
) -> Result<Response, ApiError> {
    let json = aside(move || serde_json::to_vec(&answer)).await?;
    let json = json.map_err(|error| {
        let (status, message) = (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        ApiError::server(status, "internal_error", message)
    })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

fn take(memory: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
    let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
    Arc::clone(memory).try_acquire_many_owned(permits).map_err(|_| full())
}

fn full() -> ApiError {
    ApiError::busy("the requests being read fill the memory meant for them. Try again in a moment")
}

/// Reads the rest of a body, within limits, unless the client waits for `100 Continue`.
pub(super) async fn drain(headers: &HeaderMap, mut stream: BodyDataStream) {
    let waits = headers.contains_key(header::EXPECT);
    if waits || content_length(headers).is_some_and(|length| length > DRAIN_BYTES_MAX as u64) {
        return;
    }
    let read_on = async {
        let mut bytes = 0;
        while let Some(Ok(chunk)) = stream.next().await {
            bytes += chunk.len();
            if bytes > DRAIN_BYTES_MAX {
                break;
            }
        }
    };
    // A timeout is handled like the end of the body.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, read_on).await;
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(bytes_max: usize) -> ApiError {
    let message = format!("the body is over the limit of {bytes_max} bytes. Send less");
    ApiError::request(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
}

/// Counts the values: every value but the first of a list or an object follows a comma.
fn values(json: &[u8]) -> usize {
    let (mut commas, mut in_text, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' if !in_text => commas += 1,
            _ => {}
        }
    }
    commas
}

/// `serde_json` limits the depth (128). Text must be UTF-8, and numbers must fit their fields.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    // serde also reads a struct from a list, field by field; the API accepts only objects.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::invalid("invalid_body", "the body must be a JSON object"));
    }
    let fitted = within_range(body);
    let body = fitted.as_deref().unwrap_or(body);
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let at = if path == "." { String::new() } else { format!(" at {path}") };
        let message = format!("the body is not what was expected{at}: {}", error.inner());
        let error = ApiError::invalid("invalid_body", message);
        if path == "." { error } else { error.with_param(&path) }
    })?;
    json.end().map_err(|error| {
        ApiError::invalid("invalid_body", format!("text follows the JSON: {error}"))
    })?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Shape {
        number: Option<f64>,
        count: Option<i64>,
        list: Option<Vec<Shape>>,
        text: Option<String>,
    }

    #[test]
    fn hostile_json_is_an_error_with_its_place() {
        let deep = format!("{{\"list\":{}", "[".repeat(100_000));
        let nested = format!("{}1", "{\"list\":[".repeat(200));
        let cases: &[(&[u8], Option<&str>)] = &[
            (b"", None),
            (b"{", None),
            (b"[1", None),
            (deep.as_bytes(), Some("list[0][0]")),
            (nested.as_bytes(), None),
            (b"{\"number\": NaN}", Some("number")),
            (b"{\"number\": 1e999}", Some("number")),
            (b"{\"count\": 9223372036854775808}", Some("count")),
            (b"{\"count\": 1.5}", Some("count")),
            (b"{\"count\": \"7\"}", Some("count")),
            (b"{\"count\": 1, \"count\": 2}", None),
            (b"{\"text\": \"\\ud800\"}", Some("text")),
            (b"{\"text\": \"\xff\"}", Some("text")),
            (b"{} {}", None),
            (b"[1.0, 2]", None),
        ];
        for (body, param) in cases {
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            let error = parse::<Shape>(body).expect_err(&shown);
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{shown}");
            if param.is_some() {
                assert_eq!(error.param.as_deref(), *param, "{shown}");
            }
        }
        let unknown = b"{\"else\": [[[1]]], \"count\": 3}";
        assert_eq!(parse::<Shape>(unknown).unwrap().count, Some(3));
    }
}
