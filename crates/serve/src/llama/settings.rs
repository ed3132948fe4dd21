//! The settings of an answer as `llama-server` repeats them.

use protocol::{PARAMETERS, Sampler, Sampling, SamplingChoice};
use serde_json::{Value, json};

use super::request::Wants;
use crate::completion::{CompletionRequest, DEFAULT_BREAKERS, TextModel};

/// The `generation_settings` of an answer.
pub(super) fn generation_settings(
    request: &CompletionRequest,
    wants: &Wants,
    model: &TextModel,
) -> Value {
    let mut settings = sampling_settings(&model.sampling(&request.sampling), &request.sampling);
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
    let mut settings = sampling_settings(&model.sampling(&Default::default()), &Default::default());
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

/// The numbers of the samplers, their order, and samplers of `llama-server` that are not there,
/// switched off.
fn sampling_settings(sampling: &Sampling, choice: &SamplingChoice) -> Value {
    let order = sampling.samplers.as_deref().unwrap_or(&Sampler::ORDER);
    let breakers = choice.dry_sequence_breakers.clone();
    let mut settings = json!({
        "seed": sampling.seed,
        "samplers": order.iter().map(|one| one.name().0).collect::<Vec<_>>(),
        "dry_sequence_breakers":
            breakers.unwrap_or_else(|| DEFAULT_BREAKERS.map(str::to_owned).to_vec()),
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "lora": [],
    });
    for row in PARAMETERS {
        let value = (row.of)(sampling);
        settings[row.llama_name()] =
            if row.fields.is_whole { json!(value as i64) } else { json!(value) };
    }
    settings
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
