//! Rewrites a conversation into a form that a template shows completely.
//!
//! Supported forms stay unchanged. Tools that the template omits are described in a text, with the
//! call form that the reply's parser reads. Omitted calls and results become text of their
//! messages. Refused messages become the nearest supported ones.

use serde_json::Value;

use super::Message;
use super::message::{Thoughts, instruct};
use super::pair::response;
use super::shows::Shows;
use crate::ReplyFormat;

impl Shows {
    /// The messages in a form that the template shows completely. `guard` keeps a client's text
    /// from being parsed as control tokens; the messages' own text is already guarded.
    pub(super) fn fit(
        self,
        format: &ReplyFormat,
        mut messages: Vec<Message>,
        tools: &[Value],
        guard: impl Fn(&str) -> String,
    ) -> Vec<Message> {
        if !self.tools && !tools.is_empty() {
            let list: Vec<String> = tools.iter().map(|tool| guard(&tool.to_string())).collect();
            instruct(&mut messages, &format.tool_text(&list.join("\n")));
        }
        let mut messages = self.systems(messages, !tools.is_empty());
        messages.iter_mut().for_each(|message| self.place_thought(format, message));
        if !self.empty_said {
            messages.retain(|message| !is_said(message) || !message.content.is_empty());
        }
        let mut messages = self.text_apart(messages);
        if !self.text_and_thought {
            messages.iter_mut().for_each(think_aloud);
        }
        if !self.several_calls {
            messages = one_call_each(messages);
        }
        messages.iter_mut().for_each(|message| self.write_out(format, message));
        if !self.repeats {
            messages = join(messages);
        }
        self.in_turn(messages)
    }

    /// Keeps system messages that the template supports; the others become user messages.
    fn systems(self, mut messages: Vec<Message>, has_tools: bool) -> Vec<Message> {
        let leading = messages.iter().take_while(|message| message.role == "system").count();
        let mut rest = messages.split_off(leading);
        if leading > 1 && !(self.system && self.more_systems) {
            let texts: Vec<&str> =
                messages.iter().map(|message| message.content.as_str()).collect();
            messages = vec![Message::new("system", joined(&texts))];
        }
        if !self.late_systems {
            for late in rest.iter_mut().filter(|message| message.role == "system") {
                *late = Message::new("user", format!("<system>\n{}\n</system>", late.content));
            }
        }
        let is_taken = self.lone_system && (self.tools_of_lone_system || !has_tools);
        let is_lone = rest.is_empty() && !is_taken;
        let is_before_results = rest.last().is_some_and(|last| last.role == "tool");
        if !self.system || is_lone || is_before_results && !self.system_before_results {
            messages.iter_mut().for_each(|system| system.role = "user".into());
            if let (Some(user), Some(system)) = (rest.first_mut(), messages.first())
                && is_user(user)
            {
                user.content = joined(&[&system.content, &user.content]);
                messages.clear();
            }
        }
        messages.append(&mut rest);
        messages
    }

    /// Moves text beside calls to a separate message if the template would not show it.
    fn text_apart(self, messages: Vec<Message>) -> Vec<Message> {
        let last_said = messages.iter().rposition(is_said).unwrap_or(0);
        let mut apart = Vec::with_capacity(messages.len());
        for (at, mut message) in messages.into_iter().enumerate() {
            let is_shown =
                if at < last_said { self.text_beside_old_calls } else { self.text_beside_calls };
            let has_both = !message.tool_calls.is_empty() && !message.content.is_empty();
            if self.calls && has_both && !is_shown {
                apart.push(Message::new("assistant", std::mem::take(&mut message.content)));
            }
            apart.push(message);
        }
        apart
    }

    /// Puts a thought where the template reads it.
    fn place_thought(self, format: &ReplyFormat, message: &mut Message) {
        if !self.lone_text && message.role == "assistant" {
            message.reasoning.get_or_insert_default();
        }
        if self.thoughts == Thoughts::Text
            && let Some(thought) = message.reasoning.take()
        {
            message.content = format.think_aloud(&thought) + &message.content;
        }
    }

    /// Writes calls and results as text if the template shows none.
    fn write_out(self, format: &ReplyFormat, message: &mut Message) {
        if !self.calls && !message.tool_calls.is_empty() {
            let calls = std::mem::take(&mut message.tool_calls);
            message.content = joined(&[&message.content, &format.write_calls(&calls)]);
        }
        if !self.results && message.role == "tool" {
            *message = Message::new("user", response(&message.content));
        }
    }

    /// Alternates users and assistants if the template requires it, with empty messages for the
    /// missing ones. Calls and results do not count as turns.
    fn in_turn(self, messages: Vec<Message>) -> Vec<Message> {
        if self.free_turns && self.late_user {
            return messages;
        }
        let mut turns: Vec<Message> = Vec::with_capacity(messages.len());
        let mut last = None;
        for (at, message) in messages.iter().enumerate() {
            let is_turn = is_user(message) || is_said(message);
            let is_first = last.is_none() && message.role == "assistant";
            let repeats = !self.free_turns && is_turn && last == Some(message.role.as_str());
            if is_first || repeats {
                let other = if is_user(message) { "assistant" } else { "user" };
                turns.push(Message::new(other, ""));
                last = Some(other);
            }
            turns.push(message.clone());
            if is_turn {
                last = Some(&message.role);
            }
            let calls_next = messages.get(at + 1).is_some_and(|next| !next.tool_calls.is_empty());
            if !self.free_turns && is_said(message) && calls_next {
                turns.push(Message::new("user", ""));
                last = Some("user");
            }
        }
        turns
    }
}

/// Moves a thought to the start of the text beside calls.
fn think_aloud(message: &mut Message) {
    if !message.tool_calls.is_empty() && !message.content.is_empty() {
        let thought = message.reasoning.take().unwrap_or_default();
        message.content = joined(&[&thought, &message.content]);
    }
}

/// Splits a message with several calls into several messages, each followed by its results.
fn one_call_each(messages: Vec<Message>) -> Vec<Message> {
    let mut each = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        let mut calls = std::mem::take(&mut message.tool_calls).into_iter();
        let first = calls.next();
        if calls.len() == 0 {
            message.tool_calls.extend(first);
            each.push(message);
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = messages.next_if(|next| next.role == "tool") {
            results.push(result);
        }
        for call in first.into_iter().chain(calls) {
            let id = call.id.clone();
            let rest = Message::new("assistant", "");
            let mut one = std::mem::replace(&mut message, rest);
            one.tool_calls = vec![call];
            each.push(one);
            each.extend(results.extract_if(.., |one| one.tool_call_id.as_ref() == Some(&id)));
        }
        each.append(&mut results);
    }
    each
}

/// Joins consecutive messages of the same role.
fn join(messages: Vec<Message>) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        let joins = |last: &Message| {
            is_user(last) && is_user(&message) || is_said(last) && is_said(&message)
        };
        match all.last_mut().filter(|last| joins(last)) {
            Some(last) => {
                last.content = joined(&[&last.content, &message.content]);
                last.reasoning = match (last.reasoning.take(), message.reasoning) {
                    (Some(first), Some(second)) => Some(joined(&[&first, &second])),
                    (first, second) => first.or(second),
                };
            }
            None => all.push(message),
        }
    }
    all
}

fn is_user(message: &Message) -> bool {
    message.role == "user"
}

/// Whether it is an assistant's message without calls.
fn is_said(message: &Message) -> bool {
    message.role == "assistant" && message.tool_calls.is_empty()
}

fn joined(texts: &[&str]) -> String {
    let texts: Vec<&str> = texts.iter().copied().filter(|text| !text.is_empty()).collect();
    texts.join("\n\n")
}
