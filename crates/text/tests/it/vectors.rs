//! The token ids of published vocabularies and of the project's own models, compared with those of
//! the reference tokenizers.

use std::path::{Path, PathBuf};

use gguf::Directory;
use text::{Special, Tokenizer};

fn open(path: &Path) -> Directory {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Directory::parse(&bytes, bytes.len() as u64).unwrap()
}

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Encodes every text of `NAME.gguf.inp` and compares with the line of ids in `NAME.gguf.out`.
fn check_vocabulary(path: &Path) {
    let read = |end: &str| std::fs::read_to_string(format!("{}.{end}", path.display())).unwrap();
    let tokenizer = Tokenizer::from_gguf(&open(path)).unwrap();
    let (texts, ids) = (read("inp"), read("out"));
    // In most files a mark follows the last text too.
    let marked = texts.strip_suffix("\n__ggml_vocab_test__\n").unwrap_or(&texts);
    let texts: Vec<&str> = marked.split("\n__ggml_vocab_test__\n").collect();
    let lines: Vec<&str> = ids.lines().collect();
    assert_eq!(texts.len(), lines.len());
    for (text, line) in texts.iter().zip(lines) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        let found = tokenizer.encode(text, Special::Plain, false);
        assert_eq!(found, expected, "{}: {text:?}", path.display());
        assert_eq!(tokenizer.decode(&found), *text, "{}", path.display());
    }
}

#[test]
fn gpt2_vocabulary() {
    check_vocabulary(&folder("tests/it/vocab/ggml-vocab-gpt-2.gguf"));
}

/// Vocabularies that may not be shipped with the project, if they are present.
#[test]
fn other_vocabularies() {
    let Some(fixtures) = std::env::var_os("SINEW_FIXTURES") else {
        eprintln!("skipped: SINEW_FIXTURES names no folder with vocab/ggml-vocab-*.gguf");
        return;
    };
    let mut checked = 0;
    for entry in std::fs::read_dir(Path::new(&fixtures).join("vocab")).unwrap() {
        let path = entry.unwrap().path();
        let vectors = Path::new(&format!("{}.inp", path.display())).exists();
        if path.extension().is_some_and(|end| end == "gguf") && vectors {
            check_vocabulary(&path);
            checked += 1;
        }
    }
    assert!(checked > 0, "no vocabulary in {}", Path::new(&fixtures).display());
}

#[test]
fn model_fixtures() {
    let mut checked = 0;
    for name in ["models", "quant"].into_iter().flat_map(fixtures::names) {
        checked += check_model(&name);
    }
    assert!(checked > 500, "only {checked} texts");
}

/// Tokenizers of encoders write no text again: they drop accents and spaces.
#[test]
fn encoders() {
    let names = fixtures::names("encoders");
    let checked: usize = names.iter().map(|name| check_texts(name, false)).sum();
    assert!(checked > 300, "only {checked} texts");
    for name in names {
        let tokenizer = Tokenizer::from_gguf(&open(&fixtures::path(&format!("{name}.gguf"))));
        for pair in fixtures::about(&name)["tokenizer"]["pairs"].as_array().unwrap() {
            let texts: [String; 2] = serde_json::from_value(pair["texts"].clone()).unwrap();
            let texts = texts.each_ref().map(String::as_str);
            let expected: Vec<u32> = serde_json::from_value(pair["ref_ids"].clone()).unwrap();
            let (found, first) = tokenizer.as_ref().unwrap().encode_pair(texts, 99);
            assert_eq!(found, expected, "{name}: {texts:?}");
            let alone = tokenizer.as_ref().unwrap().encode(texts[0], Special::Plain, true);
            assert!(found.starts_with(&alone) && first >= alone.len(), "{name}: {texts:?}");
        }
    }
}

/// Runs the tokenizer tests in the JSON beside a model; returns their number.
fn check_model(name: &str) -> usize {
    check_texts(name, true)
}

/// `writes`: whether decoding gives the text again.
fn check_texts(name: &str, writes: bool) -> usize {
    let tokenizer = Tokenizer::from_gguf(&open(&fixtures::path(&format!("{name}.gguf")))).unwrap();
    assert!(tokenizer.warnings().is_empty(), "{name}: {:?}", tokenizer.warnings());
    let about = fixtures::about(name);
    let Some(tests) = about["tokenizer"]["tests"].as_array() else { return 0 };
    for test in tests {
        let text = test["text"].as_str().unwrap();
        let add_bos = test["add_special"].as_bool().unwrap();
        let expected: Vec<u32> = serde_json::from_value(test["ref_ids"].clone()).unwrap();
        let found = tokenizer.encode(text, Special::Plain, add_bos);
        assert_eq!(found, expected, "{name}: {text:?}");
        assert!(!writes || tokenizer.decode(&found) == text, "{name}: {text:?}");
    }
    tests.len()
}
