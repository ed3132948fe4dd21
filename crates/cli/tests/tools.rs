//! The tools for developers, on the fixtures.

mod common;

use common::{fixture, refused, stdout};
use serde_json::Value;

fn reference(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).unwrap()).unwrap()
}

fn ids(prompt: &Value) -> String {
    let ids = prompt["ids"].as_array().unwrap();
    ids.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn generate_and_logits_agree_with_the_reference() {
    for name in ["models/llama3-tied", "models/qwen3"] {
        let model = fixture(&format!("{name}.gguf"));
        let prompt = &reference(&format!("{name}.json"))["prompts"][1];
        let tokens = ids(prompt);
        for nodes in ["1", "2", "3"] {
            let args = ["-m", &model, "--tokens", &tokens, "--local-nodes", nodes];
            let greedy = stdout(&[&["dev", "generate", "-n", "24"][..], &args].concat());
            let greedy: Value = serde_json::from_str(&greedy).unwrap();
            assert_eq!(greedy, prompt["hf"]["greedy"], "{name} on {nodes}");
            let logits = stdout(&[&["dev", "logits"][..], &args].concat());
            let logits: Vec<f32> = serde_json::from_str(&logits).unwrap();
            assert_eq!(logits.len(), prompt["hf"]["logits"].as_array().unwrap().len());
        }
    }
}

#[test]
fn tokenize_agrees_with_the_reference() {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let tests = reference("models/qwen3.json")["tokenizer"]["tests"].clone();
    let plain = tests.as_array().unwrap().iter().filter(|test| test["add_special"] == false);
    let mut count = 0;
    for test in plain.take(5) {
        let mut child = Command::new(common::SINEW)
            .args(["dev", "tokenize", "-m", &fixture("models/qwen3.gguf")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let text = test["text"].as_str().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found, test["ref_ids"], "{text:?}");
        count += 1;
    }
    assert!(count > 0, "the fixture has such tests");
}

#[test]
fn bench_model_prints_a_row_for_each_test() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("m.gguf");
    let model = model.to_str().unwrap();
    stdout(&["dev", "synth", "--shape", "llama-150m", "--quant", "q8_0", "-o", model]);
    let args = ["bench", "model", "-m", model, "-p", "16", "-n", "4", "-d", "8", "-r", "2"];
    let table = stdout(&args);
    assert!(table.contains("pp16 @ d8") && table.contains("tg4 @ d8"), "{table}");
    let json = stdout(&[&args[..], &["--local-nodes", "2", "-o", "json"]].concat());
    let rows: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{json}");
    assert!(rows[0]["mean"].as_f64().unwrap() > 0.0 && rows[0]["nodes"] == 2, "{json}");
    assert!(refused(&["bench", "model", "-m", "/no/such/file"]).contains("/no/such/file"));
}

#[test]
fn bench_net_checks_every_element_between_real_processes() {
    for transport in ["shm", "tcp"] {
        let sizes = ["-b", "1000", "-e", "70000", "-f", "8"];
        let args = ["bench", "net", "--local-nodes", "3", "--transport", transport, "-o", "json"];
        let report = stdout(&[&args[..], &sizes].concat());
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!((&report["transport"], &report["wrong"]), (&transport.into(), &0.into()));
        let rows = report["rows"].as_array().unwrap();
        // Three sizes of three collectives.
        assert_eq!(rows.len(), 9);
        assert!(rows.iter().all(|row| row["time_us_median"].as_f64().unwrap() > 0.0));
    }
    let why = refused(&["bench", "net", "--local-nodes", "1"]);
    assert!(why.contains("2 to 16 are possible"), "{why}");
}
