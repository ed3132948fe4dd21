//! The fields of a request's body, taken out one by one by their names.
//!
//! What is left at the end is unknown here: it is ignored, with a line in the log for who looks,
//! because clients send more each month. What is known and cannot be honoured is refused by name.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::http::error::ApiError;
use crate::http::fields::within;

/// A JSON object in which each name stands once.
#[derive(Debug, Default)]
pub(super) struct Fields(Map<String, Value>);

/// A field that is known and not honoured.
pub(super) struct Refused {
    pub name: &'static str,
    /// Why, and what to do instead.
    pub why: &'static str,
}

impl Fields {
    /// The fields of an object within a body.
    pub fn of(object: Map<String, Value>) -> Self {
        Self(object)
    }

    /// The field, if it is there and not null.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// The field in a shape.
    ///
    /// # Errors
    /// 400 with the path of what does not fit.
    pub fn read<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        self.take(name).map(|value| shaped(name, value)).transpose()
    }

    /// The field in the shape of a struct, which could be read from a list as well, field by
    /// field: nobody means that.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn object<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let object: Option<Map<String, Value>> = self.read(name)?;
        object.map(|object| shaped(name, Value::Object(object))).transpose()
    }

    /// A field that is false where it is absent.
    ///
    /// # Errors
    /// 400 if it is neither true nor false.
    pub fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        Ok(self.read(name)?.unwrap_or(false))
    }

    /// # Errors
    /// 400 if it is no number or out of range.
    pub fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        Ok(within(name, self.read::<f64>(name)?, range)?.map(|value| value as f32))
    }

    /// # Errors
    /// 400 if it is no integer or out of range.
    pub fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        within(name, self.read(name)?, range)
    }

    /// # Errors
    /// 400 if it is no number of things or out of range.
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

    /// Fields that are known and change nothing here.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.0.remove(*name);
        }
    }

    /// Fields whose one number here asks for nothing.
    pub fn ignore_neutral(&mut self, neutral: &[(&str, f64)]) {
        for (name, number) in neutral {
            if self.0.get(*name).and_then(Value::as_f64) == Some(*number) {
                self.0.remove(*name);
            }
        }
    }

    /// Refuses what cannot be honoured, unless its value asks for nothing.
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

    /// The end of the reading.
    pub fn finish(self) {
        if !self.0.is_empty() {
            let names: Vec<&str> = self.0.keys().map(|name| shown(name)).collect();
            tracing::debug!(?names, "fields of a request that are not known are ignored");
        }
    }
}

/// A value in a shape; `name` is where it stood.
///
/// # Errors
/// 400 with the path of what does not fit.
pub(super) fn shaped<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, ApiError> {
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

/// False, nothing and emptiness are what clients send that fill every field in.
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

/// As much of a client's word as a message shows.
pub(super) fn shown(word: &str) -> &str {
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
