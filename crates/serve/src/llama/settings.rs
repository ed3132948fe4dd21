//! The settings of an answer as `llama-server` repeats them.

use protocol::Sampling;
use serde_json::{Value, json};

use super::request::Wants;
use crate::completion::{CompletionRequest, TextModel};

/// The `generation_settings` of an answer.
pub(super) fn generation_settings(
    request: &CompletionRequest,
    wants: &Wants,
    model: &TextModel,
) -> Value {
    let mut settings = sampling_settings(&model.sampling(&request.sampling));
    let bias = |(token, bias): &(u32, f32)| json!({ "token": token, "bias": bias });
    let biases = request.sampling.logit_bias.iter().map(bias);
    // Tokens that end an answer have no probability if the request ignores them.
    let ends = model.tokenizer.end_ids().iter().filter(|_| request.ignore_eos);
    let ends = ends.map(|token| json!({ "token": token, "bias": null }));
    let n_predict = if wants.only_prompt { Some(0) } else { request.max_tokens };
    let more = json!({
        "stop": request.stops,
        "max_tokens": tokens(n_predict),
        "n_predict": tokens(n_predict),
        "n_probs": request.logprobs.unwrap_or(0),
        "ignore_eos": request.ignore_eos,
        "stream": wants.stream,
        "logit_bias": biases.chain(ends).collect::<Vec<_>>(),
        "timings_per_token": wants.timings_per_token,
        "n_indent": request.lines.indent_min,
    });
    merge(&mut settings, more);
    settings
}

/// The settings of a model without a request, as in `/props`.
pub(super) fn default_settings(model: &TextModel) -> Value {
    let mut settings = sampling_settings(&model.sampling(&Default::default()));
    merge(
        &mut settings,
        json!({
            // Each request draws its own.
            "seed": u32::MAX,
            "stop": [],
            "max_tokens": -1,
            "n_predict": -1,
            "n_probs": 0,
            "ignore_eos": false,
            "stream": true,
        }),
    );
    settings
}

/// The samplers of this server, and those of `llama-server` that it does not have, switched off.
fn sampling_settings(sampling: &Sampling) -> Value {
    json!({
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": 1.0,
        "repeat_last_n": -1,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "min_keep": 0,
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
        "lora": [],
    })
}

/// A number of tokens; without a limit -1.
fn tokens(count: Option<usize>) -> i64 {
    count.and_then(|count| i64::try_from(count).ok()).unwrap_or(-1)
}

fn merge(settings: &mut Value, more: Value) {
    if let (Value::Object(settings), Value::Object(mut more)) = (settings, more) {
        settings.append(&mut more);
    }
}
