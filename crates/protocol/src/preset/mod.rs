//! A name for a model together with the settings of its requests.

mod modelfile;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::sampling::for_parameters;
use crate::{KeepAlive, PARAMETERS, Parameter, SamplingChoice};

/// The most bytes of a preset as JSON; the prompts of coding agents are about half of this.
pub const PRESET_BYTES_MAX: usize = 64 << 10;

macro_rules! preset {
    (
        {$($early:ident: $early_type:ty = $_a:expr, $early_effect:literal, $_b:expr;)+}
        {$($late:ident: $late_type:ty = $_c:expr, $late_effect:literal, $_d:expr;)+}
    ) => {
        /// A name that clients use like a model's. Its settings apply to requests that set nothing
        /// themselves.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Preset {
            pub name: String,
            /// The name of the model that answers.
            pub model: String,
            /// The system prompt of conversations that have none.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub system: Option<String>,
            /// Put before each conversation, after the system prompt.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub messages: Vec<PresetMessage>,
            $(#[doc = concat!($early_effect, ".")]
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $early: Option<$early_type>,)+
            #[serde(skip_serializing_if = "Option::is_none")]
            pub seed: Option<u64>,
            $(#[doc = concat!($late_effect, ".")]
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $late: Option<$late_type>,)+
            /// The most tokens of an answer.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub max_tokens: Option<usize>,
            /// The most tokens of a conversation. A model that a request loads gets this context.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub context_tokens: Option<usize>,
            /// Strings that end an answer.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub stop: Vec<String>,
            /// Whether a thinking model thinks.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub think: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub reasoning_effort: Option<String>,
            /// Variables of the model's template.
            #[serde(skip_serializing_if = "Map::is_empty")]
            pub template_options: Map<String, Value>,
            /// How long the model stays loaded after a request.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub keep_alive: Option<KeepAlive>,
        }

        impl Preset {
            /// What it sets of sampling.
            pub fn sampling(&self) -> SamplingChoice {
                SamplingChoice {
                    $($early: self.$early,)+
                    $($late: self.$late,)+
                    seed: self.seed,
                    ..SamplingChoice::default()
                }
            }

            fn set_sampling(&mut self, choice: SamplingChoice) {
                $(self.$early = choice.$early;)+
                $(self.$late = choice.$late;)+
                self.seed = choice.seed;
            }
        }
    };
}
for_parameters!(preset);

/// A message of an example conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetMessage {
    /// `system`, `user` or `assistant`.
    pub role: String,
    pub content: String,
}

/// The settings that [`Preset::set`] knows besides [`PARAMETERS`], with the values of each.
const OTHER_SETTINGS: [(&str, &str); 7] = [
    ("seed", "a whole number"),
    ("max_tokens", "a whole number"),
    ("context", "a whole number of tokens"),
    ("stop", "a string that ends an answer; may be given several times"),
    ("think", "on, off, low, medium or high"),
    ("keep_alive", "a time such as 10m, or -1 for good"),
    ("template.NAME", "a variable of the model's template, as JSON or text"),
];

/// The settings that [`Preset::set`] knows, with the values of each.
fn preset_settings() -> impl Iterator<Item = (&'static str, String)> {
    let values = |row: &Parameter| {
        let (low, high) = row.fields.range;
        format!("{low} to {high}{}", if row.fields.is_whole { ", a whole number" } else { "" })
    };
    let numbers = PARAMETERS.iter().map(move |row| (row.name, values(row)));
    numbers.chain(OTHER_SETTINGS.map(|(name, values)| (name, values.to_owned())))
}

/// Parameters of Ollama's with another name here.
const OLLAMA_NAMES: [(&str, &str); 2] = [("num_predict", "max_tokens"), ("num_ctx", "context")];

/// Parameters of Ollama's that set how a model is loaded, which `sinew serve` decides, and those
/// that its clients write without intent.
const WITHOUT_EFFECT: [&str; 14] = [
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "penalize_newline",
    "vocab_only",
    "num_batch",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "main_gpu",
    "use_mlock",
    "use_mmap",
];

/// Parameters of Ollama's that are read with the value that changes nothing.
const NEUTRAL: [(&str, f32); 1] = [("tfs_z", 1.0)];

const EFFORTS: [&str; 3] = ["low", "medium", "high"];
const ROLES: [&str; 3] = ["system", "user", "assistant"];

impl Preset {
    /// Changes a setting by its name here or in Ollama's Modelfiles.
    ///
    /// # Errors
    /// There is no such setting, or the value is none of its.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let other = OLLAMA_NAMES.iter().find(|(theirs, _)| *theirs == name);
        let row = PARAMETERS.iter().find(|row| [row.name, row.llama_name()].contains(&name));
        let known = other.map_or(row.map_or(name, |row| row.name), |(_, ours)| ours);
        let wrong = || {
            let values = preset_settings().find(|(setting, _)| *setting == known);
            let values = values.map_or("another value".to_owned(), |(_, values)| values);
            format!("{name} {value}: expected {values}")
        };
        fn read<T: std::str::FromStr>(value: &str) -> Option<Option<T>> {
            value.parse().ok().map(Some)
        }
        let done = match known {
            _ if let Some(row) = row => self.set_number(row, value),
            // As in Ollama, -1 is a random seed, and as many tokens as there is room for.
            "seed" if value == "-1" => {
                self.seed = None;
                Some(())
            }
            "seed" => read(value).map(|read| self.seed = read),
            "max_tokens" if ["-1", "-2"].contains(&value) => {
                self.max_tokens = None;
                Some(())
            }
            "max_tokens" => read(value).map(|read| self.max_tokens = read),
            "context" => read(value).map(|read| self.context_tokens = read),
            "stop" => {
                self.stop.push(value.to_owned());
                Some(())
            }
            "think" => self.set_thinking(value),
            "keep_alive" => value.parse().ok().map(|read| self.keep_alive = Some(read)),
            _ if WITHOUT_EFFECT.contains(&known) => Some(()),
            _ if NEUTRAL.iter().any(|(neutral, _)| *neutral == known) => {
                return check_neutral(name, value);
            }
            _ => {
                let Some(variable) = known.strip_prefix("template.") else {
                    let names = preset_settings().map(|(name, _)| name).collect::<Vec<_>>();
                    let names = names.join(", ");
                    return Err(format!("there is no setting {name}. There are: {names}"));
                };
                let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
                self.template_options.insert(variable.to_owned(), value);
                Some(())
            }
        };
        done.ok_or_else(wrong)?;
        self.check_numbers().map_err(|why| format!("{name} {value}: {why}"))
    }

    /// Sets a parameter of sampling, if the value is a number of its kind.
    fn set_number(&mut self, row: &Parameter, value: &str) -> Option<()> {
        let number: f64 = value.parse().ok()?;
        if row.fields.is_whole && number.fract() != 0.0 {
            return None;
        }
        within(row.name, Some(number), row.fields.range.0..=row.fields.range.1).ok()?;
        let mut choice = self.sampling();
        (row.choose)(&mut choice, number);
        self.set_sampling(choice);
        Some(())
    }

    fn set_thinking(&mut self, value: &str) -> Option<()> {
        let (think, effort) = match value {
            "on" | "true" => (true, None),
            "off" | "false" => (false, None),
            level if EFFORTS.contains(&level) => (true, Some(level.to_owned())),
            _ => return None,
        };
        (self.think, self.reasoning_effort) = (Some(think), effort);
        Some(())
    }

    /// The preset with the model and the settings of another where it has none itself.
    pub fn over(self, base: &Self) -> Self {
        let base = base.clone();
        let sampling = self.sampling().or(base.sampling());
        let mut template_options = base.template_options;
        template_options.extend(self.template_options);
        // What a model thinks is one setting of two fields.
        let (think, reasoning_effort) = match self.think {
            Some(_) => (self.think, self.reasoning_effort),
            None => (base.think, self.reasoning_effort.or(base.reasoning_effort)),
        };
        let mut preset = Self {
            name: self.name,
            model: base.model,
            system: self.system.or(base.system),
            messages: if self.messages.is_empty() { base.messages } else { self.messages },
            max_tokens: self.max_tokens.or(base.max_tokens),
            context_tokens: self.context_tokens.or(base.context_tokens),
            stop: if self.stop.is_empty() { base.stop } else { self.stop },
            think,
            reasoning_effort,
            template_options,
            keep_alive: self.keep_alive.or(base.keep_alive),
            ..Self::default()
        };
        preset.set_sampling(sampling);
        preset
    }

    /// Checks the preset except its name.
    ///
    /// # Errors
    /// It names no model, a value is out of its range, or it is too large.
    pub fn check(&self) -> Result<(), String> {
        if self.model.trim().is_empty() {
            return Err("a preset needs the name of the model that answers".to_owned());
        }
        self.check_numbers()?;
        if let Some(other) = self.messages.iter().find(|one| !ROLES.contains(&one.role.as_str())) {
            let roles = ROLES.join(", ");
            return Err(format!("a message has the role {:?}; there are: {roles}", other.role));
        }
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |json| json.len());
        if bytes > PRESET_BYTES_MAX {
            let limit = PRESET_BYTES_MAX;
            return Err(format!("a preset may have {limit} bytes, and this one has {bytes}"));
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), String> {
        let sampling = self.sampling();
        for row in PARAMETERS {
            // Single precision has no exact 0.1: the nearest number to it counts as 0.1.
            let single = |limit: f64| if row.fields.is_whole { limit } else { limit as f32 as f64 };
            let (low, high) = row.fields.range;
            within(row.name, (row.chosen)(&sampling), single(low)..=single(high))?;
        }
        if sampling.mirostat == Some(1) {
            return Err("mirostat is 1; it must be 0 or 2".to_owned());
        }
        let tokens = 1..=i32::MAX as usize;
        within("max_tokens", self.max_tokens, tokens.clone())?;
        within("context_tokens", self.context_tokens, tokens)
    }
}

fn within<T: PartialOrd + std::fmt::Display>(
    name: &str,
    value: Option<T>,
    range: RangeInclusive<T>,
) -> Result<(), String> {
    match value {
        Some(value) if !range.contains(&value) => {
            Err(format!("{name} is {value}; it must be from {} to {}", range.start(), range.end()))
        }
        _ => Ok(()),
    }
}

/// Whether a parameter has the value that changes nothing.
fn check_neutral(name: &str, value: &str) -> Result<(), String> {
    let due = NEUTRAL.iter().find(|(neutral, _)| *neutral == name);
    match due {
        Some((_, due)) if value.parse() != Ok(*due) => {
            Err(format!("{name} {value}: only {name} {due}, which changes nothing, is read"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_names_of_both_kinds_and_ranges() {
        let mut preset = Preset { model: "m".to_owned(), ..Preset::default() };
        let pairs = [
            ("temperature", "0.5"),
            ("num_predict", "9"),
            ("num_ctx", "512"),
            ("repeat_penalty", "1.1"),
            ("seed", "7"),
            ("stop", "END"),
            ("stop", "###"),
            ("think", "low"),
            ("keep_alive", "10m"),
            ("template.enable_tools", "false"),
            ("template.tone", "dry"),
            ("num_gpu", "99"),
            ("mirostat", "2"),
            ("repeat_last_n", "-1"),
        ];
        pairs.into_iter().for_each(|(name, value)| preset.set(name, value).unwrap());
        let json = serde_json::to_value(&preset).unwrap();
        let want = serde_json::json!({
            "name": "", "model": "m", "temperature": 0.5, "max_tokens": 9, "context_tokens": 512,
            "repetition_penalty": 1.1, "seed": 7, "stop": ["END", "###"], "think": true,
            "reasoning_effort": "low", "keep_alive": 600,
            "mirostat": 2, "repeat_last_n": -1,
            "template_options": { "enable_tools": false, "tone": "dry" },
        });
        let number = |value: &Value| value.as_f64().map(|number| (number * 1e4).round());
        for (name, value) in want.as_object().unwrap() {
            let same = json[name] == *value || number(&json[name]) == number(value);
            assert!(same && json.as_object().unwrap().len() == 14, "{name}: {json}");
        }
        assert_eq!(preset.check(), Ok(()));
        preset.set("max_tokens", "-1").unwrap();
        assert_eq!(preset.max_tokens, None);
    }

    #[test]
    fn a_preset_over_another_keeps_what_it_says_itself() {
        let base =
            Preset::from_modelfile("FROM m\nSYSTEM s\nPARAMETER top_k 3\nPARAMETER think low");
        let own = Preset::from_modelfile("FROM base\nPARAMETER top_k 5\nPARAMETER think off");
        let over = own.unwrap().over(&base.unwrap());
        let lines = "FROM m\nPARAMETER top_k 5\nPARAMETER think off\nSYSTEM s\n";
        assert_eq!(over.to_string(), lines);
    }

    #[test]
    fn wrong_values_are_named() {
        let cases = [
            ("temperature", "3", "expected 0 to 2"),
            ("temperature", "NaN", "expected 0 to 2"),
            ("num_ctx", "-5", "expected a whole number of tokens"),
            ("think", "much", "on, off, low"),
            ("dry", "2", "there is no setting dry. There are: temperature, top_k"),
            ("mirostat", "1", "it must be 0 or 2"),
            ("tfs_z", "2", "only tfs_z 1, which changes nothing"),
            ("repeat_last_n", "1.5", "expected -1 to 2147483647, a whole number"),
        ];
        for (name, value, why) in cases {
            let error = Preset::default().set(name, value).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let large = Some("x".repeat(PRESET_BYTES_MAX));
        let message = PresetMessage { role: "tool".to_owned(), content: String::new() };
        let model = "m".to_owned();
        let cases = [
            (Preset::default(), "the name of the model"),
            (Preset { model: model.clone(), system: large, ..Preset::default() }, "65536 bytes"),
            (Preset { model: model.clone(), messages: vec![message], ..Preset::default() }, "tool"),
            (Preset { model, min_p: Some(2.0), ..Preset::default() }, "min_p is 2; it must be"),
        ];
        for (preset, why) in cases {
            let error = preset.check().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
