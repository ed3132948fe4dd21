//! The table of fields.

use super::entry::Endpoint::{
    Chat, Completion, Embedding, Embeddings, Infill, Messages, OllamaChat, OllamaEmbed,
    OllamaGenerate, OllamaOptions, Rerank, Response, Text,
};
use super::entry::Unless::{Lists, Nothing, Null, Numbers, True, Unscaled, Words};
use super::entry::{Act, Endpoint, Entry, Unless};

const OPENAI: &[Endpoint] = &[Chat, Text, Response];
const LLAMA: &[Endpoint] = &[Completion, Infill];
const SAMPLED: &[Endpoint] = &[Chat, Text, Response, Completion, Infill];
const OLLAMA: &[Endpoint] = &[OllamaChat, OllamaGenerate];

const fn reads(of: &'static [Endpoint], names: &'static str) -> Entry {
    Entry { of, names, act: Act::Reads, why: "" }
}

const fn refuses(
    of: &'static [Endpoint],
    unless: Unless,
    names: &'static str,
    why: &'static str,
) -> Entry {
    Entry { of, names, act: Act::Refuses(unless), why }
}

const fn ignores(of: &'static [Endpoint], names: &'static str, why: &'static str) -> Entry {
    Entry { of, names, act: Act::Ignores, why }
}

/// A refused thread comes first: a client that goes on without it shall learn the rest then.
pub(super) const TABLE: &[Entry] = &[
    Entry {
        of: &[Messages],
        names: "thread",
        act: Act::Unthreads,
        why: "nothing is kept between requests here. Send the whole conversation in messages",
    },
    // What is read.
    reads(
        OPENAI,
        "model seed samplers dry_sequence_breakers logit_bias min_tokens ignore_eos stop n \
         stream stream_options timings_per_token return_progress service_tier \
         structured_outputs",
    ),
    reads(&[Chat, Text], "max_tokens n_predict response_format json_schema grammar logprobs"),
    reads(
        &[Chat],
        "max_completion_tokens messages top_logprobs tools tool_choice parallel_tool_calls \
         functions function_call chat_template_kwargs reasoning_effort enable_thinking \
         thinking continue_final_message add_generation_prompt modalities",
    ),
    reads(&[Text], "prompt suffix echo best_of"),
    reads(
        &[Response],
        "input instructions metadata max_output_tokens text include top_logprobs tools \
         tool_choice parallel_tool_calls reasoning chat_template_kwargs",
    ),
    reads(&[Embeddings], "model input encoding_format dimensions embd_normalize"),
    reads(&[Embedding], "model content input embd_normalize"),
    reads(
        &[Rerank],
        "model query documents texts top_n return_documents return_text raw_scores truncate \
         max_tokens_per_doc instruction",
    ),
    reads(
        &[Messages],
        "model messages system stream max_tokens stop_sequences temperature top_k top_p tools \
         tool_choice thinking output_config output_format",
    ),
    reads(OLLAMA, "model stream format options keep_alive think logprobs top_logprobs"),
    reads(&[OllamaChat], "messages tools"),
    reads(&[OllamaGenerate], "prompt suffix system raw images"),
    reads(&[OllamaOptions], "seed num_predict num_ctx stop"),
    reads(&[OllamaEmbed], "model input prompt truncate keep_alive dimensions"),
    reads(
        LLAMA,
        "model prompt seed samplers dry_sequence_breakers logit_bias n_predict \
         max_completion_tokens \
         max_tokens n_cmpl n n_probs logprobs n_indent t_max_predict_ms stop ignore_eos \
         response_format structured_outputs json_schema grammar stream return_tokens \
         timings_per_token return_progress response_fields",
    ),
    reads(&[Infill], "input_prefix input_suffix input_extra"),
    // What is read of objects.
    reads(OPENAI, "stream_options.include_usage"),
    reads(&[Chat], "response_format.type response_format.json_schema function_call.name"),
    reads(&[Response], "reasoning.effort text.format tools[].type tools[].name tools[].strict"),
    reads(&[Response], "tools[].description tools[].parameters"),
    reads(
        &[Messages],
        "messages[].role messages[].content messages[].clear_at system[].type system[].text \
         thinking.type thinking.display output_config.effort output_config.format \
         tools[].type tools[].name tools[].description tools[].input_schema tools[].strict",
    ),
    // What asks the server to keep something.
    refuses(
        OPENAI,
        Nothing,
        "store session_params kv_transfer_params",
        "nothing is kept of requests and answers here. Leave it out",
    ),
    refuses(
        &[Response],
        Nothing,
        "previous_response_id conversation prompt background background_options \
         prompt_cache_options.comparison_response_id",
        "nothing is kept between requests here. Send the whole conversation as input, the text as \
         instructions, and store: false",
    ),
    refuses(
        &[Messages],
        Null,
        "compaction",
        "conversations are not shortened here. Leave it out, and let the client summarize",
    ),
    refuses(
        &[Messages],
        Words(&["clear_tool_uses_20250919", "clear_thinking_20251015"]),
        "context_management.edits[].type",
        "conversations are not shortened here. Leave the edit out, and let the client summarize",
    ),
    refuses(
        &[Messages],
        Nothing,
        "mcp_servers container",
        "nothing runs here. Let the client call servers and run code, and offer what they can do \
         as tools",
    ),
    // Samplers.
    refuses(SAMPLED, Numbers(&[1.0]), "tfs_z", NO_SAMPLER),
    refuses(SAMPLED, Numbers(&[-1.0]), "adaptive_target", NO_SAMPLER),
    refuses(SAMPLED, Numbers(&[0.0]), "top_a", NO_SAMPLER),
    refuses(&[OllamaOptions], Numbers(&[1.0]), "tfs_z", NO_SAMPLER),
    refuses(&[OllamaOptions], True, "penalize_newline", "penalties weigh all tokens"),
    ignores(SAMPLED, "adaptive_decay penalize_nl", TUNES),
    refuses(OPENAI, Numbers(&[1.0]), "repeat_penalty", "use repetition_penalty"),
    refuses(
        OPENAI,
        Numbers(&[0.0, 1.0]),
        "length_penalty early_stopping use_beam_search",
        "there is no beam search. Leave it out",
    ),
    refuses(
        &[Chat, Response],
        Numbers(&[0.0, 1.0]),
        "best_of",
        "answers are not ranked. Ask for n and choose yourself",
    ),
    refuses(
        SAMPLED,
        Nothing,
        "logits_processors custom_logit_processor repetition_detection vllm_xargs",
        "there are none. Leave it out",
    ),
    refuses(
        SAMPLED,
        Unscaled,
        "lora",
        "a model is served with the weights of its file alone. Leave it out",
    ),
    refuses(
        OPENAI,
        Nothing,
        "lora_path",
        "a model is served with the weights of its file alone. Leave it out",
    ),
    // The end and the form of an answer.
    refuses(OPENAI, Nothing, "stop_token_ids", "an answer ends at strings. Use stop"),
    refuses(OPENAI, Nothing, "bad_words", "words cannot be forbidden. Use logit_bias"),
    refuses(OPENAI, Nothing, "allowed_token_ids", "use logit_bias or structured_outputs"),
    refuses(
        OPENAI,
        Nothing,
        "include_stop_str_in_output no_stop_trim",
        "stop strings are not shown. Leave it out",
    ),
    refuses(
        &[Chat, Text, Response],
        Nothing,
        "return_token_ids return_tokens_as_token_ids return_tokens return_hidden_states",
        "answers are text. Leave it out",
    ),
    refuses(
        OPENAI,
        Nothing,
        "prompt_logprobs",
        "there are log-probabilities of answers alone. Leave it out",
    ),
    refuses(
        SAMPLED,
        Nothing,
        "post_sampling_probs",
        "probabilities are the model's own, before samplers. Leave it out",
    ),
    refuses(OPENAI, Numbers(&[0.0]), "n_probs", "use logprobs"),
    refuses(OPENAI, Numbers(&[1.0]), "n_cmpl", "use n"),
    refuses(
        OPENAI,
        Numbers(&[0.0, -1.0]),
        "n_indent t_max_predict_ms",
        "only /completion and /infill end an answer by its lines. Leave it out",
    ),
    refuses(OPENAI, Nothing, "guided_json", "use response_format or structured_outputs.json"),
    refuses(OPENAI, Nothing, "guided_regex regex", "use structured_outputs.regex"),
    refuses(OPENAI, Nothing, "guided_choice", "use structured_outputs.choice"),
    refuses(OPENAI, Nothing, "guided_grammar ebnf", "use structured_outputs.grammar, in Lark"),
    refuses(
        OPENAI,
        Nothing,
        "guided_decoding_backend guided_whitespace_pattern",
        "there is one way. Leave it out",
    ),
    refuses(SAMPLED, Nothing, "grammar_lazy", "a grammar holds from the first token. Leave it out"),
    refuses(&[Response], Nothing, "grammar", "use structured_outputs.grammar"),
    refuses(&[Response], Nothing, "json_schema", "use text.format"),
    refuses(&[Response], Numbers(&[-1.0]), "n_predict", "use max_output_tokens"),
    refuses(OPENAI, True, "skip_special_tokens", "control tokens are never shown. Leave it out"),
    refuses(SAMPLED, Nothing, "preserved_tokens", "control tokens are never shown. Leave it out"),
    refuses(
        OPENAI,
        Nothing,
        "stream_options.continuous_usage_stats",
        "the usage comes at the end. Ask for include_usage alone",
    ),
    refuses(
        &[Chat, Response],
        Words(&["medium"]),
        "verbosity text.verbosity",
        "no model here knows it. Ask for the length in a message",
    ),
    refuses(
        &[Chat, Response],
        Nothing,
        "personality",
        "no model here knows it. Ask for the style in a message",
    ),
    // Thoughts.
    refuses(
        &[Chat, Response],
        Words(&["auto", "deepseek"]),
        "reasoning_format",
        "thoughts are returned apart from the text. Leave it out",
    ),
    refuses(
        &[Chat, Response],
        True,
        "include_reasoning separate_reasoning",
        "thoughts are returned apart from the text. Leave it out",
    ),
    ignores(
        &[Text, Completion, Infill],
        "reasoning_format include_reasoning separate_reasoning",
        "thoughts are returned apart in chats alone",
    ),
    refuses(
        SAMPLED,
        Numbers(&[-1.0]),
        "reasoning_budget_tokens thinking_budget thinking_budget_tokens thinking_token_budget",
        "thoughts have no limit of their own. Use max_tokens or an effort",
    ),
    refuses(
        SAMPLED,
        Nothing,
        "reasoning_control",
        "thoughts cannot be ended from outside. Leave it out",
    ),
    refuses(&[Chat], Nothing, "reasoning", "use reasoning_effort"),
    refuses(
        &[Response],
        Words(&["standard"]),
        "reasoning.mode",
        "an answer is computed once. Leave it out, or ask for an effort",
    ),
    refuses(
        &[Messages],
        Nothing,
        "output_config.task_budget messages[].output_config",
        "no model here counts its tokens. Leave it out, and use max_tokens and output_config.effort",
    ),
    // The prompt.
    refuses(OPENAI, Nothing, "truncate_prompt_tokens", "prompts are never shortened. Send less"),
    refuses(
        &[Response],
        Words(&["disabled"]),
        "truncation",
        "input is never shortened here. Send \"disabled\"",
    ),
    refuses(
        &[Response],
        Nothing,
        "context_management",
        "input is never shortened here. Leave it out",
    ),
    refuses(
        OLLAMA,
        Nothing,
        "truncate shift",
        "a conversation that does not fit the context is refused, never cut. Leave it out or send \
         false",
    ),
    refuses(
        &[Response],
        Nothing,
        "prompt_cache_options.prewarm",
        "a prompt is computed with its answer. Ask for one token",
    ),
    refuses(&[Chat], Nothing, "documents", "put them into the messages"),
    refuses(&[Chat], Nothing, "chat_template", "the model's own is used. Leave it out"),
    refuses(
        &[Chat],
        Nothing,
        "mm_processor_kwargs media_io_kwargs",
        "the model's file says how pictures are read. Leave it out",
    ),
    refuses(
        &[Response],
        Words(&["auto", "disabled"]),
        "image.context_compression",
        "pictures are not compressed. Leave it out",
    ),
    refuses(&[Chat], Nothing, "echo", "the prompt is not repeated. Leave it out"),
    refuses(
        &[Chat],
        Nothing,
        "add_special_tokens",
        "the template says which there are. Leave it out",
    ),
    refuses(&[Text], Nothing, "prompt_embeds", "prompts are text or tokens. Send one of them"),
    refuses(LLAMA, Nothing, "image_data multimodal_data", "only text is read here. Leave it out"),
    refuses(
        &[OllamaGenerate],
        Nothing,
        "template",
        "the model's own template is the one that is used. Leave it out, or send the whole prompt \
         with \"raw\": true",
    ),
    refuses(&[OllamaGenerate], Nothing, "context", "send the conversation to /api/chat instead"),
    // Other work.
    refuses(&[Chat], Nothing, "audio", "answers are text. Leave it out"),
    refuses(
        &[OllamaGenerate],
        Nothing,
        "width height steps",
        "answers are text, and no pictures. Leave it out",
    ),
    refuses(&[Chat], Null, "web_search_options", "nothing is searched for here. Leave it out"),
    refuses(&[Chat], Nothing, "enable_search", "nothing is searched for here. Leave it out"),
    refuses(
        &[Chat, Response],
        Null,
        "moderation",
        "nothing is judged here. Leave it out, and judge the texts yourself",
    ),
    refuses(&[Response], Nothing, "max_tool_calls", "no tool runs here. Count the calls yourself"),
    refuses(
        &[Messages, Response],
        Lists("direct"),
        "tools[].allowed_callers",
        "the model calls tools, and no program does. Allow \"direct\"",
    ),
    refuses(OPENAI, Nothing, "priority", "requests are served in turn. Leave it out"),
    refuses(
        &[Rerank],
        Nothing,
        "rank_fields",
        "documents are ordered by their text. Send it as the document",
    ),
    refuses(
        &[Rerank],
        Words(&["right", "Right"]),
        "truncation_direction",
        "a long document is cut at its end. Leave it out",
    ),
    ignores(
        &[Rerank],
        "max_chunks_per_doc",
        "a document is read in one piece, up to the context's end",
    ),
    ignores(&[OllamaEmbed], "options", "no option changes an embedding"),
    // Without effect.
    ignores(&[Chat, Text], "metadata", ABOUT),
    ignores(OPENAI, "safety_identifier client_metadata request_id rid access_programs", ABOUT),
    ignores(&[Chat, Text, Response, Embeddings, Rerank], "user", ABOUT),
    ignores(
        OPENAI,
        "prompt_cache_key prompt_cache_options prompt_cache_retention cache_salt",
        CACHED,
    ),
    ignores(SAMPLED, "cache_prompt id_slot slot_id n_cache_reuse", CACHED),
    ignores(SAMPLED, "n_keep n_discard", "nothing is discarded"),
    ignores(
        SAMPLED,
        "t_max_prompt_ms sse_ping_interval verbose backend_sampling",
        "they concern llama-server's own work",
    ),
    ignores(
        SAMPLED,
        "grammar_triggers grammar_type reasoning_budget_message reasoning_budget_start_tag \
         reasoning_budget_end_tag reasoning_budget_end_tags",
        TUNES,
    ),
    ignores(OPENAI, "spaces_between_special_tokens", "control tokens are never shown"),
    ignores(OPENAI, "response_fields", "answers have OpenAI's form"),
    ignores(LLAMA, "stream_options echo continue_final_message", "they concern chats"),
    ignores(&[Response], "image", "pictures are not compressed"),
    ignores(OPENAI, "stream_reasoning", "thoughts are always streamed"),
    ignores(&[Chat], "prediction", "it could only make an answer faster"),
    ignores(OPENAI, "stream_options.include_obfuscation", "it only pads the pieces of a stream"),
    ignores(
        &[Response],
        "reasoning.summary reasoning.generate_summary",
        "thoughts are returned whole",
    ),
    ignores(
        &[Response],
        "reasoning.context",
        "the model's template decides which thoughts it sees again",
    ),
    ignores(&[Response, Messages], "tools[].defer_loading", "all tools are offered at once"),
    ignores(
        &[Response],
        "tools[].output_schema tools[].async",
        "the model sees a tool's name, description and parameters",
    ),
    ignores(
        &[Messages],
        "tools[].input_examples",
        "the model sees a tool's name, description and schema",
    ),
    ignores(
        &[Messages],
        "tools[].eager_input_streaming",
        "all calls are streamed as they are written",
    ),
    ignores(&[Messages], "cache_control system[].cache_control tools[].cache_control", CACHED),
    ignores(
        &[Messages],
        "thinking.budget_tokens",
        "models end their thoughts themselves; `max_tokens` limits both together",
    ),
    ignores(
        &[Messages],
        "thinking.block_binding",
        "only Anthropic's models sign and check thoughts",
    ),
    ignores(
        &[Messages],
        "context_management",
        "other edits only save tokens; conversations are never truncated",
    ),
    ignores(
        &[Messages],
        "metadata service_tier betas billing_policy diagnostics fallback_credit_token \
         fallbacks inference_geo speed system[].citations user_profile_id workspace_id",
        "they concern features of Anthropic's servers",
    ),
    ignores(
        &[OllamaOptions],
        "num_gpu main_gpu num_thread num_batch numa low_vram f16_kv use_mmap use_mlock \
         vocab_only logits_all embedding_only",
        "they concern loading, which is configured when the model is served",
    ),
    ignores(&[OllamaOptions], "num_keep", "it applies only to truncated conversations"),
];

const NO_SAMPLER: &str = "there is no such sampler here. Leave it out";
const TUNES: &str = "they tune what is refused";
const ABOUT: &str = "they concern features of OpenAI's servers";
const CACHED: &str = "the beginnings of all prompts are cached, and do not change an answer";
