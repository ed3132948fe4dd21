//! The HTTP API: OpenAI dialect, node administration, the status page.
