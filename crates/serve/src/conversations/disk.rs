//! Files of conversations, read and written where that delays no other request.

use axum::http::StatusCode;
use chats::ChatsError;
use cluster::on_thread;

use crate::http::error::ApiError;

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
pub(crate) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ChatsError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = on_thread(work).await.map_err(|_| {
        let message = "the node stopped in the middle of the request. Send it again";
        ApiError::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    })?;
    Ok(done?)
}
