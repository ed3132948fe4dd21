//! An answer in progress as a stream of events: first all that has come, then what comes.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::app::App;
use crate::caller::Caller;
use crate::conversations::{Progress, until};
use crate::http::error::ApiError;
use crate::http::stream::{Framing, Item, respond};

#[derive(Debug, Deserialize)]
pub(super) struct AnswerQuery {
    id: String,
}

/// An event. `text` and `thoughts` are to be added to those of the events before.
#[derive(Debug, Serialize)]
struct Event {
    text: String,
    thoughts: String,
    waiting: Option<String>,
    unsaved: Option<String>,
    /// The answer is a message of the conversation now; nothing follows.
    over: bool,
}

/// Ends at once if the conversation has no answer in progress.
pub(super) async fn answer(
    State(app): State<Arc<App>>,
    query: Result<Query<AnswerQuery>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let space = Caller::of(&app, &request).space(&app).await?;
    let Query(AnswerQuery { id }) = query.map_err(ApiError::query)?;
    chats::check(&id)?;
    let follower = app.answering.find(space.whose, &id).map(|progress| {
        let (changes, stopping) = (progress.changes.subscribe(), app.stopping.subscribe());
        Follower { progress, changes, stopping, text: 0, thoughts: 0, is_first: true }
    });
    Ok(respond(Framing::Sse, events(follower), app.config.limits.keep_alive))
}

struct Follower {
    progress: Arc<Progress>,
    changes: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    /// Bytes that it was sent.
    text: usize,
    thoughts: usize,
    is_first: bool,
}

fn events(follower: Option<Follower>) -> impl Stream<Item = Item> + Send {
    let over = || Event {
        text: String::new(),
        thoughts: String::new(),
        waiting: None,
        unsaved: None,
        over: true,
    };
    let first = follower.is_none().then(|| Item::json(&over()));
    let rest = stream::unfold(follower, |follower| async move {
        let mut follower = follower?;
        if !follower.is_first {
            let stopping = &mut follower.stopping;
            tokio::select! {
                changed = follower.changes.changed() => changed.ok()?,
                // What has come is kept, and goes on when the node is back.
                () = until(stopping) => return None,
            }
        }
        follower.is_first = false;
        follower.changes.mark_unchanged();
        let event = follower.event();
        let item = Item::json(&event);
        Some((item, (!event.over).then_some(follower)))
    });
    futures_util::StreamExt::chain(stream::iter(first), rest)
}

impl Follower {
    fn event(&mut self) -> Event {
        let shown = self.progress.text();
        let event = Event {
            text: shown.text[self.text..].to_owned(),
            thoughts: shown.thoughts[self.thoughts..].to_owned(),
            waiting: shown.waiting.clone(),
            unsaved: shown.unsaved.clone(),
            over: shown.is_over,
        };
        (self.text, self.thoughts) = (shown.text.len(), shown.thoughts.len());
        event
    }
}
