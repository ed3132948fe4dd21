//! What a conversation's requests ask for besides its messages: the options of `sinew run`, and
//! what `/set` changes of them in a chat.

use std::path::Path;
use std::str::FromStr;

use serde_json::{Map, Value, json};

/// A schema is written by hand; a larger file is something else.
const SCHEMA_BYTES_MAX: u64 = 1 << 20;

/// The names that `/set` knows, and their values.
pub const SETTINGS: [(&str, &str); 7] = [
    ("temperature", "0 to 2: 0 always takes the likeliest token"),
    ("top_p", "above 0, to 1: the likeliest tokens with this probability together"),
    ("seed", "a whole number, or off: the same seed gives the same answer"),
    ("max_tokens", "a whole number, or off: the most tokens of an answer"),
    ("think", "on, off, low, medium, high, or auto: as the model does by itself"),
    ("format", "json, the file of a JSON schema, or text"),
    ("verbose", "on or off: the figures of each answer"),
];

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub seed: Option<u64>,
    pub max_tokens: Option<usize>,
    pub think: Option<Think>,
    pub format: Option<Format>,
    /// Whether the figures of each answer are shown.
    pub verbose: bool,
}

/// Whether a model thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Think {
    On,
    Off,
    Low,
    Medium,
    High,
}

impl Think {
    fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// The shape of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    Json,
    /// With the name of its file.
    Schema(String, Map<String, Value>),
}

impl Format {
    /// `json`, or the file of a JSON schema.
    ///
    /// # Errors
    /// The file cannot be read, or has no schema.
    pub fn read(text: &str) -> Result<Self, String> {
        if text == "json" {
            return Ok(Self::Json);
        }
        let path = Path::new(text);
        let bytes = std::fs::metadata(path)
            .map_err(|error| format!("expected json, or the file of a JSON schema: {error}"))?;
        if bytes.len() > SCHEMA_BYTES_MAX {
            return Err(format!(
                "{} bytes are more than the {SCHEMA_BYTES_MAX} of a schema; name another file",
                bytes.len()
            ));
        }
        let schema = std::fs::read(path).map_err(|error| error.to_string())?;
        let schema = serde_json::from_slice(&schema);
        let schema = schema.map_err(|error| format!("it has no JSON schema: {error}"))?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self::Schema(name, schema))
    }

    fn body(&self) -> Value {
        match self {
            Self::Json => json!({ "type": "json_object" }),
            Self::Schema(_, schema) => {
                let schema = json!({ "name": "answer", "schema": schema });
                json!({ "type": "json_schema", "json_schema": schema })
            }
        }
    }
}

/// # Errors
/// It is no temperature.
pub fn temperature(text: &str) -> Result<f32, String> {
    let temperature = text.parse().ok().filter(|value| (0.0..=2.0).contains(value));
    temperature.ok_or_else(|| "expected a number from 0 to 2".to_owned())
}

/// # Errors
/// It is no probability, or none at all.
pub fn top_p(text: &str) -> Result<f32, String> {
    let top_p = text.parse().ok().filter(|value| *value > 0.0 && *value <= 1.0);
    top_p.ok_or_else(|| "expected a number above 0, to 1".to_owned())
}

/// A whole number, or `off`.
fn whole<T: FromStr>(text: &str) -> Result<Option<T>, String> {
    if text == "off" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| "expected a whole number, or off".to_owned())
}

impl Options {
    /// Changes a setting by its name.
    ///
    /// # Errors
    /// There is no such setting, or it has no such value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = |why: String| format!("{name} {value}: {why}");
        match name {
            "temperature" => self.temperature = Some(temperature(value).map_err(wrong)?),
            "top_p" => self.top_p = Some(top_p(value).map_err(wrong)?),
            "seed" => self.seed = whole(value).map_err(wrong)?,
            "max_tokens" => self.max_tokens = whole(value).map_err(wrong)?,
            "think" if value == "auto" => self.think = None,
            "think" => {
                let value = if value.is_empty() { "on" } else { value };
                let found = <Think as clap::ValueEnum>::from_str(value, true);
                let why = || "expected on, off, low, medium, high or auto".to_owned();
                self.think = Some(found.map_err(|_| wrong(why()))?);
            }
            "format" if value == "text" => self.format = None,
            "format" => self.format = Some(Format::read(value).map_err(wrong)?),
            "verbose" => {
                self.verbose = match value {
                    "" | "on" => true,
                    "off" => false,
                    _ => return Err(wrong("expected on or off".to_owned())),
                }
            }
            _ => {
                let names = SETTINGS.map(|(name, _)| name);
                let near = crate::near::did_you_mean(name, names);
                return Err(format!("no setting is called {name}{near} /set alone lists them"));
            }
        }
        Ok(())
    }

    /// The value of a setting, for people.
    pub fn shown(&self, name: &str) -> String {
        fn number<T: ToString>(value: Option<T>, otherwise: &str) -> String {
            value.map_or_else(|| otherwise.to_owned(), |value| value.to_string())
        }
        match name {
            "temperature" => number(self.temperature, "as the model's"),
            "top_p" => number(self.top_p, "as the model's"),
            "seed" => number(self.seed, "off"),
            "max_tokens" => number(self.max_tokens, "off"),
            "think" => self.think.map_or("auto", Think::name).to_owned(),
            "format" => match &self.format {
                None => "text".to_owned(),
                Some(Format::Json) => "json".to_owned(),
                Some(Format::Schema(name, _)) => format!("the schema in {name}"),
            },
            _ => if self.verbose { "on" } else { "off" }.to_owned(),
        }
    }

    /// The fields of a chat completion.
    pub fn body(&self) -> Map<String, Value> {
        let mut body = Map::new();
        let mut add = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        };
        add("temperature", self.temperature.map(|value| json!(value)));
        add("top_p", self.top_p.map(|value| json!(value)));
        add("seed", self.seed.map(|value| json!(value)));
        add("max_tokens", self.max_tokens.map(|value| json!(value)));
        add("response_format", self.format.as_ref().map(Format::body));
        add("enable_thinking", self.think.map(|think| json!(think != Think::Off)));
        let level = self.think.filter(|think| !matches!(think, Think::On | Think::Off));
        add("reasoning_effort", level.map(|level| json!(level.name())));
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_fields_of_a_request() {
        let mut options = Options::default();
        assert_eq!(json!(options.body()), json!({}));
        let pairs = [("temperature", "0.5"), ("top_p", "1"), ("seed", "7"), ("max_tokens", "9")];
        for (name, value) in pairs.into_iter().chain([("format", "json"), ("think", "low")]) {
            options.set(name, value).unwrap();
            assert_eq!(options.shown(name), value);
        }
        let fields = json!({ "temperature": 0.5, "top_p": 1.0, "seed": 7, "max_tokens": 9,
            "response_format": { "type": "json_object" }, "enable_thinking": true,
            "reasoning_effort": "low" });
        assert_eq!(json!(options.body()), fields);
        let pairs = [("seed", "off"), ("max_tokens", "off"), ("format", "text"), ("think", "off")];
        pairs.into_iter().for_each(|(name, value)| options.set(name, value).unwrap());
        let fields = json!({ "temperature": 0.5, "top_p": 1.0, "enable_thinking": false });
        assert_eq!(json!(options.body()), fields);
    }

    #[test]
    fn a_wrong_setting_changes_nothing_and_says_what_is_right() {
        let mut options = Options::default();
        for (name, value, why) in [
            ("temprature", "1", "did you mean temperature?"),
            ("temperature", "3", "temperature 3: expected a number from 0 to 2"),
            ("top_p", "0", "above 0"),
            ("seed", "x", "a whole number, or off"),
            ("think", "much", "low, medium"),
            ("verbose", "maybe", "on or off"),
            ("format", "/no/such/file", "the file of a JSON schema"),
        ] {
            let error = options.set(name, value).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(json!(options.body()), json!({}));
    }

    #[test]
    fn a_schema_comes_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("city.json");
        std::fs::write(&path, r#"{"type": "object"}"#).unwrap();
        let mut options = Options::default();
        options.set("format", path.to_str().unwrap()).unwrap();
        assert_eq!(options.shown("format"), "the schema in city.json");
        let schema = &options.body()["response_format"]["json_schema"]["schema"];
        assert_eq!(*schema, json!({ "type": "object" }));
        std::fs::write(&path, "[]").unwrap();
        assert!(options.set("format", path.to_str().unwrap()).unwrap_err().contains("no JSON"));
        options.set("verbose", "").unwrap();
        assert_eq!(options.shown("verbose"), "on");
    }
}
