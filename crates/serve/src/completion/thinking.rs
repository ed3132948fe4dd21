//! What a request asks of the model's thoughts, and what the model's template makes of it.

use serde_json::{Map, Value};
use text::{ChatTemplate, Effort, Settings, Thinking, Unmet, Wish};

use super::CompletionError;

/// Whether and how hard to think, each with the field that says it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ThinkingChoice {
    pub wish: Option<(Wish, &'static str)>,
    pub effort: Option<(Effort, &'static str)>,
}

/// Template variables that name what other fields of requests do. They mean the same, whatever the
/// template calls it.
const SWITCHES: &[(&str, &str)] = &[
    ("enable_thinking", "chat_template_kwargs.enable_thinking"),
    ("thinking", "chat_template_kwargs.thinking"),
];
const EFFORT: (&str, &str) = ("reasoning_effort", "chat_template_kwargs.reasoning_effort");

impl ThinkingChoice {
    /// On or off.
    pub fn switched(on: bool) -> Wish {
        if on { Wish::On } else { Wish::Off }
    }

    /// Takes what a request leaves open from its template variables, and removes these.
    pub(super) fn or_variables(mut self, variables: &mut Map<String, Value>) -> Self {
        for (name, field) in SWITCHES {
            if let Some(on) = variables.get(*name).and_then(Value::as_bool) {
                variables.remove(*name);
                self.wish = self.wish.or(Some((Self::switched(on), field)));
            }
        }
        let (name, field) = EFFORT;
        if let Some(effort) = variables.get(name).and_then(Value::as_str).and_then(Effort::named) {
            variables.remove(name);
            self.effort = self.effort.or(Some((effort, field)));
        }
        self
    }

    /// What to set in the template.
    ///
    /// # Errors
    /// The template cannot do it; the error names the field.
    pub(super) fn settings(&self, template: &ChatTemplate) -> Result<Settings, CompletionError> {
        let wish = self.wish.map(|(wish, _)| wish);
        let effort = self.effort.map(|(effort, _)| effort);
        template.thinking(Thinking { wish, effort }).map_err(|unmet| {
            let named = self.wish.map(|(_, field)| field);
            let field = named.or(self.effort.map(|(_, field)| field)).unwrap_or("thinking");
            let message = match unmet {
                Unmet::NeverThinks => format!(
                    "{field}: the model does not support thinking, by its chat template. Leave it \
                     out"
                ),
                Unmet::AlwaysThinks => format!(
                    "{field}: the model always thinks; its chat template has no switch for it. \
                     Leave it out, or ask for a low effort"
                ),
            };
            CompletionError::Unusable { field, message }
        })
    }
}
