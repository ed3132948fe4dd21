//! Requests about presets.

use protocol::Preset;
use serde_json::{Value, json};

use super::{ANSWER_MAX, Client, LOOK_MAX};
use crate::error::CliError;

impl Client {
    /// The presets of the cluster, by name.
    pub fn presets(&self) -> Result<Vec<Preset>, CliError> {
        self.get(&format!("{}/sinew/v1/presets", self.api))
    }

    /// The preset of this name, if there is one.
    pub fn preset(&self, name: &str) -> Result<Option<Preset>, CliError> {
        Ok(self.presets()?.into_iter().find(|preset| preset.name == name))
    }

    /// Writes a preset; returns it as it is kept.
    pub fn write_preset(&self, preset: &Preset) -> Result<Preset, CliError> {
        self.ask("/sinew/v1/presets", preset, LOOK_MAX)
    }

    pub fn remove_preset(&self, name: &str) -> Result<(), CliError> {
        let body = json!({ "name": name });
        self.ask::<Value>("/sinew/v1/presets/remove", &body, ANSWER_MAX).map(drop)
    }
}
