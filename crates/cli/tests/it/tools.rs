//! The tools for developers, on the fixtures.

use crate::common;
use crate::common::{fixture, refused, stdout};
use serde_json::Value;

fn ids(prompt: &Value) -> String {
    let ids = prompt["ids"].as_array().unwrap();
    ids.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn generate_and_logits_agree_with_the_reference() {
    for name in ["models/llama3-tied", "models/qwen3"] {
        let model = fixture(&format!("{name}.gguf"));
        let prompt = &fixtures::about(name)["prompts"][1];
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
    let tests = fixtures::about("models/qwen3")["tokenizer"]["tests"].clone();
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
fn show_says_what_nothing_reads_and_why_a_file_is_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let show = |model: &str| {
        let text = stdout(&["show", model, "--data-dir", data, "--json"]);
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let block = show(&fixture("models/qwen35-mtp.gguf"));
    assert!(block["not_read"].is_null() && block["has_mtp_block"] == true, "{block}");
    assert_eq!(block["layers"], 3, "without the block");
    // The last letter of a name in the file becomes another one.
    let show_with = |model: &str, name: &[u8], letter: u8| {
        let mut file = std::fs::read(fixture(model)).unwrap();
        let at = file.windows(name.len()).position(|part| part == name).unwrap();
        file[at + name.len() - 1] = letter;
        let path = dir.path().join("changed.gguf");
        std::fs::write(&path, file).unwrap();
        show(path.to_str().unwrap())
    };
    let shown = show_with("models/qwen35-mtp.gguf", b"nextn.eh_proj", b'k');
    assert!(shown["cannot_run"].is_null(), "{shown}");
    assert!(shown["not_read"].as_str().unwrap().contains("tensors of an MTP block"), "{shown}");
    assert!(show(&fixture("models/qwen3.gguf"))["not_read"].is_null());

    let shown = show_with("models/qwen3.gguf", b"qwen3", b'9');
    let why = shown["cannot_run"].as_str().unwrap();
    for part in
        ["\"qwen9\" do not run here", "nearest by name is \"qwen", "gpt-oss", "adding-a-model"]
    {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn bench_model_prints_a_row_for_each_test() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("m.gguf");
    let model = model.to_str().unwrap();
    stdout(&["dev", "synth", "--shape", "llama-150m", "--quant", "q8_0", "-o", model]);
    let args = ["bench", "model", "-m", model, "-p", "16,0", "-n", "4", "-d", "8,0", "-r", "2"];
    let table = stdout(&[&args[..], &["--read"]].concat());
    for part in
        ["| pp16 @ d8 |", "| tg4 @ d8 |", "| pp16 |", "loaded in", "a plain read", "| i16 | i16 |"]
    {
        assert!(table.contains(part), "{part} in {table}");
    }
    for nodes in ["1", "2"] {
        let json = stdout(&[&args[..], &["--local-nodes", nodes, "-o", "json"]].concat());
        let rows: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 4, "{json}");
        let first = &rows[0];
        let number = |name: &str| first[name].as_f64().unwrap();
        assert!(number("avg_ts") > 0.0 && number("n_depth") == 8.0, "{json}");
        assert_eq!(first["nodes"].to_string(), nodes);
        assert_eq!(first["samples_ns"].as_array().unwrap().len(), 2);
        holds_the_weights_once(first);
        let cached = |ty: &str| {
            let args = [&args[..], &["--local-nodes", nodes, "-o", "json"]].concat();
            let json = stdout(&[&args[..], &["--cache-type", ty]].concat());
            let rows: Value = serde_json::from_str(&json).unwrap();
            assert_eq!((&rows[0]["type_k"], &rows[0]["type_v"]), (&ty.into(), &ty.into()));
            rows[0]["load"]["kv_bytes"].as_u64().unwrap()
        };
        let ints = first["load"]["kv_bytes"].as_u64().unwrap();
        let (quantised, half) = (cached("q8_0"), cached("f16"));
        // Heads of 64: 128 bytes; the same and a scale; 64 bytes and two scales.
        assert_eq!((ints * 128, quantised * 128), (half * 132, half * 68));
    }
    assert!(refused(&["bench", "model", "-m", "/no/such/file"]).contains("/no/such/file"));
    assert!(refused(&["dev", "logits", "-m", model, "--tokens", "1", "-t", "1,2"]).contains("one"));
}

#[test]
fn bench_guesses_asks_questions_with_and_without_guesses() {
    let dir = tempfile::tempdir().unwrap();
    let questions = dir.path().join("questions.txt");
    let model = format!("{}/../../demo-model/sinew-demo.gguf", env!("CARGO_MANIFEST_DIR"));
    let path = questions.to_str().unwrap();
    let args = ["bench", "guesses", "-m", &model, "-q", path, "-n", "24", "-r", "1"];
    std::fs::write(&questions, "\n \n").unwrap();
    assert!(refused(&args).contains("has no question"));
    std::fs::write(&questions, "Who owns the blue boat?\n\nwhat is rdma\n").unwrap();
    for nodes in ["1", "2"] {
        let json = stdout(&[&args[..], &["--local-nodes", nodes, "-o", "json"]].concat());
        let rows: Vec<Value> = serde_json::from_str(&json).unwrap();
        let ways: Vec<&str> = rows.iter().map(|row| row["way"].as_str().unwrap()).collect();
        assert_eq!(ways, ["none", "lookup", "lookup and MTP block"]);
        assert_eq!((&rows[0]["tried"], &rows[0]["ratio"]), (&0.into(), &1.0.into()));
        let count = |name: &str| rows[2][name].as_u64().unwrap();
        // Its block knows what it says.
        assert!(count("tried") > 0 && 2 * count("right") > count("tried"), "{json}");
    }
}

#[test]
fn bench_splits_predicts_each_split_by_what_its_nodes_do_alone_and_together() {
    let model = fixture("models/llama3-tied.gguf");
    let args = ["bench", "splits", "-m", &model, "-p", "8", "-n", "2", "-r", "1"];
    let short = ["--link-latency", "0,300", "--parallel", "2", "-o", "json"];
    let rows: Value = serde_json::from_str(&stdout(&[&args[..], &short].concat())).unwrap();
    let rows = rows.as_array().unwrap();
    // One node, one node with all threads, and two splits at two latencies.
    assert_eq!(rows.len(), 6);
    for row in rows {
        let is_split = row["nodes"] == 2;
        for rates in [&row["measured"], &row["predicted"]] {
            let positive = |name: &str| rates[name].as_f64().is_some_and(|rate| rate > 0.0);
            let are_there = ["prefill", "decode", "parallel"].into_iter().all(positive);
            assert!(are_there || (rates.is_null() && !is_split), "{row}");
        }
        assert_eq!(row["whole"].is_array(), is_split, "{row}");
    }
}

#[test]
fn a_header_alone_is_no_model_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("header.gguf");
    let path = path.to_str().unwrap();
    stdout(&["dev", "synth", "--header", "--shape", "llama-150m", "--quant", "q4_0", "-o", path]);
    let why = refused(&["bench", "model", "-m", path]);
    assert!(why.contains("has no weights"), "{why}");
}

/// While it loads, a process holds its weights, its cache, and little else.
fn holds_the_weights_once(row: &Value) {
    const BESIDE_BYTES: f64 = (64 << 20) as f64;
    let load = &row["load"];
    // Only Linux reports it.
    let Some(peak) = load["peak_bytes"].as_f64() else { return };
    let kv = load["kv_bytes"].as_f64().unwrap() * row["nodes"].as_f64().unwrap();
    let allowed = 1.05 * row["model_size"].as_f64().unwrap() + kv + BESIDE_BYTES;
    assert!(peak < allowed, "{peak} bytes where {allowed} are allowed: {row}");
    assert!(peak > load["weight_bytes"].as_f64().unwrap(), "the weights are in memory: {row}");
}

#[test]
fn a_slow_link_makes_a_pipeline_unless_another_split_is_asked_for() {
    let model = fixture("models/llama3-tied.gguf");
    let args = ["bench", "model", "-m", &model, "-p", "0", "-n", "2", "-r", "1", "-o", "json"];
    // No machine reads so slowly that a token of this model takes as long as four such messages.
    let slow = ["--local-nodes", "2", "--link-latency", "20000"];
    for (wish, expected) in [(&[][..], "pipeline"), (&["--strategy", "tensor"], "tensor")] {
        let rows = stdout(&[&args[..], &slow, wish].concat());
        let rows: Value = serde_json::from_str(&rows).unwrap();
        let found = rows[0]["strategy"].as_str().unwrap();
        assert!(found.starts_with(expected), "{found} where {expected} was expected");
    }
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
    let two_of_three = ["--local-nodes", "3", "--addresses", "::1", "--addresses", "::1"];
    let why = refused(&[&["bench", "net"], &two_of_three[..]].concat());
    assert!(why.contains("1 or 3 are possible"), "{why}");
}
