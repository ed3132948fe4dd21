//! Presets as Ollama's Modelfiles.
//!
//! Source: Ollama's documentation of the format. `FROM`, `PARAMETER`, `SYSTEM` and `MESSAGE` are
//! read; `LICENSE` and `REQUIRES` change no answer; `TEMPLATE` and `ADAPTER` are refused.

use std::fmt::{Display, Formatter, Result as Written};

use super::{Preset, PresetMessage};
use crate::{PARAMETERS, Parameter};

/// Quotes of a value of several lines.
const LONG: &str = "\"\"\"";

impl Preset {
    /// Reads a Modelfile; the name is left empty.
    ///
    /// # Errors
    /// A line is wrong or not supported. The message has its number.
    pub fn from_modelfile(text: &str) -> Result<Self, String> {
        let mut preset = Self::default();
        // Editors on Windows begin a file so.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = Lines { rest: text, number: 0 };
        while let Some((number, line)) = lines.next() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |why: String| format!("line {number}: {why}");
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim_start();
            match word.to_ascii_uppercase().as_str() {
                "FROM" => preset.model = lines.value(rest).map_err(at)?,
                "SYSTEM" => preset.system = Some(lines.value(rest).map_err(at)?),
                "PARAMETER" => {
                    let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                    let value = lines.value(value.trim_start()).map_err(at)?;
                    preset.set(name, &value).map_err(at)?;
                }
                "MESSAGE" => {
                    let (role, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                    let content = lines.value(text.trim_start()).map_err(at)?;
                    preset.messages.push(PresetMessage { role: role.to_owned(), content });
                }
                "LICENSE" | "REQUIRES" => drop(lines.value(rest).map_err(at)?),
                "TEMPLATE" => {
                    let why = "TEMPLATE: a model's own template is used. Take the line out";
                    return Err(at(why.to_owned()));
                }
                "ADAPTER" => {
                    let why = "ADAPTER: adapters are not supported. Use a model that has it merged";
                    return Err(at(why.to_owned()));
                }
                _ => {
                    let words = "FROM, PARAMETER, SYSTEM, MESSAGE and LICENSE";
                    return Err(at(format!("{word} is none of {words}")));
                }
            }
        }
        match preset.model.is_empty() {
            true => Err("there is no line FROM MODEL".to_owned()),
            false => Ok(preset),
        }
    }

    /// The parameters as lines of a Modelfile, each without its first word.
    pub fn parameters(&self) -> Vec<String> {
        fn number<T: ToString>(value: Option<T>) -> Option<String> {
            value.map(|value| value.to_string())
        }
        let think = self.think.map(|on| if on { "on" } else { "off" }.to_owned());
        let keep = self.keep_alive.map(|keep| match i64::from(keep) {
            secs if secs < 0 => "-1".to_owned(),
            secs => secs.to_string(),
        });
        let sampling = self.sampling();
        // As short as they were written: in single precision.
        let shown = |row: &Parameter, value: f64| match row.fields.is_whole {
            true => value.to_string(),
            false => (value as f32).to_string(),
        };
        let numbers = PARAMETERS
            .iter()
            .map(|row| (row.llama_name(), (row.chosen)(&sampling).map(|value| shown(row, value))));
        let named = [
            ("seed", number(self.seed)),
            ("num_predict", number(self.max_tokens)),
            ("num_ctx", number(self.context_tokens)),
            ("think", self.reasoning_effort.clone().or(think)),
            ("keep_alive", keep),
        ];
        let named = numbers.chain(named);
        let named = named.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let stops = self.stop.iter().map(|stop| ("stop".to_owned(), quoted(stop)));
        let options = self.template_options.iter();
        let options = options.map(|(name, value)| (format!("template.{name}"), value.to_string()));
        named.chain(stops).chain(options).map(|(name, value)| format!("{name} {value}")).collect()
    }
}

/// As a Modelfile that [`Preset::from_modelfile`] reads back, unless a text has three quotes in a
/// row.
impl Display for Preset {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        writeln!(f, "FROM {}", self.model)?;
        for parameter in self.parameters() {
            writeln!(f, "PARAMETER {parameter}")?;
        }
        if let Some(system) = &self.system {
            writeln!(f, "SYSTEM {}", quoted(system))?;
        }
        for PresetMessage { role, content } in &self.messages {
            writeln!(f, "MESSAGE {role} {}", quoted(content))?;
        }
        Ok(())
    }
}

/// The value in quotes where it would not be read back without them.
fn quoted(value: &str) -> String {
    match value {
        _ if value.contains(['\n', '"']) => format!("{LONG}{value}{LONG}"),
        _ if value.is_empty() || value.trim() != value => format!("\"{value}\""),
        _ => value.to_owned(),
    }
}

struct Lines<'t> {
    rest: &'t str,
    number: usize,
}

impl<'t> Lines<'t> {
    fn next(&mut self) -> Option<(usize, &'t str)> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        (self.rest, self.number) = (rest, self.number + 1);
        Some((self.number, line.strip_suffix('\r').unwrap_or(line)))
    }

    /// A value that begins in this line: as it is, in quotes, or in three quotes over several
    /// lines.
    fn value(&mut self, first: &'t str) -> Result<String, String> {
        if let Some(begun) = first.strip_prefix(LONG) {
            if let Some((value, _)) = begun.split_once(LONG) {
                return Ok(value.to_owned());
            }
            let mut value = begun.to_owned();
            while let Some((_, line)) = self.next() {
                value.push('\n');
                if let Some((last, _)) = line.split_once(LONG) {
                    value.push_str(last);
                    return Ok(value.strip_prefix('\n').map_or(value.clone(), str::to_owned));
                }
                value.push_str(line);
            }
            return Err(format!("{LONG} begins here and does not end"));
        }
        let inner = first.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let value = inner.unwrap_or(first).to_owned();
        if value.is_empty() && inner.is_none() {
            Err("a value is missing".to_owned())
        } else {
            Ok(value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"# A pirate
from llama3.2
PARAMETER temperature 0.5
PARAMETER num_ctx 4096
PARAMETER stop "<|end|>"
PARAMETER stop "User: "

SYSTEM """You are a pirate.
Say "arr" often.
"""
MESSAGE user Who are you?
MESSAGE assistant A pirate, arr!
LICENSE """MIT
and more"""
"#;

    #[test]
    fn a_modelfile_is_read_and_written_back() {
        let preset = Preset::from_modelfile(FILE).unwrap();
        assert_eq!(preset.model, "llama3.2");
        assert_eq!((preset.temperature, preset.context_tokens), (Some(0.5), Some(4096)));
        assert_eq!(preset.stop, ["<|end|>", "User: "]);
        assert_eq!(preset.system.as_deref(), Some("You are a pirate.\nSay \"arr\" often.\n"));
        assert_eq!(preset.messages.len(), 2);
        assert_eq!(preset.messages[1].content, "A pirate, arr!");
        assert_eq!(Preset::from_modelfile(&preset.to_string()), Ok(preset.clone()));
        let windows = format!("\u{feff}{}", FILE.replace('\n', "\r\n"));
        assert_eq!(Preset::from_modelfile(&windows), Ok(preset.clone()));
        // Parameters of older versions that change nothing.
        let neutral = ["tfs_z 1", "penalize_newline false", "low_vram true"].into_iter();
        let neutral: String = neutral.map(|one| format!("PARAMETER {one}\n")).collect();
        assert_eq!(Preset::from_modelfile(&format!("{FILE}{neutral}")), Ok(preset));
        let full = Preset {
            model: "m".to_owned(),
            think: Some(true),
            reasoning_effort: Some("low".to_owned()),
            seed: Some(u64::MAX),
            typical_p: Some(0.7),
            mirostat: Some(2),
            mirostat_eta: Some(0.2),
            keep_alive: Some(crate::KeepAlive::FOR_GOOD),
            template_options: [("a".to_owned(), serde_json::json!({"b": [1]}))]
                .into_iter()
                .collect(),
            ..Preset::default()
        };
        assert_eq!(Preset::from_modelfile(&full.to_string()), Ok(full));
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number() {
        let cases = [
            ("", "no line FROM"),
            ("FROM", "line 1: a value is missing"),
            ("FROM m\nPARAMETER temperature hot", "line 2: temperature hot: expected 0 to 2"),
            ("FROM m\n\nTEMPLATE x", "line 3: TEMPLATE"),
            ("FROM m\nADAPTER a", "line 2: ADAPTER"),
            ("FROM m\nSYSTEM \"\"\"a\nb\n", "line 2: \"\"\" begins here"),
            ("FORM m", "line 1: FORM is none of FROM"),
            ("FROM m\nPARAMETER mirostat 1", "line 2: mirostat 1: mirostat is 1; it must be 0"),
            ("FROM m\nPARAMETER tfs_z 0.9", "line 2: tfs_z 0.9: only tfs_z 1, which changes"),
        ];
        for (file, why) in cases {
            let error = Preset::from_modelfile(file).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
