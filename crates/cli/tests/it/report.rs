//! `sinew report`: what it has, and that no secret, prompt or address is in it.

use std::fs;

use crate::common::{Node, demo_model};

const PROMPT: &str = "canary-prompt of a petrel";

#[test]
fn a_report_has_what_helps_and_nothing_private() {
    let dir = tempfile::tempdir().unwrap();
    let home = tempfile::Builder::new().prefix("canary-home").tempdir().unwrap();
    let token = "hf_canaryTokenOfTheHub0123456789";
    let node = Node::start_with("studio", dir, "127.0.0.1:0", |command| {
        command.env("SINEW_LOG", "trace").env("HF_TOKEN", token);
    });
    node.run(&["serve", &demo_model()]);
    node.chat("sinew-demo", PROMPT, 4);
    node.run(&["preset", "create", "sailor", "--from", "sinew-demo", "--system", PROMPT]);
    let key = node.run(&["keys", "create", "laptop"]).trim().to_owned();
    let code = node.json(&["invite"])["code"].as_str().unwrap().to_owned();
    let admin = fs::read_to_string(node.dir.path().join("admin.token")).unwrap().trim().to_owned();
    // A log with what nobody should have written there.
    let log = node.dir.path().join("logs/sinew.log");
    let planted = [
        format!("2026-11-29T00:00:00Z  WARN hub: Authorization: Bearer {key}"),
        format!("2026-11-29T00:00:00Z  WARN hub: refused {token} from 203.0.113.9:443"),
        format!("2026-11-29T00:00:00Z ERROR cli: {admin} code={code} canary-error"),
        format!("2026-11-29T00:00:00Z ERROR cli: {}/models/x.gguf", home.path().display()),
        format!("2026-11-29T00:00:00Z DEBUG serve: {PROMPT}"),
    ];
    let mut text = fs::read_to_string(&log).unwrap_or_default();
    text.push_str(&planted.join("\n"));
    text.push('\n');
    fs::write(&log, text).unwrap();

    let report = home.path().join("report.txt");
    let output = std::process::Command::new(crate::common::SINEW)
        .args(["report", "-o", report.to_str().unwrap(), "--data-dir"])
        .arg(node.dir.path())
        .env("HOME", home.path())
        .env("HF_TOKEN", token)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&report).unwrap();
    for part in [
        "Read it first",
        "## Versions",
        env!("CARGO_PKG_VERSION"),
        "HF_TOKEN",
        "## What the doctor",
        "studio (this one): Live",
        "sinew-demo: Ready",
        "rank 0 on studio",
        "canary-error",
        "Bearer <secret>",
        "<address>:443",
        "~/models/x.gguf",
        "sinew-demo is ready",
    ] {
        assert!(text.contains(part), "the report lacks {part}: {text}");
    }
    let home = home.path().to_string_lossy().into_owned();
    for secret in [PROMPT, token, &key, &code, &admin, "203.0.113.9", &home] {
        assert!(!text.contains(secret), "{secret} is in the report: {text}");
    }
    // A second one does not replace the first; without a node there is one, too.
    let again = std::process::Command::new(crate::common::SINEW)
        .args(["report", "-o", report.to_str().unwrap(), "--data-dir"])
        .arg(node.dir.path())
        .output()
        .unwrap();
    assert!(!again.status.success() && fs::read_to_string(&report).unwrap() == text);
    let alone = tempfile::tempdir().unwrap();
    let alone =
        crate::common::stdout(&["report", "-o", "-", "--data-dir", alone.path().to_str().unwrap()]);
    assert!(alone.contains("## What the doctor finds"), "{alone}");
}
