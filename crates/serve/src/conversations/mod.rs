//! The conversations that this node keeps, and their answers in progress: what the routes of
//! [`crate::chats`] work on.

mod disk;
mod progress;
mod spaces;

pub(crate) use disk::on_disk;
pub(crate) use progress::{Answering, Progress, Text, until};
pub(crate) use spaces::{Space, Spaces};
