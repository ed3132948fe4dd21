//! A conversation as a tree of messages. Messages are numbered from 1, in the order in which they
//! came; 0 stands for the beginning.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::ChatsError;

/// More messages than fit any context, with room for versions.
const MESSAGES_MAX: usize = 16_384;
const TITLE_CHARS_MAX: usize = 60;
const TAGS_MAX: usize = 16;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// Raised with each change.
    #[serde(default)]
    pub version: u64,
    /// A person's title. Without one, the first question is shown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// When it was changed, since 1970.
    #[serde(default)]
    pub changed_ms: u64,
    #[serde(default)]
    pub model: String,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub system: String,
    /// Further fields of requests, such as `temperature`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
    /// The last message of the branch that is shown; 0 for the newest message's.
    #[serde(default)]
    pub head: usize,
    /// Messages of the branch before this one are not sent to a model: its context was full.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start: usize,
    pub messages: Vec<Message>,
}

/// A message, in the form of a chat request's, with what a page shows of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: String,
    /// A text, or parts.
    #[serde(default)]
    pub content: Value,
    /// The message that this one follows. Absent, it is the one before it in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The model that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Why an answer is not whole, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// `usage`, `timings` and whatever else a request's message or a page may have.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Message {
    pub fn new(role: &str, content: impl Into<Value>) -> Self {
        Self { role: role.to_owned(), content: content.into(), ..Self::default() }
    }

    /// The text of its content, without pictures.
    pub fn text(&self) -> String {
        match &self.content {
            Value::String(text) => text.clone(),
            Value::Array(parts) => {
                let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        }
    }

    /// The text that its writer has typed: without the files that go with it.
    fn words(&self) -> String {
        let Value::Array(parts) = &self.content else { return self.text() };
        let typed = parts.iter().filter(|part| part.get("sinew_file").is_none());
        Self { content: typed.cloned().collect(), ..Self::default() }.text()
    }

    /// As a request has it.
    pub fn request(&self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), Value::from(self.role.as_str()));
        message.insert("content".to_owned(), self.content.clone());
        for field in ["tool_calls", "tool_call_id", "name"] {
            if let Some(value) = self.more.get(field) {
                message.insert(field.to_owned(), value.clone());
            }
        }
        if let Some(thoughts) = &self.reasoning_content {
            message.insert("reasoning_content".to_owned(), Value::from(thoughts.as_str()));
        }
        Value::Object(message)
    }

    fn is_like(&self, other: &Self) -> bool {
        self.role == other.role && self.content == other.content
    }
}

impl Conversation {
    /// Reads a file's content. A system message in front becomes the system prompt.
    ///
    /// # Errors
    /// It is no conversation: what it is instead.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut read: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let is_plain = read.messages.iter().all(|message| message.after.is_none());
        if is_plain && read.messages.first().is_some_and(|first| first.role == "system") {
            let system = read.messages.remove(0);
            read.system = system.text();
            read.head = 0;
        }
        read.check().map_err(|error| error.to_string())?;
        Ok(read)
    }

    /// # Errors
    /// A message follows one that is not before it, or there are too many.
    pub fn check(&self) -> Result<(), ChatsError> {
        let count = self.messages.len();
        if count > MESSAGES_MAX {
            let what = format!("{count} messages");
            return Err(ChatsError::TooMuch { what, most: MESSAGES_MAX.to_string() });
        }
        if self.tags.len() > TAGS_MAX {
            let what = format!("{} tags", self.tags.len());
            return Err(ChatsError::TooMuch { what, most: TAGS_MAX.to_string() });
        }
        for (at, message) in self.messages.iter().enumerate() {
            if message.after.is_some_and(|after| after > at) {
                let message = message.after.unwrap_or_default();
                return Err(ChatsError::NoMessage { message, count: at });
            }
        }
        self.has(self.head)?;
        self.has(self.start)
    }

    /// # Errors
    /// There is no message of this number; 0 always is there.
    pub fn has(&self, message: usize) -> Result<(), ChatsError> {
        let count = self.messages.len();
        if message <= count { Ok(()) } else { Err(ChatsError::NoMessage { message, count }) }
    }

    pub fn message(&self, number: usize) -> Option<&Message> {
        self.messages.get(number.checked_sub(1)?)
    }

    /// The number of the message that this one follows.
    pub fn after(&self, number: usize) -> usize {
        let before = number.saturating_sub(1);
        self.message(number).map_or(0, |message| message.after.unwrap_or(before))
    }

    /// The end of the branch that is shown.
    pub fn head(&self) -> usize {
        if self.head == 0 { self.messages.len() } else { self.head }
    }

    /// The messages from the beginning to this one.
    pub fn path_to(&self, end: usize) -> Vec<usize> {
        let mut path = Vec::new();
        let mut at = end;
        // `check` has seen that each follows an earlier one.
        while at > 0 {
            path.push(at);
            at = self.after(at);
        }
        path.reverse();
        path
    }

    /// The newest end of a branch with this message.
    pub fn end_of(&self, number: usize) -> usize {
        let mut end = number;
        for later in number + 1..=self.messages.len() {
            if self.after(later) == end {
                end = later;
            }
        }
        end
    }

    /// Adds a message after another one. If that was the head, this one is it from now on.
    pub fn push(&mut self, mut message: Message, after: usize) -> usize {
        let was_head = self.head() == after;
        message.after = Some(after);
        self.messages.push(message);
        let number = self.messages.len();
        if was_head {
            self.head = number;
        } else if self.head == 0 {
            self.head = number - 1;
        }
        number
    }

    /// The requests' messages up to `end`: the system prompt, and what of the path is sent.
    pub fn request(&self, end: usize) -> Vec<Value> {
        let system = (!self.system.is_empty()).then(|| Message::new("system", &*self.system));
        let path = self.path_to(end);
        let from = path.iter().position(|number| *number == self.start).unwrap_or(0);
        let sent = path[from..].iter().filter_map(|number| self.message(*number));
        // An answer that failed before its first word says nothing.
        let sent = sent.filter(|one| one.role != "assistant" || !is_empty(&one.content));
        system.iter().chain(sent).map(Message::request).collect()
    }

    /// Drops the older half of the turns from what is sent; they stay in the conversation. Returns
    /// how many turns were dropped.
    pub fn drop_oldest(&mut self) -> usize {
        let path = self.path_to(self.head());
        let from = path.iter().position(|number| *number == self.start).unwrap_or(0);
        let is_question = |number: &usize| self.message(*number).is_some_and(|m| m.role == "user");
        let questions: Vec<usize> = path[from..].iter().copied().filter(is_question).collect();
        let dropped = questions.len() / 2;
        if let Some(first) = questions.get(dropped).filter(|_| dropped > 0) {
            self.start = *first;
        }
        dropped
    }

    /// Makes a path of messages the one that is shown: what is there already is kept, and the rest
    /// is added as a branch.
    pub fn merge(&mut self, messages: &[Message]) {
        let mut at = 0;
        for message in messages {
            let numbers = 1..=self.messages.len();
            let is_it = |number: &usize| {
                self.after(*number) == at
                    && self.message(*number).is_some_and(|known| known.is_like(message))
            };
            at = match numbers.rev().find(is_it) {
                Some(known) => known,
                None => {
                    let after = Some(at);
                    self.messages.push(Message { after, ..message.clone() });
                    self.messages.len()
                }
            };
        }
        self.head = at;
    }

    /// A person's title, or the first line of the first question that is shown.
    pub fn title(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        let path = self.path_to(self.head());
        let mut shown = path.iter().filter_map(|number| self.message(*number));
        let first = shown.find(|message| message.role == "user");
        let text = first.map(Message::words).unwrap_or_default();
        let line = text.trim().lines().next().unwrap_or_default();
        if line.is_empty() && first.is_some() {
            return "A file".to_owned();
        }
        match line.char_indices().nth(TITLE_CHARS_MAX - 1) {
            Some((end, _)) if line.len() > end + 4 => format!("{}\u{2026}", &line[..end]),
            _ => line.to_owned(),
        }
    }
}

fn is_empty(content: &Value) -> bool {
    match content {
        Value::String(text) => text.is_empty(),
        Value::Array(parts) => parts.is_empty(),
        other => other.is_null(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(texts: &[&str]) -> Conversation {
        let mut talk = Conversation::default();
        for (at, text) in texts.iter().enumerate() {
            let role = if at % 2 == 0 { "user" } else { "assistant" };
            let head = talk.head();
            talk.push(Message::new(role, *text), head);
        }
        talk
    }

    fn texts(talk: &Conversation) -> Vec<String> {
        talk.request(talk.head())
            .iter()
            .map(|m| m["content"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn another_answer_and_an_edited_question_are_branches() {
        let mut talk = talk(&["1", "one", "2", "two"]);
        let retried = talk.push(Message::new("assistant", "TWO"), 3);
        assert_eq!((retried, talk.head()), (5, 4), "the head was elsewhere");
        talk.head = talk.end_of(retried);
        assert_eq!(texts(&talk), ["1", "one", "2", "TWO"]);
        let edited = talk.push(Message::new("user", "3"), 0);
        talk.head = talk.end_of(edited);
        assert_eq!(texts(&talk), ["3"]);
        talk.head = talk.end_of(1);
        assert_eq!(texts(&talk), ["1", "one", "2", "two"]);
        assert_eq!(talk.path_to(5), [1, 2, 3, 5]);
    }

    #[test]
    fn a_path_that_is_merged_takes_nothing_away() {
        let mut shown = talk(&["1", "one", "2", "two"]);
        let typed = talk(&["1", "one", "other", "answer"]);
        shown.merge(&typed.messages);
        assert_eq!(texts(&shown), ["1", "one", "other", "answer"]);
        assert_eq!(shown.messages.len(), 6);
        shown.merge(&talk(&["1", "one", "2", "two"]).messages);
        assert_eq!((texts(&shown).len(), shown.messages.len(), shown.head), (4, 6, 4));
    }

    #[test]
    fn the_older_half_is_not_sent_and_stays() {
        let mut talk = talk(&["1", "one", "2", "two", "3", "three", "4"]);
        talk.system = "s".to_owned();
        assert_eq!(talk.drop_oldest(), 2);
        assert_eq!(texts(&talk), ["s", "3", "three", "4"]);
        assert_eq!(talk.drop_oldest(), 1);
        assert_eq!(talk.drop_oldest(), 0);
        assert_eq!((texts(&talk), talk.messages.len()), (vec!["s".to_owned(), "4".to_owned()], 7));
    }

    #[test]
    fn a_file_of_messages_alone_is_one_and_a_circle_is_none() {
        let plain = br#"{"model":"m","messages":[{"role":"system","content":"s"},
            {"role":"user","content":"q"},{"role":"assistant","content":"a","odd":1}]}"#;
        let talk = Conversation::parse(plain).unwrap();
        assert_eq!((talk.system.as_str(), talk.head(), talk.title().as_str()), ("s", 2, "q"));
        let again = serde_json::to_vec(&talk).unwrap();
        assert_eq!(Conversation::parse(&again).unwrap(), talk);
        for odd in [
            r#"{"messages":[{"role":"user","content":"q","after":1}]}"#,
            r#"{"messages":[{"role":"user","content":"q","after":9}]}"#,
            r#"{"head":2,"messages":[{"role":"user","content":"q"}]}"#,
            r#"{"messages":[{"content":"q"}]}"#,
            "[]",
            "",
        ] {
            Conversation::parse(odd.as_bytes()).unwrap_err();
        }
    }

    #[test]
    fn a_title_is_short() {
        assert_eq!(talk(&[&"ä".repeat(90)]).title().chars().count(), TITLE_CHARS_MAX);
        assert_eq!(talk(&[]).title(), "");
        assert_eq!(talk(&["\n a\nb"]).title(), "a");
    }
}
