//! Limits on samplers that the dialects share: how far back penalties look, and which samplers run.

use serde_json::Value;

use crate::completion::SamplingChoice;
use crate::http::error::ApiError;

/// The samplers of this server in their order. One that a request's list leaves out is off.
const ORDER: &[&str] = &["penalties", "top_k", "top_p", "min_p", "temperature"];
/// Other samplers that a list may name: their settings leave them off, and `infill` prefers endings
/// that the model itself already weighs.
const OTHERS: &[&str] = &[
    "adaptive_p",
    "dry",
    "infill",
    "mirostat",
    "tfs_z",
    "top_n_sigma",
    "typ_p",
    "typical_p",
    "xtc",
];

/// Applies `repeat_last_n`, which `field` names: penalties cover the whole prompt and answer (-1)
/// or are off (0).
///
/// # Errors
/// 400 for another number beside a penalty.
pub(crate) fn limit_penalties(
    choice: &mut SamplingChoice,
    field: &str,
    last_n: Option<i64>,
) -> Result<(), ApiError> {
    let penalties = [
        (&mut choice.repetition_penalty, 1.0),
        (&mut choice.frequency_penalty, 0.0),
        (&mut choice.presence_penalty, 0.0),
    ];
    match last_n {
        None | Some(-1) => {}
        Some(0) => penalties.into_iter().for_each(|(penalty, off)| *penalty = Some(off)),
        Some(last_n) => {
            if penalties.iter().any(|(given, off)| given.is_some_and(|given| given != *off)) {
                let message = format!(
                    "{field} is {last_n}; penalties look at all tokens or at none. Send -1 or 0, \
                     or leave it out"
                );
                return Err(ApiError::unsupported(field, message));
            }
        }
    }
    Ok(())
}

/// Switches off the samplers that are not among `names`.
///
/// # Errors
/// 400 if they are no list of names, or in another order than this server's.
pub(crate) fn keep_only(choice: &mut SamplingChoice, names: &Value) -> Result<(), ApiError> {
    const NAME: &str = "samplers";
    let listed = names.as_array().map(|names| names.iter().map(Value::as_str).collect());
    let Some(Some(names)): Option<Option<Vec<&str>>> = listed else {
        let message = "samplers must be a list of names";
        return Err(ApiError::invalid_value(NAME, message));
    };
    let known = |name: &&str| ORDER.contains(name) || OTHERS.contains(name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let name: String = name.chars().take(40).collect();
        let message = format!("samplers: there is no {name:?}; there are {}", ORDER.join(", "));
        return Err(ApiError::invalid_value(NAME, message));
    }
    let places: Vec<usize> =
        names.iter().filter_map(|name| ORDER.iter().position(|known| known == name)).collect();
    if !places.is_sorted_by(|a, b| a < b) {
        let message = format!("samplers: their order is {}, each once", ORDER.join(", "));
        return Err(ApiError::unsupported(NAME, message));
    }
    let has = |name: &str| names.contains(&name);
    if !has("penalties") {
        choice.repetition_penalty = Some(1.0);
        (choice.frequency_penalty, choice.presence_penalty) = (Some(0.0), Some(0.0));
    }
    if !has("top_k") {
        choice.top_k = Some(0);
    }
    if !has("top_p") {
        choice.top_p = Some(1.0);
    }
    if !has("min_p") {
        choice.min_p = Some(0.0);
    }
    if !has("temperature") {
        choice.temperature = Some(1.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn samplers_that_are_left_out_are_off() {
        let kept = |names: Value| {
            let mut choice = SamplingChoice { top_p: Some(0.9), ..SamplingChoice::default() };
            keep_only(&mut choice, &names).map(|()| choice)
        };
        let choice = kept(json!(["top_k", "top_p", "infill"])).unwrap();
        assert_eq!((choice.top_k, choice.top_p, choice.min_p), (None, Some(0.9), Some(0.0)));
        assert_eq!((choice.temperature, choice.repetition_penalty), (Some(1.0), Some(1.0)));
        let all = json!([
            "penalties",
            "dry",
            "top_n_sigma",
            "top_k",
            "typ_p",
            "top_p",
            "min_p",
            "xtc",
            "temperature"
        ]);
        let unchanged = SamplingChoice { top_p: Some(0.9), ..SamplingChoice::default() };
        assert_eq!(kept(all).unwrap(), unchanged);
        for odd in [json!(["temperature", "top_k"]), json!(["nucleus"]), json!("kpt")] {
            assert_eq!(kept(odd).unwrap_err().param.as_deref(), Some("samplers"));
        }
    }

    #[test]
    fn penalties_look_at_everything_or_at_nothing() {
        let limited = |last_n, penalty| {
            let mut choice = SamplingChoice { repetition_penalty: penalty, ..Default::default() };
            limit_penalties(&mut choice, "repeat_last_n", last_n)
                .map(|()| choice.repetition_penalty)
        };
        assert_eq!(limited(Some(-1), Some(1.5)), Ok(Some(1.5)));
        assert_eq!(limited(Some(0), Some(1.5)), Ok(Some(1.0)));
        assert_eq!(limited(Some(64), None), Ok(None));
        assert_eq!(limited(Some(64), Some(1.0)), Ok(Some(1.0)));
        let error = limited(Some(64), Some(1.5)).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("repeat_last_n"), "unsupported"));
    }
}
