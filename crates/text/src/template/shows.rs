//! Detects a template's capabilities: the parts of a conversation that it shows, and the forms that
//! it accepts.
//!
//! Templates are tested by rendering probes. [`super::fit`] rewrites forms that a template refuses
//! or omits.

use serde_json::{Value, json};

use super::message::{Style, Thoughts};
use super::{Message, ToolCall};

/// Renders messages and tools in the forms known to be necessary so far, or fails.
type Ask<'a> = dyn Fn(Shows, &[Message], &[Value]) -> Option<String> + 'a;

/// A template's capabilities. Each field is about a conversation in that form: a template that
/// refuses the form does not show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shows {
    pub(super) system: bool,
    /// A system message without any other message.
    pub(super) lone_system: bool,
    /// Tools beside that message.
    pub(super) tools_of_lone_system: bool,
    /// A system message before calls and results, if the conversation ends with a result.
    pub(super) system_before_results: bool,
    /// Several system messages at the start, and system messages further on.
    pub(super) more_systems: bool,
    pub(super) late_systems: bool,
    /// A conversation that starts with the assistant.
    pub(super) late_user: bool,
    /// Two consecutive messages of one side.
    pub(super) repeats: bool,
    /// An empty assistant message.
    pub(super) empty_said: bool,
    pub(super) tools: bool,
    pub(super) calls: bool,
    /// Calls, if the text beside them is none instead of empty.
    pub(super) calls_without_text: bool,
    pub(super) results: bool,
    /// Two calls in one message.
    pub(super) several_calls: bool,
    /// Text beside calls: in the current turn, in an earlier turn, and together with a thought.
    pub(super) text_beside_calls: bool,
    pub(super) text_beside_old_calls: bool,
    pub(super) text_and_thought: bool,
    /// A user's text after a result, and an assistant's text before its own call.
    pub(super) free_turns: bool,
    /// Where it reads thoughts.
    pub(super) thoughts: Thoughts,
    /// An assistant's text without a thought.
    pub(super) lone_text: bool,
}

impl Shows {
    /// All capabilities that need no fitting.
    pub(super) const ALL: Self = Self {
        system: true,
        lone_system: true,
        tools_of_lone_system: true,
        system_before_results: true,
        more_systems: true,
        late_systems: true,
        late_user: true,
        repeats: true,
        empty_said: true,
        tools: true,
        calls: true,
        calls_without_text: false,
        results: true,
        several_calls: true,
        text_beside_calls: true,
        text_beside_old_calls: true,
        text_and_thought: true,
        free_turns: true,
        thoughts: Thoughts::Field,
        lone_text: true,
    };

    /// Only texts of alternating users and assistants.
    pub(super) const LEAST: Self = Self {
        system: false,
        lone_system: false,
        more_systems: false,
        late_systems: false,
        late_user: false,
        repeats: false,
        empty_said: false,
        calls: false,
        results: false,
        several_calls: false,
        free_turns: false,
        ..Self::ALL
    };

    /// Probes a template.
    pub(super) fn probe(ask: &Ask) -> Self {
        let mut shows = Self::ALL;
        shows.lone_text = ask(shows, &[user(), said(), again()], &[]).is_some()
            || ask(Self { lone_text: false, ..shows }, &[user(), said(), again()], &[]).is_none();
        shows.probe_systems(ask);
        shows.probe_turns(ask);
        shows.probe_tools(ask);
        if shows.calls && shows.results {
            shows.probe_calls(ask);
        }
        shows.probe_thoughts(ask);
        shows
    }

    /// Looks for thoughts in a field first, then in the other places that show them. The probes
    /// before use the field.
    fn probe_thoughts(&mut self, ask: &Ask) {
        let thinking =
            |message: Message| Message { reasoning: Some("probe_thought".to_owned()), ..message };
        let shown = |thoughts: Thoughts, messages: &[Message], tools: &[Value]| {
            let text = ask(Self { thoughts, ..*self }, messages, tools).unwrap_or_default();
            // A template that knows no parts writes them as they are.
            text.contains("probe_thought") && !text.contains("'type'")
        };
        let call = [user(), thinking(calls("", 1)), result(1)];
        let past = [user(), thinking(said()), again()];
        let is_field = self.calls && shown(Thoughts::Field, &call, &[probe_tool()])
            || shown(Thoughts::Field, &past, &[]);
        let done = [&past[..], &[said(), again()]].concat();
        if is_field {
            return;
        }
        let places = [Thoughts::Part, Thoughts::Block];
        if let Some(place) = places.into_iter().find(|place| shown(*place, &past, &[])) {
            self.thoughts = place;
        } else if shown(Thoughts::Text, &past, &[]) && !shown(Thoughts::Text, &done, &[]) {
            // It takes thoughts out of the texts of earlier turns, so it expects them there.
            self.thoughts = Thoughts::Text;
        }
    }

    /// How messages are written for the template.
    pub(super) fn style(self) -> Style {
        let Self { thoughts, calls_without_text: no_text, .. } = self;
        Style { thoughts, no_text, ..Style::default() }
    }

    /// Whether the template shows all of `wanted` in a conversation.
    fn all(self, ask: &Ask, messages: &[Message], wanted: &[&str]) -> bool {
        let text = ask(self, messages, &[probe_tool()]);
        text.is_some_and(|text| wanted.iter().all(|one| text.contains(one)))
    }

    fn probe_systems(&mut self, ask: &Ask) {
        let plain = |shows: Self, messages: &[Message], wanted: &[&str]| {
            let text = ask(shows, messages, &[]);
            text.is_some_and(|text| wanted.iter().all(|one| text.contains(one)))
        };
        let other = || Message::new("system", "probe_other");
        let both = &["probe_system", "probe_other", "probe_user", "probe_again"];
        self.system = plain(*self, &[system(), user()], &both[..1]);
        self.lone_system = plain(*self, &[system()], &both[..1]);
        self.more_systems = plain(*self, &[system(), other(), user()], &both[..3]);
        let late = [system(), user(), said(), other(), again()];
        let last = [system(), user(), said(), again(), other()];
        self.late_systems = plain(*self, &late, both) && plain(*self, &last, both);
    }

    fn probe_turns(&mut self, ask: &Ask) {
        let plain = |shows: Self, messages: &[Message], wanted: &[&str]| {
            let text = ask(shows, messages, &[]);
            text.is_some_and(|text| wanted.iter().all(|one| text.contains(one)))
        };
        let more = || Message::new("assistant", "probe_more");
        let all = &["probe_said", "probe_user", "probe_more", "probe_again"];
        self.late_user = plain(*self, &[said(), user()], &all[..2]);
        let empty = || Message::new("assistant", "");
        self.empty_said = plain(*self, &[user(), empty(), again()], &[all[1], all[3]]);
        self.repeats = plain(*self, &[user(), again()], &[all[1], all[3]])
            && plain(*self, &[user(), said(), more(), again()], all);
    }

    fn probe_tools(&mut self, ask: &Ask) {
        let told = ask(*self, &[user()], &[probe_tool()]);
        // A template that cannot render the probe may have expected another kind of tool.
        self.tools = told.is_none_or(|text| text.contains("probe_tool"));
        // Mistral's templates show tools before a user's text.
        let lone = ask(*self, &[system()], &[probe_tool()]);
        self.tools_of_lone_system =
            !self.tools || lone.is_some_and(|text| text.contains("probe_tool"));
        let turn = [user(), calls("", 1), result(1)];
        let shown = |shows: Self, what| shows.all(ask, &turn, &[what]);
        self.calls = shown(*self, "probe_one");
        if !self.calls {
            let without_text = Self { calls: true, calls_without_text: true, ..*self };
            if shown(without_text, "probe_one") {
                *self = without_text;
            }
        }
        self.results = shown(*self, "probe_result1");
    }

    fn probe_calls(&mut self, ask: &Ask) {
        let turn = [user(), calls("", 2), result(1), result(2)];
        let wanted = ["probe_one", "probe_two", "probe_result1", "probe_result2"];
        self.several_calls = self.all(ask, &turn, &wanted);
        let turn = [user(), calls("", 1), result(1), again()];
        self.free_turns = self.all(ask, &turn, &["probe_one", "probe_result1", "probe_again"]);
        let turn = [calls("", 1), result(1), again()];
        self.late_user &= self.all(ask, &turn, &["probe_one", "probe_result1", "probe_again"]);
        let turn = [system(), user(), calls("", 1), result(1)];
        self.system_before_results = self.all(ask, &turn, &["probe_system"]);
        let wanted = ["probe_said", "probe_one", "probe_result1"];
        // Text before a call must not move behind its result.
        let shown = |turn: &[Message]| {
            let text = ask(*self, turn, &[probe_tool()]).unwrap_or_default();
            let [said, call, result] = wanted.map(|one| text.find(one));
            call.is_some() && said.is_some() && said < result
        };
        let turn = [user(), calls("probe_said", 1), result(1)];
        let text_beside_calls = shown(&turn);
        let old = [user(), calls("probe_said", 1), result(1), Message::new("assistant", "done")];
        let old = [&old[..], &[again()]].concat();
        let text_beside_old_calls = shown(&old);
        (self.text_beside_calls, self.text_beside_old_calls) =
            (text_beside_calls, text_beside_old_calls);
        let thought = Some("probe_thought".to_owned());
        let thinking = Message { reasoning: thought, ..calls("probe_said", 1) };
        self.text_and_thought = self.all(ask, &[user(), thinking, result(1)], &wanted);
        // Text in a separate message may be in a place where the template allows none.
        if !self.text_beside_old_calls {
            self.free_turns &= self.all(ask, &old, &wanted);
        }
    }
}

pub(super) fn user() -> Message {
    Message::new("user", "probe_user")
}

pub(super) fn system() -> Message {
    Message::new("system", "probe_system")
}

fn again() -> Message {
    Message::new("user", "probe_again")
}

fn said() -> Message {
    Message::new("assistant", "probe_said")
}

fn calls(text: &str, count: usize) -> Message {
    let call = |(at, name): (usize, &str)| ToolCall {
        id: format!("probeid0{}", at + 1),
        name: name.into(),
        arguments: json!({ "probe_key": "probe_value" }),
    };
    let names = ["probe_one", "probe_two"].into_iter().take(count);
    Message { tool_calls: names.enumerate().map(call).collect(), ..Message::new("assistant", text) }
}

fn result(number: usize) -> Message {
    Message {
        tool_call_id: Some(format!("probeid0{number}")),
        name: Some(if number == 1 { "probe_one" } else { "probe_two" }.into()),
        ..Message::new("tool", format!("probe_result{number}"))
    }
}

pub(super) fn probe_tool() -> Value {
    let key = json!({"type": "string", "description": "probe"});
    let parameters =
        json!({"type": "object", "properties": {"probe_key": key}, "required": ["probe_key"]});
    let function = json!({"name": "probe_tool", "description": "probe", "parameters": parameters});
    json!({"type": "function", "function": function})
}
