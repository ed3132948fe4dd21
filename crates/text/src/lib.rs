//! Tokenizers, chat templates and the streaming detokeniser, from what a GGUF file says.
