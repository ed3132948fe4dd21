//! `config.json`, with the language model's part of it on top.

use serde_json::{Map, Value};

use crate::Error;

/// A model's configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    values: Map<String, Value>,
    /// Whether MLX has converted the checkpoint, with its own changes of some tensors.
    pub is_mlx: bool,
    /// The blocks of multi-token prediction that are read from the checkpoint.
    pub blocks: u64,
    /// The base of the class's rotation, if it is not 10,000.
    pub base: Option<f64>,
}

impl Config {
    /// Keys of `text_config`, in models that also see, replace those of the whole; but whether the
    /// output matrix is the embedding's is the whole's, and its class comes before the text's. Some
    /// heads have such a part too.
    pub fn new(mut root: Map<String, Value>) -> Self {
        const TIED: &str = "tie_word_embeddings";
        const CLASSES: &str = "architectures";
        let parts = ["text_config", "transformer_layer_config"];
        let part = parts.into_iter().find_map(|part| root.remove(part));
        if let Some(Value::Object(mut text)) = part {
            if let (Some(Value::Array(all)), Some(Value::Array(of_text))) =
                (root.get_mut(CLASSES), text.remove(CLASSES))
            {
                all.extend(of_text);
            }
            let is_given = root.contains_key(TIED);
            let counts = |key: &str, value: &Value| !(value.is_null() || is_given && key == TIED);
            root.extend(text.into_iter().filter(|(key, value)| counts(key, value)));
        }
        Self { values: root, is_mlx: false, blocks: 0, base: None }
    }

    /// The value of a key; null counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    pub fn set(&mut self, key: &str, value: Value) {
        self.values.insert(key.to_owned(), value);
    }

    pub fn is_null(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(Value::is_null)
    }

    /// Whether no key has a value.
    pub fn is_empty(&self) -> bool {
        self.values.values().all(Value::is_null)
    }

    /// The first of these keys that is there, with its value.
    fn first<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &Value)> {
        keys.iter().find_map(|key| Some((*key, self.get(key)?)))
    }

    pub fn find_u64(&self, keys: &[&str]) -> Result<Option<u64>, Error> {
        self.find(keys, "a count", |value| {
            // Some configurations write counts as floats.
            let whole = |number: f64| number.fract() == 0.0 && (0.0..1e15).contains(&number);
            value.as_u64().or(value.as_f64().filter(|it| whole(*it)).map(|it| it as u64))
        })
    }

    pub fn find_f64(&self, keys: &[&str]) -> Result<Option<f64>, Error> {
        self.find(keys, "a number", Value::as_f64)
    }

    pub fn find_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.find(&[key], "true or false", Value::as_bool)
    }

    pub fn find_str(&self, keys: &[&str]) -> Result<Option<String>, Error> {
        self.find(keys, "a text", |value| value.as_str().map(str::to_owned))
    }

    /// A key's list of texts; empty if it is absent.
    pub fn texts(&self, key: &str) -> Result<Vec<String>, Error> {
        let list = |value: &Value| {
            let texts = value.as_array()?.iter().map(|it| it.as_str().map(str::to_owned));
            texts.collect::<Option<Vec<String>>>()
        };
        Ok(self.find(&[key], "a list of texts", list)?.unwrap_or_default())
    }

    /// A key's list of numbers, if it has one.
    pub fn find_numbers(&self, key: &str) -> Result<Option<Vec<f64>>, Error> {
        self.find(&[key], "a list of numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect()
        })
    }

    /// A count, or the first of a list of them: some configurations repeat it for each layer.
    pub fn find_first(&self, key: &str) -> Result<Option<u64>, Error> {
        self.find(&[key], "a count, or a list of them", |value| {
            value.as_u64().or_else(|| value.as_array()?.first()?.as_u64())
        })
    }

    /// Which layers are of a kind in `layer_types`; `None` if that is absent.
    pub fn layers_of(&self, kind: &str) -> Result<Option<Vec<bool>>, Error> {
        let kinds = self.texts("layer_types")?;
        let is_one = kinds.iter().map(|found| found == kind);
        Ok((!kinds.is_empty()).then(|| is_one.collect()))
    }

    pub fn u64(&self, keys: &[&str]) -> Result<u64, Error> {
        self.find_u64(keys)?.ok_or_else(|| self.lacks(keys[0]))
    }

    /// The model's layers, without blocks of multi-token prediction.
    pub fn layers(&self) -> Result<u64, Error> {
        match self.find_u64(&["num_hidden_layers", "n_layers"])? {
            Some(layers) => Ok(layers),
            None => match self.texts("layers_block_type")?.len() {
                0 => Err(self.lacks("num_hidden_layers")),
                layers => Ok(layers as u64),
            },
        }
    }

    /// A key's object as a configuration of its own; empty if it is absent.
    pub fn object(&self, key: &str) -> Self {
        Self::new(self.get(key).and_then(Value::as_object).cloned().unwrap_or_default())
    }

    pub fn lacks(&self, key: &str) -> Error {
        let (found, wanted) = ("missing".to_owned(), "a value".to_owned());
        Error::Config { key: key.to_owned(), found, wanted }
    }

    fn find<T>(
        &self,
        keys: &[&str],
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some((key, value)) = self.first(keys) else { return Ok(None) };
        let wrong = || Error::Config {
            key: key.to_owned(),
            found: shown(value),
            wanted: wanted.to_owned(),
        };
        read(value).map(Some).ok_or_else(wrong)
    }
}

/// A value's text, cut to a length that a terminal bears.
pub(crate) fn shown(value: &Value) -> String {
    const CHARS_MAX: usize = 60;
    let text = value.to_string();
    let cut: String = text.chars().take(CHARS_MAX).collect();
    if cut.len() < text.len() { format!("{cut}...") } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_s_keys_count_but_its_class_comes_last() {
        let new = |text: &str| Config::new(serde_json::from_str(text).unwrap());
        let config =
            new(r#"{"architectures": ["A"], "hidden_size": 1, "tie_word_embeddings": false,
                "text_config": {"architectures": ["B"], "hidden_size": 2, "num_hidden_layers": null,
                                "tie_word_embeddings": true}}"#);
        assert_eq!(config.texts("architectures").unwrap(), ["A", "B"]);
        assert_eq!(config.u64(&["hidden_size"]).unwrap(), 2);
        assert_eq!(config.find_bool("tie_word_embeddings").unwrap(), Some(false));
        assert!(config.layers().is_err());
        assert_eq!(new(r#"{"layers_block_type": ["moe", "moe"]}"#).layers().unwrap(), 2);
    }
}
