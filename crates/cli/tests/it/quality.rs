//! `sinew bench quality`, on the fixtures.

use crate::common::{fixture, refused, repository, stdout};
use serde_json::Value;

const CTX: [&str; 2] = ["-c", "64"];

/// The command on the shipped text.
fn command<'a>(model: &'a str, text: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "quality", "-m", model, "-f", text], options].concat()
}

fn text() -> String {
    repository().join("benches/quality.txt").to_string_lossy().into_owned()
}

fn measured(model: &str, options: &[&str]) -> Value {
    let options = [&CTX, &["-o", "json"], options].concat();
    serde_json::from_str(&stdout(&command(model, &text(), &options))).unwrap()
}

#[test]
fn every_split_gives_the_same_figures_and_agrees_with_its_base() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    let base = base.to_str().unwrap();
    for name in ["models/llama3-tied", "models/qwen35"] {
        let model = fixture(&format!("{name}.gguf"));
        let one = measured(&model, &["--chunks", "3", "--save-base", base]);
        assert_eq!((&one["chunks"], &one["scored_tokens"]), (&3.into(), &(3 * 31).into()));
        assert!(one["comparison"].is_null(), "{one}");
        for split in [
            &["--local-nodes", "2", "--strategy", "tensor", "--transport", "tcp"][..],
            &["--local-nodes", "2", "--strategy", "pipeline"],
        ] {
            let split = measured(&model, &[split, &["--base", base]].concat());
            assert_eq!(split["perplexity"], one["perplexity"], "{name}, {split}");
            assert_eq!(split["chunks"], 3, "as many as the base has");
            let comparison = &split["comparison"];
            assert_eq!(comparison["same_top"]["value"], 1.0, "{name}, {split}");
            assert!(comparison["kl_max"].as_f64().unwrap() < 1e-5, "{name}, {split}");
        }
        let cached = measured(&model, &["--base", base, "--cache-type", "q8_0"]);
        assert_eq!(cached["type_k"], "q8_0");
        assert!(cached["comparison"]["kl_mean"]["value"].as_f64().unwrap() > 1e-9, "{cached}");
    }
}

#[test]
fn a_table_is_for_people() {
    let model = fixture("models/llama3-tied.gguf");
    let table = stdout(&command(&model, &text(), &[&CTX[..], &["--chunks", "1"]].concat()));
    for part in ["| perplexity |", "| f32 | 1 | none | none | 31 |", " ± "] {
        assert!(table.contains(part), "{part} in {table}");
    }
}

#[test]
fn what_cannot_be_scored_or_compared_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (short, base, torn) = (path("short.txt"), path("base"), path("torn"));
    let nothing = path("nothing");
    let model = fixture("models/llama3-tied.gguf");
    measured(&model, &["--chunks", "2", "--save-base", &base]);
    let bytes = std::fs::read(&base).unwrap();
    std::fs::write(&torn, &bytes[..bytes.len() - 1]).unwrap();
    std::fs::write(&short, "a few words").unwrap();
    let base_is = |base| ["-c", "64", "--base", base];
    for (options, part) in [
        (&["-c", "3"][..], "--ctx must be"),
        (&["--chunks", "0"], "--chunks"),
        (&["-c", "32", "--base", &base], "--ctx 64"),
        (&base_is(&torn), "cut off"),
        (&base_is(&model), "no base"),
        (&base_is(&nothing), "nothing"),
    ] {
        let why = refused(&command(&model, &text(), options));
        assert!(why.contains(part), "{options:?}: {why}");
    }
    let license = repository().join("LICENSE").to_string_lossy().into_owned();
    for (text, part) in
        [(&short, "Take a longer text"), (&model, "cannot read"), (&license, "another text")]
    {
        let why = refused(&command(&model, text, &base_is(&base)));
        assert!(why.contains(part), "{text}: {why}");
    }
    let other = fixture("models/qwen35.gguf");
    let why = refused(&command(&other, &text(), &base_is(&base)));
    assert!(why.contains("a model with 512 tokens, and this one has 320"), "{why}");
}
