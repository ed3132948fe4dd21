//! Sampling as the dialects share it: the numbers of [`PARAMETERS`], the list of samplers, and what
//! ends a repetition.

use protocol::{PARAMETERS, Parameter, SAMPLERS_MAX, Sampler, SamplingChoice};
use serde_json::Value;

use super::fields::{Fields, shown};
use crate::http::error::ApiError;

/// Samplers that a list may name without effect: their settings leave them off, and `infill`
/// prefers endings that the model itself already weighs.
const OTHERS: &[(&str, char)] =
    &[("adaptive_p", 'a'), ("infill", 'i'), ("mirostat", '\0'), ("tfs_z", 'f')];

/// The most texts that end a repetition; those of clients have about ten.
const BREAKERS_MAX: usize = 32;
const BREAKER_BYTES_MAX: usize = 128;

/// Reads the numbers by their names and ranges in a dialect.
///
/// # Errors
/// 400 naming the first one that is invalid or not supported.
pub(super) fn numbers(
    fields: &mut Fields,
    name: impl Fn(&Parameter) -> (&'static str, (f64, f64)),
) -> Result<SamplingChoice, ApiError> {
    let mut choice = SamplingChoice::default();
    for row in PARAMETERS {
        let (name, (low, high)) = name(row);
        if row.fields.is_switch {
            fields.drop_false(name);
        }
        let value = match row.fields.is_whole {
            true => fields.loose_integer(name, low as i64..=high as i64)?.map(|value| value as f64),
            false => fields.number(name, low..=high)?.map(f64::from),
        };
        if let Some(value) = value {
            (row.choose)(&mut choice, value);
        }
    }
    settle(&mut choice, "")?;
    Ok(choice)
}

/// The numbers as llama.cpp has them.
///
/// # Errors
/// The same.
pub(crate) fn llama_numbers(fields: &mut Fields) -> Result<SamplingChoice, ApiError> {
    numbers(fields, |row| (row.llama_name(), row.fields.llama_range))
}

/// Refuses the first version of Mirostat, and leaves out a base of DRY that is none. `prefix` is
/// the path of the fields.
///
/// # Errors
/// 400 naming `mirostat`.
pub(crate) fn settle(choice: &mut SamplingChoice, prefix: &str) -> Result<(), ApiError> {
    if choice.mirostat == Some(1) {
        let field = format!("{prefix}mirostat");
        let message = format!("{field} is 1; there are 2 (Mirostat 2.0) and 0 (off)");
        return Err(ApiError::unsupported(&field, message));
    }
    choice.dry_base = choice.dry_base.filter(|base| *base >= 1.0);
    Ok(())
}

/// Reads `samplers`, names in a list or letters in a text, and `dry_sequence_breakers`.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn lists(fields: &mut Fields, choice: &mut SamplingChoice) -> Result<(), ApiError> {
    if let Some(names) = fields.take("samplers") {
        choice.samplers = Some(samplers(&names)?);
    }
    if let Some(texts) = fields.take("dry_sequence_breakers") {
        choice.dry_sequence_breakers = Some(breakers(texts)?);
    }
    Ok(())
}

fn samplers(names: &Value) -> Result<Vec<Sampler>, ApiError> {
    const NAME: &str = "samplers";
    let listed: Option<Vec<String>> = match names {
        Value::String(letters) => Some(letters.chars().map(String::from).collect()),
        Value::Array(names) => {
            let names = names.iter().map(|name| name.as_str().map(str::to_owned));
            names.collect()
        }
        _ => None,
    };
    let Some(listed) = listed else {
        let message = "samplers must be a list of names, or a text of their letters";
        return Err(ApiError::invalid_value(NAME, message));
    };
    if listed.len() > SAMPLERS_MAX {
        let count = listed.len();
        let message = format!("samplers has {count} names; {SAMPLERS_MAX} are the most");
        return Err(ApiError::invalid_value(NAME, message));
    }
    let mut found = Vec::new();
    for name in &listed {
        let is_letter = names.is_string();
        let is = |own: (&str, char)| match is_letter {
            true => name.starts_with(own.1),
            false => plain(name) == plain(own.0),
        };
        match Sampler::ORDER.into_iter().find(|one| {
            is(one.name()) || !is_letter && aliases(*one).contains(&plain(name).as_str())
        }) {
            Some(sampler) => found.push(sampler),
            None if OTHERS.iter().any(|other| is(*other)) => {}
            None => {
                let all = Sampler::ORDER.map(|one| match is_letter {
                    true => one.name().1.to_string(),
                    false => one.name().0.to_owned(),
                });
                let message = format!(
                    "samplers: there is no {:?}; there are {}",
                    shown(name),
                    all.join(", ")
                );
                return Err(ApiError::invalid_value(NAME, message));
            }
        }
    }
    Ok(found)
}

/// A name as it is compared: llama.cpp also writes `top-k` and `topk`.
fn plain(name: &str) -> String {
    name.chars().filter(|letter| !['_', '-'].contains(letter)).collect::<String>().to_lowercase()
}

/// Further names, without `_`.
fn aliases(sampler: Sampler) -> &'static [&'static str] {
    match sampler {
        Sampler::TopP => &["nucleus"],
        Sampler::Temperature => &["temp"],
        Sampler::TypicalP => &["typ", "typicalp", "typical"],
        _ => &[],
    }
}

/// A list of texts; some clients write it into a text.
fn breakers(texts: Value) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "dry_sequence_breakers";
    let listed = match &texts {
        Value::String(written) => serde_json::from_str(written).ok(),
        _ => serde_json::from_value::<Vec<String>>(texts).ok(),
    };
    let Some(listed): Option<Vec<String>> = listed else {
        let message = "dry_sequence_breakers must be a list of texts";
        return Err(ApiError::invalid_value(NAME, message));
    };
    if listed.len() > BREAKERS_MAX {
        let count = listed.len();
        let message =
            format!("dry_sequence_breakers has {count} texts; {BREAKERS_MAX} are the most");
        return Err(ApiError::invalid_value(NAME, message));
    }
    if let Some(text) = listed.iter().find(|text| text.len() > BREAKER_BYTES_MAX) {
        let bytes = text.len();
        let message = format!(
            "a text of dry_sequence_breakers has {bytes} bytes; {BREAKER_BYTES_MAX} are the most"
        );
        return Err(ApiError::invalid_value(NAME, message));
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::known::Endpoint;

    fn read(fields: Value) -> Result<SamplingChoice, ApiError> {
        let mut fields: Fields = serde_json::from_value(fields).unwrap();
        fields.settle(Endpoint::Chat)?;
        let mut choice = numbers(&mut fields, |row| (row.name, row.fields.range))?;
        lists(&mut fields, &mut choice).map(|()| choice)
    }

    #[test]
    fn every_number_is_read_by_its_name_within_its_range() {
        for row in PARAMETERS {
            let (low, high) = row.fields.range;
            for value in [low, high] {
                let found = read(json!({ row.name: value })).unwrap();
                let single = if row.fields.is_whole { value } else { f64::from(value as f32) };
                let found = (row.chosen)(&found);
                let expected = Some(single.max(least(row)));
                // A base that is none is left out.
                let is_none = row.name == "dry_base" && value < 1.0;
                assert_eq!(found, expected.filter(|_| !is_none), "{}", row.name);
            }
            for wrong in [json!(low - 1.0), json!(high + 1.0), json!("x"), json!([])] {
                let error = read(json!({ row.name: wrong })).expect_err(row.name);
                assert_eq!(error.param.as_deref(), Some(row.name));
            }
            let off = read(json!({ row.name: false }));
            assert_eq!(off.is_ok(), row.fields.is_switch, "{}", row.name);
        }
    }

    /// -1 stands for all tokens.
    fn least(row: &Parameter) -> f64 {
        if row.name == "top_k" { 0.0 } else { f64::NEG_INFINITY }
    }

    #[test]
    fn samplers_have_names_and_letters() {
        use Sampler::{MinP, Temperature, TopK, TopNSigma, TopP, TypicalP, Xtc};
        let kept = |names: Value| read(json!({ "samplers": names })).map(|c| c.samplers.unwrap());
        let all: Vec<&str> = Sampler::ORDER.iter().map(|one| one.name().0).collect();
        assert_eq!(kept(json!(all)).unwrap(), Sampler::ORDER);
        let aliases =
            json!(["temp", "Top-K", "nucleus", "minp", "typ", "typical_p", "top-n-sigma"]);
        let due = [Temperature, TopK, TopP, MinP, TypicalP, TypicalP, TopNSigma];
        assert_eq!(kept(aliases).unwrap(), due);
        assert_eq!(kept(json!("kpxt")).unwrap(), [TopK, TopP, Xtc, Temperature]);
        assert_eq!(kept(json!(["infill", "adaptive_p", "top_k"])).unwrap(), [TopK]);
        let long = vec!["xtc"; SAMPLERS_MAX + 1];
        for odd in [json!(["beam"]), json!("kq"), json!(7), json!([7]), json!(long)] {
            assert_eq!(kept(odd).unwrap_err().param.as_deref(), Some("samplers"));
        }
    }

    #[test]
    fn breakers_are_texts_and_few() {
        let kept = |texts: Value| {
            let fields = json!({"dry_multiplier": 0.8, "dry_sequence_breakers": texts});
            read(fields).map(|choice| choice.dry_sequence_breakers.unwrap())
        };
        assert_eq!(kept(json!(["\n", "a"])).unwrap(), ["\n", "a"]);
        assert_eq!(kept(json!("[\"\\n\", \"a\"]")).unwrap(), ["\n", "a"]);
        let odd = [json!([7]), json!("a"), json!(vec!["a"; 33]), json!(["a".repeat(129)])];
        for odd in odd {
            let error = kept(odd).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("dry_sequence_breakers"));
        }
    }

    #[test]
    fn the_first_mirostat_is_refused() {
        assert_eq!(read(json!({"mirostat": 2})).unwrap().mirostat, Some(2));
        let error = read(json!({"mirostat": 1})).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("mirostat"), "unsupported"));
        assert_eq!(read(json!({"dry_base": 0})).unwrap().dry_base, None);
    }
}
