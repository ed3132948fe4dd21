//! Tokenizers of folders give the tokens of the reference.

use crate::unmake::{fixture, unmake};
use gguf::Source;
use serde_json::Value;
use text::{Special, Tokenizer};

#[test]
fn tokens_are_those_of_the_reference() {
    for name in ["qwen3", "llama3-tied", "llama-untied", "llama-spm", "mistral", "qwen2"] {
        let dir = tempfile::tempdir().unwrap();
        unmake(name, dir.path(), |tensor| vec![tensor]);
        let file = checkpoint::open(dir.path()).unwrap();
        let tokenizer = Tokenizer::from_gguf(file.directory()).unwrap();
        assert_eq!(tokenizer.warnings(), [] as [String; 0], "{name}");
        let text = std::fs::read(fixture(name, "json")).unwrap();
        let about: Value = serde_json::from_slice(&text).unwrap();
        let tests = about["tokenizer"]["tests"].as_array().unwrap();
        assert!(tests.len() > 3, "{name}");
        for test in tests {
            let text = test["text"].as_str().unwrap();
            let add_special = test["add_special"].as_bool().unwrap();
            let found = tokenizer.encode(text, Special::Parse, add_special);
            let wanted: Vec<u32> = serde_json::from_value(test["ref_ids"].clone()).unwrap();
            assert_eq!(found, wanted, "{name}: {text:?}");
        }
    }
}
