//! Conversations of the page, under `/sinew/v1/chats`: kept on this node, per owner or API key.
//!
//! An answer belongs to the node. A client adds a question and may leave; the node writes the
//! answer down as it comes, whoever looks on, and goes on with it after it was killed.
//!
//! ```text
//! spaces     whose conversations lie in which folder
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
mod spaces;
mod writing;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use chats::ChatsError;

use crate::app::App;
use crate::http::error::ApiError;

pub(crate) use resume::resume;
pub(crate) use spaces::Spaces;
pub(crate) use writing::Answering;

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

impl From<ChatsError> for ApiError {
    fn from(error: ChatsError) -> Self {
        let message = error.to_string();
        match &error {
            ChatsError::Name { .. } | ChatsError::NoMessage { .. } => {
                Self::invalid("invalid_value", message)
            }
            ChatsError::Unknown { .. } => {
                Self::request(StatusCode::NOT_FOUND, "no_conversation", message)
            }
            ChatsError::Changed { .. } => {
                Self::request(StatusCode::CONFLICT, "conversation_changed", message)
            }
            ChatsError::Damaged { .. } => {
                Self::request(StatusCode::UNPROCESSABLE_ENTITY, "damaged_conversation", message)
            }
            ChatsError::Large { .. } | ChatsError::TooMuch { .. } | ChatsError::Full { .. } => {
                Self::request(StatusCode::PAYLOAD_TOO_LARGE, "too_many_conversations", message)
            }
            ChatsError::Disk { .. } if error.is_full_disk() => {
                let message = format!("the disk of this node is full: {message}. Make room on it");
                Self::server(StatusCode::INSUFFICIENT_STORAGE, "disk_full", message)
            }
            ChatsError::Disk { .. } => {
                Self::server(StatusCode::INTERNAL_SERVER_ERROR, "disk_failed", message)
            }
        }
    }
}

/// Reads or writes files where that delays no other request.
///
/// # Errors
/// Those of `work`; the node stops meanwhile.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ChatsError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| {
        let message = "the node stopped in the middle of the request. Send it again";
        ApiError::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    })?;
    Ok(done?)
}
