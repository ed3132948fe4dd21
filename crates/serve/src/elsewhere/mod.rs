//! Conversations that another member keeps. A browser is paired with one node, and the page of each
//! member shows what that node keeps: requests go there through the members' own connection, with
//! the key that the browser has of it.
//!
//! ```text
//! leaving    a request that names another node -> that node
//! arriving   a member's request -> the conversations here, as a stranger's with its key
//! ```

mod arriving;
mod leaving;

pub(crate) use arriving::run;
pub(crate) use leaving::{pair, pass_on};
