//! Presets: what a request gets from the preset that it names. What it sets itself comes first.

use protocol::{Preset, PresetMessage};
use text::{Effort, Message};

use super::request::{Chat, CompletionRequest, Prompt};
use super::thinking::ThinkingChoice;

impl CompletionRequest {
    pub(super) fn with_preset(mut self, preset: &Preset) -> Self {
        self.prompt = self.prompt.with_preset(preset);
        self.sampling = self.sampling.or(preset.sampling());
        if self.stops.is_empty() {
            self.stops.clone_from(&preset.stop);
        }
        self.max_tokens = self.max_tokens.or(preset.max_tokens);
        self.context_max = self.context_max.or(preset.context_tokens);
        self.keep_alive = self.keep_alive.or(preset.keep_alive);
        self
    }
}

impl Prompt {
    /// Prompts that go to the model as they are have neither messages nor a template.
    pub(super) fn with_preset(self, preset: &Preset) -> Self {
        match self {
            Self::Chat(chat) => Self::Chat(chat.with_preset(preset)),
            verbatim => verbatim,
        }
    }
}

impl Chat {
    fn with_preset(mut self, preset: &Preset) -> Self {
        let is_instruction = |message: &Message| ["system", "developer"].contains(&&*message.role);
        let begin = self.messages.iter().take_while(|message| is_instruction(message)).count();
        let examples = preset.messages.iter().map(|PresetMessage { role, content }| Message {
            role: role.clone(),
            content: content.clone(),
            ..Message::default()
        });
        self.messages.splice(begin..begin, examples);
        if let Some(system) = preset.system.as_ref().filter(|_| begin == 0) {
            let (role, content) = ("system".to_owned(), system.clone());
            self.messages.insert(0, Message { role, content, ..Message::default() });
        }
        if self.thinking == ThinkingChoice::default() {
            let effort = preset.reasoning_effort.as_deref().and_then(Effort::named);
            self.thinking = ThinkingChoice {
                wish: preset.think.map(|on| (ThinkingChoice::switched(on), "think")),
                effort: effort.map(|effort| (effort, "reasoning_effort")),
            };
        }
        let own = std::mem::replace(&mut self.variables, preset.template_options.clone());
        self.variables.extend(own);
        self
    }
}

#[cfg(test)]
mod tests {
    use protocol::SamplingChoice;
    use text::Wish;

    use super::*;

    fn preset() -> Preset {
        let file = "FROM m\nPARAMETER temperature 0.5\nPARAMETER top_k 3\nPARAMETER stop END\n\
                    PARAMETER num_ctx 512\nPARAMETER think low\nPARAMETER template.a 1\n\
                    PARAMETER template.b 2\nSYSTEM be brief\nMESSAGE user hi\nMESSAGE assistant ho";
        Preset::from_modelfile(file).unwrap()
    }

    fn chat(messages: &[(&str, &str)]) -> Chat {
        let message = |(role, content): &(&str, &str)| Message {
            role: (*role).to_owned(),
            content: (*content).to_owned(),
            ..Message::default()
        };
        Chat { messages: messages.iter().map(message).collect(), ..Chat::default() }
    }

    fn said(request: &CompletionRequest) -> Vec<(&str, &str)> {
        let Prompt::Chat(chat) = &request.prompt else { panic!("it is a chat") };
        chat.messages.iter().map(|one| (one.role.as_str(), one.content.as_str())).collect()
    }

    #[test]
    fn a_request_gets_what_it_does_not_set() {
        let prompt = Prompt::Chat(chat(&[("user", "go")]));
        let request = CompletionRequest { prompt, ..Default::default() }.with_preset(&preset());
        let want = [("system", "be brief"), ("user", "hi"), ("assistant", "ho"), ("user", "go")];
        assert_eq!(said(&request), want);
        assert_eq!((request.sampling.temperature, request.sampling.top_k), (Some(0.5), Some(3)));
        assert_eq!((request.context_max, request.stops), (Some(512), vec!["END".to_owned()]));
        let Prompt::Chat(chat) = request.prompt else { panic!("it is a chat") };
        let (wish, effort) = (Some((Wish::On, "think")), Some((Effort::Low, "reasoning_effort")));
        assert_eq!(chat.thinking, ThinkingChoice { wish, effort });
    }

    #[test]
    fn what_a_request_sets_stays() {
        let mut own = chat(&[("developer", "be long"), ("user", "go")]);
        let off = ThinkingChoice { wish: Some((Wish::Off, "think")), effort: None };
        own.thinking = off;
        own.variables.insert("b".to_owned(), 3.into());
        let request = CompletionRequest {
            prompt: Prompt::Chat(own),
            sampling: SamplingChoice { temperature: Some(0.0), ..Default::default() },
            stops: vec!["mine".to_owned()],
            max_tokens: Some(7),
            ..Default::default()
        };
        let request = request.with_preset(&preset());
        let want = [("developer", "be long"), ("user", "hi"), ("assistant", "ho"), ("user", "go")];
        assert_eq!(said(&request), want);
        assert_eq!((request.sampling.temperature, request.max_tokens), (Some(0.0), Some(7)));
        assert_eq!(request.stops, ["mine"]);
        let Prompt::Chat(chat) = request.prompt else { panic!("it is a chat") };
        assert_eq!(chat.thinking, off);
        assert_eq!((&chat.variables["a"], &chat.variables["b"]), (&1.into(), &3.into()));
        let text = Prompt::Text("x".to_owned()).with_preset(&preset());
        assert!(matches!(text, Prompt::Text(text) if text == "x"));
    }
}
