//! Conversations that a node keeps, and that `sinew run` keeps in the same folder: a private file
//! each, `ID.json`.
//!
//! A conversation is a tree: a message names the one that it follows, and none is ever changed or
//! taken out. Another answer or an edited question is a further branch, so two writers cannot undo
//! each other's turns. `head` names the end of the branch that is shown. An answer in progress is a
//! [`Draft`] in a file of its own, to which a line is added as text comes; what a killed process
//! has left of it is found by [`Folder::drafts`].
//!
//! This crate knows no HTTP, no models, and no users: whoever opens a [`Folder`] may read all of
//! it.

mod conversation;
mod draft;
mod error;
mod file;
mod folder;
mod id;
mod listing;

pub use conversation::{Conversation, Message};
pub use draft::{Draft, DraftFile};
pub use error::ChatsError;
pub use file::FILE_BYTES_MAX;
pub use folder::{Folder, Limits};
pub use id::{NAME_CHARS_MAX, check, fresh};
pub use listing::{Listing, Summary};
