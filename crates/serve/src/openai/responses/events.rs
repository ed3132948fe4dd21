use std::collections::VecDeque;

use serde_json::{Value, json};

use super::namespace::Names;
use super::output::{Envelope, Output, Wants};
use crate::completion::{Outcome, Part};
use crate::http::error::ApiError;
use crate::http::stream::Item;
use crate::openai::answers::Write;

/// Writes a response as events.
pub(super) struct Events {
    told: Envelope,
    output: Output,
    counter: Counter,
}

/// Numbers events from 0 on.
#[derive(Default)]
struct Counter(u64);

impl Counter {
    fn data(&mut self, name: &'static str, mut fields: Value) -> String {
        fields["type"] = json!(name);
        fields["sequence_number"] = json!(self.0);
        self.0 += 1;
        fields.to_string()
    }

    fn item(&mut self, name: &'static str, fields: Value) -> Item {
        Item::Event(name, self.data(name, fields))
    }
}

impl Events {
    pub fn new(told: Envelope, wants: Wants, names: Names) -> Self {
        Self { told, output: Output::new(wants, names), counter: Counter::default() }
    }
}

impl Write for Events {
    fn begin(&mut self, out: &mut VecDeque<Item>) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.told.in_progress();
            out.push_back(self.counter.item(name, json!({ "response": response })));
        }
    }

    fn part(&mut self, _index: usize, part: Part, out: &mut VecDeque<Item>) {
        let Self { output, counter, .. } = self;
        output.part(part, &mut |name, fields| out.push_back(counter.item(name, fields)));
    }

    fn done(&mut self, _index: usize, outcome: &Outcome, out: &mut VecDeque<Item>) {
        let Self { output, counter, .. } = self;
        output.close(&outcome.finish, &mut |name, fields| {
            out.push_back(counter.item(name, fields));
        });
    }

    fn end(&mut self, outcome: &Outcome, out: &mut VecDeque<Item>) {
        let response = self.told.finished(outcome, std::mem::take(&mut self.output.items));
        let name = match response["status"].as_str() {
            Some("incomplete") => "response.incomplete",
            _ => "response.completed",
        };
        out.push_back(self.counter.item(name, json!({ "response": response })));
    }

    fn fail(&mut self, error: ApiError, out: &mut VecDeque<Item>) {
        const NAME: &str = "response.failed";
        let output = std::mem::take(&mut self.output.items);
        let response = self.told.failed(error.code, &error.message, output);
        let data = self.counter.data(NAME, json!({ "response": response }));
        out.push_back(Item::FailEvent(NAME, data));
    }
}
