//! Streaming responses: server-sent events and JSON lines.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::time::{Instant, Sleep};

/// Delay between the last event of a failed stream and closing its connection, in which the event
/// leaves the socket's queue. A slower client still sees that the stream broke.
const CUT_DELAY: Duration = Duration::from_millis(100);

/// The format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `data: ...` and an empty line (server-sent events of the HTML standard).
    Sse,
    /// One JSON value per line.
    JsonLines,
}

/// One item to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// One line of data.
    Data(String),
    /// One line of data with an event name, if the framing has names.
    Event(&'static str, String),
    /// A comment for people who watch the stream; omitted if the framing has no comments.
    Comment(String),
    /// The last line of data of a failed stream. The connection is closed after it, so that no
    /// client takes a partial answer for a complete one.
    Fail(String),
    /// Like [`Item::Fail`], as an event with a name.
    FailEvent(&'static str, String),
}

impl Item {
    /// # Panics
    /// Never: the values are plain structs with string keys.
    pub fn json<T: Serialize>(value: &T) -> Self {
        Self::Data(json_of(value))
    }

    /// # Panics
    /// Never, as for [`Self::json`].
    pub fn event<T: Serialize>(name: &'static str, value: &T) -> Self {
        Self::Event(name, json_of(value))
    }
}

/// Plain data as JSON, with all digits of its numbers.
fn json_of<T: Serialize>(value: &T) -> String {
    text::with_digits(serde_json::to_string(value).expect("plain data is JSON"))
}

/// A 200 response of plain data that may contain a call's arguments.
pub(crate) fn json_response<T: Serialize>(value: &T) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], json_of(value)).into_response()
}

/// A 200 response with the items of `source`, and a comment after each silence of `keep_alive`.
/// Dropping the response drops `source`.
pub(crate) fn respond(
    framing: Framing,
    source: impl Stream<Item = Item> + Send + 'static,
    keep_alive: Duration,
) -> Response {
    respond_with(framing, source, keep_alive, || Item::Comment("keep-alive".to_owned()))
}

/// Like [`respond`], with a dialect-specific item for silences.
pub(crate) fn respond_with(
    framing: Framing,
    source: impl Stream<Item = Item> + Send + 'static,
    keep_alive: Duration,
    beat: impl Fn() -> Item + Send + 'static,
) -> Response {
    let (source, silence) = (Box::pin(source), Box::pin(tokio::time::sleep(keep_alive)));
    let state = State { framing, source, keep_alive, silence, beat, ended: false };
    let body = Body::from_stream(stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((bytes, state))
    }));
    let kind = match framing {
        Framing::Sse => "text/event-stream",
        Framing::JsonLines => "application/x-ndjson",
    };
    let mut response = body.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // Requests that proxies do not buffer events.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct State<S, B> {
    framing: Framing,
    source: std::pin::Pin<Box<S>>,
    keep_alive: Duration,
    /// Fires after a silence. One timer serves all events: resetting it is cheaper than creating a
    /// new one.
    silence: std::pin::Pin<Box<Sleep>>,
    beat: B,
    /// The failing event was sent; only closing the connection remains.
    ended: bool,
}

impl<S: Stream<Item = Item>, B: Fn() -> Item> State<S, B> {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.ended {
            tokio::time::sleep(CUT_DELAY).await;
            return Some(Err(io::Error::other("the stream failed and has said so")));
        }
        loop {
            self.silence.as_mut().reset(Instant::now() + self.keep_alive);
            let item = tokio::select! {
                biased;
                item = self.source.next() => item?,
                () = self.silence.as_mut() => (self.beat)(),
            };
            self.ended = matches!(item, Item::Fail(_) | Item::FailEvent(..));
            if let Some(text) = self.framing.write(&item) {
                return Some(Ok(text.into()));
            }
        }
    }
}

impl Framing {
    fn write(self, item: &Item) -> Option<String> {
        let mut text = String::new();
        let written = match (self, item) {
            (Self::Sse, Item::Data(line) | Item::Fail(line)) => write!(text, "data: {line}\n\n"),
            (Self::Sse, Item::Event(name, line) | Item::FailEvent(name, line)) => {
                write!(text, "event: {name}\ndata: {line}\n\n")
            }
            (Self::JsonLines, Item::Data(line) | Item::Fail(line)) => writeln!(text, "{line}"),
            (Self::JsonLines, Item::Event(_, line) | Item::FailEvent(_, line)) => {
                writeln!(text, "{line}")
            }
            (Self::Sse, Item::Comment(line)) => {
                let line = line.replace(['\r', '\n'], " ");
                write!(text, ": {line}\n\n")
            }
            (Self::JsonLines, Item::Comment(_)) => return None,
        };
        written.expect("a string takes everything");
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framings() {
        let data = Item::Data("{}".to_owned());
        assert_eq!(Framing::Sse.write(&data).unwrap(), "data: {}\n\n");
        assert_eq!(Framing::JsonLines.write(&data).unwrap(), "{}\n");
        let named = Item::Event("ping", "{}".to_owned());
        assert_eq!(Framing::Sse.write(&named).unwrap(), "event: ping\ndata: {}\n\n");
        assert_eq!(Framing::JsonLines.write(&named).unwrap(), "{}\n");
        let comment = Item::Comment("two\nlines\r".to_owned());
        assert_eq!(Framing::Sse.write(&comment).unwrap(), ": two lines \n\n");
        assert_eq!(Framing::JsonLines.write(&comment), None);
    }
}
