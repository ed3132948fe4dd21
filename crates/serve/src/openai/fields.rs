//! The fields of a request's body, removed one by one by name.
//!
//! Fields that remain at the end are unknown: they are ignored with a log line, because clients
//! send new ones each month. Known fields that are not supported are rejected by name.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::http::error::ApiError;
use crate::http::fields::within;

/// A JSON object with unique names.
#[derive(Debug, Default)]
pub(crate) struct Fields(Map<String, Value>);

/// A known field that is not supported.
pub(crate) struct Refused {
    pub name: &'static str,
    /// The reason and the alternative.
    pub why: &'static str,
}

impl Fields {
    /// The fields of an object in a body.
    pub fn of(object: Map<String, Value>) -> Self {
        Self(object)
    }

    /// Removes the field. `None` if it is absent or null.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Removes the field and deserialises it.
    ///
    /// # Errors
    /// 400 with the path of the value that does not fit.
    pub fn read<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        self.take(name).map(|value| shaped(name, value)).transpose()
    }

    /// Removes the field and deserialises it as a struct. serde also reads a struct from a list,
    /// field by field; only an object is accepted here.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn object<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let object: Option<Map<String, Value>> = self.read(name)?;
        object.map(|object| shaped(name, Value::Object(object))).transpose()
    }

    /// A boolean field, false by default.
    ///
    /// # Errors
    /// 400 if it is not a boolean.
    pub fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.read(name)?.unwrap_or(false))
    }

    /// # Errors
    /// 400 if it is not a number or is out of range.
    pub fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        Ok(within(name, self.read::<f64>(name)?, range)?.map(|value| value as f32))
    }

    /// # Errors
    /// 400 if it is not an integer or is out of range.
    pub fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        within(name, self.read(name)?, range)
    }

    /// # Errors
    /// 400 if it is not a count or is out of range.
    pub fn count(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(name, range)?.map(|count| count as usize))
    }

    /// One of several words.
    ///
    /// # Errors
    /// 400 if it is none of them.
    pub fn word(&mut self, name: &str, words: &[&str]) -> Result<Option<String>, ApiError> {
        let Some(found) = self.read::<String>(name)? else { return Ok(None) };
        if words.contains(&found.as_str()) {
            return Ok(Some(found));
        }
        let message = format!("{name} is {}; it may be {}", shown(&found), words.join(", "));
        Err(ApiError::invalid_value(name, message))
    }

    /// Known fields that have no effect here.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.0.remove(*name);
        }
    }

    /// Fields that are accepted at their neutral number.
    pub fn ignore_neutral(&mut self, neutral: &[(&str, f64)]) {
        for (name, number) in neutral {
            if self.0.get(*name).and_then(Value::as_f64) == Some(*number) {
                self.0.remove(*name);
            }
        }
    }

    /// Rejects unsupported fields, unless their value requests nothing.
    ///
    /// # Errors
    /// 400 naming the first such field.
    pub fn refuse(&mut self, refused: &[Refused]) -> Result<(), ApiError> {
        for Refused { name, why } in refused {
            if self.take(name).is_some_and(|value| !asks_nothing(&value)) {
                return Err(ApiError::unsupported(name, format!("{name}: {why}")));
            }
        }
        Ok(())
    }

    /// Finishes reading; logs the fields that remain.
    pub fn finish(self) {
        if !self.0.is_empty() {
            let names: Vec<&str> = self.0.keys().map(|name| shown(name)).collect();
            tracing::debug!(?names, "fields of a request that are not known are ignored");
        }
    }
}

/// Deserialises a value; `name` is its field.
///
/// # Errors
/// 400 with the path of the value that does not fit.
pub(crate) fn shaped<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let param = match path.as_str() {
            "." => name.to_owned(),
            index if index.starts_with('[') => format!("{name}{index}"),
            field => format!("{name}.{field}"),
        };
        let message = format!("{param} is not what was expected: {}", error.inner());
        ApiError::invalid_value(&param, message)
    })
}

/// Clients that fill in every field send false, zero and empty values.
fn asks_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}

/// The part of a client's word that a message shows.
pub(crate) fn shown(word: &str) -> &str {
    word.char_indices().nth(64).map_or(word, |(end, _)| &word[..end])
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Fields, A::Error> {
        let mut fields = Map::new();
        while let Some((name, value)) = access.next_entry::<String, Value>()? {
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("{} stands there twice", shown(&name))));
            }
            fields.insert(name, value);
        }
        Ok(Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_path() {
        let mut found = fields(json!({"a": [[1], ["x"]], "b": 7, "c": "long", "d": null}));
        let error = found.read::<Vec<Vec<u8>>>("a").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("a[1][0]"));
        assert_eq!(
            found.integer("b", 0..=5).unwrap_err().message,
            "b is 7; it must be from 0 to 5"
        );
        let error = found.word("c", &["low", "high"]).unwrap_err();
        assert_eq!(error.message, "c is long; it may be low, high");
        assert_eq!(found.read::<bool>("d").unwrap(), None);
        assert!(serde_json::from_str::<Fields>(r#"{"a": 1, "a": 1}"#).is_err());
    }

    #[test]
    fn only_what_asks_for_something_is_refused() {
        const REFUSED: &[Refused] = &[Refused { name: "a", why: "not here. Leave it out" }];
        for nothing in [json!(null), json!(false), json!(0), json!(""), json!([]), json!({})] {
            fields(json!({ "a": nothing })).refuse(REFUSED).unwrap();
        }
        for something in [json!(true), json!(-1), json!("x"), json!([0]), json!({"b": 0})] {
            let error = fields(json!({ "a": something })).refuse(REFUSED).unwrap_err();
            assert_eq!((error.param.as_deref(), error.code), (Some("a"), "unsupported"));
            assert_eq!(error.message, "a: not here. Leave it out");
        }
    }
}
