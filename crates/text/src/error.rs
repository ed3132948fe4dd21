/// An error of a vocabulary, a chat template or a stop string.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error(transparent)]
    Gguf(#[from] gguf::Error),

    #[error(
        "the file's tokenizer model is \"{found}\"; known are gpt2 and gemma4 (byte-pair encoding), \
         llama (SentencePiece), t5 (its unigram model) and bert (WordPiece). Use another model, or a newer version of Sinew"
    )]
    Model { found: String },
    #[error(
        "the file's pre-tokenizer is \"{found}\", which this version does not know; guessing would \
         give wrong tokens. Use a newer version of Sinew, or convert the model again"
    )]
    PreTokenizer { found: String },
    #[error("{what}: {found}; the most that is accepted is {limit}. The file is broken or hostile")]
    TooMany { what: &'static str, found: usize, limit: usize },
    #[error(
        "the tokenizer's character map has {bytes} bytes, and is cut. Download or convert the \
         model again"
    )]
    Charsmap { bytes: usize },
    #[error("metadata key \"{key}\" holds {found} entries for {wanted} tokens")]
    ArrayLength { key: &'static str, found: usize, wanted: usize },
    #[error("metadata key \"{key}\" must be an array of {wanted}")]
    ArrayType { key: &'static str, wanted: &'static str },

    #[error("the chat template has {found} bytes; the most that is accepted is {limit}")]
    TemplateTooLong { found: usize, limit: usize },
    #[error("the chat template is not valid Jinja: {detail}")]
    TemplateSyntax { detail: String },
    #[error(
        "the model takes no chats, for {why}. Ask it for completions of a text, or serve a file \
         whose template is whole"
    )]
    TemplateUnusable { why: String },
    #[error("the chat template refuses these messages: {message}")]
    TemplateRaised { message: String },
    #[error("the chat template failed on these messages: {detail}")]
    TemplateFailed { detail: String },
    #[error(
        "the chat template was stopped after {limit} steps. It loops too long for these messages: \
         send fewer of them, or use another template"
    )]
    TemplateSteps { limit: u64 },
    #[error(
        "the chat template was stopped after {limit} bytes of text and lists. Send fewer or \
         shorter messages, or use another template"
    )]
    TemplateBytes { limit: usize },
    #[error(
        "cannot start a thread for the chat template: {source}. Free some memory and try again"
    )]
    TemplateThread { source: std::io::Error },
    #[error("{what}: {found}; the most that is accepted is {limit}. Send less")]
    RequestTooLarge { what: &'static str, found: usize, limit: usize },
    #[error(
        "the chat template puts picture {} of the request into the prompt {times} times, where it \
         has to stand once. Send the picture in the last user message", .number + 1
    )]
    Placeholder { number: usize, times: usize },

    #[error("{found} stop strings; the most that is accepted is {limit}")]
    StopStrings { found: usize, limit: usize },
    #[error("stop string {index} has {found} bytes; 1 to {limit} are accepted")]
    StopLength { index: usize, found: usize, limit: usize },
}
