//! The fields of a request's body, removed one by one by name.

use std::fmt::{self, Write};
use std::ops::RangeInclusive;

use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::http::error::ApiError;
use crate::http::fields::within;
use crate::known::{self, Endpoint};

/// A JSON object with unique names.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    given: Map<String, Value>,
    /// Whose fields they are, once they are settled.
    of: Option<Endpoint>,
}

impl Fields {
    /// The fields of an object in a body.
    pub fn of(object: Map<String, Value>) -> Self {
        Self { given: object, of: None }
    }

    /// Removes the known fields that are not read.
    ///
    /// # Errors
    /// 400 naming the first field that is not supported.
    pub fn settle(&mut self, endpoint: Endpoint) -> Result<(), ApiError> {
        self.of = Some(endpoint);
        known::settle(endpoint, &mut self.given, "")
    }

    /// The settled fields as a struct that ignores what it does not know.
    ///
    /// # Errors
    /// 400 naming the first field that is not supported, or the path of a value that does not fit.
    pub fn whole<T: DeserializeOwned>(mut self, endpoint: Endpoint) -> Result<T, ApiError> {
        self.settle(endpoint)?;
        let (read, unknown): (Map<_, _>, Map<_, _>) =
            self.given.into_iter().partition(|(name, _)| known::reads(endpoint, name));
        Self::of(unknown).finish();
        serde_path_to_error::deserialize(Value::Object(read)).map_err(|error| {
            let path = error.path().to_string();
            let message = format!("the body is not what was expected at {path}: {}", error.inner());
            ApiError::invalid("invalid_body", message).with_param(&path)
        })
    }

    /// Removes the field. `None` if it is absent or null.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        if let Some(endpoint) = self.of.filter(|_| cfg!(test)) {
            assert!(known::reads(endpoint, name), "the table has no {name} of {endpoint:?}");
        }
        self.given.remove(name).filter(|value| !value.is_null())
    }

    /// The field as the client sent it; null if it is absent.
    pub fn peek(&self, name: &str) -> Value {
        self.given.get(name).cloned().unwrap_or_default()
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

    /// An integer that may be written as 7.0.
    ///
    /// # Errors
    /// As for [`Self::integer`].
    pub fn loose_integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() < 9e15;
        if let Some(value) = self.given.get_mut(name)
            && let Some(number) = value.as_f64().filter(|_| value.is_f64()).filter(is_whole)
        {
            *value = Value::from(number as i64);
        }
        self.integer(name, range)
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

    /// Removes the field if it is this number.
    pub fn drop_if(&mut self, name: &str, number: f64) {
        if self.given.get(name).and_then(Value::as_f64) == Some(number) {
            self.given.remove(name);
        }
    }

    /// Removes the field if it is an empty list.
    pub fn drop_empty(&mut self, name: &str) {
        if self.given.get(name).and_then(Value::as_array).is_some_and(Vec::is_empty) {
            self.given.remove(name);
        }
    }

    /// Removes the field if it is false.
    pub fn drop_false(&mut self, name: &str) {
        if self.given.get(name) == Some(&Value::Bool(false)) {
            self.given.remove(name);
        }
    }

    /// Finishes reading; logs the fields that remain.
    pub fn finish(self) {
        if !self.given.is_empty() {
            let names: Vec<&str> = self.given.keys().map(|name| shown(name)).collect();
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

/// The characters of a client's word or value that a message shows.
const SHOWN_MAX: usize = 64;

/// The part of a client's word that a message shows.
pub(crate) fn shown(word: &str) -> &str {
    word.char_indices().nth(SHOWN_MAX).map_or(word, |(end, _)| &word[..end])
}

/// The same of a value, of which no more is written: it can have megabytes.
pub(crate) fn shown_value(value: &Value) -> String {
    let mut start = Start::default();
    // It ends with an error where the message has enough.
    let _ = write!(start, "{value}");
    start.0
}

/// Takes the start of what is written to it.
#[derive(Default)]
struct Start(String);

impl Write for Start {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = SHOWN_MAX.saturating_sub(self.0.chars().count());
        let end = text.char_indices().nth(room).map(|(end, _)| end);
        self.0.push_str(&text[..end.unwrap_or(text.len())]);
        if end.is_some() { Err(fmt::Error) } else { Ok(()) }
    }
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
        Ok(Fields::of(fields))
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
}
