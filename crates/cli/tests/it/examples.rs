//! The examples get answers from a real node.

use std::process::Command;

use crate::common::{Node, demo_model, repository};

#[test]
fn every_example_whose_interpreter_is_there_answers() {
    let node = Node::start("a");
    node.run(&["serve", &demo_model()]);
    let mut run = 0;
    let examples = [
        ("chat.sh", "sh", "curl", "Sinew"),
        ("stream.py", "python3", "python3", "Sinew turns the machines"),
        ("schema.py", "python3", "python3", "'boat':"),
        ("agents.mjs", "node", "node", "Petrel"),
    ];
    for (file, program, needs, expected) in examples {
        if Command::new(needs).arg("--version").output().is_err() {
            eprintln!("{file} is not tried: there is no {needs}");
            continue;
        }
        let path = repository().join("examples").join(file);
        let output = Command::new(program)
            .arg(path)
            .env("SINEW_URL", &node.api)
            .env("NO_PROXY", "127.0.0.1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains(expected), "{file}: {said} {wrong}");
        run += 1;
    }
    assert!(run > 0, "there is neither curl nor python3 nor node");
}
