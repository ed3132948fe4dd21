//! Conversations of the page, under `/sinew/v1/chats`: kept on this node, per owner or API key.
//!
//! An answer belongs to the node. A client adds a question and may leave; the node writes the
//! answer down as it comes, whoever looks on, and goes on with it after it was killed.
//!
//! ```text
//! ask        a question, another answer, or the rest of one -> a request to a model
//! writing    an answer in progress: its text, its draft on the disk, its end
//! resume     drafts that an ended process has left
//! follow     an answer in progress as a stream of events
//! manage     the list, search, changes, import, export
//! ```

mod ask;
mod follow;
mod manage;
mod resume;
mod writing;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::app::App;

pub(crate) use resume::resume;

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sinew/v1/chats", get(manage::list))
        .route("/sinew/v1/chats/one", get(manage::one))
        .route("/sinew/v1/chats/export", get(manage::export))
        .route("/sinew/v1/chats/answer", get(follow::answer))
        .route("/sinew/v1/chats/ask", post(ask::ask))
        .route("/sinew/v1/chats/stop", post(ask::stop))
        .route("/sinew/v1/chats/change", post(manage::change))
        .route("/sinew/v1/chats/import", post(manage::import))
        .route("/sinew/v1/chats/forget", post(manage::forget))
}
