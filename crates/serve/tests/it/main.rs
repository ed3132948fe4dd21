//! Tests of `serve` from outside, in one executable.

mod admin;
mod anthropic;
mod attacks;
mod chat;
mod connections;
mod dialect_failures;
mod digits;
mod embeddings;
mod failures;
mod large;
mod llama;
mod looking;
mod models;
mod ollama;
mod ollama_owner;
mod openai_chat;
mod openai_completions;
mod openai_responses;
mod openapi;
mod operator;
mod page;
mod pictures;
mod presets;
mod security;
mod support;
mod thoughts;
