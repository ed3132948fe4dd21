//! Values from other nodes, with their original JSON.

use std::ops::Deref;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value with the JSON in which it arrived. That JSON is stored, signed and passed on: an older
/// node keeps fields that it does not know, and no signature breaks on the way.
#[derive(Debug, Clone)]
pub(crate) struct Verbatim<T> {
    text: String,
    value: T,
}

impl<T: Serialize> From<T> for Verbatim<T> {
    fn from(value: T) -> Self {
        Self { text: serde_json::to_string(&value).expect("it is JSON"), value }
    }
}

impl<T> Verbatim<T> {
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

impl<T> Deref for Verbatim<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> PartialEq for Verbatim<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl<T> Eq for Verbatim<T> {}

impl<T> Serialize for Verbatim<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Verbatim<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let value = serde_json::from_str(&text).map_err(D::Error::custom)?;
        Ok(Self { text, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::InstanceSpec;

    #[test]
    fn what_is_not_understood_is_passed_on() {
        let text = r#"{"model":"m","of_the_future":[1,2]}"#;
        let json = serde_json::to_string(text).unwrap();
        let told: Verbatim<InstanceSpec> = serde_json::from_str(&json).unwrap();
        assert_eq!(told.model, "m");
        assert_eq!(serde_json::to_string(&told).unwrap(), json);
        assert!(serde_json::from_str::<Verbatim<InstanceSpec>>("\"{}\"").is_err());
    }
}
