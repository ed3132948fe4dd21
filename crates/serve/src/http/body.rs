use std::time::Duration;

use axum::body::{BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::bounds::within_range;
use super::error::ApiError;
use crate::config::Limits;

/// What is read and thrown away of a refused body, so that its sender sees the answer.
const DRAIN_BYTES_MAX: usize = 64 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// Largest bodies that may be in memory at once, all requests together.
const LARGEST_AT_ONCE: usize = 8;
/// Values of one body: the tokens of the longest prompts. In memory each takes many times its
/// bytes.
const VALUES_MAX: usize = 1 << 20;
/// One permit of the memory for bodies.
const PERMIT_BYTES: usize = 1024;

/// Reads bodies, one and all within bounds.
pub(crate) struct Intake {
    limits: Limits,
    /// One permit for each [`PERMIT_BYTES`] that bodies may have in memory.
    memory: Semaphore,
}

impl Intake {
    pub fn new(limits: Limits) -> Self {
        let permits = limits.body_bytes_max.div_ceil(PERMIT_BYTES) * LARGEST_AT_ONCE;
        Self { memory: Semaphore::new(permits.min(Semaphore::MAX_PERMITS)), limits }
    }

    /// Reads a request's JSON body.
    ///
    /// # Errors
    /// 413 over the limit, 408 too slow, 429 too many large ones at once, 400 not JSON or not of
    /// that shape (with the field's path).
    pub async fn read_json<T: DeserializeOwned>(&self, request: Request) -> Result<T, ApiError> {
        parse(&self.read(request).await?.bytes)
    }

    async fn read(&self, request: Request) -> Result<Held<'_>, ApiError> {
        let (parts, body) = request.into_parts();
        let (bytes_max, time_max) = (self.limits.body_bytes_max, self.limits.body_timeout);
        let mut stream = body.into_data_stream();
        let announced = content_length(&parts.headers);
        let read = async {
            if announced.is_some_and(|length| length > bytes_max as u64) {
                return Err(too_large(bytes_max));
            }
            self.collect(&mut stream).await
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

    /// Grows as bytes arrive: what a client announces takes no memory.
    async fn collect(&self, stream: &mut BodyDataStream) -> Result<Held<'_>, ApiError> {
        let bytes_max = self.limits.body_bytes_max;
        let mut held = Held { bytes: Vec::new(), memory: self.take(0)? };
        while let Some(chunk) = stream.next().await {
            let broken = |error| ApiError::invalid("invalid_body", format!("broken body: {error}"));
            let chunk: Bytes = chunk.map_err(broken)?;
            let len = held.bytes.len() + chunk.len();
            if len > bytes_max {
                return Err(too_large(bytes_max));
            }
            let missing = len.div_ceil(PERMIT_BYTES) - held.memory.num_permits();
            held.memory.merge(self.take(missing as u32)?);
            held.bytes.extend_from_slice(&chunk);
        }
        Ok(held)
    }

    fn take(&self, permits: u32) -> Result<SemaphorePermit<'_>, ApiError> {
        let full = |_| ApiError::busy("the requests being read fill the memory meant for them");
        self.memory.try_acquire_many(permits).map_err(full)
    }
}

/// A body and its share of the memory for bodies.
struct Held<'a> {
    bytes: Vec<u8>,
    memory: SemaphorePermit<'a>,
}

/// Reads what is left of a body, within bounds, unless the client waits to be asked for it.
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
    // Running out of time is as good as the body's end here.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, read_on).await;
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(bytes_max: usize) -> ApiError {
    let message = format!("the body is over the limit of {bytes_max} bytes. Send less");
    ApiError::request(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
}

/// Whether there are more than [`VALUES_MAX`] values: each but the first of a list or an object
/// follows a comma.
fn has_many_values(json: &[u8]) -> bool {
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
    commas > VALUES_MAX
}

/// Depth is bounded by `serde_json` (128), text must be UTF-8, numbers must fit their fields.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    // A struct could be read from a list as well, field by field: nobody means that.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::invalid("invalid_body", "the body must be a JSON object"));
    }
    if has_many_values(body) {
        let message = format!("the body has over {VALUES_MAX} values. Send fewer");
        return Err(ApiError::invalid("invalid_body", message));
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
