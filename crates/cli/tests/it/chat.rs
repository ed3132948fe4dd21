//! A chat at a terminal: what is typed, asked, set, kept and forgotten.

use crate::common::terminal::Terminal;
use crate::common::{Node, SINEW, demo_model, signal, sinew, wait_for};
use serde_json::Value;

/// A node that serves the demo model.
fn serving(options: &[&str]) -> Node {
    let node = Node::start("a");
    node.run(&[&["serve", &demo_model()], options].concat());
    node
}

fn chat(node: &Node, options: &str) -> Terminal {
    let dir = node.dir.path().display();
    let mut chat = Terminal::start(&format!("{SINEW} run sinew-demo --data-dir {dir} {options}"));
    chat.sees("ask something, or /help");
    chat
}

/// The messages of a conversation that was kept.
fn kept(node: &Node, name: &str) -> Vec<(String, String)> {
    let file = std::fs::read(node.dir.path().join("chats").join(format!("{name}.json"))).unwrap();
    let kept: Value = serde_json::from_slice(&file).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let system = kept.get("system").map(|system| ("system".to_owned(), text(system)));
    let messages = kept["messages"].as_array().unwrap().iter();
    let messages = messages.map(|one| (text(&one["role"]), text(&one["content"])));
    system.into_iter().chain(messages).collect()
}

fn questions(node: &Node, name: &str) -> Vec<String> {
    let asked = kept(node, name).into_iter().filter(|(role, _)| role == "user");
    asked.map(|(_, text)| text).collect()
}

/// Waits until a question is with the node, or none is.
fn wait_for_requests(node: &Node, some: bool) {
    wait_for("a question to come or to end", || {
        let status = node.instance("sinew-demo")?;
        let none = status["requests_running"] == 0 && status["requests_waiting"] == 0;
        (some != none).then_some(())
    });
}

#[test]
fn lines_that_come_together_are_asked_one_after_the_other() {
    let node = serving(&[]);
    let mut chat = chat(&node, "--max-tokens 4");
    chat.type_in("What is Sinew?\rWho are you?\r/save two\rhalf");
    chat.sees("kept in");
    assert_eq!(questions(&node, "two"), ["What is Sinew?", "Who are you?"]);
    chat.type_in(" a line\r/save three\r");
    chat.sees("kept in");
    assert_eq!(questions(&node, "three")[2], "half a line");
    chat.type_in("/bye\r");
    chat.ends();
}

#[test]
fn what_is_typed_during_an_answer_waits_and_ctrl_c_stops_the_answer() {
    let node = serving(&[]);
    let worker = node.worker_pids("sinew-demo")[0];
    let mut chat = chat(&node, "--max-tokens 4");
    signal("-STOP", worker);
    chat.type_in("What is Sinew?\r");
    chat.sees("What is Sinew?");
    // The node has the question, so this is typed during the answer.
    wait_for_requests(&node, true);
    chat.type_in("typed ahead\r");
    // Sleeps: nothing may be shown of it meanwhile.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(!chat.screen().contains("typed ahead"), "{}", chat.screen());
    signal("-CONT", worker);
    chat.sees("typed ahead");
    chat.type_in("/save ahead\r");
    chat.sees("kept in");
    assert_eq!(questions(&node, "ahead"), ["What is Sinew?", "typed ahead"]);

    wait_for_requests(&node, false);
    signal("-STOP", worker);
    chat.type_in("Who are you?\r");
    chat.sees("Who are you?");
    wait_for_requests(&node, true);
    chat.type_in("\x03");
    chat.sees("(stopped)");
    signal("-CONT", worker);
    chat.type_in("/bye\r");
    chat.ends();
}

#[test]
fn a_question_may_have_several_lines() {
    let node = serving(&[]);
    let mut chat = chat(&node, "--max-tokens 4");
    chat.type_in("\"\"\"/one\r\rtwo\r\"\"\"\rthree\x1b\rfour\r/save lines\r");
    chat.sees("kept in");
    assert_eq!(questions(&node, "lines"), ["/one\n\ntwo", "three\nfour"]);
    chat.type_in("\x1b[200~five\rsix\x1b[201~\r/save paste\r");
    chat.sees("kept in");
    assert_eq!(questions(&node, "paste")[2], "five\nsix");
    chat.type_in("/bye\r");
    chat.ends();
}

#[test]
fn commands_set_show_keep_and_bring_back() {
    let node = serving(&[]);
    let mut first = chat(&node, "--max-tokens 4 --system 'Be brief.'");
    for (typed, answer) in [
        ("/hlep", "did you mean /help?"),
        ("/help", "/system [TEXT]"),
        ("/system", "Be brief."),
        ("/system Be long.", "> "),
        ("/set temprature 0", "did you mean temperature?"),
        ("/set temperature 0", "(temperature: 0)"),
        ("/set verbose", "(verbose: on)"),
        ("/set", "format"),
        ("What is Sinew?", "tokens/s"),
        ("/show", "runs on       a (100 %)"),
        ("/save boats", "kept in"),
        ("/clear", "> "),
        ("/show", "turns         0"),
        ("/load", "boats"),
        ("/load boat", "did you mean boats?"),
        ("/load boats", "(it has 1 turn)"),
        ("/image /no/such.png", "/no/such.png"),
    ] {
        first.type_in(&format!("{typed}\r"));
        first.sees(answer);
    }
    first.type_in("/bye\r");
    first.ends();
    let messages = kept(&node, "boats");
    assert_eq!(messages[0], ("system".to_owned(), "Be long.".to_owned()));
    assert_eq!(messages.len(), 3, "{messages:?}");

    // The questions of earlier chats are found by Ctrl-R.
    let mut second = chat(&node, "--max-tokens 4");
    second.type_in("\x12Sinew\r");
    second.sees("What is Sinew?");
    second.type_in("/save again\r");
    second.sees("kept in");
    assert_eq!(questions(&node, "again"), ["What is Sinew?"]);
    second.type_in("\x04");
    second.ends();
}

#[test]
fn a_full_context_forgets_the_oldest_turns_if_the_user_agrees() {
    let node = serving(&["--ctx", "40"]);
    let dir = node.dir.path().to_str().unwrap();
    let output = sinew(&["run", "sinew-demo", "What is Sinew?", "--data-dir", dir]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the context of 40 tokens is full; --ctx gives more"), "{said}");
    let output =
        sinew(&["run", "sinew-demo", "What is Sinew?", "--max-tokens", "3", "--data-dir", dir]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cut off at --max-tokens 3"), "{said}");

    let mut chat = chat(&node, "");
    chat.type_in("What is Sinew?\r");
    chat.sees("context of 40 tokens is full");
    chat.type_in("Who are you?\r");
    chat.sees("Forget the oldest turns and go on? [Y/n]");
    chat.type_in("Where is it?\r");
    chat.sees("Forget the oldest turns and go on? [Y/n]");
    chat.type_in("n\r/save before\r");
    chat.sees("kept in");
    assert_eq!(questions(&node, "before"), ["What is Sinew?"]);
    chat.type_in("Who are you?\r");
    chat.sees("Forget the oldest turns and go on? [Y/n]");
    chat.type_in("\r");
    chat.sees("(1 turn forgotten, 0 stay)");
    chat.type_in("/save after\r");
    chat.sees("kept in");
    assert_eq!(questions(&node, "after"), ["Who are you?"]);
    chat.type_in("/bye\r");
    chat.ends();
}

#[test]
fn figures_come_when_asked_for_and_a_format_shapes_the_answer() {
    let node = serving(&[]);
    let dir = node.dir.path().to_str().unwrap();
    let ask = |options: &[&str]| {
        let args = [&["run", "sinew-demo", "What is Sinew?", "--data-dir", dir], options].concat();
        let output = sinew(&args);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert!(output.status.success());
        (text(output.stdout), text(output.stderr))
    };
    let (answer, figures) = ask(&["--temperature", "0"]);
    assert!(!answer.is_empty() && figures.is_empty(), "{figures}");
    let (same, figures) = ask(&["--temperature", "0", "--verbose", "--no-think"]);
    assert!(same == answer && figures.contains("tokens/s"), "{figures}");

    let schema = node.dir.path().join("schema.json");
    let text = r#"{"type": "object", "properties": {"blue": {"type": "boolean"}},
        "required": ["blue"], "additionalProperties": false}"#;
    std::fs::write(&schema, text).unwrap();
    let (answer, _) = ask(&["--format", schema.to_str().unwrap(), "--think=off"]);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert!(answer["blue"].is_boolean(), "{answer}");
    let output = sinew(&["run", "sinew-demo", "x", "--format", "xml", "--data-dir", dir]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("expected json, or the file of a JSON schema"), "{said}");
}
