//! Functions in a `namespace`, which agents send for the tools of other programs.
//!
//! Models have no namespaces. The model sees a name joined from both parts, and the client receives
//! the parts of a called name separately.

use serde_json::{Map, Value, json};

use crate::openai::custom::Customs;

/// What the tools' names, as the model sees them, stand for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Names {
    pub namespaces: Namespaces,
    pub customs: Customs,
}

/// The functions of namespaces, by the names that the model sees.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Namespaces(Vec<Member>);

#[derive(Debug, Clone, PartialEq)]
struct Member {
    told: String,
    space: String,
    name: String,
}

impl Namespaces {
    /// Replaces each namespace by its tools.
    pub fn open(listed: Vec<Value>) -> (Vec<Value>, Self) {
        let mut found = Self::default();
        let mut tools = Vec::with_capacity(listed.len());
        for tool in listed {
            if tool.get("type") == Some(&json!("namespace")) {
                found.open_one(tool, &mut tools);
            } else {
                tools.push(tool);
            }
        }
        (tools, found)
    }

    fn open_one(&mut self, mut namespace: Value, tools: &mut Vec<Value>) {
        let space = namespace["name"].as_str().unwrap_or_default().to_owned();
        let Some(Value::Array(members)) = namespace.get_mut("tools").map(Value::take) else {
            return;
        };
        for mut member in members {
            if !["function", "custom"].iter().any(|kind| member["type"] == *kind) {
                continue;
            }
            if let Some(name) = member.get("name").and_then(Value::as_str) {
                let (name, told) = (name.to_owned(), told_name(&space, name));
                member["name"] = json!(told);
                self.0.push(Member { told, space: space.clone(), name });
            }
            tools.push(member);
        }
    }

    /// Inserts a called function's name into a call's item, with its namespace if it has one.
    pub fn name(&self, called: &str, item: &mut Map<String, Value>) {
        let member = self.0.iter().find(|member| member.told == called);
        item.insert("name".into(), json!(member.map_or(called, |member| &member.name)));
        if let Some(member) = member {
            item.insert("namespace".into(), json!(member.space));
        }
    }
}

/// The name of a function that the model sees.
pub(super) fn told_name(space: &str, name: &str) -> String {
    let between = if space.is_empty() || space.ends_with(['_', '.', '-']) { "" } else { "__" };
    format!("{space}{between}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_namespaces_are_told_by_both_names() {
        let listed = json!([
            {"type": "function", "name": "shell"},
            {"type": "namespace", "name": "mcp__files__", "tools": [
                {"type": "function", "name": "read", "parameters": {"type": "object"}},
                {"type": "custom", "name": "odd"},
                {"type": "web_search"},
            ]},
            {"type": "namespace", "name": "web", "tools": [{"type": "function", "name": "get"}]},
            {"type": "namespace", "name": "empty"},
        ]);
        let (tools, found) = Namespaces::open(serde_json::from_value(listed).unwrap());
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert_eq!(names, ["shell", "mcp__files__read", "mcp__files__odd", "web__get"]);
        let item = |called: &str| {
            let mut item = Map::new();
            found.name(called, &mut item);
            Value::Object(item)
        };
        assert_eq!(item("shell"), json!({"name": "shell"}));
        assert_eq!(item("web__get"), json!({"name": "get", "namespace": "web"}));
        let read = json!({"name": "read", "namespace": "mcp__files__"});
        assert_eq!(item("mcp__files__read"), read);
    }
}
