//! Responses that arrive piece by piece: server-sent events and JSON lines.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio::time::{Instant, Sleep};

/// From the last event of a failed stream to the cut of its connection: the time in which the
/// event leaves the socket's queue. A client that is slower still sees that the stream broke.
const CUT_DELAY: Duration = Duration::from_millis(100);

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `data: ...` and a blank line (the HTML standard's server-sent events).
    Sse,
    /// One JSON value a line.
    JsonLines,
}

/// One thing to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Item {
    /// One line of data.
    Data(String),
    /// One line of data with the name of its event, where the framing has names.
    Event(&'static str, String),
    /// Something for people who watch the wire; left out where the framing has no comments.
    Comment(String),
    /// The last line of data of a stream that failed. The connection is cut after it, so that
    /// nobody takes what came before for the whole.
    Fail(String),
    /// The same as an event with a name.
    FailEvent(&'static str, String),
}

impl Item {
    /// # Panics
    /// Never: what is sent here are plain structs with string keys.
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

/// A 200 response of plain data that may hold a call's arguments.
pub(crate) fn json_response<T: Serialize>(value: &T) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], json_of(value)).into_response()
}

/// A 200 response with the items of `source`, and a comment whenever it is silent for
/// `keep_alive`. Dropping the response drops `source`.
pub(crate) fn respond(
    framing: Framing,
    source: impl Stream<Item = Item> + Send + 'static,
    keep_alive: Duration,
) -> Response {
    respond_with(framing, source, keep_alive, || Item::Comment("keep-alive".to_owned()))
}

/// Like [`respond`], with an item of the dialect's own for silences.
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
    // Asks proxies not to hold events back.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct State<S, B> {
    framing: Framing,
    source: std::pin::Pin<Box<S>>,
    keep_alive: Duration,
    /// Ends when the source has been silent for so long. One for all events: to put it off costs
    /// less than to make another.
    silence: std::pin::Pin<Box<Sleep>>,
    beat: B,
    /// The failing event was sent; only the cut is left.
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
