//! Tests of `text` from outside, in one executable.

mod fitted;
mod hostile_templates;
mod jinja;
mod odd_vocabularies;
mod placeholders;
mod replies;
mod reply;
mod streams;
mod templates;
mod thinking;
mod tokenizer;
mod told;
mod vectors;
