//! Pairs a browser on another machine: the owner has a number shown (`sinew page`), a person types
//! it there, and that browser gets an API key of its own, listed and revoked beside the others. It
//! is the owner's, with the owner's conversations, or a guest's, with its own. The number works on
//! another member's page too, which then shows the conversations that this node keeps.
//!
//! A number works once, for some minutes, and ends after five wrong tries. It pairs for what a key
//! may do; to steer the node still takes the admin token.

mod number;
pub(crate) mod routes;

pub(crate) use number::Browsers;
